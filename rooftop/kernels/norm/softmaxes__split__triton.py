"""Softmax and its logarithm (LOG) of rows that are too long for a cluster, and their backwards dx = y (dy - sum_j dy_j y_j) and dx = dy -
e^y sum_j dy_j. Contracts: rooftop/ops/softmax.py, log_softmax.py; how rows are divided into tiles: rooftop/kernels/norm/_split_tiles.py

The first launch writes the maximum and the sum of each tile, or the sum of dy y or dy; the second combines those of a row (Milakov &
Gimelshein 2018). In the backward the terms of the sum cancel, and all of dx depends on it: for float32 results it is computed in
float64."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait, libdevice

from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels.norm import _split_tiles
from rooftop.kernels.norm._split_tiles import Config, located, places

OPS = ("softmax", "softmax_bwd", "log_softmax", "log_softmax_bwd")
# The identity of the maximum. -inf would give -inf - -inf = NaN where only a part of a row is -inf; with the lowest finite number such a
# part adds exp(-inf) = 0, and a row of only -inf ends as 0 / 0 = NaN, which is the contract.
LOWEST = tl.constexpr(-3.4028234663852886e38)
INF = tl.constexpr(float("inf"))


@triton.jit
def _exp(v, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    return libdevice.exp(v) if dtype == tl.float32 else tl.exp(v)


@triton.jit
def _pair(x, to, tile, shift, first, last, C, COLUMNS: tl.constexpr, SINGLES: tl.constexpr):  # type: ignore[no-untyped-def]
    at, inside = places(tile, shift, first, last, C, COLUMNS, SINGLES)
    v = tl.load(x + at, inside, other=-INF).to(tl.float32)
    m = tl.maximum(tl.max(v, 0), LOWEST)
    tl.store(to, m)
    tl.store(to + 1, tl.sum(_exp(v - m, x.dtype.element_ty), 0))


@triton.jit(do_not_specialize=["C", "xs", "tiles"])
def _statistics(  # type: ignore[no-untyped-def]
    x, found, C, xs, tiles, V: tl.constexpr, COLUMNS: tl.constexpr, SINGLES: tl.constexpr, PDL: tl.constexpr
):
    """found[row, tile] = maximum and sum of e^(x - maximum) of one tile. With SINGLES the last tile of a row holds its single elements."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    row, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    begin, shift, first, last = located(row, xs, C, V)
    to = found + 2 * tl.program_id(0).to(tl.int64)
    if SINGLES > 0 and tile == tiles - 1:
        _pair(x + begin, to, tile, shift, first, last, C, COLUMNS, SINGLES)
    else:
        _pair(x + begin, to, tile, shift, first, last, C, COLUMNS, 0)


