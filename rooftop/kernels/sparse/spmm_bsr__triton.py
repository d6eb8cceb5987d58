"""Blocks of a sparse matrix by tensor cores. Contract: rooftop/ops/spmm_bsr.py

A program computes the rows of one block row by BN columns. It loops over the columns of the row's blocks, BK at a time: a part of one block
if blocks are wider, else
several blocks, whose rows of b are gathered. Blocks of fewer than 64 rows are multiplied transposed, (S b)ᵀ = bᵀ Sᵀ, since Hopper's
products have at least 64 rows; the tile of b then provides them. Neighbouring programs share columns of b, which hit L2."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from rooftop.core.spec import Launch, Problem
from rooftop.kernels._device.gemm_epilogue import ACTIVATIONS, activate


@triton.jit
def _blocks(values, columns, offsets, b, bias, out, blocks, M, N, K, tall, vr, vc, kb, nb, alpha, br, bc, HIGH: tl.constexpr,
WIDE: tl.constexpr, BN:
tl.constexpr,
            BK: tl.constexpr, TURNED: tl.constexpr, ACT: tl.constexpr):  # type: ignore[no-untyped-def]
    """vr, vc: strides of a block's rows and columns; kb, nb: those of b; br, bc: those of the bias."""
    r, tile = tl.program_id(0) % tall, tl.program_id(0) // tall
    first = tl.minimum(tl.maximum(tl.load(offsets + r), 0), blocks)
    last = tl.minimum(tl.maximum(tl.load(offsets + r + 1), first), blocks)
    most = tl.maximum(tl.cdiv(K, WIDE) - 1, 0)
    rows, cols, along = tl.arange(0, HIGH), tile * BN + tl.arange(0, BN), tl.arange(0, BK)
    if TURNED:
        total = tl.zeros((BN, HIGH), tl.float32)
    else:
        total = tl.zeros((HIGH, BN), tl.float32)
    length = (last - first) * WIDE
    for k in range(0, length, BK):
        if BK <= WIDE:  # one block
            block = first + k // WIDE
            inner = k % WIDE + along
            row = tl.minimum(tl.maximum(tl.load(columns + block), 0), most) * WIDE + inner
            here = along < BK
        else:
            block = first + (k + along) // WIDE
            inner = (k + along) % WIDE
            here = k + along < length
            row = tl.minimum(tl.maximum(tl.load(columns + block, mask=here, other=0), 0), most) * WIDE + inner
        place = block.to(tl.int64) * (HIGH * WIDE) + inner * vc
        from_b = row.to(tl.int64) * kb
        inside = here & (row < K)
        if TURNED:
            x = tl.load(values + place[:, None] + rows[None, :] * vr, mask=here[:, None], other=0.0)
            y = tl.load(b + from_b[None, :] + cols.to(tl.int64)[:, None] * nb, mask=inside[None, :] & (cols < N)[:, None], other=0.0)
            if x.dtype == tl.float32:
                total += tl.dot(y, x, input_precision="ieee") * alpha
            else:
                total = tl.dot(y, x, total)
        else:
            x = tl.load(values + place[None, :] + rows[:, None] * vr, mask=here[None, :], other=0.0)
            y = tl.load(b + from_b[:, None] + cols.to(tl.int64)[None, :] * nb, mask=inside[:, None] & (cols < N)[None, :], other=0.0)
            if x.dtype == tl.float32:
                total += tl.dot(x, y, input_precision="ieee") * alpha  # scaled here, so that an accumulation chain is no longer than BK
            else:
                total = tl.dot(x, y, total)
    down = r * HIGH + rows
    if TURNED:
        i, j = down[None, :], cols[:, None]
    else:
        i, j = down[:, None], cols[None, :]
    there = (i < M) & (j < N)
    if b.dtype.element_ty != tl.float32:
        total = total * alpha
    if bias is not None:
        total += tl.load(bias + i.to(tl.int64) * br + j.to(tl.int64) * bc, mask=there, other=0.0).to(tl.float32)
    total = activate(total, ACT, False)
    tl.store(out + i.to(tl.int64) * N + j, total.to(out.dtype.element_ty), mask=there)


@dataclass(frozen=True)
class Config:
    """Columns of the tile, columns of S at a time, warps and pipeline stages."""

    BN: int = 128
    BK: int = 64
    warps: int = 4
    stages: int = 4


def _turned(p: Problem) -> bool:
    return p["values"].shape[1] < 64 and p["values"].dtype != "f32"


def supports(p: Problem) -> str | None:
    b, out = p["b"], p["out"]
    if out.numel == 0:
        return "there is nothing to compute"
    if p["b"].dtype not in ("f32", "f16", "bf16"):
        return f"takes float32, float16 and bfloat16; given {p['b'].dtype}"
    if max(*b.shape, *out.shape, p["values"].shape[0] * p["values"].shape[2]) >= 2**31 - 512:
        return "takes fewer than 2^31 rows, columns and columns of blocks"
    return None


def configs(p: Problem) -> list[Config]:
    high = p["values"].shape[1]
    return [
        Config(bn, bk, warps, stages)
        for bn, warps in ((256, 8), (256, 4), (128, 4), (128, 8), (64, 4)) for bk in (32, 64, 128) for stages in (3, 4, 5)
        if bk * (high + bn) * 2 * stages <= 200 * 1024 and high * bn // (32 * warps) <= 128
    ]


def choose(p: Problem) -> Config:
    """As many columns as registers hold, fewer if there would be too few programs."""
    high, n = p["values"].shape[1], p["b"].shape[1]
    tall = p["offsets"].numel - 1
    if p["values"].dtype == "f32":
        return Config(64 if n > 32 else 32, 32, 4, 2)
    least = 16
    wanted = 256 if high >= 32 else 128
    while wanted > max(least, 1 << max(0, n - 1).bit_length() if n > 1 else least):
        wanted //= 2
    while wanted > 64 and tall * -(-n // wanted) < p.device.sms:
        wanted //= 2
    bk = 64
    stages = 4 if (high + wanted) * bk * 2 * 4 <= p.device.shared_per_block - 2048 else 3
    if (high + wanted) * bk * 2 * stages > p.device.shared_per_block - 2048:
        stages = 2
    return Config(wanted, bk, 8 if high * wanted >= 128 * 256 else 4, stages)


def launches(p: Problem, config: Config) -> list[Launch]:
    values, b, bias, (m, n) = p["values"], p["b"], p.get("bias"), p["out"].shape
    count, high, wide = values.shape
    tall = p["offsets"].numel - 1
    args = {
        "values": "values", "columns": "columns", "offsets": "offsets", "b": "b", "bias": "bias" if bias else None, "out": "out",
        "blocks": count, "M": m, "N": n, "K": b.shape[0], "tall": tall, "vr": values.strides[1], "vc": values.strides[2],
        "kb": b.strides[0], "nb": b.strides[1], "alpha": float(p.option("alpha")),
        "br": bias.strides[0] if bias and bias.shape[0] > 1 else 0, "bc": bias.strides[1] if bias and bias.shape[1] > 1 else 0,
        "HIGH": high, "WIDE": wide, "BN": config.BN, "BK": config.BK, "TURNED": _turned(p),
        "ACT": ACTIVATIONS.index(str(p.option("activation"))),
    }
    return [Launch(kernel=_blocks, grid=(tall * -(-n // config.BN),), args=args, warps=config.warps, stages=config.stages)]
