"""dx = y (dy - sum_j dy_j y_j) of rows that are too long for a cluster. Contract: rooftop/ops/softmax.py; how rows are divided into tiles:
rooftop/kernels/norm/_split_tiles.py

The terms of the sum cancel, and all of dx depends on it: for float32 results it is computed in float64."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels.norm import _split_tiles
from rooftop.kernels.norm._split_tiles import Config, located, places

CLUSTER = 900000  # bytes: the longest row that a cluster supports


@triton.jit
def _sum(y, dy, to, tile, shift, first, last, C, COLUMNS: tl.constexpr, SINGLES: tl.constexpr):  # type: ignore[no-untyped-def]
    at, inside = places(tile, shift, first, last, C, COLUMNS, SINGLES)
    v = tl.load(y + at, inside, other=0).to(tl.float32) * tl.load(dy + at, inside, other=0).to(tl.float32)
    if y.dtype.element_ty == tl.float32:
        v = v.to(tl.float64)
    tl.store(to, tl.sum(v, 0))


@triton.jit(do_not_specialize=["C", "ys", "gs", "tiles"])
def _statistics(  # type: ignore[no-untyped-def]
    y, dy, found, C, ys, gs, tiles, V: tl.constexpr, COLUMNS: tl.constexpr, SINGLES: tl.constexpr, CHAINED: tl.constexpr
):
    """found[row, tile] = the sum of one tile. With SINGLES the last tile of a row holds its single elements."""
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    row, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    begin, shift, first, last = located(row, ys, C, V)
    dy += (row * gs) // V * V
    to = found + tl.program_id(0).to(tl.int64)
    if SINGLES > 0 and tile == tiles - 1:
        _sum(y + begin, dy, to, tile, shift, first, last, C, COLUMNS, SINGLES)
    else:
        _sum(y + begin, dy, to, tile, shift, first, last, C, COLUMNS, 0)


@triton.jit
def _write(y, dy, dx, tile, shift, first, last, C, total, COLUMNS: tl.constexpr, SINGLES: tl.constexpr):  # type: ignore[no-untyped-def]
    at, inside = places(tile, shift, first, last, C, COLUMNS, SINGLES)
    v = tl.load(y + at, inside, other=0).to(tl.float32) * (tl.load(dy + at, inside, other=0).to(tl.float32) - total)
    tl.store(dx + at, v.to(dx.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["C", "ys", "gs", "xs", "tiles", "programs"])
def _apply(y, dy, dx, found, C, ys, gs, xs, tiles, programs, V: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr,
           SINGLES: tl.constexpr,
           CHAINED: tl.constexpr):  # type: ignore[no-untyped-def]
    """The result of one tile; the last tiles come first."""
    if CHAINED:
        gdc_wait()
    at_once = programs - 1 - tl.program_id(0)
    row, tile = (at_once // tiles).to(tl.int64), at_once % tiles
    begin, shift, first, last = located(row, ys, C, V)
    dy += (row * gs) // V * V
    dx += (row * xs) // V * V
    k = tl.arange(0, TILES)
    total = tl.sum(tl.load(found + row * tiles + k, k < tiles, other=0), 0).to(tl.float32)
    if SINGLES > 0 and tile == tiles - 1:
        _write(y + begin, dy, dx, tile, shift, first, last, C, total, COLUMNS, SINGLES)
    else:
        _write(y + begin, dy, dx, tile, shift, first, last, C, total, COLUMNS, 0)


def supports(p: Problem) -> str | None:
    return _split_tiles.refuses(p, "y", ("y", "dy", "dx"))


def choose(p: Problem) -> Config:
    return _split_tiles.choose(p, "y", 32)


def configs(p: Problem) -> list[Config]:
    return _split_tiles.configs(choose(p))


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    y = p["y"]
    return {"found": Meta((y.shape[0], _split_tiles.tiles(p, "y", config)), "f64" if y.dtype == "f32" else "f32")}


def launches(p: Problem, config: Config) -> list[Launch]:
    y = p["y"]
    tiles, chain = _split_tiles.tiles(p, "y", config), p.device.pdl
    grid = (y.shape[0] * tiles,)
    shared = {"y": "y", "dy": "dy", "found": "found", "C": y.shape[1], "ys": y.strides[0], "gs": p["dy"].strides[0], "tiles": tiles}
    shared |= {
        "V": _split_tiles.vector(y), "COLUMNS": config.columns, "SINGLES": _split_tiles.SINGLES if config.singles else 0, "CHAINED": chain
    }
    more = {"dx": "dx", "xs": p["dx"].strides[0], "programs": grid[0], "TILES": _split_tiles.folded(tiles)}
    return [
        Launch(_statistics, grid, shared, config.warps, chained=chain),
        Launch(_apply, grid, {**shared, **more}, config.warps, chained=chain),
    ]
