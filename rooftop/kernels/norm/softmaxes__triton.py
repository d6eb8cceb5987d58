"""Softmax, its logarithm and the logarithm of its sum over the middle dimension of x[R, C, I], and their backwards: dx = y (dy - sum_j dy_j y_j),
dx = dy - e^y sum_j dy_j, dx = dout e^(x - out). Contracts: rooftop/ops/softmax.py, log_softmax.py, logsumexp.py

One program computes a few neighbouring *lanes*, softmaxes that are independent of each other: rows if I is 1, else inner positions. Lanes
that fit the registers are read once, as one tile of columns × lanes. Longer ones are read twice: first for maximum and sum together
(Milakov & Gimelshein 2018), or for the sum of dy y, where each position of the tile keeps its own until the end; then from the end
backwards, because the data read last are still in the L2."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait, libdevice

from rooftop.core.spec import Launch, Meta, Problem, pow2

OPS = ("softmax", "softmax_bwd", "log_softmax", "log_softmax_bwd", "logsumexp", "logsumexp_bwd")
KINDS = {"log_softmax": 1, "logsumexp": 2}  # the KIND of a kernel; 0: softmax

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
def _log(v, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    return libdevice.log(v) if dtype == tl.float32 else tl.log(v)


@triton.jit
def _less(v, m, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """v - m. Of equal infinities 0 where the result is the logarithm of a sum, which is infinite then, not NaN."""
    return tl.where(v == m, 0.0, v - m) if KIND == 2 else v - m


@triton.jit
def _tile(  # type: ignore[no-untyped-def]
    x, y, C, L, blocks, xo, xc, xl, yo, yc, yl, COLUMNS: tl.constexpr, LANES: tl.constexpr, PDL: tl.constexpr, KIND: tl.constexpr = 0
):
    """LANES whole lanes at once. Strides of outer, column and lane for x and y, in elements."""
    if PDL:
        gdc_wait()
    outer = (tl.program_id(0) // blocks).to(tl.int64)
    lane = (tl.program_id(0) % blocks).to(tl.int64) * LANES + tl.arange(0, LANES)[None, :]
    column = tl.arange(0, COLUMNS).to(tl.int64)[:, None]
    inside = (column < C) & (lane < L)
    v = tl.load(x + outer * xo + column * xc + lane * xl, inside, other=-INF).to(tl.float32)
    m = tl.maximum(tl.max(v, 0, keep_dims=True), LOWEST)
    e = _exp(_less(v, m, KIND), y.dtype.element_ty)
    s = tl.sum(e, 0, keep_dims=True)
    if KIND == 0:
        tl.store(y + outer * yo + column * yc + lane * yl, _quotient(e, s, tl.div_rn(1.0, s), y.dtype.element_ty), inside)
    elif KIND == 1:
        tl.store(y + outer * yo + column * yc + lane * yl, (v - m - _log(s, y.dtype.element_ty)).to(y.dtype.element_ty), inside)
    else:
        tl.store(y + outer * yo + lane * yl, (m + _log(s, y.dtype.element_ty)).to(y.dtype.element_ty), lane < L)


@triton.jit
def _loop(  # type: ignore[no-untyped-def]
    x, y, C, L, blocks, rounds, xo, xc, xl, yo, yc, yl, COLUMNS: tl.constexpr, LANES: tl.constexpr, PDL: tl.constexpr,
    KIND: tl.constexpr = 0
):
    """LANES lanes, COLUMNS columns at a time, in `rounds` iterations, twice; for the sum alone once."""
    if PDL:
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
        e = _exp(-tl.abs(_less(v, m, KIND)), y.dtype.element_ty)  # one of exp(v - m') and exp(m - m') is 1, this is the other
        s = tl.where(v > m, s * e + 1, s + e)
        m = tl.maximum(m, v)
    most = tl.max(m, 0, keep_dims=True)
    total = tl.sum(s * _exp(_less(m, most, KIND), y.dtype.element_ty), 0, keep_dims=True)
    if KIND == 2:
        tl.store(y, (most + _log(total, y.dtype.element_ty)).to(y.dtype.element_ty), lane < L)
    else:
        scale = tl.div_rn(1.0, total) if KIND == 0 else _log(total, y.dtype.element_ty)
        for k in range(rounds):
            column = (rounds - 1 - k) * COLUMNS + start
            inside = (column < C) & (lane < L)
            v = tl.load(x + column * xc, inside, other=-INF).to(tl.float32)
            if KIND == 0:
                found = _quotient(_exp(v - most, y.dtype.element_ty), total, scale, y.dtype.element_ty)
            else:
                found = (v - most - scale).to(y.dtype.element_ty)
            tl.store(y + column * yc, found, inside)


@triton.jit
def _sum(v, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sum over the columns. Its terms cancel, and all of dx depends on it: for float32 results it is computed in float64."""
    if dtype == tl.float32:
        v = v.to(tl.float64)
    return tl.sum(v, 0, keep_dims=True).to(tl.float32)


