"""out = softmax(scale · q kᵀ) v on Hopper: the product of one tile runs while the exponentials of the next are computed."""

from __future__ import annotations

from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from rooftop.core.spec import Descriptor, Launch, Problem
from rooftop.core.tensor_maps import not_copied
from rooftop.kernels.attention._fwd_sm90 import flat, range_of, store_tile

IDEA = (
    "A group issues the scores of the next tile of keys together with the product of this tile's weights and values, and waits for the "
    "scores alone. So the exponentials of one tile are computed while the tensor cores multiply the other. The result is rescaled after "
    "the product, by what the new maximum says."
)
PREDICT = {"speedup": 1.2}
LIMIT = (
    "1.06 times as fast as rung 06 on an H200, where 1.2 was predicted, probably because most of the exponentials of one group ran "
    "during the products of the other before. Nothing keeps the two groups apart: where both compute exponentials at once, the tensor "
    "cores have one product to run and nothing after it."
)


@gluon.jit
def tile_here(SQ, BM: gl.constexpr, CAUSAL: gl.constexpr):
    """This block's first query, its batch and head. The last queries, which have the most keys, start first."""
    row = (gl.num_programs(0) - 1 - gl.program_id(0)) * BM if CAUSAL else gl.program_id(0) * BM
    return row, gl.program_id(2), gl.program_id(1)


