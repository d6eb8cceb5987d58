"""Softmax over the middle dimension of x[R, C, I]. Contract: rooftop/ops/softmax.py

One program computes a few neighbouring *lanes*, softmaxes that are independent of each other: rows if I is 1, else inner positions. Lanes
that fit the registers are read once, as one tile of columns × lanes. Longer ones are read twice: first for maximum and sum together
(Milakov & Gimelshein 2018), where each position of the tile keeps its own pair until the end; then from the end backwards, because the data
read last are still in the L2."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait, libdevice

from rooftop.core.spec import Launch, Meta, Problem

# The identity of the maximum. -inf would give -inf - -inf = NaN where only a part of a row is -inf; with the lowest finite number such a
# part adds exp(-inf) = 0, and a row of only -inf ends as 0 / 0 = NaN, which is the contract.
LOWEST = tl.constexpr(-3.4028234663852886e38)
INF = tl.constexpr(float("inf"))


@triton.jit
def _exp(v, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """exp(v) as accurate as the result's dtype can show. tl.exp is the hardware's exp2 of v·log2(e): on an H100 its error is three times
    that of libdevice's (1.3e-7 against 4.0e-8, root mean square over [-8, 0]) and biased over a narrow range, which a sum keeps."""
    return libdevice.exp(v) if dtype == tl.float32 else tl.exp(v)


