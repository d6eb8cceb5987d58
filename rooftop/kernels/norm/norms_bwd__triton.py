"""dx, dweight and dbias of rms_norm and layer_norm over the rows of [R, C]. CENTRE is true for layer_norm.

Bytes: dy and s read once, dx written once; the statistics are recomputed, which reads nothing more. dweight and dbias: each program adds
its rows in float32 in a fixed order and writes one partial row; a last launch adds the partial rows in a fixed order. No atomics, so the
result is deterministic. Partial rows are programs / rows · 2 of the traffic, under 2 %. Two kernels:
    tile   a program loops over rows that it holds whole, with its partial row in registers: each byte is moved once.
    slabs  one launch writes four statistics a row; a second processes blocks of columns down slabs of rows. 5/3 of the bytes.
Choice: tile, with loads one row ahead (2 stages), up to 8192 columns: 0.9 of a copy; slabs above: 0.6."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait, libdevice

from rooftop.core.spec import Launch, Meta, Problem, pow2
from rooftop.kernels._device.column_sums import column_sums
from rooftop.kernels.norm.norms__triton import affine, both, lanes_of, load, over, reason, scale_of, seen, wide_access

OPS = ("rms_norm_bwd", "layer_norm_bwd")


@triton.jit
def _four(a, b, c, d, e, f, g, h):  # type: ignore[no-untyped-def]
    return a + e, b + f, c + g, d + h


@triton.jit(do_not_specialize=["R", "blocks", "programs"])  # these follow the row kernels of a call
def _tile_bwd(dy, ds, s, w, dx, pw, pb, R, C, dys, dss, ss, dxs, eps, blocks, programs,
              CENTRE: tl.constexpr, COLUMNS: tl.constexpr, LANES: tl.constexpr, STAGES: tl.constexpr, KEEP: tl.constexpr,
              PDL: tl.constexpr, FIRST: tl.constexpr):  # type: ignore[no-untyped-def]
    """Blocks of LANES whole rows, `programs` apart; this program's parts of dweight and dbias are written to pw, pb[program, C].

    KEEP: the weight is loaded once, broadcast to the size of the tile. If a warp has whole rows, a weight of one row would be distributed
    over all warps, the tile would get that layout, and each of its reductions would be an exchange between the warps. FIRST: the first of
    two launches."""
    if PDL:
        gdc_wait()
        if FIRST:
            gdc_launch_dependents()
    column = tl.arange(0, COLUMNS)[None, :]
    sum_w = tl.zeros((LANES, COLUMNS), tl.float32)
    sum_b = tl.zeros((LANES, COLUMNS), tl.float32)
    if KEEP:
        kept = tl.load(w + column + tl.zeros((LANES, COLUMNS), tl.int32), column + tl.zeros((LANES, COLUMNS), tl.int32) < C, other=0)
    for block in tl.range(tl.program_id(0), blocks, programs, num_stages=STAGES):
        row = block.to(tl.int64) * LANES + tl.arange(0, LANES)[:, None]
        inside = (row < R) & (column < C)
        v = load(s, row * ss + column, inside)
        g = load(dy, row * dys + column, inside)
        h = g
        if KEEP:  # rounded before it is used: fused into a difference it would differ from the value that was summed
            h = libdevice.mul_rn(g, kept.to(tl.float32))
        elif w is not None:
            h = libdevice.mul_rn(g, load(w, column, column < C) + tl.zeros((LANES, COLUMNS), tl.float32))
        if CENTRE:  # the mean of the differences is the rounding error of the mean: it is subtracted too
            v = tl.where(inside, v - over(tl.sum(v, 1, keep_dims=True), C), 0)
            rest, squares, along, level = tl.reduce((v, v * v, h * v, h), 1, _four, keep_dims=True)
            left = over(rest, C)
            squares = tl.maximum(squares - rest * left, 0)
            along -= left * level
            v -= left
        else:
            squares, along = tl.reduce((v * v, h * v), 1, both, keep_dims=True)
        scale = scale_of(squares, C, eps)
        n = v * scale
        if pb is not None:
            sum_b += g
        if pw is not None:
            sum_w += tl.where(inside, g * n, 0)
        d = h - n * over(along * scale, C)
        if CENTRE:
            d -= over(level, C)
        d *= scale
        if ds is not None:
            d += load(ds, row * dss + column, inside)
        tl.store(dx + row * dxs + column, d.to(dx.dtype.element_ty), inside)
    at = tl.program_id(0).to(tl.int64) * C + tl.arange(0, COLUMNS)
    if pw is not None:
        tl.store(pw + at, tl.sum(sum_w, 0), tl.arange(0, COLUMNS) < C)
    if pb is not None:
        tl.store(pb + at, tl.sum(sum_b, 0), tl.arange(0, COLUMNS) < C)


@triton.jit
def _rows_bwd(  # type: ignore[no-untyped-def]
    dy, s, w, found, C, dys, ss, eps, rounds, CENTRE: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr
):
    """Writes mean, scale, mean of g n and mean of g of one row to found[row, 4]. With CENTRE the co-moment is updated about running
    means."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
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
        v = load(s, column, inside)
        g = affine(load(dy, column, inside), w, None, column, inside)
        if CENTRE:
            share = over(1.0, k + 1)
            off = tl.where(inside, v - mean, 0)
            mean += off * share
            squares += off * tl.where(inside, v - mean, 0)
            mean_g += tl.where(inside, g - mean_g, 0) * share
            products += off * tl.where(inside, g - mean_g, 0)
        else:
            squares += v * v
            products += g * v
    if CENTRE:
        count = seen(C, COLUMNS)
        middle = over(tl.sum(count * mean, 0), C)
        off = mean - middle
        squares += count * off * off
        products += count * off * mean_g
        tl.store(found + 4 * row, middle)
        tl.store(found + 4 * row + 3, over(tl.sum(count * mean_g, 0), C))
    else:
        tl.store(found + 4 * row, 0.0)
        tl.store(found + 4 * row + 3, 0.0)
    scale = scale_of(tl.sum(squares, 0), C, eps)
    tl.store(found + 4 * row + 1, scale)
    tl.store(found + 4 * row + 2, over(tl.sum(products, 0) * scale, C))


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