@triton.jit
def _write(  # type: ignore[no-untyped-def]
    x, y, tile, shift, first, last, C, most, total, COLUMNS: tl.constexpr, SINGLES: tl.constexpr, LOG: tl.constexpr
):
    """e / total by 1 / total; for float32 a Newton step corrects the rounding error. With LOG `total` is the sum's logarithm."""
    at, inside = places(tile, shift, first, last, C, COLUMNS, SINGLES)
    v = tl.load(x + at, inside, other=0).to(tl.float32) - most
    if LOG:
        q = v - total
    else:
        e = _exp(v, y.dtype.element_ty)
        scale = tl.div_rn(1.0, total)
        q = e * scale
        if y.dtype.element_ty == tl.float32:
            q = tl.fma(tl.fma(-q, total, e), scale, q)
    tl.store(y + at, q.to(y.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["C", "xs", "ys", "tiles", "programs"])
def _apply(x, y, found, C, xs, ys, tiles, programs, V: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr, SINGLES: tl.constexpr,
           PDL: tl.constexpr, LOG: tl.constexpr = False):  # type: ignore[no-untyped-def]
    """The result of one tile; the last tiles come first."""
    if PDL:
        gdc_wait()
    at_once = programs - 1 - tl.program_id(0)
    row, tile = (at_once // tiles).to(tl.int64), at_once % tiles
    begin, shift, first, last = located(row, xs, C, V)
    to = (row * ys) // V * V
    k = tl.arange(0, TILES)
    maxima = tl.load(found + 2 * (row * tiles + k), k < tiles, other=LOWEST)
    sums = tl.load(found + 2 * (row * tiles + k) + 1, k < tiles, other=0)
    most = tl.max(maxima, 0)
    total = tl.sum(sums * _exp(maxima - most, y.dtype.element_ty), 0)
    if LOG:
        total = libdevice.log(total) if y.dtype.element_ty == tl.float32 else tl.log(total)
    if SINGLES > 0 and tile == tiles - 1:
        _write(x + begin, y + to, tile, shift, first, last, C, most, total, COLUMNS, SINGLES, LOG)
    else:
        _write(x + begin, y + to, tile, shift, first, last, C, most, total, COLUMNS, 0, LOG)


@triton.jit
def _sum(  # type: ignore[no-untyped-def]
    y, dy, to, tile, shift, first, last, C, COLUMNS: tl.constexpr, SINGLES: tl.constexpr, LOG: tl.constexpr
):
    at, inside = places(tile, shift, first, last, C, COLUMNS, SINGLES)
    v = tl.load(dy + at, inside, other=0).to(tl.float32)
    if not LOG:
        v = tl.load(y + at, inside, other=0).to(tl.float32) * v
    if y.dtype.element_ty == tl.float32:
        v = v.to(tl.float64)
    tl.store(to, tl.sum(v, 0))


@triton.jit(do_not_specialize=["C", "ys", "gs", "tiles"])
def _statistics_bwd(  # type: ignore[no-untyped-def]
    y, dy, found, C, ys, gs, tiles, V: tl.constexpr, COLUMNS: tl.constexpr, SINGLES: tl.constexpr, PDL: tl.constexpr,
    LOG: tl.constexpr = False
):
    """found[row, tile] = the sum of one tile. With SINGLES the last tile of a row holds its single elements."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    row, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    begin, shift, first, last = located(row, ys, C, V)
    dy += (row * gs) // V * V
    to = found + tl.program_id(0).to(tl.int64)
    if SINGLES > 0 and tile == tiles - 1:
        _sum(y + begin, dy, to, tile, shift, first, last, C, COLUMNS, SINGLES, LOG)
    else:
        _sum(y + begin, dy, to, tile, shift, first, last, C, COLUMNS, 0, LOG)


@triton.jit
def _write_bwd(  # type: ignore[no-untyped-def]
    y, dy, dx, tile, shift, first, last, C, total, COLUMNS: tl.constexpr, SINGLES: tl.constexpr, LOG: tl.constexpr
):
    at, inside = places(tile, shift, first, last, C, COLUMNS, SINGLES)
    if LOG:
        e = _exp(tl.load(y + at, inside, other=0).to(tl.float32), dx.dtype.element_ty)
        v = tl.load(dy + at, inside, other=0).to(tl.float32) - e * total
    else:
        v = tl.load(y + at, inside, other=0).to(tl.float32) * (tl.load(dy + at, inside, other=0).to(tl.float32) - total)
    tl.store(dx + at, v.to(dx.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["C", "ys", "gs", "xs", "tiles", "programs"])
def _apply_bwd(y, dy, dx, found, C, ys, gs, xs, tiles, programs, V: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr,
           SINGLES: tl.constexpr, PDL: tl.constexpr, LOG: tl.constexpr = False):  # type: ignore[no-untyped-def]
    """The result of one tile; the last tiles come first."""
    if PDL:
        gdc_wait()
    at_once = programs - 1 - tl.program_id(0)
    row, tile = (at_once // tiles).to(tl.int64), at_once % tiles
    begin, shift, first, last = located(row, ys, C, V)
    dy += (row * gs) // V * V
    dx += (row * xs) // V * V
    k = tl.arange(0, TILES)
    total = tl.sum(tl.load(found + row * tiles + k, k < tiles, other=0), 0).to(tl.float32)
    if SINGLES > 0 and tile == tiles - 1:
        _write_bwd(y + begin, dy, dx, tile, shift, first, last, C, total, COLUMNS, SINGLES, LOG)
    else:
        _write_bwd(y + begin, dy, dx, tile, shift, first, last, C, total, COLUMNS, 0, LOG)


def _is_backward(p: Problem) -> bool:
    return p.op.endswith("_bwd")


def _tensors(p: Problem) -> tuple[str, ...]:
    """What is read, then what is written."""
    return ("y", "dy", "dx") if _is_backward(p) else ("x", "y")


def supports(p: Problem) -> str | None:
    return _split_tiles.refuses(p, "y", _tensors(p))


def choose(p: Problem) -> Config:
    return _split_tiles.choose(p, "y", 32 if _is_backward(p) else 64)


def configs(p: Problem) -> list[Config]:
    return _split_tiles.configs(choose(p))


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    shape = (p["y"].shape[0], _split_tiles.tiles(p, "y", config))
    return {"found": Meta(shape, "f64" if p["y"].dtype == "f32" else "f32") if _is_backward(p) else Meta((*shape, 2), "f32")}


def launches(p: Problem, config: Config) -> list[Launch]:
    shared = _split_tiles.arguments(p, "y", config)
    *read, written = ((name, f"{'g' if name == 'dy' else name[-1]}s") for name in _tensors(p))
    shared |= {key: value for name, stride in read for key, value in ((name, name), (stride, p[name].strides[0]))}
    programs, chain, log = p["y"].shape[0] * shared["tiles"], p.device.pdl, {"LOG": True} if p.op.startswith("log_") else {}
    more = {written[0]: written[0], written[1]: p[written[0]].strides[0], "programs": programs, **log}
    more["TILES"] = _split_tiles.folded(shared["tiles"])
    statistics, apply = (_statistics_bwd, _apply_bwd) if _is_backward(p) else (_statistics, _apply)
    return [
        Launch(statistics, (programs,), {**shared, **(log if _is_backward(p) else {})}, config.warps, pdl=chain),
        Launch(apply, (programs,), {**shared, **more}, config.warps, pdl=chain),
    ]
