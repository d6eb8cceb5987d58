"""out = a b, four slices in shared memory: three are in flight while one is multiplied."""

from __future__ import annotations

from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from rooftop.core.spec import Descriptor, Launch, Meta, Problem

IDEA = (
    "A ring of four stages, each with its mbarrier. The product of one slice runs while the next three are loaded, and a stage is filled again as soon as "
    "its own product has ended and the next product has been issued."
)
PREDICT = {"speedup": 1.7}
LIMIT = (
    "The same warps issue copies, wait and multiply: one thread's copies are issued between two products, and every warp of the block has the registers of "
    "the one that needs most."
)


@gluon.jit
def put(x, out, ldo, row, column, M, N):
    """A tile from registers, each warp neighbouring 16 bytes of a row."""
    L: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [gl.num_warps(), 1], [1, 0])
    rows = row + gl.arange(0, x.shape[0], gl.SliceLayout(1, L))
    columns = column + gl.arange(0, x.shape[1], gl.SliceLayout(0, L))
    at = (rows.to(gl.int64) * ldo)[:, None] + columns[None, :]
    gl.store(out + at, gl.convert_layout(x.to(out.dtype.element_ty), L), mask=(rows < M)[:, None] & (columns < N)[None, :])


@gluon.jit
def bring(a_desc, b_desc, row, column, i, slices, a_ring, b_ring, landed, STAGES: gl.constexpr):
    """Slice i into its stage, where there is such a slice."""
    BK: gl.constexpr = a_desc.block_type.shape[1]
    stage, there = i % STAGES, i < slices
    mbarrier.expect(landed.index(stage), a_desc.block_type.nbytes + b_desc.block_type.nbytes, pred=there)
    tma.async_copy_global_to_shared(a_desc, [row, i * BK], landed.index(stage), a_ring.index(stage), pred=there)
    tma.async_copy_global_to_shared(b_desc, [column, i * BK], landed.index(stage), b_ring.index(stage), pred=there)


@gluon.jit
def hgemm(a_desc, b_desc, out, M, N, K, ldo, STAGES: gl.constexpr):
    """b_desc: of b by its columns, [N, K]."""
    BM: gl.constexpr = a_desc.block_type.shape[0]
    BN: gl.constexpr = b_desc.block_type.shape[0]
    BK: gl.constexpr = a_desc.block_type.shape[1]
    MMA: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, BN, 16])
    row, column = gl.program_id(0) // gl.cdiv(N, BN) * BM, gl.program_id(0) % gl.cdiv(N, BN) * BN
    a_ring = gl.allocate_shared_memory(a_desc.dtype, [STAGES] + a_desc.block_type.shape, a_desc.layout)
    b_ring = gl.allocate_shared_memory(b_desc.dtype, [STAGES] + b_desc.block_type.shape, b_desc.layout)
    landed = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(landed.index(i), count=1)
    slices = gl.cdiv(K, BK)
    for i in gl.static_range(STAGES - 1):
        bring(a_desc, b_desc, row, column, i, slices, a_ring, b_ring, landed, STAGES)
    acc = gl.zeros((BM, BN), gl.float32, MMA)
    for i in range(slices):
        stage = i % STAGES
        mbarrier.wait(landed.index(stage), i // STAGES & 1)
        acc = warpgroup_mma(a_ring.index(stage), b_ring.index(stage).permute((1, 0)), acc, is_async=True)
        acc = warpgroup_mma_wait(num_outstanding=1, deps=(acc,))
        gl.thread_barrier()  # every group has ended the product before this one, whose stage is filled next
        bring(a_desc, b_desc, row, column, i + STAGES - 1, slices, a_ring, b_ring, landed, STAGES)
    acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
    put(acc, out, ldo, row, column, M, N)



@dataclass(frozen=True)
class Config:
    BM: int = 128
    BN: int = 128
    BK: int = 64
    STAGES: int = 4


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
        "ldo": out.strides[0], "STAGES": config.STAGES,
    }
    return [Launch(kernel=hgemm, grid=(-(-m // config.BM) * -(-n // config.BN),), args=args, warps=8)]
