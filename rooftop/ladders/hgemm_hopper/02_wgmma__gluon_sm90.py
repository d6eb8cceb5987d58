"""out = a b by wgmma, which reads both operands from shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

from rooftop.core.spec import Launch, Problem

IDEA = (
    "Two groups of four warps compute 128 x 128 with wgmma: 64 x 128 x 16 in one instruction, both operands read from shared memory by the tensor cores "
    "themselves."
)
PREDICT = {"speedup": 1.3}
LIMIT = "The slices still pass through registers on their way to shared memory, and each product waits for its slice."


@gluon.jit
def fetch(x, ld, row, k, R, K, ROWS: gl.constexpr, DEPTH: gl.constexpr):
    """x[row : row + ROWS, k : k + DEPTH] in registers, zeros outside."""
    L: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [gl.num_warps(), 1], [1, 0])
    rows = row + gl.arange(0, ROWS, gl.SliceLayout(1, L))
    along = k + gl.arange(0, DEPTH, gl.SliceLayout(0, L))
    return gl.load(x + (rows.to(gl.int64) * ld)[:, None] + along[None, :], mask=(rows < R)[:, None] & (along < K)[None, :], other=0.0)


@gluon.jit
def put(x, out, ldo, row, column, M, N):
    """A tile from registers, each warp neighbouring 16 bytes of a row."""
    L: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [gl.num_warps(), 1], [1, 0])
    rows = row + gl.arange(0, x.shape[0], gl.SliceLayout(1, L))
    columns = column + gl.arange(0, x.shape[1], gl.SliceLayout(0, L))
    at = (rows.to(gl.int64) * ldo)[:, None] + columns[None, :]
    gl.store(out + at, gl.convert_layout(x.to(out.dtype.element_ty), L), mask=(rows < M)[:, None] & (columns < N)[None, :])


@gluon.jit
def hgemm(a, b, out, M, N, K, lda, ldb, ldo, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    """b by its columns: [N, K] in memory."""
    MMA: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, BN, 16])
    A: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BM, BK], a.dtype.element_ty)
    B: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BN, BK], b.dtype.element_ty)
    row, column = gl.program_id(0) // gl.cdiv(N, BN) * BM, gl.program_id(0) % gl.cdiv(N, BN) * BN
    a_tile = gl.allocate_shared_memory(a.dtype.element_ty, [BM, BK], A)
    b_tile = gl.allocate_shared_memory(b.dtype.element_ty, [BN, BK], B)
    acc = gl.zeros((BM, BN), gl.float32, MMA)
    for k in range(0, K, BK):
        a_tile.store(fetch(a, lda, row, k, M, K, BM, BK))
        b_tile.store(fetch(b, ldb, column, k, N, K, BN, BK))
        fence_async_shared()  # the tensor cores read through the async proxy
        acc = warpgroup_mma(a_tile, b_tile.permute((1, 0)), acc, is_async=True)
        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
    put(acc, out, ldo, row, column, M, N)



@dataclass(frozen=True)
class Config:
    BM: int = 128
    BN: int = 128
    BK: int = 64


def supports(p: Problem) -> str | None:
    a, b = p["a"], p["b"]
    if len(a.shape) != 2 or a.dtype == "f32":
        return "this ladder takes one product of operands of 16 bits"
    if p.extra or p.option("beta") != 0 or p.option("alpha") != 1:
        return "this ladder multiplies and does nothing after"
    if p["out"].numel * a.shape[1] == 0:
        return "there is nothing to compute"
    if a.strides[1] != 1 or b.strides[0] != 1 or a.strides[0] % 8 or b.strides[1] % 8 or a.align % 16 or b.align % 16:
        return "rows of a and columns of b must begin on multiples of 16 bytes"
    return None


def choose(p: Problem) -> Config:
    return Config()


def launches(p: Problem, config: Config) -> list[Launch]:
    a, b, out = p["a"], p["b"], p["out"]
    (m, k), n = a.shape, b.shape[1]
    tiles = -(-m // config.BM) * -(-n // config.BN)
    args = {
        "a": "a", "b": "b", "out": "out", "M": m, "N": n, "K": k, "lda": a.strides[0], "ldb": b.strides[1], "ldo": out.strides[0], "BM": config.BM,
        "BN": config.BN, "BK": config.BK,
    }
    return [Launch(kernel=hgemm, grid=(tiles,), args=args, warps=8)]
