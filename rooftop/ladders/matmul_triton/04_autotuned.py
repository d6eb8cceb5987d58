"""out = a b, with the tile, warps and stages that a search over them would take."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from rooftop.core.spec import Launch, Problem

IDEA = (
    "Tiles of 128 x 256, 8 warps, three slices in flight: what autotuning finds on Hopper for large products. The compiler then multiplies by wgmma "
    "from shared memory and loads slices while others are multiplied."
)
PREDICT = {"speedup": 3.0}
LIMIT = (
    "Every program starts with an empty pipeline and ends with a store that overlaps nothing; threads compute addresses and masks for every 16 bytes."
)


@triton.jit
def _matmul(a, b, out, M, N, K, ma, ka, kb, nb, ldo, GROUP, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # type: ignore[no-untyped-def]
    """xy: elements from one x to the next in y, such as `ka` along K in a."""
    high, wide = tl.cdiv(M, BM), tl.cdiv(N, BN)
    first = tl.program_id(0) // (GROUP * wide) * GROUP
    size = tl.minimum(high - first, GROUP)
    rows = (first + tl.program_id(0) % (GROUP * wide) % size) * BM + tl.arange(0, BM)
    columns = tl.program_id(0) % (GROUP * wide) // size * BN + tl.arange(0, BN)
    along = tl.arange(0, BK)
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
    """The tile, rows of tiles in a group, warps, and pipeline stages."""

    BM: int = 128
    BN: int = 256
    BK: int = 64
    GROUP: int = 8
    warps: int = 8
    stages: int = 3


def supports(p: Problem) -> str | None:
    if len(p["a"].shape) != 2 or p["a"].dtype == "f32":
        return "this ladder takes one product of operands of 16 bits"
    if p.extra or p.option("beta") != 0 or p.option("alpha") != 1:
        return "this ladder multiplies and does nothing after"
    if p["out"].numel == 0:
        return "there is nothing to compute"
    return None


def choose(p: Problem) -> Config:
    """128 x 256 on Hopper where that gives every multiprocessor a tile, else smaller."""
    m, n = p["out"].shape
    if p.device.arch >= 90 and -(-m // 128) * -(-n // 256) >= p.device.sms:  # before Hopper its sums do not fit the registers
        return Config()
    if -(-m // 128) * -(-n // 128) >= p.device.sms:
        return Config(BN=128, BK=32, stages=4)
    return Config(64, 64, 64, warps=4, stages=4 if p.device.shared_per_block >= 160 * 1024 else 3)


def configs(p: Problem) -> list[Config]:
    room = p.device.shared_per_block
    found = [
        Config(bm, bn, bk, group, warps, stages)
        for bm, bn, warps in ((128, 256, 8), (256, 128, 8), (128, 128, 8), (128, 128, 4), (128, 64, 4), (64, 128, 4), (64, 64, 4))
        for bk in (32, 64) for group in (4, 8, 16) for stages in (2, 3, 4, 5)
    ]
    return [c for c in found if (c.BM + c.BN) * c.BK * 2 * c.stages <= room]



def launches(p: Problem, config: Config) -> list[Launch]:
    a, b, out = p["a"], p["b"], p["out"]
    (m, k), n = a.shape, b.shape[1]
    args = {
        "a": "a", "b": "b", "out": "out", "M": m, "N": n, "K": k, "ma": a.strides[0], "ka": a.strides[1], "kb": b.strides[0], "nb": b.strides[1],
        "ldo": out.strides[0], "GROUP": config.GROUP, "BM": config.BM, "BN": config.BN,
        "BK": config.BK,
    }
    return [Launch(_matmul, (-(-n // config.BN) * -(-m // config.BM),), args, config.warps, config.stages)]
