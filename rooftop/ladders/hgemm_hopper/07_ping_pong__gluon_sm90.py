"""out = a b, ping-pong: each of the two groups has its own tile, and one stores while the other multiplies."""

from __future__ import annotations

from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from rooftop.core.spec import Descriptor, Launch, Meta, Problem

IDEA = (
    "Each group computes its own tiles of 128 x 128, in turn: the producer loads all slices of one tile, then all of the next, so that one group "
    "multiplies while the other stores. As many blocks as multiprocessors, so that there always is a next tile."
)
PREDICT = {"speedup": 0.97}
LIMIT = (
    "Tiles of 128 x 128 load 1.5 times the bytes of tiles of 128 x 256 and read a and b from shared memory 1.5 times as often: the store is hidden, "
    "but at K = 4096 it was the smaller part."
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
def load(a_desc, b_desc, a_ring, b_ring, full, empty, M, N, K, STAGES: gl.constexpr):
    """The producer, one warp: all slices of a tile, then all of the next."""
    BM: gl.constexpr = a_desc.block_type.shape[0]
    BN: gl.constexpr = b_desc.block_type.shape[0]
    BK: gl.constexpr = a_desc.block_type.shape[1]
    n = 0
    for tile in range(gl.program_id(0), gl.cdiv(M, BM) * gl.cdiv(N, BN), gl.num_programs(0)):
        row, column = tile // gl.cdiv(N, BN) * BM, tile % gl.cdiv(N, BN) * BN
        for i in range(gl.cdiv(K, BK)):
            stage = n % STAGES
            mbarrier.wait(empty.index(stage), (n // STAGES & 1) ^ 1)
            mbarrier.expect(full.index(stage), a_desc.block_type.nbytes + b_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(a_desc, [row, i * BK], full.index(stage), a_ring.index(stage))
            tma.async_copy_global_to_shared(b_desc, [column, i * BK], full.index(stage), b_ring.index(stage))
            n += 1


@gluon.jit
def consume(GROUP: gl.constexpr, a_desc, b_desc, a_ring, b_ring, full, empty, turns, out, ldo, M, N, K, STAGES: gl.constexpr):
    """One consumer warp group: every second tile of the block. Slices are loaded tile by tile, so the other group multiplies while this one stores. `turns`:
    a group waits until the other has seen all slices of its tile. `full` has two phases; without the turns a group could take an older slice for its own."""
    BM: gl.constexpr = a_desc.block_type.shape[0]
    BN: gl.constexpr = b_desc.block_type.shape[0]
    BK: gl.constexpr = a_desc.block_type.shape[1]
    MMA: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16])
    slices = gl.cdiv(K, BK)
    n = GROUP * slices
    turn = 0
    acc = gl.zeros((BM, BN), gl.float32, MMA)
    for tile in range(gl.program_id(0) + GROUP * gl.num_programs(0), gl.cdiv(M, BM) * gl.cdiv(N, BN), 2 * gl.num_programs(0)):
        mbarrier.wait(turns.index(GROUP), turn ^ (1 - GROUP))  # group 0 begins
        turn ^= 1
        for i in range(slices):
            stage = n % STAGES
            mbarrier.wait(full.index(stage), n // STAGES & 1)
            acc = warpgroup_mma(a_ring.index(stage), b_ring.index(stage).permute((1, 0)), acc, use_acc=i > 0, is_async=True)
            acc = warpgroup_mma_wait(num_outstanding=1, deps=(acc,))
            mbarrier.arrive(empty.index((n + STAGES - 1) % STAGES), count=1, pred=i > 0)
            n += 1
        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
        mbarrier.arrive(turns.index(1 - GROUP), count=1)
        mbarrier.arrive(empty.index((n + STAGES - 1) % STAGES), count=1)
        n += slices  # those of the other group's tile
        put(acc, out, ldo, tile // gl.cdiv(N, BN) * BM, tile % gl.cdiv(N, BN) * BN, M, N)


@gluon.jit
def hgemm(a_desc, b_desc, out, M, N, K, ldo, STAGES: gl.constexpr):
    """b_desc: of b by its columns, [N, K]."""
    a_ring = gl.allocate_shared_memory(a_desc.dtype, [STAGES] + a_desc.block_type.shape, a_desc.layout)
    b_ring = gl.allocate_shared_memory(b_desc.dtype, [STAGES] + b_desc.block_type.shape, b_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(turns.index(i), count=1)
    fence_async_shared()
    gl.warp_specialize([
        (consume, (0, a_desc, b_desc, a_ring, b_ring, full, empty, turns, out, ldo, M, N, K, STAGES)),
        (consume, (1, a_desc, b_desc, a_ring, b_ring, full, empty, turns, out, ldo, M, N, K, STAGES)),
        (load, (a_desc, b_desc, a_ring, b_ring, full, empty, M, N, K, STAGES)),
    ], [4, 1], [232, 40])



@dataclass(frozen=True)
class Config:
    BM: int = 128
    BN: int = 128
    BK: int = 64
    STAGES: int = 5


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
    tiles = -(-m // config.BM) * -(-n // config.BN)
    args = {
        "a_desc": _boxes("a", a, config.BM, config.BK), "b_desc": _boxes("b", b, config.BN, config.BK), "out": "out", "M": m, "N": n, "K": k,
        "ldo": out.strides[0], "STAGES": config.STAGES,
    }
    return [Launch(kernel=hgemm, grid=(min(p.device.sms, tiles),), args=args, warps=4)]
