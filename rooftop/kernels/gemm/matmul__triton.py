"""out = act(alpha · a b + beta · c + bias) · gate + residual for every stride, address and size, on every architecture. Contract: rooftop/ops/matmul.py

A program makes one tile: it walks along K, its slices of a and b in flight to shared memory while the one before is multiplied. What no TMA reads (K or
an address that is not a multiple of 16 bytes) runs here, and what older cards run. float32 is multiplied by FMAs, never as TF32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import triton
import triton.language as tl

from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels._device.gemm_epilogue import ACTIVATIONS, finish, place, put, vector


@triton.jit
def _matmul(a, b, out, M, N, K, ma, ka, za, kb, nb, zb, ldo, zo, group, alpha, beta, c, ldc, zc, bias, gate, ldg, zg, residual, ldr, zr,
            BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACT: tl.constexpr, SHORT: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """xy: elements from one x to the next in y, such as `ka` along K in a; z·: from one matrix of the batch to the next."""
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
        if x.dtype == tl.float32:  # short chains of sums: one along all of K errs several times as much as cuBLAS
            total += tl.dot(x, y, input_precision="ieee")
        else:
            total = tl.dot(x, y, total)
        a_at += tl.full((), BK, tl.int64) * ka
        b_at += tl.full((), BK, tl.int64) * kb
    total = finish(total, rows, columns, z, M, N, alpha, beta, rows, columns, c, ldc, zc, rows, vector(bias, columns, N), gate, ldg, zg, residual, ldr, zr,
                   False, False, bias is not None, False, ACT, SHORT)  # fmt: skip
    put(total, rows, columns, z, M, N, out, ldo, zo, False)


@dataclass(frozen=True)
class Config:
    """The tile, rows of tiles walked together, warps and slices in flight."""

    BM: int
    BN: int
    BK: int
    GROUP: int = 8
    warps: int = 4
    stages: int = 3


LONGEST = 256  # products of float32 in one sum: an H200 showed more to miss what cuBLAS is allowed


def supports(p: Problem) -> str | None:
    if p["a"].dtype not in ("f32", "f16", "bf16"):
        return f"takes f32, f16 and bf16; given {p['a'].dtype}"
    if p["out"].numel == 0:
        return "there is nothing to compute"
    if p["a"].dtype == "f32" and p["a"].shape[-1] > LONGEST:
        return f"float32 sums of more than {LONGEST} products err more than cuBLAS's here; given {p['a'].shape[-1]}"
    if max(*p["a"].shape, *p["b"].shape) >= 2**31 - 512:
        return "takes fewer than 2^31 rows and columns"
    for name in ("c", "gate", "residual"):
        meta = p.get(name)
        if meta is not None and meta.strides[-1] != 1 and meta.shape[-1] > 1:
            return f"the elements of a row of {name} must be neighbours"
    return None


def prefers(p: Problem) -> int:
    """The kernels written for one architecture come first where they take the input."""
    return -1


def configs(p: Problem) -> list[Config]:
    wide = 32 if p["a"].dtype == "f32" else 64
    shapes = ((128, 128, 8), (128, 64, 4), (64, 128, 4), (64, 64, 4), (32, 64, 4), (16, 64, 4), (16, 128, 4), (128, 256, 8))
    return [Config(bm, bn, bk, warps=warps, stages=stages) for bm, bn, warps in shapes for bk in (wide // 2, wide) for stages in (3, 4)]


def choose(p: Problem) -> Config:
    """Tiles no wider than the result, smaller ones where they would leave multiprocessors idle."""
    m, n = p["out"].shape[-2:]
    batch = p["out"].shape[0] if len(p["out"].shape) == 3 else 1
    wide = p["a"].itemsize == 4
    for bm, bn, warps in ((64, 64, 4),) if wide else ((128, 128, 8), (64, 128, 4), (64, 64, 4)):
        if bm <= max(64, m) and -(-m // bm) * -(-n // bn) * batch >= p.device.sms:
            return Config(bm, bn, 32 if wide or bm * bn >= 128 * 128 else 64, warps=warps)
    return Config(16 if m <= 16 else 32 if m <= 32 else 64, 64, 32 if wide else 64)


def _apart(meta: Meta | None) -> tuple[int, int]:
    return (0, 0) if meta is None else (meta.strides[-2], meta.strides[0] if len(meta.shape) == 3 else 0)


def launches(p: Problem, config: Config) -> list[Launch]:
    a, b, out = p["a"], p["b"], p["out"]
    m, n = out.shape[-2:]
    batch = out.shape[0] if len(out.shape) == 3 else 1
    tiles = -(-m // config.BM) * -(-n // config.BN) * batch
    apart: Mapping[str, tuple[int, int]] = {name: _apart(p.get(name)) for name in ("out", "c", "gate", "residual")}
    args = {
        "a": "a", "b": "b", "out": "out", "M": m, "N": n, "K": a.shape[-1], "ma": a.strides[-2], "ka": a.strides[-1], "za": _apart(a)[1], "kb": b.strides[-2],
        "nb": b.strides[-1], "zb": _apart(b)[1], "ldo": apart["out"][0], "zo": apart["out"][1], "group": config.GROUP, "alpha": float(p.option("alpha")),
        "beta": float(p.option("beta")), "c": "c" if p.option("beta") != 0 and p.get("c") is not None else None, "ldc": apart["c"][0], "zc": apart["c"][1],
        "bias": "bias" if p.get("bias") is not None else None, "gate": "gate" if p.get("gate") is not None else None, "ldg": apart["gate"][0],
        "zg": apart["gate"][1], "residual": "residual" if p.get("residual") is not None else None, "ldr": apart["residual"][0], "zr": apart["residual"][1],
        "BM": config.BM, "BN": config.BN, "BK": config.BK, "ACT": ACTIVATIONS.index(str(p.option("activation"))), "SHORT": out.itemsize == 2,
    }  # fmt: skip
    return [Launch(kernel=_matmul, grid=(tiles,), args=args, warps=config.warps, stages=config.stages)]
