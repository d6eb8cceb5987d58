"""out = act(alpha · a b + beta · c + bias) · gate + residual for every stride, address and size, on every architecture. Contract:
rooftop/ops/matmul.py

A program computes one tile, or with few tiles one of SPLIT pieces of it along K (split-K); a second launch then adds the pieces in order.
It loops over K; its slices of a and b are in flight to shared memory while the slice before is multiplied. Operands that TMA cannot read (K
or an address not a multiple of 16 bytes) run here, and all products on older cards. float32 is multiplied by FMAs, never as TF32, in sums
of 16 products that are added with
Kahan compensation: one chain along K has several times the error of cuBLAS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import triton
import triton.language as tl

from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels._device import gemm_epilogue
from rooftop.kernels._device.gemm_epilogue import ACTIVATIONS, begin_of, finish, place, put, vector


@triton.jit
def _matmul(a, b, out, parts, M, N, K, ma, ka, za, kb, nb, zb, ldo, zo, group, alpha, beta, c, ldc, zc, bias, gate, ldg, zg, residual, ldr,
            zr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr, ACT: tl.constexpr,
            SHORT: tl.constexpr):  # type: ignore[no-untyped-def]
    """xy: stride of tensor x along y, such as `ka` of a along K; z·: from one matrix of the batch to the next. Program (t, s): part s of
    tile t; with SPLIT > 1 it is written to parts[s · tiles + t]."""
    pm, pn, z = place(tl.program_id(0), M, N, group, BM, BN)
    rows, columns, along = pm * BM + tl.arange(0, BM), pn * BN + tl.arange(0, BN), tl.arange(0, BK)
    a += z.to(tl.int64) * za
    b += z.to(tl.int64) * zb
    a_at = rows.to(tl.int64)[:, None] * ma + along.to(tl.int64)[None, :] * ka
    b_at = along.to(tl.int64)[:, None] * kb + columns.to(tl.int64)[None, :] * nb
    total = tl.zeros((BM, BN), tl.float32)
    lost = total
    slices = tl.cdiv(K, BK)
    first, last = begin_of(tl.program_id(1), SPLIT, slices), begin_of(tl.program_id(1) + 1, SPLIT, slices)
    a_at += first.to(tl.int64) * BK * ka
    b_at += first.to(tl.int64) * BK * kb
    for k in range(first * BK, last * BK, BK):
        left = K - k
        x = tl.load(a + a_at, mask=(rows < M)[:, None] & (along < left)[None, :], other=0.0)
        y = tl.load(b + b_at, mask=(along < left)[:, None] & (columns < N)[None, :], other=0.0)
        if x.dtype == tl.float32:
            one = tl.dot(x, y, input_precision="ieee") - lost
            now = total + one
            lost = tl.where(tl.abs(now) < float("inf"), (now - total) - one, 0.0)
            total = now
        elif SHORT:
            total = tl.dot(x, y, total)
        # tensor cores cut what they add to: a result of float32 shows it. The condition holds always, and keeps the compiler from joining
        # the two
        else:
            total += tl.where(left > 0, tl.dot(x, y), 0.0)
        a_at += tl.full((), BK, tl.int64) * ka
        b_at += tl.full((), BK, tl.int64) * kb
    if SPLIT > 1:
        slot = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        tl.store(parts + slot.to(tl.int64) * (BM * BN) + (tl.arange(0, BM) * BN)[:, None] + tl.arange(0, BN)[None, :], total)
    else:
        total = finish(total, rows, columns, z, M, N, alpha, beta, rows, columns, c, ldc, zc, rows, vector(bias, columns, N), gate, ldg, zg,
                       residual, ldr, zr, False, False, bias is not None, False, ACT, SHORT)
        put(total, rows, columns, z, M, N, out, ldo, zo, False)


@dataclass(frozen=True)
class Config:
    """The tile, rows of tiles in a group, warps, pipeline stages, and parts of K (split-K)."""

    BM: int
    BN: int
    BK: int
    GROUP: int = 8
    warps: int = 4
    stages: int = 3
    SPLIT: int = 1


# multiply-adds of float32, and K: up to here this kernel is preferred to the CUDA C++ one, which takes longer to start
FEW, SHALLOW = 1 << 25, 128
MOST_SPLIT = 16
PIECES = (8,)  # divisors of K that are compile-time constants; a new number of rows should compile nothing
HELD, SUMS = 48, 64  # elements of a and b, and accumulators (half as many of float32), of a thread that loads one element at a time
START, SECOND = 3.5e-6, 2.5e-6  # seconds of a launch, and of the reduction of split-K
MOVED = 2.2e12  # bytes a second of operands and results


def supports(p: Problem) -> str | None:
    if p["a"].dtype not in ("f32", "f16", "bf16"):
        return f"takes f32, f16 and bf16; given {p['a'].dtype}"
    if p["out"].numel == 0:
        return "there is nothing to compute"
    if p["a"].dtype == "f32" and p.option("precision") != "ieee":
        return "takes float32 with the precision ieee"
    if max(*p["a"].shape, *p["b"].shape) >= 2**31 - 512:
        return "takes fewer than 2^31 rows and columns"
    for name in ("c", "gate", "residual"):
        meta = p.get(name)
        if meta is not None and meta.strides[-1] != 1 and meta.shape[-1] > 1:
            return f"the elements of a row of {name} must be neighbours"
    return None


def _sizes(p: Problem) -> tuple[int, int, int, int]:
    m, n = p["out"].shape[-2:]
    return m, n, p["a"].shape[-1], p["out"].shape[0] if len(p["out"].shape) == 3 else 1


def loads_wide(meta: Meta) -> bool:
    """Whether threads load 16 bytes at a time: Triton checks whether extents and strides are divisible by 16."""
    lies = any(meta.strides[i] == 1 and meta.shape[i] % 16 == 0 and meta.strides[j] % 16 == 0 for i, j in ((-1, -2), (-2, -1)))
    return lies and meta.align % 16 == 0


def seconds(p: Problem, config: Config) -> float:
    """Predicted time if threads load an element at a time, or multiply by FMAs: bound by load latency, which up to four resident blocks of
    a multiprocessor hide from each other."""
    m, n, k, batch = _sizes(p)
    programs = -(-m // config.BM) * -(-n // config.BN) * batch * config.SPLIT
    slices = -(-k // (config.BK * config.SPLIT))
    loads = (config.BM + config.BN) * config.BK / 128 / (1 if not (loads_wide(p["a"]) and loads_wide(p["b"])) else 16 // p["a"].itemsize)
    waiting = -(-programs // (4 * p.device.sms)) * slices * (0.1e-6 + 0.022e-6 * loads)
    rate = 128 * 1.2e9 * 0.6 if p["a"].itemsize == 4 else 1024 * 1.5e9 * 0.5  # multiply-adds a second and multiprocessor
    products = -(-programs // p.device.sms) * slices * config.BM * config.BN * config.BK / rate
    moved = (p["a"].nbytes + p["b"].nbytes + p["out"].nbytes) / MOVED
    return START + max(waiting, products, moved) + (SECOND if config.SPLIT > 1 else 0.0)


def _split(p: Problem, config: Config) -> list[Config]:
    """The config, and variants with split-K."""
    m, n, k, batch = _sizes(p)
    tiles, slices = -(-m // config.BM) * -(-n // config.BN) * batch, -(-k // config.BK)
    most = min(4 * p.device.sms // tiles, slices // 2, MOST_SPLIT) if tiles < 4 * p.device.sms and tiles * MOST_SPLIT < 2**16 else 1
    return [config, *(replace(config, SPLIT=x) for x in PIECES if x <= most)]


def configs(p: Problem) -> list[Config]:
    if p["a"].itemsize == 4:
        shapes, depths = ((128, 128, 8), (128, 64, 4), (64, 64, 4), (32, 64, 4), (32, 32, 4), (16, 32, 4)), (16,)
    else:
        shapes, depths = (
            (128, 256, 8), (128, 128, 8), (128, 64, 4), (64, 128, 4), (64, 64, 4), (32, 64, 4), (32, 32, 4), (16, 64, 4), (16, 32, 4)
        ), (32, 64)
    found = [
        Config(bm, bn, bk, warps=warps, stages=stages) for bm, bn,
        warps in shapes for bk in depths for stages in (3, 4) if bm * bn * bk <= 1 << 20
    ]
    return [y for x in found for y in _split(p, x)]


def choose(p: Problem) -> Config:
    """If threads load 16 bytes at a time and tensor cores multiply: the largest tile that fills the multiprocessors, else small ones with
    split-K. Otherwise by the model above."""
    m, n, k, batch = _sizes(p)
    if p["a"].itemsize == 2 and loads_wide(p["a"]) and loads_wide(p["b"]):
        for bm, bn, warps in ((128, 128, 8), (64, 128, 4), (64, 64, 4)):
            if bm <= max(64, m) and -(-m // bm) * -(-n // bn) * batch >= p.device.sms:
                return Config(bm, bn, 32 if bm * bn >= 128 * 128 else 64, warps=warps)
        config = Config(16 if m <= 16 else 32 if m <= 32 else 64, 64, 64)
        tiles, slices = -(-m // config.BM) * -(-n // 64) * batch, -(-k // 64)
        most = min(p.device.sms // tiles, slices // 4)
        return replace(config, SPLIT=max(x for x in (1, *PIECES) if x <= max(most, 1)))
    high = 16 if m <= 16 else 32 if m <= 32 else 1 << 30
    threads = [(c, 32 * c.warps) for c in configs(p) if c.stages == 3 and high >= c.BM]
    sums = SUMS * 2 // p["a"].itemsize
    tried = [c for c, t in threads if HELD * t >= (c.BM + c.BN) * c.BK and sums * t >= c.BM * c.BN]
    return min(tried, key=lambda c: (seconds(p, c), c.SPLIT, -c.BM * c.BN))


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    m, n, _, batch = _sizes(p)
    tiles = -(-m // config.BM) * -(-n // config.BN) * batch
    return {"parts": Meta((config.SPLIT * tiles, config.BM * config.BN), "f32")} if config.SPLIT > 1 else {}


def _apart(meta: Meta | None) -> tuple[int, int]:
    return (0, 0) if meta is None else (meta.strides[-2], meta.strides[0] if len(meta.shape) == 3 else 0)


def launches(p: Problem, config: Config) -> list[Launch]:
    a, b, out = p["a"], p["b"], p["out"]
    m, n, k, batch = _sizes(p)
    tiles = -(-m // config.BM) * -(-n // config.BN) * batch
    apart: Mapping[str, tuple[int, int]] = {name: _apart(p.get(name)) for name in ("out", "c", "gate", "residual")}
    after = {
        "out": "out", "parts": "parts" if config.SPLIT > 1 else None, "M": m, "N": n, "ldo": apart["out"][0], "zo": apart["out"][1],
        "group": config.GROUP, "alpha": float(p.option("alpha")), "beta": float(p.option("beta")),
        "c": "c" if p.option("beta") != 0 and p.get("c") is not None else None,
        "ldc": apart["c"][0], "zc": apart["c"][1], "bias": "bias" if p.get("bias") is not None else None,
        "gate": "gate" if p.get("gate") is not None else None, "ldg": apart["gate"][0], "zg": apart["gate"][1],
        "residual": "residual" if p.get("residual") is not None else None, "ldr": apart["residual"][0], "zr": apart["residual"][1],
        "BM": config.BM, "BN": config.BN, "SPLIT": config.SPLIT, "ACT": ACTIVATIONS.index(str(p.option("activation"))),
        "SHORT": out.itemsize == 2,
    }
    args = {
        **after, "a": "a", "b": "b", "K": k, "ma": a.strides[-2], "ka": a.strides[-1], "za": _apart(a)[1], "kb": b.strides[-2],
        "nb": b.strides[-1], "zb": _apart(b)[1], "BK": config.BK,
    }
    made = [Launch(kernel=_matmul, grid=(tiles, config.SPLIT), args=args, warps=config.warps, stages=config.stages)]
    if config.SPLIT > 1:
        rows, early = max(1, min(config.BM, 1024 // config.BN)), p.device.pdl
        more = {
            **after, "whole": 0, "streamed": tiles, "scale_a": None, "scale_b": None, "ROWS": rows, "SWAP": False, "RAW": False,
            "SCALES": 0, "PDL": early,
        }
        made.append(Launch(kernel=gemm_epilogue.add_split, grid=(tiles, config.BM // rows), args=more, warps=4, pdl=early))
    return made


def explains(p: Problem, config: Config) -> str:
    pieces = f", cut into {config.SPLIT} pieces of K that a second launch adds" if config.SPLIT > 1 else ""
    m, n, _, batch = _sizes(p)
    tiles = -(-m // config.BM) * -(-n // config.BN) * batch
    tile = f"tile {config.BM} x {config.BN}, slices of {config.BK} of K, {config.stages} in flight"
    return f"{tile}; {tiles} tiles{pieces}; predicted {seconds(p, config) * 1e6:.1f} µs"
