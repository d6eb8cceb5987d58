"""out = a b, a tile of 64 x 64 a program: tl.dot on slices of K, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from rooftop.core.spec import Launch, Problem

IDEA = "A program computes 64 x 64 outputs. It loops over K and passes slices of a and b to tl.dot; the compiler does the rest."
PREDICT = {"registers": 128}
LIMIT = "The program waits for each slice before it multiplies, and a tile of 64 x 64 loads 1 byte for 16 FMAs. Whole tiles only."


@triton.jit
def _matmul(a, b, out, M, N, K, ma, ka, kb, nb, ldo, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # type: ignore[no-untyped-def]
    """xy: elements from one x to the next in y, such as `ka` along K in a."""
    rows, columns, along = tl.program_id(1) * BM + tl.arange(0, BM), tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK)
    a += rows.to(tl.int64)[:, None] * ma + along[None, :] * ka
    b += along[:, None] * kb + columns.to(tl.int64)[None, :] * nb
    total = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        total = tl.dot(tl.load(a), tl.load(b), total)
        a += BK * ka
        b += BK * kb
    tl.store(out + rows.to(tl.int64)[:, None] * ldo + columns[None, :], total.to(out.dtype.element_ty))


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
    if any(x % 64 for x in (*p["a"].shape, p["b"].shape[1])):
        return "this rung makes whole tiles: M, N and K must be multiples of 64"
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
