"""Cross-entropy of logits [R, C], and its gradient. Contract: rooftop/ops/cross_entropy.py

Bytes, forward: each logit is read once and almost nothing is written: the lower bound is a read. A program makes one pass over a row, or
over one part of a row with few rows: each position keeps a maximum and a sum (online softmax, Milakov & Gimelshein 2018), updated once for
`deep` logits, so that a logit costs one exponential and no barrier; positions are reduced at the end. Capped logits need no maximum, but
two exponentials and a quarter of a reciprocal: 0.9 of the time of a read for the special function units alone. A last launch of one program
adds the rows' losses in a fixed order if there is a reduction. One row per program, in order, measured better than an equal share of all
tiles per program: concurrent reads are then close together in memory.
Prediction: 0.95 of a read from 256 MiB on, 0.92 with capped logits; below 4 MiB the second launch costs as much as the first.

Backward, given the rows' normalisers (a shift m and the sum of exp(logit - m)): each logit is read once, each gradient written once, in
place if requested (every element is read and written by the same thread). Ignored rows are not read. Prediction: 0.97 of a copy from 256
MiB on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait, libdevice

from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels.loss._logits import EXACT, LN2, LOG2E, SHORT, bounded, capped, each, edges, exp, how, middle, raised

OPS = ("cross_entropy", "cross_entropy_bwd")

# The identity of the maximum: with -inf, -inf - -inf would be NaN where only a part of a row is -inf.
LOWEST = tl.constexpr(-3.4028234663852886e38)
INF = tl.constexpr(float("inf"))
ADDED = 16384  # rows, or parts of rows, that the last launch adds at a time


@triton.jit
def _add(v, m, s, total, at, last, SMOOTH: tl.constexpr, CAP: tl.constexpr, WHOLE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Adds a quarter of a tile, its columns `at`, to sum and total of each position, given the maximum."""
    e = libdevice.exp2(v) if CAP == SHORT else exp(v - m[None, :])  # SHORT: between 2^-101 and 2^101, and multiplied by log2(e)
    if CAP == SHORT and not WHOLE:
        e = tl.where(at < last, e, 0)
    s += tl.sum(e, 0)
    if SMOOTH:
        total += tl.sum(v if WHOLE else tl.where(at < last, v, 0), 0)
    return s, total