@gluon.jit
def load(q_desc, k_desc, v_desc, q_tiles, k_ring, v_ring, q_full, k_full, v_full, empty, SQ, SK, GROUP, STAGES: gl.constexpr,
         BM: gl.constexpr, BN: gl.constexpr, CAUSAL: gl.constexpr):
    """The producer warp."""
    row, b, h = tile_here(SQ, BM, CAUSAL)
    begin, end, _, _ = range_of(row, SQ, SK, BM, BN, -1, 0 if CAUSAL else -1)
    for g in gl.static_range(2):
        mbarrier.expect(q_full.index(g), q_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(q_desc, [b, h, row + g * 64, 0], q_full.index(g), q_tiles.index(g))
    for n in range(end - begin):
        stage = n % STAGES
        mbarrier.wait(empty.index(2 * stage), (n // STAGES & 1) ^ 1)
        mbarrier.expect(k_full.index(stage), k_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(k_desc, [b, h // GROUP, (end - 1 - n) * BN, 0], k_full.index(stage), k_ring.index(stage))
        mbarrier.wait(empty.index(2 * stage + 1), (n // STAGES & 1) ^ 1)
        mbarrier.expect(v_full.index(stage), v_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(v_desc, [b, h // GROUP, (end - 1 - n) * BN, 0], v_full.index(stage), v_ring.index(stage))


@gluon.jit
def weights(z, top, total, factor, rows, column, position, SK, CAUSAL: gl.constexpr, MASKED: gl.constexpr):
    """Of the scores of a tile of keys, which starts at `column`: the weights, the new maximum and sum, and what the old ones shrink by; in
    base 2."""
    if MASKED:
        columns = column + gl.arange(0, z.shape[1], gl.SliceLayout(0, z.type.layout))
        limit = gl.zeros_like(rows) + SK
        if CAUSAL:
            limit = gl.minimum(limit, rows + (position + 1))
        z = gl.where(columns[None, :] < limit[:, None], z, float("-inf"))
    new = gl.maximum(top, gl.max(z, 1) * factor)
    base = gl.where(new == float("-inf"), 0.0, new)
    w = gl.exp2(z * factor - base[:, None])
    shrink = gl.exp2(top - base)
    return w, new, total * shrink + gl.sum(w, 1), shrink


@gluon.jit
def walk(acc, w, top, total, q, k_ring, v_ring, k_full, v_full, empty, end, first, last, factor, rows, position, SK, STAGES: gl.constexpr,
         BN: gl.constexpr,
          CAUSAL: gl.constexpr, MASKED: gl.constexpr):
    """Tiles of keys from before `first` down to `last`, of those before `end`: the scores of each, and the product of the weights `w` of
    the one before. MASKED: not every query sees every key of them."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=acc.type.layout, k_width=2)
    for i in range(first - last):
        n = end - first + i
        stage = n % STAGES
        before = (n - 1) % STAGES
        mbarrier.wait(k_full.index(stage), n // STAGES & 1)
        p = gl.convert_layout(w.to(v_ring.dtype), WEIGHTS, assert_trivial=True)
        z = gl.zeros((64, BN), gl.float32, SCORES)
        z = warpgroup_mma(q, flat(k_ring.index(stage)).permute((1, 0)), z, use_acc=False, is_async=True)
        mbarrier.wait(v_full.index(before), (n - 1) // STAGES & 1)
        acc = warpgroup_mma(p, flat(v_ring.index(before)), acc, is_async=True)
        z = warpgroup_mma_wait(num_outstanding=1, deps=(z,))
        mbarrier.arrive(empty.index(2 * stage), count=1)
        w, top, total, shrink = weights(z, top, total, factor, rows, (first - 1 - i) * BN, position, SK, CAUSAL, MASKED)
        # Waiting for the next keys here ends a basic block: within one, ptxas moves the exponentials behind the wait for the product.
        mbarrier.wait(k_full.index((n + 1) % STAGES), (n + 1) // STAGES & 1, pred=i + 1 < first - last)
        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
        mbarrier.arrive(empty.index(2 * before + 1), count=1)
        acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, acc.type.layout), assert_trivial=True)[:, None]
    return acc, w, top, total


@gluon.jit
def consume(INDEX: gl.constexpr, q_tiles, k_ring, v_ring, o_tiles, q_full, k_full, v_full, empty, out_desc, lse, SQ, SK, H, scale,
            STAGES: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, CAUSAL: gl.constexpr):
    """One group of four warps: the 64 queries from INDEX · 64 on."""
    DV: gl.constexpr = v_ring.shape[4]
    RESULT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, DV, 16])
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16])
    ROWS: gl.constexpr = gl.SliceLayout(1, SCORES)
    factor = scale * 1.4426950408889634
    row, b, h = tile_here(SQ, BM, CAUSAL)
    begin, end, _, edge = range_of(row, SQ, SK, BM, BN, -1, 0 if CAUSAL else -1)
    rows = row + INDEX * 64 + gl.arange(0, 64, ROWS)
    acc = gl.zeros((64, DV), gl.float32, RESULT)
    top = gl.full((64,), float("-inf"), gl.float32, ROWS)
    total = gl.zeros((64,), gl.float32, ROWS)
    if end > begin:
        q = flat(q_tiles.index(INDEX))
        mbarrier.wait(q_full.index(INDEX), 0)
        mbarrier.wait(k_full.index(0), 0)
        z = gl.zeros((64, BN), gl.float32, SCORES)
        z = warpgroup_mma(q, flat(k_ring.index(0)).permute((1, 0)), z, use_acc=False, is_async=True)
        z = warpgroup_mma_wait(num_outstanding=0, deps=(z,))
        mbarrier.arrive(empty.index(0), count=1)
        w, top, total, _shrink = weights(z, top, total, factor, rows, (end - 1) * BN, SK - SQ, SK, CAUSAL, True)
        edge = gl.maximum(gl.minimum(edge, end - 1), begin)
        if CAUSAL:  # without, only the last tile needs a mask: the one above
            acc, w, top, total = walk(acc, w, top, total, q, k_ring, v_ring, k_full, v_full, empty, end, end - 1, edge, factor, rows,
                                      SK - SQ, SK, STAGES, BN, CAUSAL, True)
        acc, w, top, total = walk(acc, w, top, total, q, k_ring, v_ring, k_full, v_full, empty, end, edge, begin, factor, rows, SK - SQ, SK,
                                  STAGES, BN, CAUSAL, False)
        last = (end - begin - 1) % STAGES
        mbarrier.wait(v_full.index(last), (end - begin - 1) // STAGES & 1)
        p = gl.convert_layout(w.to(v_ring.dtype), gl.DotOperandLayout(operand_index=0, parent=RESULT, k_width=2), assert_trivial=True)
        acc = warpgroup_mma(p, flat(v_ring.index(last)), acc, is_async=True)
        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
    share = gl.convert_layout(1.0 / gl.where(total == 0, 1.0, total), gl.SliceLayout(1, RESULT), assert_trivial=True)
    store_tile(o_tiles.index(INDEX), (acc * share[:, None]).to(out_desc.dtype), out_desc, b, h, row + INDEX * 64)
    gl.store(lse + (b * H + h).to(gl.int64) * SQ + rows, (top + gl.log2(total)) / 1.4426950408889634, mask=rows < SQ)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=("SQ", "SK", "H", "GROUP"))
def forward(q_desc, k_desc, v_desc, out_desc, lse, SQ, SK, H, GROUP, scale, STAGES: gl.constexpr, BN: gl.constexpr, CAUSAL: gl.constexpr):
    BM: gl.constexpr = 128
    q_tiles = gl.allocate_shared_memory(q_desc.dtype, [2] + q_desc.block_type.shape, q_desc.layout)
    k_ring = gl.allocate_shared_memory(k_desc.dtype, [STAGES] + k_desc.block_type.shape, k_desc.layout)
    v_ring = gl.allocate_shared_memory(v_desc.dtype, [STAGES] + v_desc.block_type.shape, v_desc.layout)
    o_tiles = gl.allocate_shared_memory(out_desc.dtype, [2] + out_desc.block_type.shape, out_desc.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [2 * STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(q_full.index(i), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(empty.index(2 * i), count=2)
        mbarrier.init(empty.index(2 * i + 1), count=2)
    fence_async_shared()
    gl.warp_specialize([
        (consume, (0, q_tiles, k_ring, v_ring, o_tiles, q_full, k_full, v_full, empty, out_desc, lse, SQ, SK, H, scale, STAGES, BM, BN,
                   CAUSAL)),
        (consume, (1, q_tiles, k_ring, v_ring, o_tiles, q_full, k_full, v_full, empty, out_desc, lse, SQ, SK, H, scale, STAGES, BM, BN,
                   CAUSAL)),
        (load, (q_desc, k_desc, v_desc, q_tiles, k_ring, v_ring, q_full, k_full, v_full, empty, SQ, SK, GROUP, STAGES, BM, BN, CAUSAL)),
    ], [4, 1], [240, 24])


@dataclass(frozen=True)
class Config:
    BN: int = 128
    STAGES: int = 2


def supports(p: Problem) -> str | None:
    given = [n for n, m in p.tensors if m is not None and n not in ("q", "k", "v", "out", "lse")]
    if given or p.option("softcap") or p.option("dropout_p") or p.option("left") != -1 or p.option("right") not in (-1, 0):
        return "this ladder takes plain and causal attention"
    if p["q"].dtype not in ("f16", "bf16"):
        return f"this ladder takes f16 and bf16; given {p['q'].dtype}"
    if p["q"].numel == 0 or p["k"].numel == 0:
        return "there is nothing to compute"
    if max(p["q"].shape[3], p["v"].shape[3]) > 128:
        return "this rung takes heads of at most 128 columns"
    reasons = {name: not_copied(p[name], *_by_heads(p, name)) for name in ("q", "k", "v", "out")}
    return next((f"TMA does not copy {name}: {reason}" for name, reason in reasons.items() if reason), None)


def choose(p: Problem) -> Config:
    return Config(STAGES=2 if max(p["q"].shape[3], p["v"].shape[3]) > 64 else 4)


def _by_heads(p: Problem, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of a tensor as [batch, head, token, column]."""
    order = (0, 2, 1, 3)
    return tuple(p[name].shape[i] for i in order), tuple(p[name].strides[i] for i in order)


def launches(p: Problem, config: Config) -> list[Launch]:
    batch, queries, heads, _ = p["q"].shape
    kind = gl.bfloat16 if p["q"].dtype == "bf16" else gl.float16

    def boxes(name: str, rows: int) -> Descriptor:
        shape, strides = _by_heads(p, name)
        block = (1, 1, rows, 64 if shape[3] <= 64 else 128)
        return Descriptor(name, block, gl.NVMMASharedLayout.get_default_for(list(block), kind), shape=shape, strides=strides)

    args = {
        "q_desc": boxes("q", 64), "k_desc": boxes("k", config.BN), "v_desc": boxes("v", config.BN), "out_desc": boxes("out", 64),
        "lse": "lse", "SQ": queries,
        "SK": p["k"].shape[1], "H": heads, "GROUP": heads // p["k"].shape[2], "scale": "scale", "STAGES": config.STAGES, "BN": config.BN,
        "CAUSAL": p.option("right") == 0,
    }
    return [Launch(forward, (-(-queries // 128), heads, batch), args, warps=4)]