@dataclass(frozen=True)
class Config:
    """`columns` × `lanes` elements at a time by `warps` warps. `way` tile: `parts` programs a multiprocessor, `stages` rows in flight.
    `way` slabs: `parts` rows a slab."""

    way: str
    columns: int
    lanes: int
    warps: int
    parts: int = 1
    stages: int = 1


def supports(p: Problem) -> str | None:
    return reason(p, "s")


def programs(p: Problem, config: Config) -> int:
    """Partial rows."""
    rows = p["s"].shape[0]
    if config.way == "tile":
        return min(-(-rows // config.lanes), config.parts * p.device.sms)
    return -(-rows // config.parts)


def shared(p: Problem, config: Config) -> int:
    """An upper bound of the bytes of shared memory: Triton keeps each tensor's tile once for each stage, and at most 8 KiB for
    reductions."""
    tile = config.columns * config.lanes * p["s"].itemsize
    return 8192 + (config.stages * (2 if p.get("ds") is None else 3) * tile if config.stages > 1 else 0)


def choose(p: Problem) -> Config:
    rows, columns = p["s"].shape
    wide = pow2(columns)
    if wide > 8192:  # a tile of 16384 spills registers
        height = max(8, min(128, pow2(rows * -(-columns // 1024) // (8 * p.device.sms))))
        if not wide_access(p):  # each element has its own address: a smaller tile, or registers spill
            return Config("slabs", 512, 2, 4, parts=height)
        return Config("slabs", 1024, 4, 4, parts=height)
    if wide >= 4096 and wide_access(p) and rows >= 4 * p.device.sms:  # one program a multiprocessor, with two or three rows in flight
        full = 4 * columns > 3 * wide
        lanes, warps, parts, stages = (1, 8, 1, 3) if wide == 8192 else (2, 8, 1, 3) if full else (1, 4, 2, 3)
        # measured: which one is faster depends on what is summed
        if wide == 8192 and full == p.op.startswith("layer_norm") and p.get("ds") is None:
            warps, stages = 16, 3 if full else 4
        elif wide == 4096 and not full and not p.op.startswith("layer_norm"):
            lanes, warps, parts, stages = 2, 8, 1, 4
        found = Config("tile", wide, lanes, warps, parts=parts, stages=stages)
        while shared(p, found) > p.device.shared_per_block:
            found = dataclasses.replace(found, stages=found.stages - 1)
        return found
    if wide >= 512 and rows < 8 * p.device.sms:  # as many programs as have a row or two: fewer partial rows, and all are resident at once
        return Config("tile", wide, 1, 16 if wide == 8192 else min(8, wide // 256), parts=2)
    if wide == 256 and wide_access(p):  # a warp has a row, two more in flight
        return Config("tile", wide, 2, 2, parts=6 if p.op.startswith("layer_norm") else 8, stages=4 if p.op.startswith("layer_norm") else 3)
    lanes = max(lanes_of(p, rows, wide, 2048), 32 // wide)  # no fewer elements than threads: see norms__triton.py
    warps = max(1, min(16, wide * lanes // 512))
    parts = max(1, min(8, 32 // (2 * warps)))
    stages = 2 if wide_access(p) and rows > 2 * lanes * parts * p.device.sms else 1  # one row ahead, if there are more rows
    return Config("tile", wide, lanes, warps, parts=parts, stages=stages)


def configs(p: Problem) -> list[Config]:
    rows, columns = p["s"].shape
    wide = pow2(columns)
    found = [
        Config("tile", wide, lanes, warps, parts, stages)
        for lanes in (1, 2, 4, 8)
        for warps in (4, 8, 16, 32)
        for parts in (1, 2, 4, 8)
        for stages in (1, 2, 3)
        if 8 * 32 * warps <= wide * lanes <= 32 * 32 * warps and lanes <= pow2(rows) and parts * warps <= 32
        and shared(p, Config("tile", wide, lanes, warps, parts, stages)) <= p.device.shared_per_block
    ]
    found += [
        Config("slabs", size, lanes, size * lanes // 1024, height)
        for size in (512, 1024, 2048) for lanes in (2, 4, 8) for height in (16, 32, 64, 128) if size <= wide and size * lanes >= 2048
    ]
    return found


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    rows, columns = p["s"].shape
    found = {"found": Meta((rows, 4), "f32")} if config.way == "slabs" else {}
    partial = Meta((programs(p, config), columns), "f32")
    return found | {name: partial for name, of in (("pw", "dweight"), ("pb", "dbias")) if p.get(of) is not None}


def launches(p: Problem, config: Config) -> list[Launch]:
    rows, columns = p["s"].shape
    made = scratch(p, config)
    names = {
        "dy": "dy", "ds": "ds", "s": "s", "w": "weight", "dx": "dx", "pw": "pw" if "pw" in made else None,
        "pb": "pb" if "pb" in made else None
    }
    strides = {f"{n}s": m.strides[0] if (m := p.get(n)) is not None else 0 for n in ("dy", "ds", "s", "dx")}
    eps, chain = float(p.option("eps")), p.device.pdl
    size = {"COLUMNS": config.columns, "LANES": config.lanes, "PDL": chain}
    sums = [(parts, to) for parts, to in (("pw", "dweight"), ("pb", "dbias")) if parts in made]
    if config.way == "tile":
        centre = p.op.startswith("layer_norm")
        blocks = {
            "eps": eps, "blocks": -(-rows // config.lanes), "programs": programs(p, config), "CENTRE": centre, "STAGES": config.stages
        }
        keep = p.get("weight") is not None and config.lanes > 1 and config.columns * p["s"].itemsize < 16 * 32 * config.warps
        more = {"KEEP": keep, "FIRST": bool(sums)}
        args = {**names, "R": rows, "C": columns, **strides, **blocks, **size, **more}
        found = [Launch(_tile_bwd, (programs(p, config),), args, config.warps, pdl=chain)]
    else:
        long = 4096
        args = {"dy": "dy", "s": "s", "w": "weight", "found": "found", "C": columns, "dys": strides["dys"], "ss": strides["ss"], "eps": eps}
        args |= {"rounds": -(-columns // long), "CENTRE": p.op.startswith("layer_norm"), "COLUMNS": long, "PDL": chain}
        blocks = {"found": "found", "R": rows, "C": columns, **strides, "blocks": -(-columns // config.columns), "height": config.parts}
        grid = (blocks["blocks"] * programs(p, config),)
        found = [Launch(_rows_bwd, (rows,), args, 8, pdl=chain)]
        found += [Launch(_slabs_bwd, grid, {**names, **blocks, **size, "FIRST": bool(sums)}, config.warps, pdl=chain)]
    return found + column_sums(sums, programs(p, config), columns, p.device)
