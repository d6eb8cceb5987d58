"""float32 operands multiplied by tensor cores as TF32 or in two parts each, for every stride, address and size. Contract:
rooftop/ops/matmul.py

A program computes one tile. Operands are read in place and split in registers, so a product of few rows reads its weights once: 4 bytes per
element, where a split beforehand (matmul__split__gluon_sm90.py) reads 4, writes 4 and reads 4 again. Tensor cores truncate their sums, so
in the split modes each slice of K is a sum of its own and added in float32; in TF32 mode the error of TF32 is larger than that."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels._device.gemm_epilogue import ACTIVATIONS, finish, place, put, vector

PRECISIONS = ("tf32", "tf32x3", "bf16x3")
TF32X3, BF16X3 = tl.constexpr(1), tl.constexpr(2)


@triton.jit
def rounded(x):  # type: ignore[no-untyped-def]
    """Rounded to TF32; NaN and infinities unchanged."""
    near = ((x.to(tl.int32, bitcast=True) + 4096) & -8192).to(tl.float32, bitcast=True)
    return tl.where(tl.abs(x) < float("inf"), near, x)


@triton.jit
def _matmul(a, b, out, M, N, K, ma, ka, za, kb, nb, zb, ldo, zo, group, alpha, beta, c, ldc, zc, bias, gate, ldg, zg, residual, ldr, zr,
            BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACT: tl.constexpr,
            PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
    """xy: stride of tensor x along y, such as `ka` of a along K; z·: from one matrix of the batch to the next. PRECISION: index in
    PRECISIONS."""
    pm, pn, z = place(tl.program_id(0), M, N, group, BM, BN)
    rows, columns, along = pm * BM + tl.arange(0, BM), pn * BN + tl.arange(0, BN), tl.arange(0, BK)
    a += z.to(tl.int64) * za
    b += z.to(tl.int64) * zb
    a_at = rows.to(tl.int64)[:, None] * ma + along.to(tl.int64)[None, :] * ka
    b_at = along.to(tl.int64)[:, None] * kb + columns.to(tl.int64)[None, :] * nb
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        left = K - k
        x = tl.load(a + a_at, mask=(rows < M)[:, None] & (along < left)[None, :], other=0.0)
        y = tl.load(b + b_at, mask=(along < left)[:, None] & (columns < N)[None, :], other=0.0)
        if PRECISION == BF16X3:
            x1, y1 = x.to(tl.bfloat16), y.to(tl.bfloat16)
            small = tl.dot((x - x1.to(tl.float32)).to(tl.bfloat16), y1)
            small = tl.dot(x1, (y - y1.to(tl.float32)).to(tl.bfloat16), small)
            total += tl.dot(x1, y1, small)
        elif PRECISION == TF32X3:
            x1 = (x.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
            y1 = (y.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
            small = tl.dot(x - x1, y1, input_precision="tf32")
            small = tl.dot(x1, y - y1, small, input_precision="tf32")
            total += tl.dot(x1, y1, small, input_precision="tf32")
        else:
            total = tl.dot(rounded(x), rounded(y), total, input_precision="tf32")
        a_at += tl.full((), BK, tl.int64) * ka
        b_at += tl.full((), BK, tl.int64) * kb
    total = finish(total, rows, columns, z, M, N, alpha, beta, rows, columns, c, ldc, zc, rows, vector(bias, columns, N), gate, ldg, zg,
                   residual, ldr, zr, False, False, bias is not None, False, ACT, False)
    put(total, rows, columns, z, M, N, out, ldo, zo, False)


@dataclass(frozen=True)
class Config:
    """The tile, rows of tiles in a group, warps and pipeline stages."""

    BM: int
    BN: int
    BK: int = 32
    GROUP: int = 8
    warps: int = 4
    stages: int = 3


def supports(p: Problem) -> str | None:
    if p["a"].dtype != "f32" or p.option("precision") == "ieee":
        return "takes float32 with a precision other than ieee"
    if p.device.gfx and not p.device.gfx.startswith("gfx94") and str(p.option("precision")).startswith("tf32"):
        return f"{p.device.gfx} has no matrix instructions for {p.option('precision')}"
    if p["out"].numel == 0:
        return "there is nothing to compute"
    if max(*p["a"].shape, *p["b"].shape) >= 2**31 - 512:
        return "takes fewer than 2^31 rows and columns"
    for name in ("c", "gate", "residual"):
        meta = p.get(name)
        if meta is not None and meta.strides[-1] != 1 and meta.shape[-1] > 1:
            return f"the elements of a row of {name} must be neighbours"
    return None


def configs(p: Problem) -> list[Config]:
    shapes = ((128, 128, 8), (128, 64, 4), (64, 128, 4), (64, 64, 4), (32, 64, 4), (16, 64, 4), (16, 128, 4))
    return [Config(bm, bn, 32, warps=warps, stages=stages) for bm, bn, warps in shapes for stages in (2, 3, 4)]


def choose(p: Problem) -> Config:
    """Tiles no taller than the result, and smaller ones if they would leave multiprocessors idle."""
    m, n = p["out"].shape[-2:]
    batch = p["out"].shape[0] if len(p["out"].shape) == 3 else 1
    for bm, bn, warps in ((128, 128, 8), (64, 128, 4), (64, 64, 4)):
        if bm <= max(64, m) and -(-m // bm) * -(-n // bn) * batch >= p.device.sms:
            return Config(bm, bn, warps=warps, stages=3 if p.device.shared_per_block >= 160 * 1024 else 2)
    return Config(16 if m <= 16 else 32 if m <= 32 else 64, 64, stages=4)


def _apart(meta: Meta | None) -> tuple[int, int]:
    return (0, 0) if meta is None else (meta.strides[-2], meta.strides[0] if len(meta.shape) == 3 else 0)


def launches(p: Problem, config: Config) -> list[Launch]:
    a, b, out = p["a"], p["b"], p["out"]
    m, n = out.shape[-2:]
    batch = out.shape[0] if len(out.shape) == 3 else 1
    tiles = -(-m // config.BM) * -(-n // config.BN) * batch
    there = {name: name if p.get(name) is not None else None for name in ("bias", "gate", "residual")}
    (ldo, zo), (ldc, zc), (ldg, zg), (ldr, zr) = (_apart(p.get(name)) for name in ("out", "c", "gate", "residual"))
    args = {
        "a": "a", "b": "b", "out": "out", "M": m, "N": n, "K": a.shape[-1], "ma": a.strides[-2], "ka": a.strides[-1], "za": _apart(a)[1],
        "kb": b.strides[-2], "nb": b.strides[-1], "zb": _apart(b)[1], "ldo": ldo, "zo": zo, "group": config.GROUP,
        "alpha": float(p.option("alpha")), "beta": float(p.option("beta")),
        "c": "c" if p.option("beta") != 0 and p.get("c") is not None else None, "ldc": ldc, "zc": zc,
        **there, "ldg": ldg, "zg": zg, "ldr": ldr, "zr": zr, "BM": config.BM, "BN": config.BN, "BK": config.BK,
        "ACT": ACTIVATIONS.index(str(p.option("activation"))), "PRECISION": PRECISIONS.index(str(p.option("precision"))),
    }
    return [Launch(kernel=_matmul, grid=(tiles,), args=args, warps=config.warps, stages=config.stages)]
