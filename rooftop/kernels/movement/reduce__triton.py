"""Reductions of x[A, B, C, D, E] over B and D. Contract: rooftop/ops/reduce.py

A program has a tile of `positions` along the reduced dimensions × `lanes` results and loops over its part of them; each element of the tile
accumulates on its own, and the tile is reduced at the end. With few results, `splits` programs share each: every program writes a partial
result, and a second launch reduces those. The order of all this depends on shapes only.

Lanes are neighbouring results: positions of E if E > 1, else of A and C, whose elements are then contiguous along D."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from rooftop.core.spec import Launch, Meta, Problem, pow2

SUM, MEAN, VAR, MAX, ARGMAX = (tl.constexpr(i) for i in range(5))
CODES = {"sum": 0, "mean": 1, "var": 2, "max": 3, "argmax": 4}
NOWHERE = tl.constexpr(2**62)  # the place of a maximum that has not been seen


@triton.jit
def _gather(p, q, r, n, v, at, valid, OP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Adds one element in each position. p, q, r, n: the sum; the maximum, and its place (n); for a variance sums of distances (p) and of
    their squares (q) from the position's first element (r), and their number (n)."""
    if OP == MAX:
        p = tl.where(valid & ((v > p) | (v != v)), v, p)
    elif OP == ARGMAX:
        better = valid & ((v > p) | ((v != v) & (p == p)) | (n == NOWHERE))
        p = tl.where(better, v, p)
        n = tl.where(better, at, n)
    elif OP == VAR:
        r = tl.where((n == 0) & valid, v, r)
        d = tl.where(valid, v - r, 0.0)
        p += d
        q += d * d
        n += tl.where(valid, 1.0, 0.0)
    else:
        p += tl.where(valid, v, 0)
    return p, q, r, n


