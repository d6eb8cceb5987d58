"""The matrix product of 8-bit operands in Triton, for every stride, alignment and size: for operands that the Hopper kernel cannot read,
and for older cards. fp8 is converted to float16, which represents every fp8 value exactly; accumulators are float32. int8 is summed in
int32."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from rooftop.core.spec import Launch, Problem
from rooftop.kernels._device import gemm_epilogue
from rooftop.kernels._device.gemm_epilogue import finish, place, put, scale_of, vector
from rooftop.kernels.gemm import matmul__triton

BLOCKS = gemm_epilogue.BLOCKS
SHORT = 128  # K up to which the stores of a tile take longer than its slices: small tiles store while others load
# of tiles of 64 x 64, fitted on an H200 to 33 products of K from 32 to 288: seconds of a launch with its first bytes and of a slice, bytes a
# second, multiply-adds a second and multiprocessor
START, SLICE, MOVED, RATE = 3.5e-6, 0.44e-6, 1.6e12, 1.5e12
BYTES = {"i8": 4.0}  # the time of slices that threads load a byte at a time over that of elements of 16 bits; integers also change places
BYTES_OF_FLOATS = 1.2


@triton.jit
def tiles(a, b, out, M, N, K, ma, ka, kb, nb, ldo, group, scale_a, scale_b, bias, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
          SCALES: tl.constexpr, INTEGER: tl.constexpr, RAW: tl.constexpr):  # type: ignore[no-untyped-def]
    """xy: stride of tensor x along y, such as `ka` of a along K. With SCALES == BLOCKS a slice is one block of K: BK = 128, and BN divides
    128."""
    pm, pn, z = place(tl.program_id(0), M, N, group, BM, BN)
    rows, columns, along = pm * BM + tl.arange(0, BM), pn * BN + tl.arange(0, BN), tl.arange(0, BK)
    a_at = rows.to(tl.int64)[:, None] * ma + along.to(tl.int64)[None, :] * ka
    b_at = along.to(tl.int64)[:, None] * kb + columns.to(tl.int64)[None, :] * nb
    total = tl.zeros((BM, BN), tl.int32 if INTEGER else tl.float32)
    for k in range(0, K, BK):
        left = K - k
        x = tl.load(a + a_at, mask=(rows < M)[:, None] & (along < left)[None, :], other=0.0)
        y = tl.load(b + b_at, mask=(along < left)[:, None] & (columns < N)[None, :], other=0.0)
        if INTEGER:
            total = tl.dot(x, y, total, out_dtype=tl.int32)
        elif SCALES == BLOCKS:
            of_rows = tl.load(scale_a + rows.to(tl.int64) * tl.cdiv(K, BK) + k // BK, mask=rows < M, other=0.0)
            of_block = tl.load(scale_b + k // BK * tl.cdiv(N, 128) + pn * BN // 128)
            total += tl.dot(x.to(tl.float16), y.to(tl.float16)) * (of_rows * of_block)[:, None]
        else:
            total = tl.dot(x.to(tl.float16), y.to(tl.float16), total)
        a_at += tl.full((), BK, tl.int64) * ka
        b_at += tl.full((), BK, tl.int64) * kb
    if not RAW:
        if SCALES == BLOCKS:
            total = finish(total, rows, columns, z, M, N, 1.0, 0.0, rows, columns, None, 0, 0, rows, vector(bias, columns, N), None, 0, 0,
                           None, 0, 0, False, False, bias is not None, False, 0, False)
        else:
            total = finish(total, rows, columns, z, M, N, 1.0, 0.0, scale_of(scale_a, rows, M, SCALES),
                           scale_of(scale_b, columns, N, SCALES), None, 0, 0, rows, vector(bias, columns, N), None, 0, 0, None, 0, 0, True,
                           True, bias is not None, False, 0, False)
    put(total, rows, columns, z, M, N, out, ldo, 0, False)


@dataclass(frozen=True)
class Config:
    """The tile, rows of tiles in a group, warps and pipeline stages."""

    BM: int = 128
    BN: int = 128
    BK: int = 64
    GROUP: int = 8
    warps: int = 8
    stages: int = 3


def supports(p: Problem) -> str | None:
    a, b = p["a"], p["b"]
    if p.device.arch < 89 and {"f8e4m3", "f8e5m2"} & {a.dtype, b.dtype}:
        return "float8 needs sm_89"
    if p["out"].numel == 0:
        return "there is nothing to compute"
    if max(*a.shape, *b.shape) >= 2**31 - 512:
        return "takes fewer than 2^31 rows and columns"
    return None


def configs(p: Problem) -> list[Config]:
    blocks = any(n == "scales" and v == "blocks" for n, v in p.options)
    shapes = ((128, 128, 8), (128, 64, 4), (64, 128, 4), (64, 64, 4), (32, 64, 4), (16, 64, 4))
    return [Config(bm, bn, bk, warps=w, stages=s) for bm, bn, w in shapes for bk in ((128,) if blocks else (64, 128)) for s in (2, 3)]


def choose(p: Problem) -> Config:
    """Tiles no taller than the result, and smaller ones if they would leave multiprocessors idle, if K is short or if threads, which hold a
    slice in registers, load a byte at a time."""
    m, n = p["out"].shape
    bk = 128 if any(o == "scales" and v == "blocks" for o, v in p.options) else 64
    if bk == 64 and m > 32 and (p["a"].shape[1] <= SHORT or not _wide(p)):
        return Config(64, 64, 64, warps=4, stages=2)
    for bm, bn, warps in ((128, 128, 8), (64, 128, 4), (64, 64, 4)):
        if bm <= max(64, m) and -(-m // bm) * -(-n // bn) >= p.device.sms:
            return Config(bm, bn, bk, warps=warps, stages=2 if bk == 128 else 3)
    return Config(16 if m <= 16 else 32 if m <= 32 else 64, 64, 128, warps=4, stages=2)


def _wide(p: Problem) -> bool:
    return matmul__triton.loads_wide(p["a"]) and matmul__triton.loads_wide(p["b"])


def seconds(p: Problem) -> float:
    """Predicted time of tiles of 64 x 64."""
    (m, n), k = p["out"].shape, p["a"].shape[1]
    tiles, slices = -(-m // 64) * -(-n // 64), -(-k // 64)
    moved = (p["a"].nbytes + p["b"].nbytes + p["out"].nbytes) / MOVED
    if not _wide(p):
        of_pairs = matmul__triton.seconds(p, matmul__triton.Config(64, 64, 64)) - matmul__triton.START
        return START + BYTES.get(p["a"].dtype, BYTES_OF_FLOATS) * of_pairs + moved
    return START + max(slices * SLICE + moved, -(-tiles // p.device.sms) * slices * 64**3 / RATE)


def launches(p: Problem, config: Config) -> list[Launch]:
    a, b, out = p["a"], p["b"], p["out"]
    m, n = out.shape
    there = {name: name if p.get(name) is not None else None for name in ("scale_a", "scale_b", "bias")}
    scales = next((gemm_epilogue.SCALES.index(str(v)) for o, v in p.options if o == "scales"), 0)
    args = {
        "a": "a", "b": "b", "out": "out", "M": m, "N": n, "K": a.shape[1], "ma": a.strides[0], "ka": a.strides[1], "kb": b.strides[0],
        "nb": b.strides[1], "ldo": out.strides[0], "group": config.GROUP, **there, "BM": config.BM, "BN": config.BN, "BK": config.BK,
        "SCALES": scales, "INTEGER": a.dtype == "i8", "RAW": there["scale_a"] is None,
    }
    grid = (-(-m // config.BM) * -(-n // config.BN),)
    return [Launch(kernel=tiles, grid=grid, args=args, warps=config.warps, stages=config.stages)]