@triton.jit
def _tile(  # type: ignore[no-untyped-def]
    x, now, last, m, s, total, cap, SMOOTH: tl.constexpr, CAP: tl.constexpr, WHOLE: tl.constexpr, DEEP: tl.constexpr, COLUMNS: tl.constexpr
):
    """Online softmax: adds DEEP × COLUMNS logits, from column `now` on, to maximum, sum and total of each position. WHOLE: all of them are
    before column `last`."""
    step: tl.constexpr = DEEP // 4 * COLUMNS
    at = now + tl.arange(0, DEEP // 4)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    if WHOLE:
        a = tl.load(x + at).to(tl.float32)
        b = tl.load(x + (at + step)).to(tl.float32)
        c = tl.load(x + (at + 2 * step)).to(tl.float32)
        d = tl.load(x + (at + 3 * step)).to(tl.float32)
    else:
        a = tl.load(x + at, at < last, other=-INF).to(tl.float32)
        b = tl.load(x + (at + step), at + step < last, other=-INF).to(tl.float32)
        c = tl.load(x + (at + 2 * step), at + 2 * step < last, other=-INF).to(tl.float32)
        d = tl.load(x + (at + 3 * step), at + 3 * step < last, other=-INF).to(tl.float32)
    if CAP == SHORT:
        a, b, c, d = bounded(a, b, c, d, cap, LOG2E)
    else:
        if CAP == EXACT:
            a, b, c, d = capped(a, cap), capped(b, cap), capped(c, cap), capped(d, cap)
            if not WHOLE:
                a = tl.where(at < last, a, -INF)
                b = tl.where(at + step < last, b, -INF)
                c = tl.where(at + 2 * step < last, c, -INF)
                d = tl.where(at + 3 * step < last, d, -INF)
        top = tl.maximum(m, tl.maximum(tl.maximum(tl.max(a, 0), tl.max(b, 0)), tl.maximum(tl.max(c, 0), tl.max(d, 0))))
        s *= exp(m - top)
        m = top
    s, total = _add(a, m, s, total, at, last, SMOOTH, CAP, WHOLE)
    s, total = _add(b, m, s, total, at + step, last, SMOOTH, CAP, WHOLE)
    s, total = _add(c, m, s, total, at + 2 * step, last, SMOOTH, CAP, WHOLE)
    s, total = _add(d, m, s, total, at + 3 * step, last, SMOOTH, CAP, WHOLE)
    return m, s, total


@triton.jit
def _loss(most, sum_, picked, total, C, smoothing, scale, SMOOTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """`sum_`: of the exponentials about `most`. Differences of logits first: lse is rounded at their magnitude."""
    above = tl.log(sum_)
    off = most - picked
    if SMOOTH:
        off = (1 - smoothing) * off + smoothing * (most - tl.div_rn(total, C))
    z = most + above
    return above + off + scale * z * z


@triton.jit
def _rows(x, target, loss, normaliser, divisor, parts, C, xs, share, width, ignore, smoothing, scale, cap,
          SMOOTH: tl.constexpr, CAP: tl.constexpr, EACH: tl.constexpr, WHOLE: tl.constexpr, DEEP: tl.constexpr, COLUMNS: tl.constexpr,
          STAGES: tl.constexpr, PDL: tl.constexpr, FIRST: tl.constexpr):  # type: ignore[no-untyped-def]
    """The loss and normaliser (shift, sum) of one row, DEEP × COLUMNS logits at a time; or, if `parts` is given, maximum, sum and total of
    one of `share` parts of it, `width` columns, written to parts[row, part, 3]. `divisor`: given if the losses are not added. WHOLE: rows
    are whole tiles.
    FIRST: the first of two launches."""
    if PDL:
        gdc_wait()
        if FIRST:
            gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    part = 0
    if parts is not None:
        row = (tl.program_id(0) // share).to(tl.int64)
        part = tl.program_id(0) % share
    start, before, within = middle(row, xs, C, EACH)
    t = tl.load(target + row)
    m = tl.full((COLUMNS,), LOWEST, tl.float32)
    s = tl.zeros((COLUMNS,), tl.float32)
    total = tl.zeros((COLUMNS,), tl.float32)
    first = part * width
    last = tl.minimum(first + width, within)
    whole = tl.maximum(last - first, 0) // (DEEP * COLUMNS)
    for k in tl.range(0, whole, num_stages=STAGES):
        m, s, total = _tile(x + start, first + k * (DEEP * COLUMNS), last, m, s, total, cap, SMOOTH, CAP, True, DEEP, COLUMNS)
    if not WHOLE:
        now = first + whole * (DEEP * COLUMNS)
        if now < last:
            m, s, total = _tile(x + start, now, last, m, s, total, cap, SMOOTH, CAP, False, DEEP, COLUMNS)
    known = (t >= 0) & (t < C)
    if parts is None:
        picked = tl.load(x + row * xs + t, known, other=float("nan")).to(tl.float32)
    most = tl.max(m, 0)
    all_ = tl.sum(total, 0)
    if EACH > 0:
        column, there = edges(before, within, C, EACH)
        there = there & (part == 0)
        edge = tl.load(x + row * xs + column, there, other=-INF).to(tl.float32)
        if CAP != 0:
            edge = capped(edge, cap)
        if CAP == SHORT:
            edge *= LOG2E
        edge = tl.where(there, edge, -INF)
        most = tl.maximum(most, tl.max(edge, 0))
        all_ += tl.sum(tl.where(there, edge, 0), 0)
    if CAP == SHORT:
        most = 0.0
        all_ *= LN2
        sum_ = tl.sum(s, 0)
    else:
        sum_ = tl.sum(s * exp(m - most), 0)
    if EACH > 0:
        sum_ += tl.sum(libdevice.exp2(edge) if CAP == SHORT else exp(edge - most), 0)
    if parts is None:
        sum_ = tl.where(sum_ == 0, float("nan"), sum_)  # only -inf
        tl.store(normaliser + 2 * row, most)
        tl.store(normaliser + 2 * row + 1, sum_)
        if CAP != 0:
            picked = capped(picked, cap)
        found = _loss(most, sum_, picked, all_, tl.full((), C, tl.float32), smoothing, scale, SMOOTH)
        tl.store(loss + row, tl.where(t == ignore, 0.0, tl.where(known, found, float("nan"))))
        if divisor is not None:
            tl.store(divisor, 1.0, row == 0)
    else:
        to = parts + 3 * tl.program_id(0).to(tl.int64)
        tl.store(to, most)
        tl.store(to + 1, sum_)
        if SMOOTH:
            tl.store(to + 2, all_)


@triton.jit(do_not_specialize=["R"])
def _reduce(found, parts, x, target, normaliser, loss, divisor, R, C, xs, share, ignore, smoothing, scale, cap,
            MEAN: tl.constexpr, SMOOTH: tl.constexpr, CAP: tl.constexpr, BLOCK: tl.constexpr, SHARE: tl.constexpr,
            PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sum of the rows' losses, with MEAN over the number of rows that count. `parts`: rows are first combined from their parts."""
    if PDL:
        gdc_wait()
    total = tl.zeros((BLOCK,), tl.float32)
    count = tl.zeros((BLOCK,), tl.float32)
    for k in range(tl.cdiv(R, BLOCK)):
        row = k * BLOCK + tl.arange(0, BLOCK)
        count += (tl.load(target + row, row < R, other=ignore) != ignore).to(tl.float32)
    by = tl.sum(count, 0) if MEAN else 1.0
    for k in range(tl.cdiv(R, BLOCK)):
        row = k * BLOCK + tl.arange(0, BLOCK)
        if parts is None:
            total += tl.load(found + row, row < R, other=0)
        else:
            t = tl.load(target + row, row < R, other=ignore)
            known = (t >= 0) & (t < C) & (row < R)
            picked = tl.load(x + row.to(tl.int64) * xs + t, known, other=float("nan")).to(tl.float32)
            part = tl.arange(0, SHARE)[None, :]
            at = parts + 3 * (row[:, None] * share + part)
            there = (row[:, None] < R) & (part < share)
            m = tl.load(at, there, other=LOWEST)
            most = tl.max(m, 1)
            sum_ = tl.sum(tl.load(at + 1, there, other=0) * exp(m - most[:, None]), 1)
            sum_ = tl.where(sum_ == 0, float("nan"), sum_)
            tl.store(normaliser + 2 * row.to(tl.int64), most, row < R)
            tl.store(normaliser + 2 * row.to(tl.int64) + 1, sum_, row < R)
            if CAP != 0:
                picked = capped(picked, cap)
            whole = tl.sum(tl.load(at + 2, there, other=0), 1) if SMOOTH else 0.0
            loss_ = _loss(most, sum_, picked, whole, tl.full((BLOCK,), C, tl.float32), smoothing, scale, SMOOTH)
            total += tl.where((t == ignore) | (row >= R), 0.0, tl.where(known, loss_, float("nan")))
    tl.store(divisor, by)
    tl.store(loss, tl.div_rn(tl.sum(total, 0), tl.full((), by, tl.float32)))


@triton.jit
def _slope(v, hit, most, each, smoothed, smoothing, cap, CAP: tl.constexpr):  # type: ignore[no-untyped-def]
    """d loss / d logit; `hit`: it is the target's; `most`: the row's shift; `each`: the factor of its exponentials; `smoothed`: the
    smoothing of one class."""
    if CAP == SHORT:
        part = libdevice.fast_dividef(2.0, raised(v, cap))  # tanh is 1 - part
        v = cap - cap * part
        slope = part * (2 - part)
    if CAP == EXACT:
        v = capped(v, cap)
        u = v / cap
        slope = 1 - u * u
    d = exp(v - most) * each - smoothed
    d = tl.where(hit, d - (1 - smoothing), d)
    return d * slope if CAP != 0 else d


@triton.jit
def _grad(dloss, x, target, normaliser, divisor, dx, C, blocks, xs, gs, ds, ignore, smoothing, scale, cap,
          CAP: tl.constexpr, EACH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """BLOCK classes of one row. Row strides of x, dloss (0: one for all) and dx in elements. EACH: x and dx have the same alignment."""
    if PDL:
        gdc_wait()
    row = (tl.program_id(0) // blocks).to(tl.int64)
    at = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    t = tl.load(target + row)
    live = t != ignore
    most = tl.load(normaliser + 2 * row)
    sum_ = tl.load(normaliser + 2 * row + 1)
    each = (1 + 2 * scale * (most + tl.log(sum_))) / sum_
    g = tl.where((t >= 0) & (t < C), tl.load(dloss + row * gs).to(tl.float32) / tl.load(divisor), float("nan"))
    start, before, within = middle(row, xs, C, EACH)
    v = tl.load(x + start + at, (at < within) & live, other=0).to(tl.float32)
    d = g * _slope(v, at + before == t, most, each, smoothing / C, smoothing, cap, CAP)
    to = dx + (row * ds if EACH == 0 else start)
    tl.store(to + at, tl.where(live, d, 0).to(dx.dtype.element_ty), at < within)
    if EACH > 0:
        column, there = edges(before, within, C, EACH)
        there = there & (tl.program_id(0) % blocks == 0)
        v = tl.load(x + row * xs + column, there & live, other=0).to(tl.float32)
        d = g * _slope(v, column == t, most, each, smoothing / C, smoothing, cap, CAP)
        tl.store(dx + row * ds + column, tl.where(live, d, 0).to(dx.dtype.element_ty), there)


@dataclass(frozen=True)
class Config:
    """A program processes `deep` × `columns` logits at a time by `warps` warps, with `stages` - 1 such tiles in flight besides the one in
    use; `parts` programs share a row. In the backward one such tile."""

    deep: int
    columns: int
    warps: int
    parts: int = 1
    stages: int = 1


def _is_backward(p: Problem) -> bool:
    return p.op == "cross_entropy_bwd"


def supports(p: Problem) -> str | None:
    x = p["input"]
    if x.numel == 0:
        return "there is nothing to compute"
    if _is_backward(p) and x.shape[0] * -(-x.shape[1] // choose(p).columns) >= 2**31:
        return f"takes fewer than 2**31 programs; given {x.shape}"
    if x.shape[1] >= 2**31 - 2**20 or x.shape[0] >= 2**31:
        return f"takes fewer than 2**31 - 2**20 classes and 2**31 rows; given {x.shape[1]} and {x.shape[0]}"
    return None


def choose(p: Problem) -> Config:
    """Measured on an H100. Backward: 2048 classes. Forward: 16 contiguous bytes a thread, four or eight of them a tile; the more warps the
    longer the rows. Two programs share a row if there are few rows; tiles are prefetched if there are not many, and if logits are
    soft-capped."""
    rows, columns = p["input"].shape
    if _is_backward(p):
        return Config(1, min(2048, 1 << (columns - 1).bit_length()), 4)
    side = 16 // p["input"].itemsize

    def config(deep: int, warps: int, parts: int = 1, stages: int = 1) -> Config:
        while warps > 1 and deep * 32 * side * warps >= 2 * columns:
            warps //= 2
        return Config(deep, 32 * side * warps, warps, parts, stages)

    added = p.option("reduction") != "none"
    if rows < p.device.sms and columns >= 16384 and added:
        return config(4, 8, parts=2)
    parts = 4 if added and columns >= 65536 and rows <= ADDED // 4 else 1
    if how(p) == SHORT.value:
        return config(4, 8, parts, stages=3) if columns >= 16384 else config(4, 4)
    if columns >= 65536:
        return config(4, 16) if side == 8 else config(8, 16, parts)
    if rows < 8 * p.device.sms and columns >= 16384:
        return config(4, 4, stages=3)
    return config(8, 8) if columns > 16384 else config(8 if columns > 2048 else 4, 4)


def configs(p: Problem) -> list[Config]:
    if _is_backward(p):
        return [
            Config(1, block, warps) for block in (512, 1024, 2048, 4096, 8192) for warps in (2, 4, 8)
            if 128 * warps <= block <= 1024 * warps
        ]
    rows, columns = p["input"].shape
    side = 16 // p["input"].itemsize
    shares = [n for n in (1, 2, 4, 8) if n == 1 or (p.option("reduction") != "none" and n * rows <= ADDED)]
    return [
        Config(deep, 32 * side * warps, warps, parts, stages)
        for deep in (4, 8) for warps in (1, 2, 4, 8, 16) for parts in shares for stages in (1, 2, 3)
        if (warps == 1 or deep * 32 * side * warps * parts < 2 * columns)
        and (stages == 1 or stages * deep * 32 * side * warps * parts <= columns)
        and (stages - 1) * deep * 512 * warps <= p.device.shared_per_block // 2
    ]


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    if _is_backward(p):
        return {}
    rows = p["input"].shape[0]
    if config.parts > 1:
        return {"parts": Meta((rows, config.parts, 3), "f32")}
    return {} if p.option("reduction") == "none" else {"found": Meta((rows,), "f32")}


def launches(p: Problem, config: Config) -> list[Launch]:
    options = {"ignore": int(p.option("ignore_index")), "smoothing": float(p.option("label_smoothing"))}
    options |= {"scale": float(p.option("lse_square_scale")), "cap": float(p.option("softcap")), "CAP": how(p), "PDL": p.device.pdl}
    both = {"x": "input", "target": "target", "normaliser": "normaliser", "xs": p["input"].strides[0], "C": p["input"].shape[1], **options}
    return (_backward if _is_backward(p) else _forward)(p, config, both)


def _forward(p: Problem, config: Config, both: dict[str, Any]) -> list[Launch]:
    rows, columns = p["input"].shape
    single, side, tile = p.option("reduction") == "none", each(p), config.deep * config.columns
    assert config.parts == 1 or not single, "the rows' own losses are not put together from parts"
    both |= {"share": config.parts, "SMOOTH": p.option("label_smoothing") != 0, "parts": "parts" if config.parts > 1 else None}
    width = -(-columns // (tile * config.parts)) * tile
    args = {
        **both, "loss": None if config.parts > 1 else "loss" if single else "found", "divisor": "divisor" if single else None,
        "width": width, "EACH": side, "WHOLE": side == 0 and columns % tile == 0, "DEEP": config.deep, "COLUMNS": config.columns,
        "STAGES": config.stages, "FIRST": not single,
    }
    first = Launch(_rows, (rows * config.parts,), args, config.warps, pdl=p.device.pdl)
    if single:
        return [first]
    parts = 1 << (config.parts - 1).bit_length()
    block = min(ADDED // (1 if parts == 1 else 2 * parts), max(128, 1 << (rows - 1).bit_length()))
    last = {
        **both, "found": "found" if config.parts == 1 else None, "loss": "loss", "divisor": "divisor", "R": rows,
        "MEAN": p.option("reduction") == "mean", "BLOCK": block, "SHARE": parts,
    }
    return [first, Launch(_reduce, (1,), last, max(4, min(32, block * parts // 512)), pdl=p.device.pdl)]


def _backward(p: Problem, config: Config, both: dict[str, Any]) -> list[Launch]:
    rows, columns = p["input"].shape
    blocks = -(-columns // config.columns)
    args = {
        **both, "dloss": "dloss", "divisor": "divisor", "dx": "dinput", "blocks": blocks, "ds": p["dinput"].strides[0],
        "gs": p["dloss"].strides[0] if p["dloss"].shape else 0, "EACH": each(p), "BLOCK": config.columns,
    }
    return [Launch(_grad, (rows * blocks,), args, config.warps, pdl=p.device.pdl)]
