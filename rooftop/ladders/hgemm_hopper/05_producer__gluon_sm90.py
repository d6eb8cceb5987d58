"""out = a b, warp-specialised: a producer warp only issues the loads of slices."""

from __future__ import annotations

from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from rooftop.core.spec import Descriptor, Launch, Meta, Problem

IDEA = (
    "A producer warp issues the loads of slices and waits until stages are free; the consumer group of four warps waits only until stages are full. The "
    "producer gives up registers (setmaxnreg) to the consumers, which hold 128 x 128 sums."
)
PREDICT = {"speedup": 1.1}
LIMIT = (
    "One group of four warps: while it waits at a barrier or stores, the tensor cores idle, and with 128 sums per thread a wider tile does not fit."
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
def load(a_desc, b_desc, a_ring, b_ring, full, empty, row, column, K, STAGES: gl.constexpr, GROUPS: gl.constexpr):
    """The producer warp: starts the copies of a slice as soon as every consumer has released its stage."""
    RM: gl.constexpr = a_desc.block_type.shape[0]
    BK: gl.constexpr = a_desc.block_type.shape[1]
    for i in range(gl.cdiv(K, BK)):
        stage = i % STAGES
        mbarrier.wait(empty.index(stage), (i // STAGES & 1) ^ 1)
        mbarrier.expect(full.index(stage), GROUPS * a_desc.block_type.nbytes + b_desc.block_type.nbytes)
        for g in gl.static_range(GROUPS):
            tma.async_copy_global_to_shared(a_desc, [row + g * RM, i * BK], full.index(stage), a_ring.index(stage * GROUPS + g))
        tma.async_copy_global_to_shared(b_desc, [column, i * BK], full.index(stage), b_ring.index(stage))


@gluon.jit
def consume(GROUP: gl.constexpr, a_desc, b_desc, a_ring, b_ring, full, empty, out, ldo, row, column, M, N, K, STAGES: gl.constexpr, GROUPS: gl.constexpr):
    """One group of four warps: rows GROUP · RM and following of the tile."""
    RM: gl.constexpr = a_desc.block_type.shape[0]
    BN: gl.constexpr = b_desc.block_type.shape[0]
    BK: gl.constexpr = a_desc.block_type.shape[1]
    MMA: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16])
    acc = gl.zeros((RM, BN), gl.float32, MMA)
    for i in range(gl.cdiv(K, BK)):
        stage = i % STAGES
        mbarrier.wait(full.index(stage), i // STAGES & 1)
        acc = warpgroup_mma(a_ring.index(stage * GROUPS + GROUP), b_ring.index(stage).permute((1, 0)), acc, is_async=True)
        acc = warpgroup_mma_wait(num_outstanding=1, deps=(acc,))
        mbarrier.arrive(empty.index((i + STAGES - 1) % STAGES), count=1, pred=i > 0)
    acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
    put(acc, out, ldo, row + GROUP * RM, column, M, N)


@gluon.jit
def hgemm(a_desc, b_desc, out, M, N, K, ldo, STAGES: gl.constexpr, GROUPS: gl.constexpr):
    """a_desc: boxes of one group's rows; b_desc: of b by its columns, [N, K]."""
    RM: gl.constexpr = a_desc.block_type.shape[0]
    BN: gl.constexpr = b_desc.block_type.shape[0]
    row, column = gl.program_id(0) // gl.cdiv(N, BN) * (GROUPS * RM), gl.program_id(0) % gl.cdiv(N, BN) * BN
    a_ring = gl.allocate_shared_memory(a_desc.dtype, [STAGES * GROUPS] + a_desc.block_type.shape, a_desc.layout)
    b_ring = gl.allocate_shared_memory(b_desc.dtype, [STAGES] + b_desc.block_type.shape, b_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=GROUPS)
    fence_async_shared()
    gl.warp_specialize([
        (consume, (0, a_desc, b_desc, a_ring, b_ring, full, empty, out, ldo, row, column, M, N, K, STAGES, GROUPS)),
        (load, (a_desc, b_desc, a_ring, b_ring, full, empty, row, column, K, STAGES, GROUPS)),
    ], [1], [40])



@dataclass(frozen=True)
class Config:
    BM: int = 128
    BN: int = 128
    BK: int = 64
    STAGES: int = 6
    GROUPS: int = 1


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
        "a_desc": _boxes("a", a, config.BM // config.GROUPS, config.BK), "b_desc": _boxes("b", b, config.BN, config.BK), "out": "out", "M": m, "N": n,
        "K": k, "ldo": out.strides[0], "STAGES": config.STAGES, "GROUPS": config.GROUPS,
    }
    return [Launch(kernel=hgemm, grid=(-(-m // config.BM) * -(-n // config.BN),), args=args, warps=4)]
