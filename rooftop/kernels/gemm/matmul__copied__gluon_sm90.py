"""Operands of 16 bits that TMA cannot read in place: copied first, then multiplied by the Hopper kernel. Contract: rooftop/ops/matmul.py

TMA requires rows aligned to 16 bytes; an odd K, an odd leading dimension or an unaligned address has none. Such an operand is copied into
aligned rows along K (rooftop/kernels/gemm/_product_launches.py): 4 bytes of device memory per element and a launch. The product then runs
at the rate of matmul__gluon_sm90.py; loads of 2 bytes by threads would halve it. With few rows on the other side the copy moves more than
the product
reads: matmul__triton.py computes those."""

from __future__ import annotations

from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels.gemm import _product_launches
from rooftop.kernels.gemm._model import Config
from rooftop.kernels.gemm._product_launches import Product, explanation

__all__ = ["Config", "choose", "configs", "explains", "for_any_rows", "launches", "scratch", "seconds", "supports"]

DEMANDS = {"has": ["HGMMA", "UTMALDG"]}
TRIED = 12


def _batch(p: Problem) -> int:
    return p["a"].shape[0] if len(p["a"].shape) == 3 else 1


def _copied(p: Problem) -> tuple[str, ...]:
    return tuple(name for name in ("a", "b") if _product_launches.readable(p[name]) is not None)


def _product(p: Problem) -> Product:
    return Product(
        sms=p.device.sms, alpha=float(p.option("alpha")), beta=float(p.option("beta")), activation=str(p.option("activation")),
        **_product_launches.read_as(p, _copied(p)),
    )


def supports(p: Problem) -> str | None:
    if p["a"].dtype not in ("bf16", "f16"):
        return f"takes bf16 and f16; given {p['a'].dtype}"
    m, n, k = p["a"].shape[-2], p["b"].shape[-1], p["a"].shape[-1]
    if m * n * k * _batch(p) == 0:
        return "M, N, K and the batch must be at least 1"
    if not _copied(p):
        return "TMA reads both operands where they lie: matmul__gluon_sm90 takes them"
    if max(m, n, k) >= 2**31 - 512 or m * n * _batch(p) >= 2**31 * 2048 or _batch(p) >= 2**15:
        return f"takes fewer than 2^31 rows and columns and 2^15 matrices; given {_batch(p)} of {m} x {n} x {k}"
    for name in ("c", "gate", "residual", "out"):
        meta = p.get(name)
        if meta is not None and meta.strides[-1] != 1 and meta.shape[-1] > 1:
            return f"the elements of a row of {name} must be neighbours"
    return None


def seconds(p: Problem) -> float:
    """Predicted time of the copies and the product."""
    return _product_launches.copying_seconds(p, _copied(p)) + _product(p).seconds(choose(p))


def choose(p: Problem) -> Config:
    return _product(p).ranked()[0]


def for_any_rows(p: Problem) -> Config:
    """One chain along all of K, whatever the tile."""
    return next(c for c in _product(p).ranked() if c.SPLIT == 1 and not c.STREAM)


def every(p: Problem) -> list[Config]:
    return _product(p).ranked()


def configs(p: Problem) -> list[Config]:
    return every(p)[:TRIED]


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    return {**_product_launches.copies(p, _copied(p)), **_product_launches.scratch(_product(p), config)}


def launches(p: Problem, config: Config) -> list[Launch]:
    return [*_product_launches.copying(p, _copied(p)), *_product_launches.launches(_product(p), config, p.device.pdl)]


def explains(p: Problem, config: Config) -> str:
    copied, us = " and ".join(_copied(p)), _product_launches.copying_seconds(p, _copied(p)) * 1e6
    return f"TMA does not read {copied} where it lies: copied first, predicted {us:.1f} µs; {explanation(_product(p), config)}"
