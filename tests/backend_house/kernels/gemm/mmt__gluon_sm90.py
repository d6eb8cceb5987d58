"""mmt in Gluon: TMA through a ring of tiles, asynchronous wgmma. Contract: ops/mmt.py"""

from __future__ import annotations

from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_init, warpgroup_mma_wait

from rooftop.core.spec import Descriptor, Launch, Problem
from rooftop.core.tensor_maps import not_copied

DEMANDS = {"has": ["HGMMA", "UTMALDG", "UTMASTG"], "spills": 0}


@gluon.jit
def _mmt(a, b, c, K, STAGES: gl.constexpr, num_warps: gl.constexpr):
    ROWS: gl.constexpr = a.block_type.shape[0]
    DEPTH: gl.constexpr = a.block_type.shape[1]
    COLUMNS: gl.constexpr = b.block_type.shape[0]
    row, column = gl.program_id(1) * ROWS, gl.program_id(0) * COLUMNS
    a_tiles = gl.allocate_shared_memory(a.dtype, [STAGES, ROWS, DEPTH], a.layout)
    b_tiles = gl.allocate_shared_memory(b.dtype, [STAGES, COLUMNS, DEPTH], b.layout)
    arrived = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(arrived.index(i), count=1)
    steps = gl.cdiv(K, DEPTH)
    for i in gl.static_range(STAGES - 1):
        mbarrier.expect(arrived.index(i), a.block_type.nbytes + b.block_type.nbytes, pred=i < steps)
        tma.async_copy_global_to_shared(a, [row, i * DEPTH], arrived.index(i), a_tiles.index(i), pred=i < steps)
        tma.async_copy_global_to_shared(b, [column, i * DEPTH], arrived.index(i), b_tiles.index(i), pred=i < steps)
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[num_warps, 1], instr_shape=[16, COLUMNS, 16])
    sums = warpgroup_mma_init(gl.zeros((ROWS, COLUMNS), gl.float32, layout))
    for step in range(steps):
        slot, ahead = step % STAGES, step + STAGES - 1
        mbarrier.wait(arrived.index(slot), (step // STAGES) & 1)
        sums = warpgroup_mma_wait(num_outstanding=0, deps=(sums,))  # so that the slot of the step before is free
        sums = warpgroup_mma(a_tiles.index(slot), b_tiles.index(slot).permute((1, 0)), sums, is_async=True)
        free = ahead % STAGES
        mbarrier.expect(arrived.index(free), a.block_type.nbytes + b.block_type.nbytes, pred=ahead < steps)
        tma.async_copy_global_to_shared(a, [row, ahead * DEPTH], arrived.index(free), a_tiles.index(free), pred=ahead < steps)
        tma.async_copy_global_to_shared(b, [column, ahead * DEPTH], arrived.index(free), b_tiles.index(free), pred=ahead < steps)
    sums = warpgroup_mma_wait(num_outstanding=0, deps=(sums,))
    for i in gl.static_range(STAGES):
        mbarrier.invalidate(arrived.index(i))
    tile = gl.allocate_shared_memory(c.dtype, [ROWS, COLUMNS], c.layout)
    tile.store(sums.to(c.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(c, [row, column], tile)
    tma.store_wait(0)


@dataclass(frozen=True)
class Config:
    rows: int = 64
    columns: int = 64
    depth: int = 64
    stages: int = 3
    warps: int = 4


def supports(p: Problem) -> str | None:
    for name in "abc":
        if reason := not_copied(p[name], stored=name == "c"):
            return f"{name}: {reason}"
    return None


def choose(p: Problem) -> Config:
    return Config()


def launches(p: Problem, config: Config) -> list[Launch]:
    def tiled(name: str, *block: int) -> Descriptor:
        return Descriptor(name, block, gl.NVMMASharedLayout.get_default_for(list(block), gl.bfloat16))

    a, b, c = tiled("a", config.rows, config.depth), tiled("b", config.columns, config.depth), tiled("c", config.rows, config.columns)
    (rows, depth), columns = p["a"].shape, p["b"].shape[0]
    args = {"a": a, "b": b, "c": c, "K": depth, "STAGES": config.stages}
    return [Launch(_mmt, (-(-columns // config.columns), -(-rows // config.rows)), args, warps=config.warps)]
