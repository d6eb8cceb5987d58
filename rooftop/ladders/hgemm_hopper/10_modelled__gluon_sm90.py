"""out = a b with the tile that a performance model predicts to be the fastest."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from rooftop.core.spec import Descriptor, Launch, Meta, Problem
from rooftop.kernels._device.gluon_tiles import halves
from rooftop.kernels.gemm._model import Config, Facts, piece, ranked

IDEA = (
    "The sizes are not constants: tiles of 64 to 256 rows and 64 to 256 columns, one group of warps or two, as many stages as fit. A "
    "performance model of a multiprocessor (products, wgmma's reads of shared memory, loads from L2, waves of tiles, the epilogue) "
    "predicts the time of each, and the shortest is chosen: a few dozen numbers of arithmetic for a new size."
)
PREDICT = {"speedup": 1.0}
LIMIT = (
    "Power at large sizes, then wgmma's own rate. If the last wave has few tiles, most multiprocessors are idle in it. One order of "
    "each operand; nothing after the product."
)


@gluon.jit
def place(tile, M, N, BM: gl.constexpr, BN: gl.constexpr, GROUP: gl.constexpr):
    """The first row and column of a tile: GROUP rows of tiles are processed column by column."""
    first = tile // (GROUP * gl.cdiv(N, BN)) * GROUP
    rows = gl.minimum(gl.cdiv(M, BM) - first, GROUP)
    rest = tile % (GROUP * gl.cdiv(N, BN))
    return (first + rest % rows) * BM, rest // rows * BN


@gluon.jit
def load(a_desc, b_desc, a_ring, b_ring, full, empty, M, N, K, GROUPS: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr):
    """The producer, one warp: slices of the next tile follow those of this one without a pause."""
    RM: gl.constexpr = a_desc.block_type.shape[0]
    BM: gl.constexpr = GROUPS * RM
    BN: gl.constexpr = b_desc.block_type.shape[0]
    BK: gl.constexpr = a_desc.block_type.shape[1]
    n = 0
    for tile in range(gl.program_id(0), gl.cdiv(M, BM) * gl.cdiv(N, BN), gl.num_programs(0)):
        row, column = place(tile, M, N, BM, BN, GROUP)
        for i in range(gl.cdiv(K, BK)):
            stage = n % STAGES
            mbarrier.wait(empty.index(stage), (n // STAGES & 1) ^ 1)
            mbarrier.expect(full.index(stage), GROUPS * a_desc.block_type.nbytes + b_desc.block_type.nbytes)
            for g in gl.static_range(GROUPS):
                tma.async_copy_global_to_shared(a_desc, [row + g * RM, i * BK], full.index(stage), a_ring.index(stage * GROUPS + g))
            tma.async_copy_global_to_shared(b_desc, [column, i * BK], full.index(stage), b_ring.index(stage))
            n += 1


@gluon.jit
def consume(INDEX: gl.constexpr, a_desc, b_desc, a_ring, b_ring, c_ring, full, empty, out_desc, M, N, K, GROUPS: gl.constexpr,
            STAGES: gl.constexpr, GROUP: gl.constexpr):
    """One group of four warps: its rows of each tile. It stores 64 columns at a time through two buffers of its own, by TMA."""
    RM: gl.constexpr = a_desc.block_type.shape[0]
    BM: gl.constexpr = GROUPS * RM
    BN: gl.constexpr = b_desc.block_type.shape[0]
    BK: gl.constexpr = a_desc.block_type.shape[1]
    PIECES: gl.constexpr = BN // out_desc.block_type.shape[1]
    MMA: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16])
    HALF: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN // 2, 16])
    QUARTER: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN // 4, 16])
    n = 0
    acc = gl.zeros((RM, BN), gl.float32, MMA)
    for tile in range(gl.program_id(0), gl.cdiv(M, BM) * gl.cdiv(N, BN), gl.num_programs(0)):
        row, column = place(tile, M, N, BM, BN, GROUP)
        for i in range(gl.cdiv(K, BK)):
            stage = n % STAGES
            mbarrier.wait(full.index(stage), n // STAGES & 1)
            acc = warpgroup_mma(a_ring.index(stage * GROUPS + INDEX), b_ring.index(stage).permute((1, 0)), acc, use_acc=i > 0,
                                is_async=True)
            acc = warpgroup_mma_wait(num_outstanding=1, deps=(acc,))
            mbarrier.arrive(empty.index((n + STAGES - 1) % STAGES), count=1, pred=i > 0)
            n += 1
        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
        mbarrier.arrive(empty.index((n + STAGES - 1) % STAGES), count=1)
        if PIECES == 1:
            pieces = (acc,)
        elif PIECES == 2:
            pieces = halves(acc, HALF)
        else:
            left, right = halves(acc, HALF)
            pieces = halves(left, QUARTER) + halves(right, QUARTER)
        for q in gl.static_range(PIECES):
            buffer = c_ring.index(INDEX * 2 + q % 2)
            tma.store_wait(1 if PIECES > 1 else 0)  # the buffer of this piece is free
            buffer.store(pieces[q].to(out_desc.dtype))
            fence_async_shared()
            tma.async_copy_shared_to_global(out_desc, [row + INDEX * RM, column + q * (BN // PIECES)], buffer)
    tma.store_wait(0)


@gluon.jit
def hgemm(a_desc, b_desc, out_desc, M, N, K, GROUPS: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr):
    """b_desc: of b by its columns, [N, K]."""
    a_ring = gl.allocate_shared_memory(a_desc.dtype, [GROUPS * STAGES] + a_desc.block_type.shape, a_desc.layout)
    b_ring = gl.allocate_shared_memory(b_desc.dtype, [STAGES] + b_desc.block_type.shape, b_desc.layout)
    c_ring = gl.allocate_shared_memory(out_desc.dtype, [2 * GROUPS] + out_desc.block_type.shape, out_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=GROUPS)
    fence_async_shared()
    if GROUPS == 1:
        gl.warp_specialize([
            (consume, (0, a_desc, b_desc, a_ring, b_ring, c_ring, full, empty, out_desc, M, N, K, GROUPS, STAGES, GROUP)),
            (load, (a_desc, b_desc, a_ring, b_ring, full, empty, M, N, K, GROUPS, STAGES, GROUP)),
        ], [1], [40])
    else:
        gl.warp_specialize([
            (consume, (0, a_desc, b_desc, a_ring, b_ring, c_ring, full, empty, out_desc, M, N, K, GROUPS, STAGES, GROUP)),
            (consume, (1, a_desc, b_desc, a_ring, b_ring, c_ring, full, empty, out_desc, M, N, K, GROUPS, STAGES, GROUP)),
            (load, (a_desc, b_desc, a_ring, b_ring, full, empty, M, N, K, GROUPS, STAGES, GROUP)),
        ], [4, 1], [232, 40])


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
    if p["out"].strides[0] % 8:
        return "TMA writes rows that begin on multiples of 16 bytes"
    return None


def choose(p: Problem) -> Config:
    facts = Facts(*p["out"].shape, p["a"].shape[1], sms=p.device.sms)
    return next(c for c in ranked(facts, swaps=False) if c.SPLIT == 1 and not c.STREAM and c.BN >= 64)


def _boxes(name: str, meta: Meta, rows: int, columns: int) -> Descriptor:
    """The TMA descriptor of a, of out, or of b transposed: boxes of `rows` x `columns` of K."""
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], gl.bfloat16 if meta.dtype == "bf16" else gl.float16)
    shape, strides = (meta.shape, meta.strides) if name != "b" else (meta.shape[::-1], meta.strides[::-1])
    return Descriptor(name, (rows, columns), layout, shape=shape, strides=strides)


def launches(p: Problem, config: Config) -> list[Launch]:
    a, b, out = p["a"], p["b"], p["out"]
    (m, k), n = a.shape, b.shape[1]
    tiles = -(-m // config.BM) * -(-n // config.BN)
    args = {
        "a_desc": _boxes("a", a, config.BM // config.GROUPS, config.BK), "b_desc": _boxes("b", b, config.BN, config.BK), "M": m, "N": n,
        "K": k,
        "out_desc": _boxes("out", out, config.BM // config.GROUPS, piece(config)), "GROUPS": config.GROUPS, "STAGES": config.STAGES,
        "GROUP": config.GROUP,
    }
    return [Launch(kernel=hgemm, grid=(min(p.device.sms, tiles),), args=args, warps=4)]