@triton.jit
def _quotient(e, s, scale, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """e / s, given scale = 1 / s. A Newton step corrects the rounding error of `scale`, which matters for float32 results only."""
    q = e * scale
    if dtype == tl.float32:
        q = tl.fma(tl.fma(-q, s, e), scale, q)
    return q.to(dtype)


@triton.jit
def _tile(  # type: ignore[no-untyped-def]
    x, y, C, L, blocks, xo, xc, xl, yo, yc, yl, COLUMNS: tl.constexpr, LANES: tl.constexpr, CHAINED: tl.constexpr
):
    """LANES whole lanes at once. Strides of outer, column and lane for x and y, in elements."""
    if CHAINED:
        gdc_wait()
    outer = (tl.program_id(0) // blocks).to(tl.int64)
    lane = (tl.program_id(0) % blocks).to(tl.int64) * LANES + tl.arange(0, LANES)[None, :]
    column = tl.arange(0, COLUMNS).to(tl.int64)[:, None]
    inside = (column < C) & (lane < L)
    v = tl.load(x + outer * xo + column * xc + lane * xl, inside, other=-INF).to(tl.float32)
    m = tl.maximum(tl.max(v, 0, keep_dims=True), LOWEST)
    e = _exp(v - m, y.dtype.element_ty)
    s = tl.sum(e, 0, keep_dims=True)
    tl.store(y + outer * yo + column * yc + lane * yl, _quotient(e, s, tl.div_rn(1.0, s), y.dtype.element_ty), inside)


@triton.jit
def _loop(  # type: ignore[no-untyped-def]
    x, y, C, L, blocks, rounds, xo, xc, xl, yo, yc, yl, COLUMNS: tl.constexpr, LANES: tl.constexpr, CHAINED: tl.constexpr
):
    """LANES lanes, COLUMNS columns at a time, in `rounds` iterations, twice."""
    if CHAINED:
        gdc_wait()
    outer = (tl.program_id(0) // blocks).to(tl.int64)
    lane = (tl.program_id(0) % blocks).to(tl.int64) * LANES + tl.arange(0, LANES)[None, :]
    start = tl.arange(0, COLUMNS).to(tl.int64)[:, None]
    x += outer * xo + lane * xl
    y += outer * yo + lane * yl

    m = tl.full((COLUMNS, LANES), LOWEST, tl.float32)
    s = tl.zeros((COLUMNS, LANES), tl.float32)
    for k in range(rounds):
        column = k * COLUMNS + start
        v = tl.load(x + column * xc, (column < C) & (lane < L), other=-INF).to(tl.float32)
        e = _exp(-tl.abs(v - m), y.dtype.element_ty)  # one of exp(v - m') and exp(m - m') is 1, this is the other
        s = tl.where(v > m, s * e + 1, s + e)
        m = tl.maximum(m, v)
    most = tl.max(m, 0, keep_dims=True)
    total = tl.sum(s * _exp(m - most, y.dtype.element_ty), 0, keep_dims=True)
    scale = tl.div_rn(1.0, total)

    for k in range(rounds):
        column = (rounds - 1 - k) * COLUMNS + start
        inside = (column < C) & (lane < L)
        v = tl.load(x + column * xc, inside, other=-INF).to(tl.float32)
        tl.store(y + column * yc, _quotient(_exp(v - most, y.dtype.element_ty), total, scale, y.dtype.element_ty), inside)


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
    """The number of contiguous softmaxes."""
    rows, _, inner = p["x"].shape
    return rows if inner == 1 else inner


def _grid(p: Problem, lanes: int) -> tuple[int, int]:
    """Programs in all, and programs with the same outer index."""
    rows, _, inner = p["x"].shape
    blocks = -(-_lanes(p) // lanes)
    return (blocks if inner == 1 else rows * blocks), blocks


def supports(p: Problem) -> str | None:
    x, y = p["x"], p["y"]
    if x.dtype not in ("f32", "f16", "bf16") or y.dtype != x.dtype:
        return f"takes f32, f16 or bf16, the same for x and y; given {x.dtype} and {y.dtype}"
    if x.numel == 0:
        return "there is nothing to compute"
    if x.shape[1] >= 2**31:
        return f"takes fewer than 2**31 columns; given {x.shape[1]}"
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
    Inner positions: at least a 32-byte sector wide."""
    _, columns, inner = p["x"].shape
    wide = _pow2(columns)
    if inner == 1:
        if wide > 32768:
            return Config(8192, 1, 16, True)
        tile, each = (4096, 512) if _wide_access(p) and wide < 32768 else (2048, 1024)
        lanes = max(1, min(tile // wide, _pow2(_lanes(p))))
        while lanes > 1 and _grid(p, lanes)[0] < 4 * p.device.sms:
            lanes //= 2
        return Config(wide, lanes, max(1, min(16 if each == 512 else 32, wide * lanes // each)), False)
    limit = (32768 if p.device.arch >= 90 else 16384) if _wide_access(p) else 8192  # larger tiles spill
    for lanes in (16, 32 // p["x"].itemsize):
        lanes = min(_pow2(inner), lanes)
        if wide * lanes <= limit:
            return Config(wide, lanes, max(1, min(16, wide * lanes // (1024 if _wide_access(p) else 512))), False)
    lanes = min(_pow2(inner), 32)
    return Config(2048 // lanes, lanes, 8, True)


def configs(p: Problem) -> list[Config]:
    _, columns, inner = p["x"].shape
    wide = _pow2(columns)
    found = []
    for lanes in (1, 2, 4, 8, 16) if inner == 1 else (8, 16, 32, 64, 128):
        for warps in (1, 2, 4, 8, 16, 32):
            if 4 * 32 * warps <= wide * lanes <= 64 * 32 * warps and wide * lanes <= 32768:
                found.append(Config(wide, lanes, warps, False))
        for size in (2048, 4096, 8192, 16384):
            if size // lanes < wide and (inner > 1 or lanes == 1):
                found.append(Config(size // lanes, lanes, size // 1024 if size <= 4096 else 8, True))
    return found


def launches(p: Problem, config: Config) -> list[Launch]:
    x, y = p["x"], p["y"]
    _, columns, inner = x.shape
    programs, blocks = _grid(p, config.lanes)

    def strides(of: tuple[int, ...]) -> tuple[int, int, int]:
        """Strides of outer, column and lane: with one inner position the rows are the lanes."""
        return (0, of[1], of[0]) if inner == 1 else (of[0], of[1], of[2])

    (xo, xc, xl), (yo, yc, yl) = strides(x.strides), strides(y.strides)
    args = {"x": "x", "y": "y", "C": columns, "L": _lanes(p), "blocks": blocks, "xo": xo, "xc": xc, "xl": xl, "yo": yo, "yc": yc, "yl": yl}
    args |= {"COLUMNS": config.columns, "LANES": config.lanes, "CHAINED": p.device.pdl}
    if config.loop:
        args["rounds"] = -(-columns // config.columns)
    return [Launch(kernel=_loop if config.loop else _tile, grid=(programs,), args=args, warps=config.warps, chained=p.device.pdl)]
