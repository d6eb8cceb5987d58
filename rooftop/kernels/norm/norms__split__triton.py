"""rms_norm and layer_norm (CENTRE) of rows too long for a cluster, and their backward: rows are divided into tiles (_split_tiles.py).

Forward: the means and sums of squares of the tiles, then the result. Backward: four statistics of each tile, combined to four of each row;
then blocks of columns are processed down the rows, so that dweight and dbias are summed in registers (`_slabs_bwd`): dy and s are read
twice, dx is written once, 5/3 of the fewest bytes."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from rooftop.core.spec import Launch, Meta, Problem, pow2
from rooftop.kernels._device.column_sums import column_sums
from rooftop.kernels.norm import _split_tiles
from rooftop.kernels.norm._split_tiles import Config, located, places
from rooftop.kernels.norm.norms__triton import affine, both, load, over, scale_of, wide_access

OPS = ("rms_norm", "layer_norm", "rms_norm_bwd", "layer_norm_bwd")


@triton.jit
def _elements(tile, tiles, first, last, C, COLUMNS: tl.constexpr, SINGLES: tl.constexpr):  # type: ignore[no-untyped-def]
    """The number of elements of a tile; of several at once if `tile` is a tensor. With SINGLES the last tile is that of the single
    elements."""
    whole = tl.maximum(tl.minimum(last, (tile + 1) * COLUMNS) - tl.maximum(first, tile * COLUMNS), 0)
    if SINGLES > 0:
        whole = tl.where(tile == tiles - 1, C - tl.maximum(last - first, 0), whole)
    return whole


@triton.jit
def _moments(v, inside, n, CENTRE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Mean (0 without CENTRE), distances from it up to its rounding error, and the sum of squares about it. The rounding error, which is
    the mean of the distances, is corrected (Chan, Golub & LeVeque 1983), so that equal elements give exactly 0."""
    if CENTRE:
        mean = over(tl.sum(v, 0), tl.maximum(n, 1))
        off = tl.where(inside, v - mean, 0)
        rest, squares = tl.reduce((off, off * off), 0, both)
        left = over(rest, tl.maximum(n, 1))
        return mean + left, off, tl.maximum(squares - rest * left, 0)
    return tl.full((), 0.0, tl.float32), v, tl.sum(v * v, 0)


@triton.jit
def _tile(  # type: ignore[no-untyped-def]
    x, r, s, to, tile, shift, first, last, C, n, COLUMNS: tl.constexpr, SINGLES: tl.constexpr, CENTRE: tl.constexpr
):
    at, inside = places(tile, shift, first, last, C, COLUMNS, SINGLES)
    v = load(x, at, inside)
    if r is not None:
        v = (v + load(r, at, inside)).to(s.dtype.element_ty)  # the rounded sum, which is returned, is normalised
        tl.store(s + at, v, inside)
        v = v.to(tl.float32)
    mean, _, squares = _moments(v, inside, n, CENTRE)
    tl.store(to, mean)
    tl.store(to + 1, squares)


