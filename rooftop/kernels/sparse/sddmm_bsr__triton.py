"""Blocks of a dense product by tensor cores. Contract: rooftop/ops/sddmm_bsr.py

A program computes one block, along all of N, and finds its block row among the offsets by bisection."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from rooftop.core.spec import Launch, Problem


@triton.jit
def _added(total, lost, part):  # type: ignore[no-untyped-def]
    """total + part, and what rounding has added to it so far (Kahan 1965)."""
    part -= lost
    found = total + part
    return found, (found - total) - part


@triton.jit
def _sampled(a, b, columns, offsets, out, M, K, N, tall, ma, na, kb, nb, alpha, HIGH: tl.constexpr, WIDE: tl.constexpr, BK: tl.constexpr,
             TURNED: tl.constexpr):  # type: ignore[no-untyped-def]
    """TURNED: the transposed block is computed."""
    i = tl.program_id(0)
    low, high = 0, tall  # offsets[low] <= i < offsets[high]
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(offsets + middle) <= i:
            low = middle
        else:
            high = middle
    rows = low * HIGH + tl.arange(0, HIGH)
    most = tl.maximum(tl.cdiv(K, WIDE) - 1, 0)
    cols = tl.minimum(tl.maximum(tl.load(columns + i), 0), most) * WIDE + tl.arange(0, WIDE)
    if (tl.load(offsets + low) > i) | (tl.load(offsets + low + 1) <= i):
        rows += M  # in no row
    along = tl.arange(0, BK)
    if TURNED:
        total = tl.zeros((WIDE, HIGH), tl.float32)
    else:
        total = tl.zeros((HIGH, WIDE), tl.float32)
    lost = tl.zeros_like(total)  # of float32 alone, whose products tens of thousands of columns would make wrong in a plain chain
    for k in range(0, N, BK):
        at = k + along
        if TURNED:
            x = tl.load(
                a + rows.to(tl.int64)[None, :] * ma + at.to(tl.int64)[:, None] * na, mask=(rows < M)[None, :] & (at < N)[:, None], other=0.0
            )
            y = tl.load(
                b + cols.to(tl.int64)[:, None] * kb + at.to(tl.int64)[None, :] * nb, mask=(cols < K)[:, None] & (at < N)[None, :], other=0.0
            )
            if x.dtype == tl.float32:
                total, lost = _added(total, lost, tl.dot(y, x, input_precision="ieee") * alpha)
            else:
                total = tl.dot(y, x, total)
        else:
            x = tl.load(
                a + rows.to(tl.int64)[:, None] * ma + at.to(tl.int64)[None, :] * na, mask=(rows < M)[:, None] & (at < N)[None, :], other=0.0
            )
            y = tl.load(
                b + cols.to(tl.int64)[None, :] * kb + at.to(tl.int64)[:, None] * nb, mask=(cols < K)[None, :] & (at < N)[:, None], other=0.0
            )
            if x.dtype == tl.float32:
                total, lost = _added(total, lost, tl.dot(x, y, input_precision="ieee") * alpha)  # a chain is no longer than BK
            else:
                total = tl.dot(x, y, total)
    r, c = tl.arange(0, HIGH), tl.arange(0, WIDE)
    base = out + i.to(tl.int64) * (HIGH * WIDE)
    if a.dtype.element_ty != tl.float32:
        total = total * alpha
    total = total.to(out.dtype.element_ty)
    if TURNED:
        tl.store(base + r[None, :] * WIDE + c[:, None], total)
    else:
        tl.store(base + r[:, None] * WIDE + c[None, :], total)


@dataclass(frozen=True)
class Config:
    """Columns at a time, warps and pipeline stages."""

    BK: int = 64
    warps: int = 4
    stages: int = 4


def supports(p: Problem) -> str | None:
    if p["out"].numel == 0:
        return "there is nothing to compute"
    if p["b"].dtype not in ("f32", "f16", "bf16"):
        return f"takes float32, float16 and bfloat16; given {p['b'].dtype}"
    if max(*p["a"].shape, *p["b"].shape) >= 2**31 - 512:
        return "takes fewer than 2^31 rows and columns"
    return None


def configs(p: Problem) -> list[Config]:
    return [Config(bk, warps, stages) for bk in (32, 64, 128) for warps in (1, 2, 4, 8) for stages in (2, 3, 4)]


def choose(p: Problem) -> Config:
    """One warp for each 32 x 32 elements, up to eight; small blocks take more columns at a time."""
    _, high, wide = p["out"].shape
    warps = max(1, min(8, high * wide // 2048))
    if p["a"].dtype == "f32":
        return Config(32, max(2, min(4, warps)), 2)
    return Config(128 if high * wide <= 1024 else 64, warps, 3)


def launches(p: Problem, config: Config) -> list[Launch]:
    a, b = p["a"], p["b"]
    count, high, wide = p["out"].shape
    args = {
        "a": "a", "b": "b", "columns": "columns", "offsets": "offsets", "out": "out", "M": a.shape[0], "K": b.shape[0], "N": a.shape[1],
        "tall": p["offsets"].numel - 1, "ma": a.strides[0], "na": a.strides[1], "kb": b.strides[0], "nb": b.strides[1],
        "alpha": float(p.option("alpha")), "HIGH": high, "WIDE": wide,
        "BK": config.BK, "TURNED": high < 64 <= wide and a.dtype != "f32",
    }
    return [Launch(kernel=_sampled, grid=(count,), args=args, warps=config.warps, stages=config.stages)]
