"""out = act(alpha · a b + beta · c + bias) · gate + residual on Hopper, for operands of 16 bits. Contract: rooftop/ops/matmul.py

Persistent and warp-specialised: a producer warp loads slices of a and b by TMA into a ring of stages; one or two consumer warp groups
multiply them with wgmma and store the result while the slices of the next tile are in flight (rooftop/kernels/gemm/_product_gluon.py). All
four transposes are read in place. A performance model chooses the tile (rooftop/kernels/gemm/_model.py): with few rows the operands are
swapped, so that the weights fill the 64 rows of an instruction; if tiles do not fill the multiprocessors, the slices of K are divided among
them (split-K or stream-K) and a second launch adds the pieces, in order."""

from __future__ import annotations

from dataclasses import asdict
from functools import lru_cache
from math import log

from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels.gemm import _product_launches
from rooftop.kernels.gemm._model import Config, Cut, Facts, candidates, seconds
from rooftop.kernels.gemm._product_launches import Product, explanation

__all__ = ["Config", "choose", "configs", "explains", "for_any_rows", "launches", "scratch", "supports"]

DEMANDS = {"has": ["HGMMA", "UTMALDG"]}
PARTS = (1, 2, 4)  # of K under `rooftop.invariant()`
DEEP, MOST = 1024, 1 << 13  # K of a part at least; columns times parts at most: each part of a result is 4 bytes of scratch memory
TRIED = 12  # configs that a search times: the model's best is rarely further back


def _product(p: Problem) -> Product:
    return Product(
        dict(p.tensors), p.device.sms, alpha=float(p.option("alpha")), beta=float(p.option("beta")), activation=str(p.option("activation"))
    )


def supports(p: Problem) -> str | None:
    if p["a"].dtype not in ("bf16", "f16"):
        return f"takes bf16 and f16; given {p['a'].dtype}"
    m, n, k, batch = _product(p).sizes
    if m * n * k * batch == 0:
        return "M, N, K and the batch must be at least 1"
    if max(m, n, k) >= 2**31 - 512 or m * n * batch >= 2**31 * 2048:
        return f"takes fewer than 2^31 rows and columns; given {m} x {n} x {k}"
    for name in ("a", "b"):
        if reason := _product_launches.readable(p[name]):
            return f"TMA does not read {name}: {reason}"
    for name in ("c", "gate", "residual", "out"):
        meta = p.get(name)
        if meta is not None and meta.strides[-1] != 1 and meta.shape[-1] > 1:
            return f"the elements of a row of {name} must be neighbours"
    return None


def choose(p: Problem) -> Config:
    return _product(p).ranked()[0]


def predicted(p: Problem) -> float:
    """Seconds of the config that it chooses."""
    product = _product(p)
    return product.seconds(product.ranked()[0])


def for_any_rows(p: Problem) -> Config:
    """How K is cut follows from N and K, the tile alone from the number of rows: a result is one chain of instructions along a part of K, and
    its parts are added in order. The tile decides which results a block has, not how one is summed."""
    product = _product(p)
    _, n, k, _ = product.sizes
    f = product.facts
    return min(_cutting(f, parts(n, k, f.itemsize, f.sms)), key=product.seconds)


@lru_cache(maxsize=256)
def parts(n: int, k: int, itemsize: int, sms: int) -> int:
    """Into how many parts of K every tile is cut: those with which the times are least on the geometric mean over 1 to 8192 rows. Tiles of
    any depth are cut at the same places of K."""
    facts = [Facts(1 << i, n, k, itemsize=itemsize, sms=sms) for i in range(14)]
    options = [c for c in PARTS if c == 1 or (k % (128 * c) == 0 and k >= DEEP * c and n * c <= MOST)]
    return min(options, key=lambda c: sum(log(min(seconds(x, f) for x in _cutting(f, c))) for f in facts))


def _cutting(facts: Facts, count: int) -> list[Config]:
    whole = [c for c in candidates(facts) if c.SPLIT == 1 and not c.STREAM]
    return whole if count == 1 else [Cut(**{**asdict(c), "SPLIT": count}) for c in whole]


def every(p: Problem) -> list[Config]:
    return _product(p).ranked()


def configs(p: Problem) -> list[Config]:
    return every(p)[:TRIED]


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    return _product_launches.scratch(_product(p), config)


def launches(p: Problem, config: Config) -> list[Launch]:
    return _product_launches.launches(_product(p), config, p.device.pdl)


def explains(p: Problem, config: Config) -> str:
    return explanation(_product(p), config)