@triton.jit
def _fold(p, q, r, n, low, OP: tl.constexpr, AXIS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Combines the positions along AXIS. For a variance: mean (p), sum of squares about it (q), count (n)."""
    if OP == MAX:
        top = tl.max(tl.where(p != p, low, p), AXIS)
        p = tl.where(tl.max((p != p).to(tl.int32), AXIS) > 0, float("nan"), top) if p.dtype.is_floating() else top
    elif OP == ARGMAX:
        if p.dtype.is_floating():
            number = tl.where(p != p, 1, 0)
            most = tl.max(tl.where(p != p, low, p), AXIS, keep_dims=True)
            top = tl.where(tl.max(number, AXIS, keep_dims=True) > 0, number > 0, (p == most) & (n != NOWHERE))
            value = tl.where(tl.max(number, AXIS) > 0, float("nan"), tl.max(tl.where(p != p, low, p), AXIS))
        else:
            top = (p == tl.max(p, AXIS, keep_dims=True)) & (n != NOWHERE)
            value = tl.max(p, AXIS)
        n = tl.min(tl.where(top, n, NOWHERE), AXIS)
        p = value
    elif OP == VAR:
        total = tl.sum(n, AXIS)
        pivot = tl.max(tl.where(n > 0, p, low), AXIS, keep_dims=True)  # equal elements have no variance at all
        d = tl.where(n > 0, p - pivot, 0.0)
        mean = tl.sum(n * d, AXIS) / tl.maximum(total, 1.0)
        d -= tl.expand_dims(mean, AXIS)
        q = tl.sum(tl.where(n > 0, q + n * d * d, 0.0), AXIS)
        p = tl.max(pivot, AXIS) + mean
        n = total
    else:
        p = tl.sum(p, AXIS)
    return p, q, n


@triton.jit
def _put(out, at, p, q, n, K, freedom, inside, OP: tl.constexpr):  # type: ignore[no-untyped-def]
    """The result of K elements, rounded."""
    if OP == ARGMAX:
        tl.store(out + at, n, inside)
    elif OP == MEAN:
        tl.store(out + at, (p / K).to(out.dtype.element_ty), inside)
    elif OP == VAR:
        tl.store(out + at, (q / freedom).to(out.dtype.element_ty), inside)
    else:
        tl.store(out + at, p.to(out.dtype.element_ty), inside)


@triton.jit
def _tiles(
    x, out, ps, qs, ns, low, K, freedom, M, C, D, E, blocks, each, chunks, chunks_of_d, xa, xb, xc, xd, xe, oa, oc, oe,
    OP: tl.constexpr, ACC: tl.constexpr, ROWS: tl.constexpr, POSITIONS: tl.constexpr, LANES: tl.constexpr, SPLIT: tl.constexpr,
    WHOLE: tl.constexpr, PDL: tl.constexpr,
):  # type: ignore[no-untyped-def]
    """`each` chunks of POSITIONS positions for LANES results. ROWS: E is 1, and the tile is [LANES, POSITIONS], else [POSITIONS, LANES]. M
    results in all, `blocks` programs for them (ROWS) or for the E of one outer index. WHOLE: no chunk and no lanes extend past the
    tensor."""
    if PDL:
        gdc_wait()
    AXIS: tl.constexpr = 1 if ROWS else 0
    block = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1).to(tl.int64) * each
    if ROWS:
        lane = block * LANES + tl.arange(0, LANES)[:, None]
        inside = lane < M
        start = x + lane // C * xa + lane % C * xc
        k = tl.arange(0, POSITIONS)[None, :]
    else:
        outer = block // blocks
        e = (block % blocks) * LANES + tl.arange(0, LANES)[None, :]
        inside = e < E
        lane = outer * E + e
        start = x + outer // C * xa + outer % C * xc + e * xe
        k = tl.arange(0, POSITIONS)[:, None]
    shape: tl.constexpr = (LANES, POSITIONS) if ROWS else (POSITIONS, LANES)
    p = tl.zeros(shape, ACC) + low if OP >= MAX else tl.zeros(shape, ACC)
    q = tl.zeros(shape, tl.float32)
    r = tl.zeros(shape, tl.float32)
    n = tl.full(shape, NOWHERE, tl.int64) if OP == ARGMAX else tl.zeros(shape, tl.float32)
    for chunk in range(first, tl.minimum(first + each, chunks)):
        b = chunk // chunks_of_d
        d = (chunk % chunks_of_d) * POSITIONS + k
        at = start + b * xb + d * xd
        if WHOLE:
            v = tl.load(at).to(ACC)
            p, q, r, n = _gather(p, q, r, n, v, b * D + d, tl.full(shape, 1, tl.int1), OP)
        elif ROWS and LANES == 1 and (chunk % chunks_of_d + 1) * POSITIONS <= D:
            v = tl.load(at).to(ACC)  # one row at a time: lanes are inside
            p, q, r, n = _gather(p, q, r, n, v, b * D + d, tl.full(shape, 1, tl.int1), OP)
        else:
            valid = (d < D) & inside
            v = tl.load(at, valid, other=0).to(ACC)
            p, q, r, n = _gather(p, q, r, n, v, b * D + d, valid, OP)
    if OP == VAR:
        count = tl.maximum(n, 1.0)
        q -= p * (p / count)
        p = r + p / count
    p, q, n = _fold(p, q, r, n, low, OP, AXIS)
    to = tl.reshape(lane, (LANES,))
    ok = tl.reshape(inside, (LANES,))
    if SPLIT:
        part = tl.program_id(1) * M + to
        tl.store(ps + part, p, ok)
        if OP == VAR:
            tl.store(qs + part, q, ok)
            tl.store(ns + part, n, ok)
        if OP == ARGMAX:
            tl.store(ns + part, n, ok)
    else:
        _put(out, to // (C * E) * oa + to // E % C * oc + to % E * oe, p, q, n, K, freedom, ok, OP)


@triton.jit
def _parts(
    ps, qs, ns, out, low, K, freedom, M, C, E, S, oa, oc, oe, OP: tl.constexpr, ACC: tl.constexpr, SPLITS: tl.constexpr,
    LANES: tl.constexpr, PDL: tl.constexpr,
):  # type: ignore[no-untyped-def]
    """Combines the S partial results of each of LANES results."""
    if PDL:
        gdc_wait()
    to = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    s = tl.arange(0, SPLITS)[:, None]
    inside = (s < S) & (to < M)[None, :]
    at = s.to(tl.int64) * M + to[None, :]
    q = tl.zeros((SPLITS, LANES), tl.float32)
    n = tl.zeros((SPLITS, LANES), tl.float32)
    p = tl.load(ps + at, inside, other=0)
    if OP >= MAX:
        p = tl.where(inside, p, low)
    if OP == VAR:
        q = tl.load(qs + at, inside, other=0)
        n = tl.load(ns + at, inside, other=0)
    if OP == ARGMAX:
        n = tl.load(ns + at, inside, other=NOWHERE)
    p, q, n = _fold(p, q, q, n, low, OP, 0)
    _put(out, to // (C * E) * oa + to // E % C * oc + to % E * oe, p, q, n, K, freedom, to < M, OP)


@dataclass(frozen=True)
class Config:
    """A tile of `positions` × `lanes`, by `warps` warps; `splits` programs share a result."""

    positions: int
    lanes: int
    warps: int
    splits: int


def supports(p: Problem) -> str | None:
    x = p["x"]
    if x.dtype not in ("f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8"):
        return f"takes floats of 16 and 32 bits and integers; given {x.dtype}"
    if x.numel == 0:
        return "there is nothing to reduce"
    if x.shape[1] * x.shape[3] >= 2**40:
        return "more than 2**40 elements for one result"
    if _grid(p, choose(p))[0] >= 2**31:
        return "more programs than one launch may have"
    return None


def _grid(p: Problem, config: Config) -> tuple[int, int]:
    """Programs for the results, and of those that share an outer index."""
    a, _, c, _, e = p["x"].shape
    blocks = -(-(e if e > 1 else a * c) // config.lanes)
    return (blocks if e == 1 else a * c * blocks), blocks


def _chunks(p: Problem, positions: int) -> tuple[int, int]:
    _, b, _, d, _ = p["x"].shape
    of_d = -(-d // positions)
    return b * of_d, of_d


def choose(p: Problem) -> Config:
    """Tiles of at least 32 bytes a thread; so many programs that each multiprocessor has several, and the last wave is nearly full."""
    x = p["x"]
    a, _, c, d, e = x.shape
    vector = 16 // x.itemsize
    heavy = p.option("op") in ("var", "argmax")
    tile = 8 * 32 * vector * (1 if heavy else 2)
    if e == 1:
        positions = min(tile, pow2(d))
        lanes = max(1, min(pow2(a * c), tile // positions))
        while lanes > 1 and -(-a * c // lanes) < 4 * p.device.sms:
            lanes //= 2
    else:
        lanes = min(pow2(e), 32 * vector // (1 if e * x.itemsize >= 4096 else 2))
        positions = max(1, min(pow2(d), tile // lanes))
    warps = max(1, min(8, positions * lanes // (32 * vector)))
    programs = _grid(p, Config(positions, lanes, warps, 1))[0]
    chunks, _ = _chunks(p, positions)
    wanted = p.device.sms * (16 * 8 // (2 * warps)) // 4
    splits = 1
    if programs < wanted // 2 and chunks > 1:
        splits = max(1, min(chunks // 2, wanted // programs, 1024))
        each = -(-chunks // splits)
        splits = -(-chunks // each)
    return Config(positions, lanes, warps, splits)


def configs(p: Problem) -> list[Config]:
    first = choose(p)
    return [
        Config(first.positions, first.lanes, w, max(1, s)) for w in (4, 8) for s in (first.splits // 2, first.splits, first.splits * 2)
        if s <= 1024
    ]


def _accumulator(p: Problem) -> tuple[str, object]:
    """The dtype of sums and maxima, and a value below every element."""
    return ("f32", float("-inf")) if p["x"].dtype in ("f32", "f16", "bf16") else ("i64", -(2**63))


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    if config.splits == 1:
        return {}
    shape, op = (config.splits, p["out"].numel), p.option("op")
    found = {"ps": Meta(shape, _accumulator(p)[0])}
    if op == "var":
        found["qs"] = Meta(shape, "f32")
    if op in ("var", "argmax"):
        found["ns"] = Meta(shape, "f32" if op == "var" else "i64")
    return found


def launches(p: Problem, config: Config) -> list[Launch]:
    x, out = p["x"], p["out"]
    a, b, c, d, e = x.shape
    rows, count = e == 1, b * d
    chunks, of_d = _chunks(p, config.positions)
    programs, blocks = _grid(p, config)
    acc, low = _accumulator(p)
    whole = d % config.positions == 0 and (a * c if rows else e) % config.lanes == 0
    split = config.splits > 1
    parts = {n: n if n in scratch(p, config) else None for n in ("ps", "qs", "ns")}
    places = {"M": a * c * e, "C": c, "E": e, "oa": out.strides[0], "oc": out.strides[2], "oe": out.strides[4]}
    free = float(max(count - int(p.option("correction")), 0))
    same = {**parts, "out": "out", "low": low, "K": float(count), "freedom": free, **places, "OP": CODES[str(p.option("op"))]}
    same |= {"ACC": tl.float32 if acc == "f32" else tl.int64, "PDL": p.device.pdl}
    steps = {f"x{n}": s for n, s in zip("abcde", x.strides, strict=True)}
    first = Launch(
        _tiles, (programs, config.splits),
        {
            "x": "x", **same, "D": d, "blocks": blocks, "each": -(-chunks // config.splits), "chunks": chunks, "chunks_of_d": of_d, **steps,
            "ROWS": rows, "POSITIONS": config.positions, "LANES": config.lanes, "SPLIT": split, "WHOLE": whole,
        },
        config.warps, pdl=p.device.pdl,
    )
    if not split:
        return [first]
    splits = pow2(config.splits)
    lanes = max(1, min(pow2(a * c * e), 2048 // splits))
    second = Launch(
        _parts, (-(-a * c * e // lanes),), {**same, "S": config.splits, "SPLITS": splits, "LANES": lanes}, 4, pdl=p.device.pdl
    )
    return [first, second]
