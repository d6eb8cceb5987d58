"""out = a b, tiles moved by TMA: one thread starts the copy of a box, and no address is computed."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from rooftop.core.spec import Descriptor, Launch, Meta, Problem

IDEA = (
    "TMA loads slices and stores results: one instruction per box instead of an address and a mask for every 16 bytes, zeros outside at no cost, and "
    "the layout in shared memory that wgmma reads. The result is stored in two halves, so that its staging leaves room for three slices."
)
PREDICT = {"speedup": 1.2}
LIMIT = "All 8 warps wait for the slices, multiply, and store: while they store nothing is multiplied, some 8 % of a tile at K = 4096."


@triton.jit
def _matmul(a, b, out, M, N, K, GROUP, programs, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, A_COLUMNS: tl.constexpr,
            B_COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """X_COLUMNS: the descriptor is of the transposed operand, whose columns are contiguous in memory."""
    tiles = tl.cdiv(M, BM) * tl.cdiv(N, BN)
    for tile in range(tl.program_id(0), tiles, programs):
        high, wide = tl.cdiv(M, BM), tl.cdiv(N, BN)
        first = tile // (GROUP * wide) * GROUP
        size = tl.minimum(high - first, GROUP)
        row = (first + tile % (GROUP * wide) % size) * BM
        column = tile % (GROUP * wide) // size * BN
        total = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            if A_COLUMNS:
                x = a.load([k, row]).T
            else:
                x = a.load([row, k])
            if B_COLUMNS:
                y = b.load([column, k]).T
            else:
                y = b.load([k, column])
            total = tl.dot(x, y, total)
        left, right = tl.split(total.reshape(BM, 2, BN // 2).permute(0, 2, 1))
        out.store([row, column], left.to(out.dtype))
        out.store([row, column + BN // 2], right.to(out.dtype))


@dataclass(frozen=True)
class Config:
    """The tile, rows of tiles in a group, warps, and pipeline stages."""

    BM: int = 128
    BN: int = 256
    BK: int = 64
    GROUP: int = 8
    warps: int = 8
    stages: int = 3


def _rows(meta: Meta) -> bool:
    return meta.strides[1] == 1 and meta.strides[0] % 8 == 0


def _columns(meta: Meta) -> bool:
    return meta.strides[0] == 1 and meta.strides[1] % 8 == 0


def supports(p: Problem) -> str | None:
    if len(p["a"].shape) != 2 or p["a"].dtype == "f32":
        return "this ladder takes one product of operands of 16 bits"
    if p.extra or p.option("beta") != 0 or p.option("alpha") != 1:
        return "this ladder multiplies and does nothing after"
    if p["out"].numel == 0:
        return "there is nothing to compute"
    if p.device.arch < 90:
        return "TMA needs sm_90"
    for name in ("a", "b", "out"):
        meta = p[name]
        if meta.align % 16 or not (_rows(meta) or (name != "out" and _columns(meta))):
            return f"TMA reads and writes rows that begin on multiples of 16 bytes; {name} has the strides {meta.strides}"
    return None


def choose(p: Problem) -> Config:
    """128 x 256 where that gives every multiprocessor a tile, else smaller."""
    m, n = p["out"].shape
    if p.device.shared_per_block >= 200 * 1024 and -(-m // 128) * -(-n // 256) >= p.device.sms:
        return Config()
    if p.device.shared_per_block >= 160 * 1024 and -(-m // 128) * -(-n // 128) >= p.device.sms:
        return Config(BN=128, stages=4)
    return Config(64, 64, 64, warps=4, stages=3)


def configs(p: Problem) -> list[Config]:
    return [Config(bm, bn, 64, group, warps, stages) for bm, bn, warps in ((128, 256, 8), (256, 128, 8), (128, 128, 8), (128, 128, 4)) for group in (8, 16)
            for stages in (2, 3, 4) if (bm + bn) * 128 * stages + bm * bn <= p.device.shared_per_block]



def launches(p: Problem, config: Config) -> list[Launch]:
    a, b = p["a"], p["b"]
    (m, k), n = a.shape, b.shape[1]
    programs = min(p.device.sms, -(-n // config.BN) * -(-m // config.BM))

    def boxes(name: str, meta: Meta, rows: int, columns: int) -> Descriptor:
        if _rows(meta):
            return Descriptor(name, (rows, columns))
        return Descriptor(name, (columns, rows), shape=meta.shape[::-1], strides=meta.strides[::-1])

    args = {
        "a": boxes("a", a, config.BM, config.BK), "b": boxes("b", b, config.BK, config.BN), "out": Descriptor("out", (config.BM, config.BN // 2)), "M": m,
        "N": n, "K": k, "GROUP": config.GROUP, "programs": programs, "BM": config.BM, "BN": config.BN, "BK": config.BK, "A_COLUMNS": not _rows(a),
        "B_COLUMNS": not _rows(b),
    }
    return [Launch(_matmul, (programs,), args, config.warps, config.stages)]
