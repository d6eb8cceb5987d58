"""out = a b, slices loaded by TMA: one thread issues the copies, an mbarrier signals when they have arrived."""

from __future__ import annotations

from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from rooftop.core.spec import Descriptor, Launch, Meta, Problem

IDEA = (
    "One thread issues TMA copies of a box of a and one of b. The copies use no registers, have the layout that wgmma reads, and count their bytes on an "
    "mbarrier that all warps wait for."
)
PREDICT = {"speedup": 1.5}
LIMIT = "One slice in shared memory: loads and products do not overlap."


@gluon.jit
def put(x, out, ldo, row, column, M, N):
    """A tile from registers, each warp neighbouring 16 bytes of a row."""
    L: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [gl.num_warps(), 1], [1, 0])
    rows = row + gl.arange(0, x.shape[0], gl.SliceLayout(1, L))
    columns = column + gl.arange(0, x.shape[1], gl.SliceLayout(0, L))
    at = (rows.to(gl.int64) * ldo)[:, None] + columns[None, :]
    gl.store(out + at, gl.convert_layout(x.to(out.dtype.element_ty), L), mask=(rows < M)[:, None] & (columns < N)[None, :])


@gluon.jit
def hgemm(a_desc, b_desc, out, M, N, K, ldo):
    """b_desc: of b by its columns, [N, K]."""
    BM: gl.constexpr = a_desc.block_type.shape[0]
    BN: gl.constexpr = b_desc.block_type.shape[0]
    BK: gl.constexpr = a_desc.block_type.shape[1]
    MMA: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, BN, 16])
    row, column = gl.program_id(0) // gl.cdiv(N, BN) * BM, gl.program_id(0) % gl.cdiv(N, BN) * BN
    a_tile = gl.allocate_shared_memory(a_desc.dtype, a_desc.block_type.shape, a_desc.layout)
    b_tile = gl.allocate_shared_memory(b_desc.dtype, b_desc.block_type.shape, b_desc.layout)
    landed = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(landed, count=1)
    acc = gl.zeros((BM, BN), gl.float32, MMA)
    for i in range(gl.cdiv(K, BK)):
        mbarrier.expect(landed, a_desc.block_type.nbytes + b_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(a_desc, [row, i * BK], landed, a_tile)
        tma.async_copy_global_to_shared(b_desc, [column, i * BK], landed, b_tile)
        mbarrier.wait(landed, i & 1)
        acc = warpgroup_mma(a_tile, b_tile.permute((1, 0)), acc, is_async=True)
        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
        gl.thread_barrier()  # every group has read the slice that is overwritten next
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


def _boxes(name: str, meta: Meta, rows: int, columns: int) -> Descriptor:
    """The TMA descriptor of a, of out, or of b transposed: boxes of `rows` x `columns` of K."""
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], gl.bfloat16 if meta.dtype == "bf16" else gl.float16)
    shape, strides = (meta.shape, meta.strides) if name != "b" else (meta.shape[::-1], meta.strides[::-1])
    return Descriptor(name, (rows, columns), layout, shape=shape, strides=strides)


def launches(p: Problem, config: Config) -> list[Launch]:
    a, b, out = p["a"], p["b"], p["out"]
    (m, k), n = a.shape, b.shape[1]
    args = {
        "a_desc": _boxes("a", a, config.BM, config.BK), "b_desc": _boxes("b", b, config.BN, config.BK), "out": "out", "M": m, "N": n, "K": k,
        "ldo": out.strides[0],
    }
    return [Launch(kernel=hgemm, grid=(-(-m // config.BM) * -(-n // config.BN),), args=args, warps=8)]