@triton.jit
def _tile_bwd(  # type: ignore[no-untyped-def]
    dy, y, dx, C, L, blocks, go, gc, gl, yo, yc, yl, xo, xc, xl, COLUMNS: tl.constexpr, LANES: tl.constexpr, PDL: tl.constexpr,
    KIND: tl.constexpr = 0
):
    """LANES whole lanes at once. Strides of outer, column and lane for dy, y and dx, in elements."""
    if PDL:
        gdc_wait()
    outer = (tl.program_id(0) // blocks).to(tl.int64)
    lane = (tl.program_id(0) % blocks).to(tl.int64) * LANES + tl.arange(0, LANES)[None, :]
    column = tl.arange(0, COLUMNS).to(tl.int64)[:, None]
    inside = (column < C) & (lane < L)
    a = tl.load(y + outer * yo + column * yc + lane * yl, inside, other=0).to(tl.float32)
    b = tl.load(dy + outer * go + column * gc + lane * gl, inside, other=0).to(tl.float32)
    if KIND == 0:
        result = a * (b - _sum(a * b, dx.dtype.element_ty))
    else:
        result = b - _exp(a, dx.dtype.element_ty) * _sum(b, dx.dtype.element_ty)
    tl.store(dx + outer * xo + column * xc + lane * xl, result.to(dx.dtype.element_ty), inside)


@triton.jit
def _loop_bwd(  # type: ignore[no-untyped-def]
    dy, y, dx, C, L, blocks, rounds, go, gc, gl, yo, yc, yl, xo, xc, xl, COLUMNS: tl.constexpr, LANES: tl.constexpr, PDL: tl.constexpr,
    KIND: tl.constexpr = 0
):
    """LANES lanes, COLUMNS columns at a time, in `rounds` iterations, twice."""
    if PDL:
        gdc_wait()
    outer = (tl.program_id(0) // blocks).to(tl.int64)
    lane = (tl.program_id(0) % blocks).to(tl.int64) * LANES + tl.arange(0, LANES)[None, :]
    start = tl.arange(0, COLUMNS).to(tl.int64)[:, None]
    y += outer * yo + lane * yl
    dy += outer * go + lane * gl
    dx += outer * xo + lane * xl

    # a plain sum of dy is larger than its terms: its rounding errors would show in a float32 result
    s = tl.zeros((COLUMNS, LANES), tl.float64 if KIND != 0 and dx.dtype.element_ty == tl.float32 else tl.float32)
    for k in range(rounds):
        column = k * COLUMNS + start
        inside = (column < C) & (lane < L)
        if KIND == 0:
            a = tl.load(y + column * yc, inside, other=0).to(tl.float32)
            b = tl.load(dy + column * gc, inside, other=0).to(tl.float32)
            s += a * b
        else:
            s += tl.load(dy + column * gc, inside, other=0).to(s.dtype)
    total = _sum(s, dx.dtype.element_ty)

    for k in range(rounds):
        column = (rounds - 1 - k) * COLUMNS + start
        inside = (column < C) & (lane < L)
        a = tl.load(y + column * yc, inside, other=0).to(tl.float32)
        b = tl.load(dy + column * gc, inside, other=0).to(tl.float32)
        found = a * (b - total) if KIND == 0 else b - _exp(a, dx.dtype.element_ty) * total
        tl.store(dx + column * xc, found.to(dx.dtype.element_ty), inside)


@triton.jit
def _spread(  # type: ignore[no-untyped-def]
    dy, x, y, dx, C, L, blocks, across, go, gl, xo, xc, xl, yo, yl, do, dc, dl, COLUMNS: tl.constexpr, LANES: tl.constexpr, PDL: tl.constexpr
):
    """dx = dy e^(x - y), where dy and y have one element a lane; COLUMNS columns of LANES lanes, of `across` parts of a lane."""
    if PDL:
        gdc_wait()
    tile = tl.program_id(0) // across
    outer = (tile // blocks).to(tl.int64)
    lane = (tile % blocks).to(tl.int64) * LANES + tl.arange(0, LANES)[None, :]
    column = (tl.program_id(0) % across).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)[:, None]
    inside = (column < C) & (lane < L)
    v = tl.load(x + outer * xo + column * xc + lane * xl, inside, other=0).to(tl.float32)
    g = tl.load(dy + outer * go + lane * gl, lane < L, other=0).to(tl.float32)
    sum_ = tl.load(y + outer * yo + lane * yl, lane < L, other=0).to(tl.float32)
    tl.store(dx + outer * do + column * dc + lane * dl, (g * _exp(v - sum_, dx.dtype.element_ty)).to(dx.dtype.element_ty), inside)


@dataclass(frozen=True)
class Config:
    """`columns` × `lanes` elements are held at a time by `warps` warps; `loop`: a lane may be longer than that."""

    columns: int
    lanes: int
    warps: int
    loop: bool


def _whole(p: Problem) -> Meta:
    """A tensor that has all elements of the rows."""
    return p["y"] if "softmax" in p.op else p["x"]


def _forward(p: Problem) -> bool:
    return not p.op.endswith("_bwd")


def _lanes(p: Problem) -> int:
    """The number of contiguous softmaxes."""
    rows, _, inner = _whole(p).shape
    return rows if inner == 1 else inner


def _grid(p: Problem, lanes: int) -> tuple[int, int]:
    """Programs in all, and programs with the same outer index."""
    rows, _, inner = _whole(p).shape
    blocks = -(-_lanes(p) // lanes)
    return (blocks if inner == 1 else rows * blocks), blocks


def _tensors(p: Problem) -> tuple[str, ...]:
    """In the order of the kernels' parameters, the row that is written last."""
    return ("dy", "x", "y", "dx") if p.op == "logsumexp_bwd" else ("x", "y") if _forward(p) else ("dy", "y", "dx")


def supports(p: Problem) -> str | None:
    dtypes = {p[name].dtype for name in _tensors(p)}
    if len(dtypes) != 1 or not dtypes <= {"f32", "f16", "bf16"}:
        return f"takes f32, f16 or bf16, the same for all tensors; given {', '.join(f'{name}: {p[name].dtype}' for name in _tensors(p))}"
    if _whole(p).numel == 0:
        return "there is nothing to compute"
    if _whole(p).shape[1] >= 2**31:
        return f"takes fewer than 2**31 columns; given {_whole(p).shape[1]}"
    config = choose(p)
    if _grid(p, config.lanes)[0] * (_across(p, config) if p.op == "logsumexp_bwd" else 1) >= 2**31:
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

    return all(wide(m) for _, m in p.tensors if m is not None and m.shape == _whole(p).shape)


def choose(p: Problem) -> Config:
    """Measured on an H100. Rows: tiles of 4096 elements or one row, 16 elements a thread; 32 if accesses are narrow, so that more of them
    are in flight. Inner positions: at least a 32-byte sector wide, in the backward one or two."""
    _, columns, inner = _whole(p).shape
    wide, forward, vectors = pow2(columns), _forward(p), _wide_access(p)
    if p.op == "logsumexp_bwd":  # elementwise: tiles of a row, or of inner positions
        lanes = 1 if inner == 1 else min(pow2(inner), 32)
        block = min(wide, 2048 // lanes)
        lanes = max(lanes, min(2048 // block, pow2(_lanes(p)))) if inner == 1 else lanes
        return Config(block, lanes, max(1, min(8, block * lanes // 256)), False)
    if inner == 1:
        if wide > (32768 if forward else 16384):
            return Config(8192, 1, 16, True)
        tile, each = (4096, 512) if vectors and wide < 32768 else (2048, 1024)
        lanes = max(1, min(tile // wide, pow2(_lanes(p))))
        while lanes > 1 and _grid(p, lanes)[0] < 4 * p.device.sms:
            lanes //= 2
        return Config(wide, lanes, max(1, min(32 if forward and each == 1024 else 16, wide * lanes // each)), False)
    limit = (32768 if forward and p.device.arch >= 90 else 16384) if vectors else 8192  # larger tiles spill
    for lanes in (16, 32 // p["y"].itemsize) if forward else (16,):
        lanes = min(pow2(inner), lanes)
        if wide * lanes <= limit:
            return Config(wide, lanes, max(1, min(16, wide * lanes // (1024 if vectors else 512))), False)
    lanes = min(pow2(inner), 32)
    return Config(2048 // lanes, lanes, 8, True)


def configs(p: Problem) -> list[Config]:
    _, columns, inner = _whole(p).shape
    wide, most = pow2(columns), 64 if _forward(p) else 32  # elements a thread
    found = []
    if p.op == "logsumexp_bwd":
        return [Config(min(wide, size), 1, warps, False) for size in (1024, 2048, 4096) for warps in (4, 8)]
    for lanes in (1, 2, 4, 8, 16) if inner == 1 else (8, 16, 32, 64, 128):
        for warps in (1, 2, 4, 8, 16, 32):
            if 4 * 32 * warps <= wide * lanes <= most * 32 * warps and wide * lanes <= 32768:
                found.append(Config(wide, lanes, warps, False))
        for size in (2048, 4096, 8192, 16384):
            if size // lanes < wide and (inner > 1 or lanes == 1):
                found.append(Config(size // lanes, lanes, size // 1024 if size <= 4096 else 8, True))
    return found


def _across(p: Problem, config: Config) -> int:
    return -(-_whole(p).shape[1] // config.columns)


def launches(p: Problem, config: Config) -> list[Launch]:
    _, columns, inner = _whole(p).shape
    programs, blocks = _grid(p, config.lanes)
    args = {**dict.fromkeys(_tensors(p)), "C": columns, "L": _lanes(p), "blocks": blocks}
    spread = p.op == "logsumexp_bwd"
    for name in _tensors(p):
        row, column, lane = p[name].strides
        outer, lane = (0, row) if inner == 1 else (row, lane)  # with one inner position the rows are the lanes
        letter = "g" if name == "dy" else "d" if spread and name == "dx" else name[-1]
        args |= {name: name, f"{letter}o": outer, f"{letter}l": lane}
        if not (spread and name in ("dy", "y")):
            args[f"{letter}c"] = column
    args |= {"COLUMNS": config.columns, "LANES": config.lanes, "PDL": p.device.pdl}
    if kind := KINDS.get(p.op.removesuffix("_bwd")):
        args["KIND"] = kind
    if config.loop:
        args["rounds"] = -(-columns // config.columns)
    kernel = (_loop if config.loop else _tile) if _forward(p) else _loop_bwd if config.loop else _tile_bwd
    if spread:
        del args["KIND"]
        programs, kernel = programs * _across(p, config), _spread
        args["across"] = _across(p, config)
    return [Launch(kernel=kernel, grid=(programs,), args=args, warps=config.warps, pdl=p.device.pdl)]
