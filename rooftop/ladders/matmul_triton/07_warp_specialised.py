"""out = a b, with warps of their own that ask for the slices: what Triton's automatic warp specialisation makes of rung 06, a tile a program."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from rooftop.core.spec import Descriptor, Launch, Meta, Problem

IDEA = (
    "The loop over K is marked for warp specialisation. The compiler turns a program of 4 warps into 12: 4 that load slices by TMA, and two groups of "
    "4 that multiply half of the tile's rows each, with mbarriers between them and registers moved from the first to the others."
)
PREDICT = {"speedup": 1.05}
LIMIT = (
    "One tile a program: inside rung 06's loop over tiles, what Triton 3.6 made of the specialised loop never ended on an H200 where a program had a second "
    "tile. Without that loop it compiles to the same specialised code, and has not run on a GPU yet; it takes up to 2048 rows and columns. "
    "The store: Triton 3.6 does not cut a TMA store in two with the tile, so results go by addresses; and nobody multiplies while a tile is stored, "
    "which the two groups of the Gluon kernel hide in part: hgemm_hopper goes on from here."
)


@triton.jit
def _matmul(a, b, out, ldo, M, N, K, GROUP, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, A_COLUMNS: tl.constexpr,
            B_COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """X_COLUMNS: the descriptor is of the transposed operand, whose columns are contiguous in memory."""
    tile = tl.program_id(0)
    high, wide = tl.cdiv(M, BM), tl.cdiv(N, BN)
    first = tile // (GROUP * wide) * GROUP
    size = tl.minimum(high - first, GROUP)
    row = (first + tile % (GROUP * wide) % size) * BM
    column = tile % (GROUP * wide) // size * BN
    total = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(0, K, BK, warp_specialize=True):
        if A_COLUMNS:
            x = a.load([k, row]).T
        else:
            x = a.load([row, k])
        if B_COLUMNS:
            y = b.load([column, k]).T
        else:
            y = b.load([k, column])
        total = tl.dot(x, y, total)
    rows, columns = row + tl.arange(0, BM), column + tl.arange(0, BN)
    at = rows.to(tl.int64)[:, None] * ldo + columns[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=(rows < M)[:, None] & (columns < N)[None, :])



@dataclass(frozen=True)
class Config:
    """The tile, rows of tiles in a group, warps, and pipeline stages."""

    BM: int = 128
    BN: int = 256
    BK: int = 64
    GROUP: int = 8
    warps: int = 4
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
    if max(*p["out"].shape, p["a"].shape[1]) > 2048:
        return "takes up to 2048 rows and columns: beyond, its persistent form never ended on an H200, and this one has not been tried there"
    if p.device.arch < 90:
        return "TMA needs sm_90"
    for name in ("a", "b", "out"):
        meta = p[name]
        if meta.align % 16 or not (_rows(meta) or (name != "out" and _columns(meta))):
            return f"TMA reads and writes rows that begin on multiples of 16 bytes; {name} has the strides {meta.strides}"
    return None


def choose(p: Problem) -> Config:
    m, n = p["out"].shape
    if p.device.shared_per_block >= 200 * 1024 and -(-m // 128) * -(-n // 256) >= p.device.sms:
        return Config()
    if p.device.shared_per_block >= 160 * 1024 and -(-m // 128) * -(-n // 128) >= p.device.sms:
        return Config(BN=128, stages=4)
    return Config(64, 64, 64, stages=3)


def configs(p: Problem) -> list[Config]:
    """Triton 3.6 specialises only programs of 4 warps; with 8 it silently leaves the loop unchanged."""
    return [Config(bm, bn, 64, group, 4, stages) for bm, bn in ((128, 256), (128, 128), (64, 256), (64, 128)) for group in (8, 16) for stages in (3, 4)
            if (bm + bn) * 128 * stages + bm * bn <= p.device.shared_per_block]  # fmt: skip


def launches(p: Problem, config: Config) -> list[Launch]:
    a, b = p["a"], p["b"]
    (m, k), n = a.shape, b.shape[1]
    tiles = -(-n // config.BN) * -(-m // config.BM)

    def boxes(name: str, meta: Meta, rows: int, columns: int) -> Descriptor:
        if _rows(meta):
            return Descriptor(name, (rows, columns))
        return Descriptor(name, (columns, rows), shape=meta.shape[::-1], strides=meta.strides[::-1])

    args = {
        "a": boxes("a", a, config.BM, config.BK), "b": boxes("b", b, config.BK, config.BN), "out": "out", "ldo": p["out"].strides[0],
        "M": m, "N": n, "K": k, "GROUP": config.GROUP, "BM": config.BM, "BN": config.BN, "BK": config.BK, "A_COLUMNS": not _rows(a),
        "B_COLUMNS": not _rows(b),
    }  # fmt: skip
    return [Launch(_matmul, (tiles,), args, config.warps, config.stages)]
