"""One product for each group of rows (or of slices of K), by offsets on the device. Contract: rooftop/ops/grouped_matmul.py

A program computes one tile. Only the device knows the number of tiles, so the grid has the largest possible number of programs; each finds
its group by the running count of the tiles of the groups before it. Rows past the last offset are a group of their own, without K."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from rooftop.core.spec import Launch, Problem

FORMS = ("rows", "depth", "masked")
ROWS, DEPTH = tl.constexpr(0), tl.constexpr(1)


@triton.jit
def _grouped(a, b, out, offsets, G, M, N, K, ma, ka, za, kb, nb, zb, mo, zo, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
             MOST: tl.constexpr,
             FORM: tl.constexpr, scale_a=None, scale_b=None, BLOCKS: tl.constexpr = False):  # type: ignore[no-untyped-def]
    """xy: stride of tensor x along y; z·: from one matrix to the next. MOST: a power of two above G. With scales: fp8, converted to float16,
    which represents every fp8 value exactly; BLOCKS: a slice is one block of K, BK = 128, and BN divides 128."""
    across = tl.cdiv(N, BN)
    t, pn = tl.program_id(0) // across, tl.program_id(0) % across
    first, last = 0, K  # of K
    if FORM == ROWS:
        i = tl.arange(0, MOST)
        end = tl.minimum(tl.maximum(tl.load(offsets + i, mask=i < G, other=M), 0), M)
        begin = tl.minimum(tl.maximum(tl.load(offsets + i - 1, mask=(i > 0) & (i <= G), other=0), 0), M)
        count = tl.where(i <= G, (tl.maximum(end - begin, 0) + BM - 1) // BM, 0)
        upto = tl.cumsum(count, 0)
        g = tl.sum((upto <= t).to(tl.int32), 0)
        if g > G:
            return
        here = i == g
        row = tl.sum(tl.where(here, begin, 0), 0) + (t - tl.sum(tl.where(here, upto - count, 0), 0)) * BM
        limit = tl.sum(tl.where(here, end, 0), 0)
        if g == G:
            last = 0
    else:
        high = tl.cdiv(M, BM)
        g = t // high
        row = t % high * BM
        limit = M
        if FORM == DEPTH:
            last = tl.minimum(tl.maximum(tl.load(offsets + g), 0), K)
            first = tl.minimum(tl.maximum(tl.load(offsets + g - 1, mask=g > 0, other=0), 0), last)
        else:
            limit = tl.minimum(tl.maximum(tl.load(offsets + g), 0), M)
            if row >= limit:
                last = 0
    rows, columns, along = row + tl.arange(0, BM), pn * BN + tl.arange(0, BN), tl.arange(0, BK)
    a_at = a + g.to(tl.int64) * za + rows.to(tl.int64)[:, None] * ma + (first + along).to(tl.int64)[None, :] * ka
    b_at = b + g.to(tl.int64) * zb + (first + along).to(tl.int64)[:, None] * kb + columns.to(tl.int64)[None, :] * nb
    total = tl.zeros((BM, BN), tl.float32)
    lost = total
    lead = g.to(tl.int64) * (0 if FORM == ROWS else M)
    for k in range(first, last, BK):
        left = last - k
        x = tl.load(a_at, mask=(rows < limit)[:, None] & (along < left)[None, :], other=0.0)
        y = tl.load(b_at, mask=(along < left)[:, None] & (columns < N)[None, :], other=0.0)
        if scale_a is not None:
            one = tl.dot(x.to(tl.float16), y.to(tl.float16))
            if BLOCKS:
                of_rows = tl.load(scale_a + (lead + rows) * tl.cdiv(K, BK) + k // BK, mask=rows < limit, other=0.0)
                of_block = tl.load(scale_b + (g.to(tl.int64) * tl.cdiv(K, BK) + k // BK) * tl.cdiv(N, 128) + pn * BN // 128)
                one *= (of_rows * of_block)[:, None]
            total += one
        elif x.dtype == tl.float32:  # short accumulation chains, added with Kahan compensation: for few rows cuBLAS adds in a tree
            one = tl.dot(x, y, input_precision="ieee") - lost
            now = total + one
            lost = tl.where(tl.abs(now) < float("inf"), (now - total) - one, 0.0)
            total = now
        else:
            total = tl.dot(x, y, total)
        a_at += tl.full((), BK, tl.int64) * ka
        b_at += tl.full((), BK, tl.int64) * kb
    if scale_a is not None and not BLOCKS:
        of_rows = tl.load(scale_a + lead + rows, mask=rows < limit, other=0.0)
        of_columns = tl.load(scale_b + g.to(tl.int64) * N + columns, mask=(columns < N) & (g < G), other=0.0)
        total = total * of_rows[:, None] * of_columns[None, :]
    at = g.to(tl.int64) * zo + rows.to(tl.int64)[:, None] * mo + columns[None, :]
    written = rows < (limit if FORM == ROWS else M)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=written[:, None] & (columns < N)[None, :])


@dataclass(frozen=True)
class Config:
    """The tile, warps and pipeline stages."""

    BM: int = 128
    BN: int = 128
    BK: int = 64
    warps: int = 8
    stages: int = 3


def _form(p: Problem) -> str:
    return "masked" if len(p["a"].shape) == 3 else "rows" if len(p["b"].shape) == 3 else "depth"


def supports(p: Problem) -> str | None:
    if p["a"].itemsize > 4:
        return f"takes elements of 8 to 32 bits; given {p['a'].dtype}"
    if p["a"].itemsize == 1 and p.device.arch < 89:
        return "float8 needs sm_89"
    if p["out"].numel == 0:
        return "there is nothing to compute"
    if max(*p["a"].shape, *p["b"].shape) >= 2**31 - 512:
        return "takes fewer than 2^31 rows and columns"
    if p["offsets"].numel > 4096:
        return f"takes up to 4096 groups; given {p['offsets'].numel}"
    return None


def configs(p: Problem) -> list[Config]:
    wide = 16 if p["a"].dtype == "f32" else 128 if p["a"].itemsize == 1 else 64
    shapes = ((128, 128, 8), *(((128, 256, 8),) if wide < 128 else ()), (64, 128, 4), (64, 64, 4), (32, 64, 4), (16, 64, 4))
    return [Config(bm, bn, wide, warps, stages) for bm, bn, warps in shapes for stages in ((2, 3) if wide == 128 else (3, 4))]


def choose(p: Problem) -> Config:
    """Tiles about as tall as a group is on average, and no wider than the result. Slices of K: so small that each multiprocessor has two."""
    m, n = p["out"].shape[-2:]
    groups, form = max(1, p["offsets"].numel), _form(p)
    rows = m / groups if form == "rows" else m
    bm = 128 if rows > 64 else 64 if rows > 32 else 32 if rows > 16 else 16
    if p["a"].dtype == "f32":
        return Config(min(bm, 64), 64, 16, 4)
    if p["a"].itemsize == 1:
        return Config(bm, 128 if n > 64 else 64, 128, 8 if bm == 128 and n > 64 else 4, 2)
    bn = 128 if n > 64 else 64 if n > 32 else 32 if n > 16 else 16
    while form == "depth" and bm > 32 and groups * -(-m // bm) * -(-n // bn) < 2 * p.device.sms:
        bm //= 2
    return Config(bm, bn, 64, 8 if bm == 128 and n > 64 else 4, 3 if bm == 128 else 4)


def launches(p: Problem, config: Config) -> list[Launch]:
    a, b, out, groups = p["a"], p["b"], p["out"], p["offsets"].numel
    m, n = out.shape[-2:]
    form = _form(p)
    high = -(-m // config.BM)
    tall = high + groups + 1 if form == "rows" else high * groups
    args = {
        "a": "a", "b": "b", "out": "out", "offsets": "offsets", "G": groups, "M": m, "N": n, "K": a.shape[-1], "ma": a.strides[-2],
        "ka": a.strides[-1], "za": a.strides[0] if len(a.shape) == 3 else 0, "kb": b.strides[-2], "nb": b.strides[-1],
        "zb": b.strides[0] if len(b.shape) == 3 else 0, "mo": out.strides[-2], "zo": out.strides[0] if len(out.shape) == 3 else 0,
        "BM": config.BM, "BN": config.BN, "BK": config.BK, "MOST": max(2, 1 << groups.bit_length()), "FORM": FORMS.index(form),
    }
    if a.itemsize == 1:
        args |= {"scale_a": "scale_a", "scale_b": "scale_b", "BLOCKS": len(p["scale_a"].shape) == len(a.shape)}
    return [Launch(kernel=_grouped, grid=(tall * -(-n // config.BN),), args=args, warps=config.warps, stages=config.stages)]
