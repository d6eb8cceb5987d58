"""out = a b of any size: elements outside are loaded as zeros and not stored."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from rooftop.core.spec import Launch, Problem

IDEA = "Any M, N and K: masked loads give zeros outside, masked stores are skipped. The masks cost a few instructions per slice and no memory traffic."
PREDICT = {"speedup": 0.95}
LIMIT = "As rung 01: the program waits for each slice, and tiles are small."


@triton.jit
def _matmul(a, b, out, M, N, K, ma, ka, kb, nb, ldo, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # type: ignore[no-untyped-def]
    """xy: elements from one x to the next in y, such as `ka` along K in a."""
    rows, columns, along = tl.program_id(1) * BM + tl.arange(0, BM), tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK)
    a += rows.to(tl.int64)[:, None] * ma + along[None, :] * ka
    b += along[:, None] * kb + columns.to(tl.int64)[None, :] * nb
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a, mask=(rows < M)[:, None] & (along < K - k)[None, :], other=0.0)
        y = tl.load(b, mask=(along < K - k)[:, None] & (columns < N)[None, :], other=0.0)
        total = tl.dot(x, y, total)
        a += BK * ka
        b += BK * kb
    tl.store(out + rows.to(tl.int64)[:, None] * ldo + columns[None, :], total.to(out.dtype.element_ty), mask=(rows < M)[:, None] & (columns < N)[None, :])


@dataclass(frozen=True)
class Config:
    BM: int = 64
    BN: int = 64
    BK: int = 32


def supports(p: Problem) -> str | None:
    if len(p["a"].shape) != 2 or p["a"].dtype == "f32":
        return "this ladder takes one product of operands of 16 bits"
    if p.extra or p.option("beta") != 0 or p.option("alpha") != 1:
        return "this ladder multiplies and does nothing after"
    if p["out"].numel == 0:
        return "there is nothing to compute"
    return None


def choose(p: Problem) -> Config:
    return Config()



def launches(p: Problem, config: Config) -> list[Launch]:
    a, b, out = p["a"], p["b"], p["out"]
    (m, k), n = a.shape, b.shape[1]
    args = {
        "a": "a", "b": "b", "out": "out", "M": m, "N": n, "K": k, "ma": a.strides[0], "ka": a.strides[1], "kb": b.strides[0], "nb": b.strides[1],
        "ldo": out.strides[0], "BM": config.BM, "BN": config.BN, "BK": config.BK,
    }
    return [Launch(_matmul, (-(-n // config.BN), -(-m // config.BM)), args, 4, 1)]
