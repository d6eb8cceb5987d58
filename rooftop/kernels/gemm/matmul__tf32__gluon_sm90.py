"""float32 operands multiplied as TF32 on Hopper, with the kernel of the 16-bit products. Contract: rooftop/ops/matmul.py

Tensor cores read ten bits of the fraction from shared memory and ignore the rest, so TMA rounds float32 to TF32 as it copies. wgmma reads
32-bit operands only along K: rows of a and columns of b must be contiguous in memory, with strides that are a multiple of 16 bytes. An
operand with another layout is first copied (rooftop/kernels/gemm/_product_launches.py): 8 bytes of device memory per element, at 4096³ 128
MiB or about 32 µs, next to 350 µs of products."""

from __future__ import annotations

from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels.gemm import _product_launches
from rooftop.kernels.gemm._model import Config
from rooftop.kernels.gemm._product_launches import Product, explanation

__all__ = ["Config", "choose", "configs", "explains", "for_any_rows", "launches", "scratch", "supports"]

DEMANDS = {"has": ["HGMMA", "UTMALDG"]}
TRIED = 12
FEW = 64  # rows or columns; with fewer, a copy moves more bytes than the product


def _batch(p: Problem) -> int:
    return p["a"].shape[0] if len(p["a"].shape) == 3 else 1


def copied(p: Problem) -> tuple[str, ...]:
    """Operands that wgmma cannot read in place."""
    a, b = p["a"], p["b"]
    a_along = _product_launches.readable(a) is None and (a.strides[-1] == 1 or a.shape[-1] == 1) and not _product_launches.turned(a)
    b_along = _product_launches.readable(b) is None and (b.strides[-2] == 1 or b.shape[-2] == 1) and _product_launches.turned(b)
    return tuple(name for name, along in (("a", a_along), ("b", b_along)) if not along)


def _product(p: Problem) -> Product:
    return Product(
        sms=p.device.sms, alpha=float(p.option("alpha")), beta=float(p.option("beta")), activation=str(p.option("activation")),
        **_product_launches.read_as(p, copied(p)),
    )


def supports(p: Problem) -> str | None:
    if p["a"].dtype != "f32" or p.option("precision") != "tf32":
        return "takes float32 with the precision tf32"
    m, n, k = p["a"].shape[-2], p["b"].shape[-1], p["a"].shape[-1]
    if m * n * k * _batch(p) == 0:
        return "M, N, K and the batch must be at least 1"
    if k < 4 or max(m, n) < 4:
        return f"TMA reads 16 bytes at least; given {m} x {n} x {k}"
    if max(m, n, k) >= 2**31 - 512 or m * n * _batch(p) >= 2**31 * 2048 or _batch(p) >= 2**15:
        return f"takes fewer than 2^31 rows and columns and 2^15 matrices; given {_batch(p)} of {m} x {n} x {k}"
    for name in ("c", "gate", "residual", "out"):
        meta = p.get(name)
        if meta is not None and meta.strides[-1] != 1 and meta.shape[-1] > 1:
            return f"the elements of a row of {name} must be neighbours"
    return None


def choose(p: Problem) -> Config:
    return _product(p).ranked()[0]


def for_any_rows(p: Problem) -> Config:
    """One chain along all of K, whatever the tile."""
    return next(c for c in _product(p).ranked() if c.SPLIT == 1 and not c.STREAM)


def configs(p: Problem) -> list[Config]:
    return _product(p).ranked()[:TRIED]


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    return {**_product_launches.copies(p, copied(p)), **_product_launches.scratch(_product(p), config)}


def launches(p: Problem, config: Config) -> list[Launch]:
    return [*_product_launches.copying(p, copied(p)), *_product_launches.launches(_product(p), config, p.device.pdl)]


def explains(p: Problem, config: Config) -> str:
    return explanation(_product(p), config)
