"""Normalisation of rows in Triton: the kernels and choices of rms_norm and layer_norm, which differ in CENTRE alone.

Forward, bytes: x (and the residual) read once, y (and the sum) written once; the weight comes from the L2. Three ways:
    tile   a program holds whole rows in registers: the floor.
    loop   a program takes one long row in pieces, twice: for the statistics, then from the end backwards for the result, so that what was
           read last and still lies in the L2 is read first. 1.5 times the floor from memory, less what the L2 still holds.
    split  `parts` programs share a row: one launch leaves their statistics, a second folds them and normalises. For few, long rows.
Prediction: tile to 32768 columns; above, loop from two rows a multiprocessor on, else split; both behind a cluster that reads once.

Backward, bytes: dy and s read once, dx written once; the statistics are taken anew, which costs no byte. dweight and dbias: each program
adds its rows in float32 in a fixed order and leaves one partial row; a last launch adds the partial rows in a fixed order. No atomics: the
same bits every time. Partial rows are programs / rows · 2 of the traffic, under 2 %. Two ways:
    tile   a program walks over rows that it holds whole, with its partial row in registers: the floor.
    slabs  one launch leaves four statistics a row; a second takes blocks of columns down slabs of rows. 5/3 of the floor.
Prediction: tile with its loads one row ahead (stages 2) to 8192 columns, without to 16384; slabs above, at 0.6."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from rooftop.lab.spec import Launch, Meta, Problem

# -- device code -----------------------------------------------------------------------------------------------------


@triton.jit
def _wide(pointer, at, inside):  # type: ignore[no-untyped-def]
    return tl.load(pointer + at, inside, other=0).to(tl.float32)


@triton.jit
def _over(v, n):  # type: ignore[no-untyped-def]
    """v / n, correctly rounded, of a whole number n (a plain number where Triton compiles a 1 in)."""
    return tl.div_rn(v, tl.full((), n, tl.float32))


@triton.jit
def _seen(columns, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """How many of `columns` columns, COLUMNS at a time, each position has met."""
    return tl.maximum((columns - tl.arange(0, COLUMNS) + COLUMNS - 1) // COLUMNS, 0).to(tl.float32)


@triton.jit
def _scale(squares, count, eps):  # type: ignore[no-untyped-def]
    """1 / sqrt(squares / count + eps), correctly rounded in each step: all of a row hangs on it."""
    return tl.div_rn(1.0, tl.sqrt_rn(_over(squares, count) + eps))


@triton.jit
def _affine(v, w, b, column, inside):  # type: ignore[no-untyped-def]
    if w is not None:
        v *= _wide(w, column, inside)
    if b is not None:
        v += _wide(b, column, inside)
    return v


@triton.jit
def _tile(x, r, w, b, y, s, R, C, xs, rs, ys, ss, eps, CENTRE: tl.constexpr, COLUMNS: tl.constexpr, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    """LANES whole rows. Row strides of x, r, y, s in elements; r and s, w, b may be absent."""
    row = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    inside = (row < R) & (column < C)
    v = _wide(x, row * xs + column, inside)
    if r is not None:
        v = (v + _wide(r, row * rs + column, inside)).to(s.dtype.element_ty)  # what is normalised is what is returned
        tl.store(s + row * ss + column, v, inside)
        v = v.to(tl.float32)
    if CENTRE:
        mean = _over(tl.sum(v, 1, keep_dims=True), C)
        v = tl.where(inside, v - mean, 0)
    v = v * _scale(tl.sum(v * v, 1, keep_dims=True), C, eps)
    tl.store(y + row * ys + column, _affine(v, w, b, column, column < C).to(y.dtype.element_ty), inside)


@triton.jit
def _statistics(x, r, s, first, rounds, last, CENTRE: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Mean (0 without CENTRE) and sum of squares about it over the columns from `first` to `last` of one row; writes x + r to s.

    With CENTRE each position keeps a mean of its own (Welford 1962); they are folded at the end (Chan et al. 1979)."""
    mean = tl.zeros((COLUMNS,), tl.float32)
    squares = tl.zeros((COLUMNS,), tl.float32)
    for k in range(rounds):
        column = first + k * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < last
        v = _wide(x, column, inside)
        if r is not None:
            v = (v + _wide(r, column, inside)).to(s.dtype.element_ty)
            tl.store(s + column, v, inside)
            v = v.to(tl.float32)
        if CENTRE:
            off = tl.where(inside, v - mean, 0)
            mean += off * _over(1.0, k + 1)
            squares += off * tl.where(inside, v - mean, 0)
        else:
            squares += v * v
    if CENTRE:
        count = _seen(last - first, COLUMNS)
        total = _over(tl.sum(count * mean, 0), last - first)
        off = mean - total
        return total, tl.sum(squares + count * off * off, 0)
    return tl.sum(squares, 0) * 0, tl.sum(squares, 0)


