"""y[B, R, M] = Σ_k a[B, M, K] · x[B, R, K]. Contract: rooftop/ops/gemv.py

A program has `rows` rows of a and loops over K, `depth` at a time. One vector: each element of the tile accumulates its own products, and
the tile is reduced once, at the end. More vectors: the tile is the left operand of a matrix product whose 16 columns are the vectors, so
that tensor cores do the arithmetic (FMAs in float32) and a is read once. With few rows, `splits` programs share K (split-K), and a second
launch adds their sums in order."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from rooftop.core.spec import Launch, Meta, Problem, pow2
from rooftop.kernels._device.column_sums import column_sums

VECTORS = 16  # columns of the product; those beyond R are zeros


@triton.jit
def _one(a, x, y, M, K, each, plane, ab, am, ak, xb, xk, ROWS: tl.constexpr, DEPTH: tl.constexpr, ALONG: tl.constexpr, EVEN: tl.constexpr,
         STAGES: tl.constexpr, PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """One vector. ALONG: rows of a are contiguous along K, else columns along M. `each` chunks of DEPTH; EVEN: neither rows nor chunks
    extend past a."""
    if PDL:
        gdc_wait()
    batch = tl.program_id(2).to(tl.int64)
    first = tl.program_id(1).to(tl.int64) * each
    if ALONG:
        m = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
        k = tl.arange(0, DEPTH)[None, :]
        acc = tl.zeros((ROWS, DEPTH), tl.float32)
    else:
        m = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[None, :]
        k = tl.arange(0, DEPTH)[:, None]
        acc = tl.zeros((DEPTH, ROWS), tl.float32)
    at = a + batch * ab + m * am + first * DEPTH * ak + k * ak
    xs = x + batch * xb + (first * DEPTH + k) * xk
    for i in tl.range(0, tl.minimum(each, tl.cdiv(K, DEPTH) - first), num_stages=STAGES):
        if EVEN:
            v = tl.load(at)
            w = tl.load(xs)
        else:
            left = (first + i) * DEPTH + k < K
            v = tl.load(at, (m < M) & left, other=0)
            w = tl.load(xs, left, other=0)
        acc += v.to(tl.float32) * w.to(tl.float32)
        at += DEPTH * ak
        xs += DEPTH * xk
    total = tl.sum(acc, 1 if ALONG else 0)
    m = tl.reshape(m, (ROWS,))
    tl.store(y + tl.program_id(1) * plane + batch * M + m, total.to(y.dtype.element_ty), m < M)


@triton.jit
def _several(a, x, y, M, K, R, each, plane, ab, am, ak, xb, xr, xk, ROWS: tl.constexpr, DEPTH: tl.constexpr, VECTORS: tl.constexpr,
             EVEN: tl.constexpr,
             STAGES: tl.constexpr, PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """R vectors, at most VECTORS."""
    if PDL:
        gdc_wait()
    batch = tl.program_id(2).to(tl.int64)
    first = tl.program_id(1).to(tl.int64) * each
    m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, DEPTH)
    r = tl.arange(0, VECTORS)
    at = a + batch * ab + m[:, None] * am + (first * DEPTH + k)[None, :] * ak
    xs = x + batch * xb + r[None, :] * xr + (first * DEPTH + k)[:, None] * xk
    acc = tl.zeros((ROWS, VECTORS), tl.float32)
    for i in tl.range(0, tl.minimum(each, tl.cdiv(K, DEPTH) - first), num_stages=STAGES):
        if EVEN:
            v = tl.load(at)
            w = tl.load(xs, r[None, :] < R, other=0)
        else:
            left = (first + i) * DEPTH + k < K
            v = tl.load(at, (m < M)[:, None] & left[None, :], other=0)
            w = tl.load(xs, (r < R)[None, :] & left[:, None], other=0)
        acc = tl.dot(v, w, acc, input_precision="ieee")
        at += DEPTH * ak
        xs += DEPTH * xk
    to = y + tl.program_id(1) * plane + batch * R * M + r[None, :].to(tl.int64) * M + m[:, None]
    tl.store(to, acc.to(y.dtype.element_ty), (r < R)[None, :] & (m < M)[:, None])


@dataclass(frozen=True)
class Config:
    """A tile of `rows` × `depth` of a, by `warps` warps, `stages` of them in flight; `splits` programs share K (split-K)."""

    rows: int
    depth: int
    warps: int
    stages: int
    splits: int


def _along(p: Problem) -> bool:
    """Whether the rows of a are contiguous along K."""
    _, down, along = p["a"].strides
    return along == 1 and not (down == 1 and p["a"].shape[2] == 1)


def supports(p: Problem) -> str | None:
    a, x = p["a"], p["x"]
    if a.dtype not in ("f32", "f16", "bf16") or x.dtype != a.dtype:
        return f"takes f32, f16 or bf16, the same for a and x; given {a.dtype} and {x.dtype}"
    if a.numel == 0:
        return "there is nothing to multiply"
    if a.shape[0] > 65535:
        return f"takes at most 65535 matrices; given {a.shape[0]}"
    return None


def choose(p: Problem) -> Config:
    """About 64 KiB of a in flight on each multiprocessor, and at least four programs for each."""
    b, m, k = p["a"].shape
    r, size = p["x"].shape[1], p["a"].itemsize
    if r > 1:
        rows = 64 if m > 64 else max(16, pow2(m))
        depth = 128 if size == 2 else 32
        depth = max(16, min(depth, pow2(k)))
        warps, stages = 4, 4 if size == 2 else 3
    elif _along(p):
        tile = 8192 if size == 2 else 4096
        depth = min(pow2(k), 1024 if size == 2 else 512)
        rows = max(1, min(pow2(m), tile // depth, 64))
        warps, stages = max(1, min(8, rows * depth // 512)), 2
    else:
        rows = min(pow2(m), 256 if size == 2 else 128)
        depth = min(pow2(k), max(1, (8192 if size == 2 else 4096) // rows))
        warps, stages = max(1, min(8, rows * depth // 512)), 2
    programs, chunks = b * -(-m // rows), -(-k // depth)
    splits, wanted = 1, 4 * p.device.sms
    if programs < wanted and chunks >= 4:
        splits = max(1, min(wanted // programs, chunks // 2, 256))
        each = -(-chunks // splits)
        splits = -(-chunks // each)
    return Config(rows, depth, warps, stages, splits)


def configs(p: Problem) -> list[Config]:
    r, size = p["x"].shape[1], p["a"].itemsize
    chunk = [(64, 128), (32, 128), (64, 64), (32, 256), (128, 64)] if r > 1 else [
        (n, 16384 // size // n) for n in (2, 4, 8, 16, 32, 128, 256)
    ]
    first = choose(p)
    return [
        Config(rows, depth, warps, stages, s)
        for rows, depth in chunk
        for warps in (4, 8)
        for stages in ((3, 4, 5) if r > 1 else (1, 2, 3))
        for s in {1, 2, 4, first.splits}
        if s <= -(-p["a"].shape[2] // depth)
    ]


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    return {} if config.splits == 1 else {"parts": Meta((config.splits, p["y"].numel), "f32")}


def launches(p: Problem, config: Config) -> list[Launch]:
    a, x, y = p["a"], p["x"], p["y"]
    b, m, k = a.shape
    chunks = -(-k // config.depth)
    early = p.device.pdl
    grid = (-(-m // config.rows), config.splits, b)
    each = -(-chunks // config.splits)
    even = m % config.rows == 0 and k % config.depth == 0
    args = {"a": "a", "x": "x", "y": "parts" if config.splits > 1 else "y", "M": m, "K": k, "each": each, "plane": y.numel}
    args |= {"ab": a.strides[0], "am": a.strides[1], "ak": a.strides[2], "xb": x.strides[0], "xk": x.strides[2]}
    args |= {"ROWS": config.rows, "DEPTH": config.depth, "EVEN": even, "STAGES": config.stages, "PDL": early}
    if x.shape[1] == 1:
        first = Launch(_one, grid, {**args, "ALONG": _along(p)}, config.warps, config.stages, pdl=early)
    else:
        first = Launch(
            _several, grid, {**args, "R": x.shape[1], "xr": x.strides[1], "VECTORS": VECTORS}, config.warps, config.stages, pdl=early
        )
    return [first, *(column_sums([("parts", "y")], config.splits, y.numel, p.device) if config.splits > 1 else [])]
