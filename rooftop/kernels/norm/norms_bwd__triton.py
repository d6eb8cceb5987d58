"""dx, dweight and dbias of rms_norm and layer_norm over the rows of [R, C]. CENTRE is true for layer_norm.

Bytes: dy and s read once, dx written once; the statistics are recomputed, which reads nothing more. dweight and dbias: each program adds
its rows in float32 in a fixed order and writes one partial row; a last launch adds the partial rows in a fixed order. No atomics, so the
result is deterministic. Partial rows are programs / rows · 2 of the traffic, under 2 %. A program loops over rows that it holds whole, with
its partial row in registers, and loads one row ahead (2 stages): each byte is moved once, 0.9 of a copy. Rows of more than 8192 columns
would spill registers: norms__split__triton.py takes them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait, libdevice

from rooftop.core.spec import Launch, Meta, Problem, pow2
from rooftop.kernels._device.column_sums import column_sums
from rooftop.kernels.norm.norms__triton import both, lanes_of, load, over, reason, scale_of, wide_access

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


@dataclass(frozen=True)
class Config:
    """`columns` × `lanes` elements at a time by `warps` warps; `parts` programs a multiprocessor, `stages` rows in flight."""

    columns: int
    lanes: int
    warps: int
    parts: int = 1
    stages: int = 1


MOST = 8192  # columns


def supports(p: Problem) -> str | None:
    columns = p["s"].shape[1]
    return f"takes rows of up to {MOST} columns; given {columns}" if columns > MOST else reason(p, "s")


def programs(p: Problem, config: Config) -> int:
    """Partial rows."""
    return min(-(-p["s"].shape[0] // config.lanes), config.parts * p.device.sms)


def shared(p: Problem, config: Config) -> int:
    """An upper bound of the bytes of shared memory: Triton keeps each tensor's tile once for each stage, and at most 8 KiB for
    reductions."""
    tile = config.columns * config.lanes * p["s"].itemsize
    return 8192 + (config.stages * (2 if p.get("ds") is None else 3) * tile if config.stages > 1 else 0)


def choose(p: Problem) -> Config:
    rows, columns = p["s"].shape
    wide = pow2(columns)
    if wide >= 4096 and wide_access(p) and rows >= 4 * p.device.sms:  # one program a multiprocessor, with two or three rows in flight
        full = 4 * columns > 3 * wide
        lanes, warps, parts, stages = (1, 8, 1, 3) if wide == 8192 else (2, 8, 1, 3) if full else (1, 4, 2, 3)
        # measured: which one is faster depends on what is summed
        if wide == 8192 and full == p.op.startswith("layer_norm") and p.get("ds") is None:
            warps, stages = 16, 3 if full else 4
        elif wide == 4096 and not full and not p.op.startswith("layer_norm"):
            lanes, warps, parts, stages = 2, 8, 1, 4
        found = Config(wide, lanes, warps, parts=parts, stages=stages)
        while shared(p, found) > p.device.shared_per_block:
            found = dataclasses.replace(found, stages=found.stages - 1)
        return found
    if wide >= 512 and rows < 8 * p.device.sms:  # as many programs as have a row or two: fewer partial rows, and all are resident at once
        return Config(wide, 1, 16 if wide == 8192 else min(8, wide // 256), parts=2)
    if wide == 256 and wide_access(p):  # a warp has a row, two more in flight
        return Config(wide, 2, 2, parts=6 if p.op.startswith("layer_norm") else 8, stages=4 if p.op.startswith("layer_norm") else 3)
    lanes = max(lanes_of(p, rows, wide, 2048), 32 // wide)  # no fewer elements than threads: see norms__triton.py
    warps = max(1, min(16, wide * lanes // 512))
    parts = max(1, min(8, 32 // (2 * warps)))
    stages = 2 if wide_access(p) and rows > 2 * lanes * parts * p.device.sms else 1  # one row ahead, if there are more rows
    return Config(wide, lanes, warps, parts=parts, stages=stages)


def configs(p: Problem) -> list[Config]:
    rows, columns = p["s"].shape
    wide = pow2(columns)
    return [
        Config(wide, lanes, warps, parts, stages)
        for lanes in (1, 2, 4, 8)
        for warps in (4, 8, 16, 32)
        for parts in (1, 2, 4, 8)
        for stages in (1, 2, 3)
        if 8 * 32 * warps <= wide * lanes <= 32 * 32 * warps and lanes <= pow2(rows) and parts * warps <= 32
        and shared(p, Config(wide, lanes, warps, parts, stages)) <= p.device.shared_per_block
    ]


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    partial = Meta((programs(p, config), p["s"].shape[1]), "f32")
    return {name: partial for name, of in (("pw", "dweight"), ("pb", "dbias")) if p.get(of) is not None}


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
    blocks = {"eps": eps, "blocks": -(-rows // config.lanes), "programs": programs(p, config)}
    keep = p.get("weight") is not None and config.lanes > 1 and config.columns * p["s"].itemsize < 16 * 32 * config.warps
    more = {"CENTRE": p.op.startswith("layer_norm"), "STAGES": config.stages, "KEEP": keep, "FIRST": bool(sums)}
    args = {**names, "R": rows, "C": columns, **strides, **blocks, **size, **more}
    found = [Launch(_tile_bwd, (programs(p, config),), args, config.warps, pdl=chain)]
    return found + column_sums(sums, programs(p, config), columns, p.device)
