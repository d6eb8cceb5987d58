"""dx = y (dy - sum_j dy_j y_j) over the middle dimension of [R, C, I]. Contract: rooftop/ops/softmax.py

One program computes a few neighbouring *lanes*: rows if I is 1, else inner positions. Lanes that fit the registers are read once, as one
tile of columns × lanes. Longer ones are read twice: first for the sum, where each position of the tile keeps its own until the end; then
from the end backwards, because the data read last are still in the L2."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from rooftop.core.spec import Launch, Meta, Problem


@triton.jit
def _sum(v, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sum over the columns. Its terms cancel, and all of dx depends on it: for float32 results it is computed in float64."""
    if dtype == tl.float32:
        v = v.to(tl.float64)
    return tl.sum(v, 0, keep_dims=True).to(tl.float32)


@triton.jit
def _tile(  # type: ignore[no-untyped-def]
    dy, y, dx, C, L, blocks, go, gc, gl, yo, yc, yl, xo, xc, xl, COLUMNS: tl.constexpr, LANES: tl.constexpr, CHAINED: tl.constexpr
):
    """LANES whole lanes at once. Strides of outer, column and lane for dy, y and dx, in elements."""
    if CHAINED:
        gdc_wait()
    outer = (tl.program_id(0) // blocks).to(tl.int64)
    lane = (tl.program_id(0) % blocks).to(tl.int64) * LANES + tl.arange(0, LANES)[None, :]
    column = tl.arange(0, COLUMNS).to(tl.int64)[:, None]
    inside = (column < C) & (lane < L)
    a = tl.load(y + outer * yo + column * yc + lane * yl, inside, other=0).to(tl.float32)
    b = tl.load(dy + outer * go + column * gc + lane * gl, inside, other=0).to(tl.float32)
    result = a * (b - _sum(a * b, dx.dtype.element_ty))
    tl.store(dx + outer * xo + column * xc + lane * xl, result.to(dx.dtype.element_ty), inside)


@triton.jit
def _loop(  # type: ignore[no-untyped-def]
    dy, y, dx, C, L, blocks, rounds, go, gc, gl, yo, yc, yl, xo, xc, xl, COLUMNS: tl.constexpr, LANES: tl.constexpr, CHAINED: tl.constexpr
):
    """LANES lanes, COLUMNS columns at a time, in `rounds` iterations, twice."""
    if CHAINED:
        gdc_wait()
    outer = (tl.program_id(0) // blocks).to(tl.int64)
    lane = (tl.program_id(0) % blocks).to(tl.int64) * LANES + tl.arange(0, LANES)[None, :]
    start = tl.arange(0, COLUMNS).to(tl.int64)[:, None]
    y += outer * yo + lane * yl
    dy += outer * go + lane * gl
    dx += outer * xo + lane * xl

    s = tl.zeros((COLUMNS, LANES), tl.float32)
    for k in range(rounds):
        column = k * COLUMNS + start
        inside = (column < C) & (lane < L)
        a = tl.load(y + column * yc, inside, other=0).to(tl.float32)
        b = tl.load(dy + column * gc, inside, other=0).to(tl.float32)
        s += a * b
    total = _sum(s, dx.dtype.element_ty)

    for k in range(rounds):
        column = (rounds - 1 - k) * COLUMNS + start
        inside = (column < C) & (lane < L)
        a = tl.load(y + column * yc, inside, other=0).to(tl.float32)
        b = tl.load(dy + column * gc, inside, other=0).to(tl.float32)
        tl.store(dx + column * xc, (a * (b - total)).to(dx.dtype.element_ty), inside)


@dataclass(frozen=True)
class Config:
    """`columns` × `lanes` elements are held at a time by `warps` warps; `loop`: a lane may be longer than that."""

    columns: int
    lanes: int
    warps: int
    loop: bool


def _pow2(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _lanes(p: Problem) -> int:
    """The number of contiguous rows."""
    rows, _, inner = p["y"].shape
    return rows if inner == 1 else inner


def _grid(p: Problem, lanes: int) -> tuple[int, int]:
    """Programs in all, and programs with the same outer index."""
    rows, _, inner = p["y"].shape
    blocks = -(-_lanes(p) // lanes)
    return (blocks if inner == 1 else rows * blocks), blocks


def supports(p: Problem) -> str | None:
    dtypes = [p[name].dtype for name in ("dy", "y", "dx")]
    if dtypes[0] not in ("f32", "f16", "bf16") or len(set(dtypes)) != 1:
        return f"takes f32, f16 or bf16, the same for dy, y and dx; given {', '.join(dtypes)}"
    if p["y"].numel == 0:
        return "there is nothing to compute"
    if p["y"].shape[1] >= 2**31:
        return f"takes fewer than 2**31 columns; given {p['y'].shape[1]}"
    if _grid(p, choose(p).lanes)[0] >= 2**31:
        return "more programs than one launch may have"
    return None


def _wide_access(p: Problem) -> bool:
    """Whether Triton can prove that 16-byte accesses are aligned: it only knows whether addresses, strides and extents are divisible by
    16."""

    def wide(m: Meta) -> bool:
        neighbours = m.shape[1] if m.shape[2] == 1 else m.shape[2]
        return (
            m.align >= 16 and neighbours % 16 == 0 and all(s % 16 == 0 for s, n in zip(m.strides, m.shape, strict=True) if s != 1 and n > 1)
        )

    return all(wide(m) for _, m in p.tensors if m is not None)


def choose(p: Problem) -> Config:
    """Measured on an H100. Rows: tiles of 4096 elements or one row, 16 elements a thread; 32 if accesses are narrow, so that more of them
    are in flight.
    Inner positions: one or two 32-byte sectors wide."""
    _, columns, inner = p["y"].shape
    wide = _pow2(columns)
    if inner == 1:
        if wide > 16384:
            return Config(8192, 1, 16, True)
        tile, each = (4096, 512) if _wide_access(p) else (2048, 1024)
        lanes = max(1, min(tile // wide, _pow2(_lanes(p))))
        while lanes > 1 and _grid(p, lanes)[0] < 4 * p.device.sms:
            lanes //= 2
        return Config(wide, lanes, max(1, min(16, wide * lanes // each)), False)
    lanes = min(_pow2(inner), 16)
    if wide * lanes <= (16384 if _wide_access(p) else 8192):
        return Config(wide, lanes, max(1, wide * lanes // (1024 if _wide_access(p) else 512)), False)
    lanes = min(_pow2(inner), 32)
    return Config(2048 // lanes, lanes, 8, True)


def configs(p: Problem) -> list[Config]:
    _, columns, inner = p["y"].shape
    wide = _pow2(columns)
    found = []
    for lanes in (1, 2, 4, 8, 16) if inner == 1 else (8, 16, 32, 64, 128):
        for warps in (1, 2, 4, 8, 16, 32):
            if 4 * 32 * warps <= wide * lanes <= 32 * 32 * warps and wide * lanes <= 32768:
                found.append(Config(wide, lanes, warps, False))
        for size in (2048, 4096, 8192):
            if size // lanes < wide and (inner > 1 or lanes == 1):
                found.append(Config(size // lanes, lanes, 8, True))
    return found


def launches(p: Problem, config: Config) -> list[Launch]:
    _, columns, inner = p["y"].shape
    programs, blocks = _grid(p, config.lanes)
    args = {"dy": "dy", "y": "y", "dx": "dx", "C": columns, "L": _lanes(p), "blocks": blocks}
    for letter, name in (("g", "dy"), ("y", "y"), ("x", "dx")):
        row, column, lane = p[name].strides
        outer, lane = (0, row) if inner == 1 else (row, lane)  # with one inner position the rows are the lanes
        args |= {f"{letter}o": outer, f"{letter}c": column, f"{letter}l": lane}
    args |= {"COLUMNS": config.columns, "LANES": config.lanes, "CHAINED": p.device.pdl}
    if config.loop:
        args["rounds"] = -(-columns // config.columns)
    return [Launch(kernel=_loop if config.loop else _tile, grid=(programs,), args=args, warps=config.warps, chained=p.device.pdl)]