@triton.jit
def _apply(v, w, b, y, first, rounds, last, mean, scale, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """One row's result, last piece first."""
    for k in range(rounds):
        column = first + (rounds - 1 - k) * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < last
        n = (_wide(v, column, inside) - mean) * scale
        tl.store(y + column, _affine(n, w, b, column, inside).to(y.dtype.element_ty), inside)


@triton.jit
def _loop(x, r, w, b, y, s, C, xs, rs, ys, ss, eps, rounds, CENTRE: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """One row, COLUMNS columns at a time, in `rounds` rounds, twice."""
    row = tl.program_id(0).to(tl.int64)
    x += row * xs
    if r is not None:
        r += row * rs
        s += row * ss
    mean, squares = _statistics(x, r, s, 0, rounds, C, CENTRE, COLUMNS)
    scale = _scale(squares, C, eps)
    if r is not None:
        tl.debug_barrier()  # s is read back
        _apply(s, w, b, y + row * ys, 0, rounds, C, mean, scale, COLUMNS)
    else:
        _apply(x, w, b, y + row * ys, 0, rounds, C, mean, scale, COLUMNS)


@triton.jit
def _part(x, r, s, found, C, xs, rs, ss, parts, width, rounds, CENTRE: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The statistics of one part, `width` columns, of a row -> found[row, part, 2]."""
    row, part = (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts
    x += row * xs
    if r is not None:
        r += row * rs
        s += row * ss
    first = part * width
    mean, squares = _statistics(x, r, s, first, rounds, tl.minimum(first + width, C), CENTRE, COLUMNS)
    tl.store(found + 2 * tl.program_id(0).to(tl.int64), mean)
    tl.store(found + 2 * tl.program_id(0).to(tl.int64) + 1, squares)


@triton.jit
def _fold(found, v, w, b, y, C, vs, ys, eps, parts, width, rounds, COLUMNS: tl.constexpr, PARTS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The result of one part of a row, given the statistics of all its parts."""
    row, part = (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts
    at = tl.arange(0, PARTS)
    means = _wide(found, 2 * (row * parts + at), at < parts)
    squares = _wide(found, 2 * (row * parts + at) + 1, at < parts)
    count = tl.where(at < parts, tl.minimum(width, C - at * width), 0).to(tl.float32)
    mean = _over(tl.sum(count * means, 0), C)
    off = tl.where(at < parts, means - mean, 0)
    scale = _scale(tl.sum(squares + count * off * off, 0), C, eps)
    first = part * width
    _apply(v + row * vs, w, b, y + row * ys, first, rounds, tl.minimum(first + width, C), mean, scale, COLUMNS)


@triton.jit
def _tile_bwd(dy, ds, s, w, dx, pw, pb, R, C, dys, dss, ss, dxs, eps, blocks, programs,
              CENTRE: tl.constexpr, COLUMNS: tl.constexpr, LANES: tl.constexpr, STAGES: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """Blocks of LANES whole rows, `programs` apart; this program's parts of dweight and dbias -> pw, pb[program, C]."""
    column = tl.arange(0, COLUMNS)[None, :]
    sum_w = tl.zeros((LANES, COLUMNS), tl.float32)
    sum_b = tl.zeros((LANES, COLUMNS), tl.float32)
    for block in tl.range(tl.program_id(0), blocks, programs, num_stages=STAGES):
        row = block.to(tl.int64) * LANES + tl.arange(0, LANES)[:, None]
        inside = (row < R) & (column < C)
        v = _wide(s, row * ss + column, inside)
        g = _wide(dy, row * dys + column, inside)
        if CENTRE:
            v = tl.where(inside, v - _over(tl.sum(v, 1, keep_dims=True), C), 0)
        scale = _scale(tl.sum(v * v, 1, keep_dims=True), C, eps)
        n = v * scale
        if pb is not None:
            sum_b += g
        if pw is not None:
            sum_w += g * n
        g = _affine(g, w, None, column, column < C)
        d = g - n * _over(tl.sum(g * n, 1, keep_dims=True), C)
        if CENTRE:
            d -= _over(tl.sum(g, 1, keep_dims=True), C)
        d *= scale
        if ds is not None:
            d += _wide(ds, row * dss + column, inside)
        tl.store(dx + row * dxs + column, d.to(dx.dtype.element_ty), inside)
    at = tl.program_id(0).to(tl.int64) * C + tl.arange(0, COLUMNS)
    if pw is not None:
        tl.store(pw + at, tl.sum(sum_w, 0), tl.arange(0, COLUMNS) < C)
    if pb is not None:
        tl.store(pb + at, tl.sum(sum_b, 0), tl.arange(0, COLUMNS) < C)


@triton.jit
def _rows_bwd(dy, s, w, found, C, dys, ss, eps, rounds, CENTRE: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """mean, scale, mean of g n and mean of g of one row -> found[row, 4]. With CENTRE the co-moment is kept about running means."""
    row = tl.program_id(0).to(tl.int64)
    dy += row * dys
    s += row * ss
    mean = tl.zeros((COLUMNS,), tl.float32)
    squares = tl.zeros((COLUMNS,), tl.float32)
    mean_g = tl.zeros((COLUMNS,), tl.float32)
    products = tl.zeros((COLUMNS,), tl.float32)
    for k in range(rounds):
        column = k * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < C
        v = _wide(s, column, inside)
        g = _affine(_wide(dy, column, inside), w, None, column, inside)
        if CENTRE:
            share = _over(1.0, k + 1)
            off = tl.where(inside, v - mean, 0)
            mean += off * share
            squares += off * tl.where(inside, v - mean, 0)
            mean_g += tl.where(inside, g - mean_g, 0) * share
            products += off * tl.where(inside, g - mean_g, 0)
        else:
            squares += v * v
            products += g * v
    if CENTRE:
        count = _seen(C, COLUMNS)
        middle = _over(tl.sum(count * mean, 0), C)
        off = mean - middle
        squares += count * off * off
        products += count * off * mean_g
        tl.store(found + 4 * row, middle)
        tl.store(found + 4 * row + 3, _over(tl.sum(count * mean_g, 0), C))
    else:
        tl.store(found + 4 * row, 0.0)
        tl.store(found + 4 * row + 3, 0.0)
    scale = _scale(tl.sum(squares, 0), C, eps)
    tl.store(found + 4 * row + 1, scale)
    tl.store(found + 4 * row + 2, _over(tl.sum(products, 0) * scale, C))


@triton.jit
def _slabs_bwd(dy, ds, s, w, dx, pw, pb, found, R, C, dys, dss, ss, dxs, blocks, height,
               COLUMNS: tl.constexpr, LANES: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """COLUMNS columns of a slab of `height` rows; its parts of dweight and dbias -> pw, pb[slab, C]."""
    slab = tl.program_id(0) // blocks
    column = (tl.program_id(0) % blocks) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    weight = tl.full((1, COLUMNS), 1.0, tl.float32)
    if w is not None:
        weight = _wide(w, column, column < C)
    sum_w = tl.zeros((LANES, COLUMNS), tl.float32)
    sum_b = tl.zeros((LANES, COLUMNS), tl.float32)
    for k in range(height // LANES):
        row = slab.to(tl.int64) * height + k * LANES + tl.arange(0, LANES)[:, None]
        inside = (row < R) & (column < C)
        mean = _wide(found, 4 * row, row < R)
        scale = _wide(found, 4 * row + 1, row < R)
        n = (_wide(s, row * ss + column, inside) - mean) * scale
        g = _wide(dy, row * dys + column, inside)
        if pb is not None:
            sum_b += g
        if pw is not None:
            sum_w += tl.where(inside, g * n, 0)
        d = scale * (g * weight - n * _wide(found, 4 * row + 2, row < R) - _wide(found, 4 * row + 3, row < R))
        if ds is not None:
            d += _wide(ds, row * dss + column, inside)
        tl.store(dx + row * dxs + column, d.to(dx.dtype.element_ty), inside)
    at = slab.to(tl.int64) * C + (tl.program_id(0) % blocks) * COLUMNS + tl.arange(0, COLUMNS)
    kept = (tl.program_id(0) % blocks) * COLUMNS + tl.arange(0, COLUMNS) < C
    if pw is not None:
        tl.store(pw + at, tl.sum(sum_w, 0), kept)
    if pb is not None:
        tl.store(pb + at, tl.sum(sum_b, 0), kept)


@triton.jit
def _columns(parts, dw, P, C, COLUMNS: tl.constexpr, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sum of P partial rows, LANES of them at a time, always in the same order."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros((LANES, COLUMNS), tl.float32)
    for k in range(tl.cdiv(P, LANES)):
        row = k * LANES + tl.arange(0, LANES)[:, None]
        total += _wide(parts, row.to(tl.int64) * C + column, (row < P) & (column < C))
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(dw + at, tl.sum(total, 0).to(dw.dtype.element_ty), at < C)


# -- configs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    """`columns` × `lanes` elements at a time by `warps` warps. `way`: tile, loop, split, slabs. Forward: `parts` programs a row.
    Backward: `parts` programs a multiprocessor (tile) or rows a slab (slabs), `stages` rows under way."""

    way: str
    columns: int
    lanes: int
    warps: int
    parts: int = 1
    stages: int = 1


def _pow2(n: int) -> int:
    return 1 << (n - 1).bit_length()


def wide_access(p: Problem) -> bool:
    """Whether Triton can prove 16-byte accesses right: of addresses, strides and extents it knows only whether 16 divides them."""
    return all(m.align >= 16 and m.shape[-1] % 16 == 0 and (len(m.shape) == 1 or m.shape[0] <= 1 or m.strides[0] % 16 == 0) for _, m in p.tensors if m)


def _reason(p: Problem, main: str) -> str | None:
    m = p[main]
    if m.numel == 0:
        return "there is nothing to compute"
    if m.shape[1] >= 2**31 - 2**20 or m.shape[0] >= 2**31 // 64:
        return f"takes fewer than 2**31 - 2**20 columns and 2**25 rows; given {m.shape[1]} and {m.shape[0]}"
    return None


def _lanes(p: Problem, rows: int, wide: int, tile: int) -> int:
    """Rows that a program takes together: as fill a tile, but four programs a multiprocessor."""
    lanes = max(1, min(tile // wide, _pow2(rows)))
    while lanes > 1 and rows < 4 * lanes * p.device.sms:
        lanes //= 2
    return lanes


def forward(centre: bool) -> tuple[Callable[..., Any], ...]:
    """supports, choose, configs, launches and scratch of a forward."""

    def supports(p: Problem) -> str | None:
        return _reason(p, "x")

    def choose(p: Problem) -> Config:
        rows, columns = p["x"].shape
        wide = _pow2(columns)
        if wide > 32768:
            if rows >= 2 * p.device.sms:
                return Config("loop", 8192, 1, 16)
            return Config("split", 4096, 1, 8, parts=min(64, max(2, -(-4 * p.device.sms // rows)), -(-columns // 4096)))
        tile, each = (4096, 512) if wide_access(p) else (2048, 1024)
        lanes = _lanes(p, rows, wide, tile)
        return Config("tile", wide, lanes, max(1, min(16 if each == 512 else 32, wide * lanes // each)))

    def configs(p: Problem) -> list[Config]:
        rows, columns = p["x"].shape
        wide = _pow2(columns)
        found = [
            Config("tile", wide, lanes, warps)
            for lanes in (1, 2, 4, 8, 16)
            for warps in (1, 2, 4, 8, 16, 32)
            if 4 * 32 * warps <= wide * lanes <= 64 * 32 * warps and wide * lanes <= 65536 and lanes <= _pow2(rows)
        ]
        found += [Config("loop", size, 1, warps) for size in (2048, 4096, 8192, 16384) for warps in (8, 16, 32) if size < wide and size // warps <= 1024]
        found += [Config("split", size, 1, 8, parts) for size in (2048, 4096, 8192) for parts in (2, 4, 8, 16, 32, 64) if size * parts <= wide]
        return found

    def scratch(p: Problem, config: Config) -> dict[str, Meta]:
        return {"found": Meta((p["x"].shape[0], config.parts, 2), "f32")} if config.way == "split" else {}

    def launches(p: Problem, config: Config) -> list[Launch]:
        rows, columns = p["x"].shape
        names = {"x": "x", "r": "residual", "w": "weight", "b": "bias", "y": "y", "s": "s"}
        strides = {f"{short}s": m.strides[0] if (m := p.get(names[short])) is not None else 0 for short in "xrys"}
        eps = float(p.option("eps"))
        if config.way == "tile":
            args = {**names, "R": rows, "C": columns, **strides, "eps": eps, "CENTRE": centre, "COLUMNS": config.columns, "LANES": config.lanes}
            return [Launch(_tile, (-(-rows // config.lanes),), args, config.warps)]
        if config.way == "loop":
            rounds = -(-columns // config.columns)
            args = {**names, "C": columns, **strides, "eps": eps, "rounds": rounds, "CENTRE": centre, "COLUMNS": config.columns}
            return [Launch(_loop, (rows,), args, config.warps)]
        rounds = -(-columns // (config.columns * config.parts))
        width = rounds * config.columns
        parts = -(-columns // width)
        shared = {"found": "found", "C": columns, "parts": parts, "width": width, "rounds": rounds, "COLUMNS": config.columns}
        first = {**shared, "x": "x", "r": "residual", "s": "s", "xs": strides["xs"], "rs": strides["rs"], "ss": strides["ss"], "CENTRE": centre}
        source = "x" if p.get("residual") is None else "s"
        second = {**shared, "v": source, "w": "weight", "b": "bias", "y": "y", "vs": strides[f"{source}s"], "ys": strides["ys"], "eps": eps}
        grid = (rows * parts,)
        return [Launch(_part, grid, first, config.warps), Launch(_fold, grid, {**second, "PARTS": max(2, _pow2(parts))}, config.warps)]

    return supports, choose, configs, launches, scratch


def backward(centre: bool) -> tuple[Callable[..., Any], ...]:
    """supports, choose, configs, launches and scratch of a backward."""

    def supports(p: Problem) -> str | None:
        return _reason(p, "s")

    def programs(p: Problem, config: Config) -> int:
        """Partial rows."""
        rows = p["s"].shape[0]
        if config.way == "tile":
            return min(-(-rows // config.lanes), config.parts * p.device.sms)
        return -(-rows // config.parts)

    def choose(p: Problem) -> Config:
        rows, columns = p["s"].shape
        wide = _pow2(columns)
        if wide > 16384:
            height = max(8, min(128, _pow2(rows * -(-columns // 1024) // (8 * p.device.sms))))
            return Config("slabs", 1024, 4, 4, parts=height)
        lanes = _lanes(p, rows, wide, 2048)
        warps = max(1, min(16, wide * lanes // 512))
        stages = 2 if wide_access(p) and wide <= 8192 else 1
        return Config("tile", wide, lanes, warps, parts=max(1, min(8, 32 // (2 * warps))), stages=stages)

    def configs(p: Problem) -> list[Config]:
        rows, columns = p["s"].shape
        wide = _pow2(columns)
        found = [
            Config("tile", wide, lanes, warps, parts, stages)
            for lanes in (1, 2, 4, 8)
            for warps in (4, 8, 16, 32)
            for parts in (1, 2, 4, 8)
            for stages in (1, 2, 3)
            if 8 * 32 * warps <= wide * lanes <= 32 * 32 * warps and lanes <= _pow2(rows) and parts * warps <= 32
            and 2 * (stages - 1) * wide * lanes * p["s"].itemsize <= p.device.shared_per_block - 4096
        ]  # fmt: skip
        found += [
            Config("slabs", size, lanes, size * lanes // 1024, height)
            for size in (512, 1024, 2048) for lanes in (2, 4, 8) for height in (16, 32, 64, 128) if size <= wide and size * lanes >= 2048
        ]  # fmt: skip
        return found

    def scratch(p: Problem, config: Config) -> dict[str, Meta]:
        rows, columns = p["s"].shape
        found = {"found": Meta((rows, 4), "f32")} if config.way == "slabs" else {}
        partial = Meta((programs(p, config), columns), "f32")
        return found | {name: partial for name, of in (("pw", "dweight"), ("pb", "dbias")) if p.get(of) is not None}

    def launches(p: Problem, config: Config) -> list[Launch]:
        rows, columns = p["s"].shape
        made = scratch(p, config)
        names = {"dy": "dy", "ds": "ds", "s": "s", "w": "weight", "dx": "dx", "pw": "pw" if "pw" in made else None, "pb": "pb" if "pb" in made else None}
        strides = {f"{n}s": m.strides[0] if (m := p.get(n)) is not None else 0 for n in ("dy", "ds", "s", "dx")}
        eps = float(p.option("eps"))
        size = {"COLUMNS": config.columns, "LANES": config.lanes}
        if config.way == "tile":
            blocks = {"eps": eps, "blocks": -(-rows // config.lanes), "programs": programs(p, config), "CENTRE": centre, "STAGES": config.stages}
            found = [Launch(_tile_bwd, (programs(p, config),), {**names, "R": rows, "C": columns, **strides, **blocks, **size}, config.warps)]
        else:
            long = 4096
            args = {"dy": "dy", "s": "s", "w": "weight", "found": "found", "C": columns, "dys": strides["dys"], "ss": strides["ss"], "eps": eps}
            args |= {"rounds": -(-columns // long), "CENTRE": centre, "COLUMNS": long}
            blocks = {"found": "found", "R": rows, "C": columns, **strides, "blocks": -(-columns // config.columns), "height": config.parts}
            grid = (blocks["blocks"] * programs(p, config),)
            found = [Launch(_rows_bwd, (rows,), args, 8), Launch(_slabs_bwd, grid, {**names, **blocks, **size}, config.warps)]
        for parts, to in (("pw", "dweight"), ("pb", "dbias")):
            if parts in made:
                reduce = {"parts": parts, "dw": to, "P": programs(p, config), "C": columns, "COLUMNS": 64, "LANES": 32}
                found.append(Launch(_columns, (-(-columns // 64),), reduce, 4))
        return found

    return supports, choose, configs, launches, scratch