@triton.jit(do_not_specialize=["R", "C", "xs", "rs", "ss", "tiles"])
def _statistics(x, r, s, found, R, C, xs, rs, ss, tiles, V: tl.constexpr, COLUMNS: tl.constexpr, SINGLES: tl.constexpr,
                CENTRE: tl.constexpr, PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """found[row, tile] = mean and sum of squares about it of one tile of x, or of s = x + r, which is stored too."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    # tile by tile over all rows, which then share the weight's tile in the L2
    row, tile = (tl.program_id(0) % R).to(tl.int64), tl.program_id(0) // R
    begin, shift, first, last = located(row, xs, C, V)
    if r is not None:
        r += (row * rs) // V * V
        s += (row * ss) // V * V
    to = found + 2 * (row * tiles + tile)
    n = _elements(tile, tiles, first, last, C, COLUMNS, SINGLES)
    if SINGLES > 0 and tile == tiles - 1:
        _tile(x + begin, r, s, to, tile, shift, first, last, C, n, COLUMNS, SINGLES, CENTRE)
    else:
        _tile(x + begin, r, s, to, tile, shift, first, last, C, n, COLUMNS, 0, CENTRE)


@triton.jit
def _write(  # type: ignore[no-untyped-def]
    v, w, b, y, tile, shift, first, last, C, mean, scale, COLUMNS: tl.constexpr, SINGLES: tl.constexpr
):
    at, inside = places(tile, shift, first, last, C, COLUMNS, SINGLES)
    n = affine((load(v, at, inside) - mean) * scale, w, b, at - shift, inside)
    tl.store(y + at, n.to(y.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["R", "C", "vs", "ys", "tiles", "programs"])
def _apply(found, v, w, b, y, R, C, vs, ys, eps, tiles, programs, V: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr,
           SINGLES: tl.constexpr, CENTRE: tl.constexpr, PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """The result of one tile, given the statistics of all tiles of its row; the last ones first."""
    if PDL:
        gdc_wait()
    at_once = programs - 1 - tl.program_id(0)
    row, tile = (at_once % R).to(tl.int64), at_once // R
    begin, shift, first, last = located(row, vs, C, V)
    k = tl.arange(0, TILES)
    squares = load(found, 2 * (row * tiles + k) + 1, k < tiles)
    mean = tl.full((), 0.0, tl.float32)
    if CENTRE:
        means = load(found, 2 * (row * tiles + k), k < tiles)
        n = tl.where(k < tiles, _elements(k, tiles, first, last, C, COLUMNS, SINGLES), 0).to(tl.float32)
        base = tl.load(found + 2 * row * tiles)  # means are summed as distances from one of them: exact if all elements are equal
        mean = base + over(tl.sum(n * (means - base), 0), C)
        off = tl.where(k < tiles, means - mean, 0)
        squares += n * off * off
    scale = scale_of(tl.sum(squares, 0), C, eps)
    y += (row * ys) // V * V
    if SINGLES > 0 and tile == tiles - 1:
        _write(v + begin, w, b, y, tile, shift, first, last, C, mean, scale, COLUMNS, SINGLES)
    else:
        _write(v + begin, w, b, y, tile, shift, first, last, C, mean, scale, COLUMNS, 0)


@triton.jit
def _tile_bwd(  # type: ignore[no-untyped-def]
    dy, s, w, to, tile, shift, first, last, C, n, COLUMNS: tl.constexpr, SINGLES: tl.constexpr, CENTRE: tl.constexpr
):
    at, inside = places(tile, shift, first, last, C, COLUMNS, SINGLES)
    v = load(s, at, inside)
    g = affine(load(dy, at, inside), w, None, at - shift, inside)
    mean, off, squares = _moments(v, inside, n, CENTRE)
    level = over(tl.sum(g, 0), tl.maximum(n, 1)) if CENTRE else mean
    tl.store(to, mean)
    tl.store(to + 1, squares)
    tl.store(to + 2, level)
    tl.store(to + 3, tl.sum(off * (g - level), 0) if CENTRE else tl.sum(off * g, 0))


@triton.jit(do_not_specialize=["R", "C", "gs", "ss", "tiles"])
def _statistics_bwd(dy, s, w, found, R, C, gs, ss, tiles, V: tl.constexpr, COLUMNS: tl.constexpr, SINGLES: tl.constexpr,
                    CENTRE: tl.constexpr, PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """found[row, tile] = mean of s, squares about it, mean of g = dy w, and the sum of products of the distances of both from their
    means."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    row, tile = (tl.program_id(0) % R).to(tl.int64), tl.program_id(0) // R
    begin, shift, first, last = located(row, ss, C, V)
    dy += (row * gs) // V * V
    to = found + 4 * (row * tiles + tile)
    n = _elements(tile, tiles, first, last, C, COLUMNS, SINGLES)
    if SINGLES > 0 and tile == tiles - 1:
        _tile_bwd(dy, s + begin, w, to, tile, shift, first, last, C, n, COLUMNS, SINGLES, CENTRE)
    else:
        _tile_bwd(dy, s + begin, w, to, tile, shift, first, last, C, n, COLUMNS, 0, CENTRE)


@triton.jit(do_not_specialize=["C", "ss", "tiles"])
def _fold_bwd(found, rows, C, ss, eps, tiles, V: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr, SINGLES: tl.constexpr,
              CENTRE: tl.constexpr, PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """rows[row] = mean, scale, mean of g n and mean of g (0 without CENTRE), the input of slabs."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    _, _, first, last = located(row, ss, C, V)
    k = tl.arange(0, TILES)
    there = k < tiles
    from_ = found + 4 * (row * tiles + k)
    mean, squares, level, products = load(from_, 0, there), load(from_, 1, there), load(from_, 2, there), load(from_, 3, there)
    if CENTRE:
        n = tl.where(there, _elements(k, tiles, first, last, C, COLUMNS, SINGLES), 0).to(tl.float32)
        base = tl.load(found + 4 * row * tiles)  # as in _apply
        middle = base + over(tl.sum(n * (mean - base), 0), C)
        off = tl.where(there, mean - middle, 0)
        squares += n * off * off
        products += n * off * level
        tl.store(rows + 4 * row, middle)
        tl.store(rows + 4 * row + 3, over(tl.sum(n * level, 0), C))
    else:
        tl.store(rows + 4 * row, 0.0)
        tl.store(rows + 4 * row + 3, 0.0)
    scale = scale_of(tl.sum(squares, 0), C, eps)
    tl.store(rows + 4 * row + 1, scale)
    tl.store(rows + 4 * row + 2, over(tl.sum(products, 0) * scale, C))


@triton.jit(do_not_specialize=["R"])
def _slabs_bwd(dy, ds, s, w, dx, pw, pb, found, R, C, dys, dss, ss, dxs, blocks, height,
               COLUMNS: tl.constexpr, LANES: tl.constexpr, PDL: tl.constexpr, FIRST: tl.constexpr):  # type: ignore[no-untyped-def]
    """COLUMNS columns of a slab of `height` rows; its parts of dweight and dbias are written to pw, pb[slab, C]. FIRST: another launch
    follows."""
    if PDL:
        gdc_wait()
        if FIRST:
            gdc_launch_dependents()
    slab = tl.program_id(0) // blocks
    column = (tl.program_id(0) % blocks) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    weight = tl.full((1, COLUMNS), 1.0, tl.float32)
    if w is not None:
        weight = load(w, column, column < C)
    sum_w = tl.zeros((LANES, COLUMNS), tl.float32)
    sum_b = tl.zeros((LANES, COLUMNS), tl.float32)
    for k in range(height // LANES):
        row = slab.to(tl.int64) * height + k * LANES + tl.arange(0, LANES)[:, None]
        inside = (row < R) & (column < C)
        mean = load(found, 4 * row, row < R)
        scale = load(found, 4 * row + 1, row < R)
        n = (load(s, row * ss + column, inside) - mean) * scale
        g = load(dy, row * dys + column, inside)
        if pb is not None:
            sum_b += g
        if pw is not None:
            sum_w += tl.where(inside, g * n, 0)
        d = scale * (g * weight - n * load(found, 4 * row + 2, row < R) - load(found, 4 * row + 3, row < R))
        if ds is not None:
            d += load(ds, row * dss + column, inside)
        tl.store(dx + row * dxs + column, d.to(dx.dtype.element_ty), inside)
    at = slab.to(tl.int64) * C + (tl.program_id(0) % blocks) * COLUMNS + tl.arange(0, COLUMNS)
    kept = (tl.program_id(0) % blocks) * COLUMNS + tl.arange(0, COLUMNS) < C
    if pw is not None:
        tl.store(pw + at, tl.sum(sum_w, 0), kept)
    if pb is not None:
        tl.store(pb + at, tl.sum(sum_b, 0), kept)


def _is_backward(p: Problem) -> bool:
    return p.op.endswith("_bwd")


def _row(p: Problem) -> str:
    """The tensor whose rows are divided."""
    return "s" if _is_backward(p) else "x"


def supports(p: Problem) -> str | None:
    if p.extra:
        return "takes no addend"
    return _split_tiles.refuses(p, _row(p), ("s", "dy") if _is_backward(p) else ("x", "residual", "y", "s"))


def choose(p: Problem) -> Config:
    return _split_tiles.choose(p, _row(p), 32 if _is_backward(p) else 64)


def configs(p: Problem) -> list[Config]:
    return _split_tiles.configs(choose(p))


def _slab(p: Problem) -> tuple[int, int, int, int]:
    """Columns and rows at a time, warps, and rows of a slab: all rows if there are enough columns for the whole card."""
    rows, columns = p["s"].shape
    wide, lanes = (1024, 4) if wide_access(p) else (512, 2)
    return wide, lanes, 4, max(8, min(128, pow2(rows * -(-columns // wide) // (8 * p.device.sms))))


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    rows, columns = p[_row(p)].shape
    tiles = _split_tiles.tiles(p, _row(p), config)
    if not _is_backward(p):
        return {"found": Meta((rows, tiles, 2), "f32")}
    partial = Meta((-(-rows // _slab(p)[3]), columns), "f32")
    found = {"found": Meta((rows, tiles, 4), "f32"), "rows": Meta((rows, 4), "f32")}
    return found | {name: partial for name, of in (("pw", "dweight"), ("pb", "dbias")) if p.get(of) is not None}


def _strides(p: Problem, **tensors: str) -> dict[str, int]:
    """Of the rows; 0 of an absent tensor."""
    return {f"{short}s": m.strides[0] if (m := p.get(name)) is not None else 0 for short, name in tensors.items()}


def launches(p: Problem, config: Config) -> list[Launch]:
    return (_backward if _is_backward(p) else _forward)(p, config)


def _forward(p: Problem, config: Config) -> list[Launch]:
    shared, source, chain = _split_tiles.arguments(p, "x", config), "x" if p.get("residual") is None else "s", p.device.pdl
    rows, tiles = p["x"].shape[0], shared["tiles"]
    grid = (rows * tiles,)
    first = {**shared, "R": rows, "x": "x", "r": "residual", "s": "s", **_strides(p, x="x", r="residual", s="s")}
    first["CENTRE"] = p.op == "layer_norm"
    second = {**shared, "R": rows, "v": source, "w": "weight", "b": "bias", "y": "y", **_strides(p, v=source, y="y")}
    second |= {"eps": float(p.option("eps")), "programs": grid[0], "TILES": _split_tiles.folded(tiles), "CENTRE": first["CENTRE"]}
    return [Launch(_statistics, grid, first, config.warps, pdl=chain), Launch(_apply, grid, second, config.warps, pdl=chain)]


def _backward(p: Problem, config: Config) -> list[Launch]:
    rows, columns = p["s"].shape
    made, shared, chain = scratch(p, config), _split_tiles.arguments(p, "s", config), p.device.pdl
    wide, lanes, warps, height = _slab(p)
    strides, centre = _strides(p, dy="dy", ds="ds", s="s", dx="dx"), p.op == "layer_norm_bwd"
    first = {**shared, "R": rows, "dy": "dy", "s": "s", "w": "weight", "gs": strides["dys"], "ss": strides["ss"], "CENTRE": centre}
    fold = {**shared, "rows": "rows", "ss": strides["ss"], "eps": float(p.option("eps")), "TILES": _split_tiles.folded(shared["tiles"])}
    fold["CENTRE"] = centre
    sums = [(parts, to) for parts, to in (("pw", "dweight"), ("pb", "dbias")) if parts in made]
    slabs, blocks = -(-rows // height), -(-columns // wide)
    last = {
        "dy": "dy", "ds": "ds", "s": "s", "w": "weight", "dx": "dx", **{name: name if name in made else None for name in ("pw", "pb")},
        "found": "rows", "R": rows, "C": columns, **strides, "blocks": blocks, "height": height, "COLUMNS": wide, "LANES": lanes,
        "PDL": chain, "FIRST": bool(sums),
    }
    found = [
        Launch(_statistics_bwd, (rows * shared["tiles"],), first, config.warps, pdl=chain),
        Launch(_fold_bwd, (rows,), fold, 4, pdl=chain),
        Launch(_slabs_bwd, (blocks * slabs,), last, warps, pdl=chain),
    ]
    return found + column_sums(sums, slabs, columns, p.device)
