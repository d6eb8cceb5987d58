"""FlashAttention-3 forward on Hopper: plain, causal, windowed, capped, packed, with dropout. Contract: rooftop/ops/attention.py

Persistent and warp-specialised: a block is one producer warp and two or three consumer warp groups, of 64 queries each. The producer loads
queries, then tiles of keys and values by TMA into a ring; each slot has two mbarriers, `full` (its bytes have arrived) and `empty` (every
group has released it). A group issues the scores of the next tile of keys and the product of this one's weights and values together, and
computes the exponentials of the next while the second runs. The groups are out of step, so that the exponentials of one overlap with the
products of the other. Weights stay in registers, as the left operand of wgmma. From one turn of the loop to the next they are kept in
float32: 16-bit values are packed in pairs, and a loop that carries them unpacks and packs each again, 64 PRMT of 511 instructions. Without
these, and without the masked loop where there is no right bound (the registers that it cost went to local memory), heads of 64 columns
take 0.91 to 0.96, of 128 columns 0.88 to 0.95 of the time on an H200. A quarter of the exponentials as polynomials gained nothing.

Tiles are processed from the last key back, so that those at an edge, which are masked, come first. The tiles of queries of as many heads as
L2 holds are scheduled together, the longest first, forwards and backwards in turn. Packed sequences: a small launch beforehand lists their
tiles of queries. A tile of values that reaches into the next sequence is set to zero there, since 0 times its values may be NaN; queries at
the end of a sequence are stored by the threads, not by TMA.

A soft cap needs one tanh per score. With an exponential and a reciprocal there would be three special functions per score, which bound the
speed (0.63 of plain causal attention), and near 0 cancellation in 1 - 2 / (1 + e) makes a larger error than the normaliser may have. Small
scores, the usual ones, use a polynomial. Whether all scores of a warp are small is an OR of their bits and one branch: a chain of maxima
and a branch for every 16 scores left the pipes idle in between. Capped scores are bounded, so that their weights need no maximum subtracted
in bfloat16, which has float32's
exponents: half of the cap is. Polynomial and exponential are then one stretch of code, and neither maxima nor the rescaling of the result
are needed (0.87 and 0.88 of plain causal attention on an H200).

Dropout draws its bits where the weights are: the two neighbours of a thread share a word of them.

For heads of more than 128 columns the output accumulators need half of the registers and tiles of 64 keys the rest; the result is staged in
the memory of the queries."""

from __future__ import annotations

from dataclasses import dataclass, replace

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma_wait

from rooftop.core.spec import Descriptor, Launch, Meta, Problem
from rooftop.core.tensor_maps import not_copied
from rooftop.kernels.attention import _arguments as shared
from rooftop.kernels.attention._dropout_sm90 import eighths
from rooftop.kernels.attention._fwd_sm90 import place, range_of, store_tile
from rooftop.kernels.attention._fwd_steps_sm90 import BOUNDED, CAPPED, LOG2E, key_steps, load_tiles, product, times, weights
from rooftop.kernels.attention._packed_sm90 import CHUNK, clear_rows, length_of, plan_tiles, tile_of
from rooftop.kernels.attention._scores_sm90 import SMALL, flat, scores_of

# With windows or 256 columns ptxas keeps one or two addresses, read once a tile of queries, in local memory.
DEMANDS = {"has": ["HGMMA", "UTMALDG", "UTMASTG"], "spills": 16}
# cap of BOUNDED: less half of it, weights are 2^-108 to 2^36. A float32 holds their sum times values while keys times the largest is below
# 2^92
HIGHEST = 50.0


@gluon.jit
def _store_columns(to, made, START: gl.constexpr, first, row, SQ, stride, WIDTH: gl.constexpr):
    """Stores rows of a sequence of SQ queries, whose first is `first`, as columns from START on of WIDTH."""
    token = row + gl.arange(0, 64, gl.SliceLayout(1, made.type.layout))
    column = START + gl.arange(0, made.shape[1], gl.SliceLayout(0, made.type.layout))
    at = to + (first + token).to(gl.int64)[:, None] * stride + column[None, :]
    gl.store(at, made, mask=(token < SQ)[:, None] & (column < WIDTH)[None, :])


@gluon.jit
def _consume(INDEX: gl.constexpr, q_tiles, k_ring, v_ring, z_tiles, o_tiles, q_full, q_empty, k_full, v_full, empty, z_full, z_empty,
             turn_bars, out_desc, out, lse, plan, rows_of_tiles, all_heads, section, H, TQ, TK, scale, softcap, ob, os, oh, lengths, sinks,
             slopes, ab, seed, limit, stay, EIGHTHS, WIDTH: gl.constexpr, OVER: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr,
             BM: gl.constexpr, BN: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, CAP: gl.constexpr, PING: gl.constexpr,
             PACKED: gl.constexpr, BIAS: gl.constexpr, DROP: gl.constexpr, SHORT: gl.constexpr, REST: gl.constexpr, REST_V: gl.constexpr):
    """One consumer warp group: the 64 queries from INDEX · 64 on of each tile."""
    DV: gl.constexpr = v_ring.shape[4]
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16])
    MAIN: gl.constexpr = 64 if REST_V else DV
    RESULT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, MAIN, 16])
    MORE: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, REST_V if REST_V else 8, 16])
    LEFT_OPERAND: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=RESULT, k_width=2)
    ROWS: gl.constexpr = gl.SliceLayout(1, SCORES)
    cap = 0.0
    if CAP:
        cap = scale / softcap * (2 / SMALL)
        factor = softcap * LOG2E
    else:
        factor = scale * LOG2E
    n = 0
    used = 0
    if PACKED:
        rows_of_tiles = gl.load(plan)
    tiles = rows_of_tiles * all_heads
    turns = gl.cdiv(tiles, gl.num_programs(0))
    for turn in range(turns):
        there, tile, bh = place(turn, tiles, rows_of_tiles, all_heads, section)
        if there:
            first, SQ, _unused, SK, row = tile_of(plan, tile, TQ, TK, BM, PACKED)
            if lengths is not None:
                SK = length_of(lengths + bh // H, TK)
            slope = 0.0
            if slopes is not None:
                slope = gl.load(slopes + bh // H * ab + bh % H) * LOG2E
            position = SK - SQ
            begin, end, whole, edge = range_of(row, SQ, SK, BM, BN, LEFT, RIGHT)
            rows = row + INDEX * 64 + gl.arange(0, 64, ROWS)
            numbers = rows
            if DROP:
                numbers = eighths(bh, first + rows, TQ, EIGHTHS, SHORT)
            acc = gl.zeros((64, MAIN), gl.float32, RESULT)
            more = 0.0
            if REST_V:
                more = gl.zeros((64, REST_V), gl.float32, MORE)
            top = gl.full((64,), 0.0, gl.float32, ROWS) + (0.5 * factor if CAP == BOUNDED else float("-inf"))
            total = gl.zeros((64,), gl.float32, ROWS)
            if sinks is not None:
                sink = gl.load(sinks + bh % H).to(gl.float32) * LOG2E
                top = gl.full((64,), 0.0, gl.float32, ROWS) + sink
                total = gl.where(top == float("-inf"), 0.0, 1.0)
            if end > begin:
                q = q_tiles.index(INDEX)
                mbarrier.wait(q_full.index(INDEX), used & 1)
                stage = n % STAGES
                mbarrier.wait(k_full.index(stage), n // STAGES & 1)
                if PING:
                    mbarrier.wait(turn_bars.index(INDEX), n & 1)
                z = scores_of(q, k_ring.index(stage), SCORES, REST)
                z = warpgroup_mma_wait(num_outstanding=0, deps=(z,))
                if PING:
                    mbarrier.arrive(turn_bars.index(1 - INDEX), count=1)
                mbarrier.arrive(empty.index(2 * stage), count=1)
                w, top, total, _shrink = weights(z, top, total, factor, cap, z_tiles, z_full, z_empty, n, INDEX, BIAS, rows,
                                                 (end - 1) * BN, SK, position, slope, seed, limit, numbers, slopes is not None, LEFT, RIGHT,
                                                 CAP, True, DROP)
                if PACKED or lengths is not None:  # noqa: SIM102  decided when it is compiled
                    if end * BN > SK:
                        mbarrier.wait(v_full.index(stage), n // STAGES & 1)
                        clear_rows(flat(v_ring.index(stage)), SK - (end - 1) * BN, BN)
                n += 1
                edge = gl.maximum(gl.minimum(edge, end - 1), begin)
                if RIGHT >= 0:  # without, only the last tile needs a mask at that end: the one above
                    acc, more, w, top, total, n = key_steps(
                        acc, more, w, top, total, q, k_ring, v_ring, z_tiles, k_full, v_full, empty, z_full, z_empty, turn_bars, n, end - 1,
                        edge, factor, cap, rows, SK, position, slope, seed, limit, numbers, slopes is not None, INDEX, STAGES, BN, LEFT,
                        RIGHT, CAP, True, PING, BIAS, DROP, REST, REST_V
                    )
                inner = gl.minimum(gl.maximum(whole, begin), edge)
                acc, more, w, top, total, n = key_steps(
                    acc, more, w, top, total, q, k_ring, v_ring, z_tiles, k_full, v_full, empty, z_full, z_empty, turn_bars, n, edge, inner,
                    factor, cap, rows, SK, position, slope, seed, limit, numbers, slopes is not None, INDEX, STAGES, BN, LEFT, RIGHT, CAP,
                    False, PING, BIAS, DROP, REST, REST_V
                )
                if LEFT >= 0:
                    acc, more, w, top, total, n = key_steps(
                        acc, more, w, top, total, q, k_ring, v_ring, z_tiles, k_full, v_full, empty, z_full, z_empty, turn_bars, n, inner,
                        begin, factor, cap, rows, SK, position, slope, seed, limit, numbers, slopes is not None, INDEX, STAGES, BN, LEFT,
                        RIGHT, CAP, True, PING, BIAS, DROP, REST, REST_V
                    )
                if not OVER:
                    mbarrier.arrive(q_empty.index(INDEX), count=1)
                before = (n - 1) % STAGES
                mbarrier.wait(v_full.index(before), (n - 1) // STAGES & 1)
                p = gl.convert_layout(w.to(v_ring.dtype), LEFT_OPERAND, assert_trivial=True)
                acc, more = product(p, v_ring.index(before), acc, more, REST_V)
                acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
                if REST_V:
                    more = warpgroup_mma_wait(num_outstanding=0, deps=(more,))
                mbarrier.arrive(empty.index(2 * before + 1), count=1)
                used += 1
            share = gl.convert_layout(1.0 / gl.where(total == 0, 1.0, total), gl.SliceLayout(1, RESULT), assert_trivial=True)
            if DROP:
                share = share / stay
            made = (acc * share[:, None]).to(out_desc.dtype)
            rest = made
            if REST_V:
                rest = times(more, share).to(out_desc.dtype)
            if PACKED:
                if row + INDEX * 64 + 64 <= SQ:
                    store_tile(o_tiles.index(INDEX), made, out_desc, bh // H, bh % H, first + row + INDEX * 64, rest, REST_V)
                else:
                    to = out + (bh // H).to(gl.int64) * ob + (bh % H).to(gl.int64) * oh
                    _store_columns(to, made, 0, first, row + INDEX * 64, SQ, os, WIDTH)
                    if REST_V:
                        _store_columns(to, rest, 64, first, row + INDEX * 64, SQ, os, WIDTH)
            else:
                store_tile(o_tiles.index(INDEX), made, out_desc, bh // H, bh % H, first + row + INDEX * 64, rest, REST_V)
            if OVER:  # the next queries overwrite the staged result
                tma.store_wait(0)
                if end > begin:
                    mbarrier.arrive(q_empty.index(INDEX), count=1)
            norm = (top + gl.log2(total)) * (1.0 / LOG2E)
            gl.store(lse + bh.to(gl.int64) * TQ + first + rows, norm, mask=rows < SQ)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=("SQ", "SK", "rows_of_tiles", "all_heads", "section", "H", "GROUP", "ab", "seed", "limit", "EIGHTHS"))
def _forward(q_desc, k_desc, v_desc, out_desc, bias_desc, out, lse, plan, rows_of_tiles, all_heads, section, H, GROUP, SQ, SK, scale,
             softcap, ob, os, oh, WIDTH: gl.constexpr, OVER: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr, BN: gl.constexpr,
             LEFT: gl.constexpr, RIGHT: gl.constexpr, CAP: gl.constexpr, PING: gl.constexpr, PACKED: gl.constexpr, BIAS: gl.constexpr,
             lengths=None, sinks=None, slopes=None, ab=None, seed=None, limit=None, stay=None, EIGHTHS=None, DROP: gl.constexpr = False,
             SHORT: gl.constexpr = True, REST: gl.constexpr = 0, REST_V: gl.constexpr = 0):
    """`plan` is read if PACKED, `bias_desc` if BIAS. Strides of batch, token and head: out (o), of WIDTH columns. OVER: the result is
    staged in the memory of the queries. Each sequence has as many keys as `lengths` says; `slopes`, ab a batch apart, are those of ALiBi. DROP:
    dropout, which the arguments from `seed` on say. REST, REST_V: columns of a head, and of its values, behind the first 64, where products
    have no more."""
    BM: gl.constexpr = 64 * GROUPS
    q_tiles = gl.allocate_shared_memory(q_desc.dtype, [GROUPS] + q_desc.block_type.shape, q_desc.layout)
    k_ring = gl.allocate_shared_memory(k_desc.dtype, [STAGES] + k_desc.block_type.shape, k_desc.layout)
    v_ring = gl.allocate_shared_memory(v_desc.dtype, [STAGES] + v_desc.block_type.shape, v_desc.layout)
    if OVER:
        o_tiles = q_tiles
    else:
        o_tiles = gl.allocate_shared_memory(out_desc.dtype, [GROUPS] + out_desc.block_type.shape, out_desc.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [2 * STAGES, 1], mbarrier.MBarrierLayout())
    turn_bars = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    z_full = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], mbarrier.MBarrierLayout())
    z_empty = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], mbarrier.MBarrierLayout())
    if BIAS:
        z_tiles = gl.allocate_shared_memory(bias_desc.dtype, [GROUPS] + bias_desc.block_type.shape, bias_desc.layout)
    else:
        z_tiles = q_tiles
    for i in gl.static_range(STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(empty.index(2 * i), count=GROUPS)
        mbarrier.init(empty.index(2 * i + 1), count=GROUPS)
    for i in gl.static_range(GROUPS):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=1)
        mbarrier.init(z_full.index(i), count=1)
        mbarrier.init(z_empty.index(i), count=1)
    for i in gl.static_range(2):
        mbarrier.init(turn_bars.index(i), count=1)
    fence_async_shared()
    if PING:
        mbarrier.arrive(turn_bars.index(0), count=1)
    if GROUPS == 2:
        gl.warp_specialize([
            (_consume,
             (0, q_tiles, k_ring, v_ring, z_tiles, o_tiles, q_full, q_empty, k_full, v_full, empty, z_full, z_empty, turn_bars, out_desc,
              out, lse, plan, rows_of_tiles, all_heads, section, H, SQ, SK, scale, softcap, ob, os, oh, lengths, sinks, slopes, ab, seed,
              limit, stay, EIGHTHS, WIDTH, OVER, GROUPS, STAGES, BM, BN, LEFT, RIGHT, CAP, PING, PACKED, BIAS, DROP, SHORT, REST, REST_V)),
            (_consume,
             (1, q_tiles, k_ring, v_ring, z_tiles, o_tiles, q_full, q_empty, k_full, v_full, empty, z_full, z_empty, turn_bars, out_desc,
              out, lse, plan, rows_of_tiles, all_heads, section, H, SQ, SK, scale, softcap, ob, os, oh, lengths, sinks, slopes, ab, seed,
              limit, stay, EIGHTHS, WIDTH, OVER, GROUPS, STAGES, BM, BN, LEFT, RIGHT, CAP, PING, PACKED, BIAS, DROP, SHORT, REST, REST_V)),
            (load_tiles,
             (q_desc, k_desc, v_desc, bias_desc, q_tiles, k_ring, v_ring, z_tiles, q_full, q_empty, k_full, v_full, empty, z_full, z_empty,
              plan, rows_of_tiles, all_heads, section, H, GROUP, SQ, SK, lengths, GROUPS, STAGES, BM, BN, LEFT, RIGHT, PACKED, BIAS)),
        ], [4, 1], [240, 24])
    else:
        gl.warp_specialize([
            (_consume,
             (0, q_tiles, k_ring, v_ring, z_tiles, o_tiles, q_full, q_empty, k_full, v_full, empty, z_full, z_empty, turn_bars, out_desc,
              out, lse, plan, rows_of_tiles, all_heads, section, H, SQ, SK, scale, softcap, ob, os, oh, lengths, sinks, slopes, ab, seed,
              limit, stay, EIGHTHS, WIDTH, OVER, GROUPS, STAGES, BM, BN, LEFT, RIGHT, CAP, PING, PACKED, BIAS, DROP, SHORT, REST, REST_V)),
            (_consume,
             (1, q_tiles, k_ring, v_ring, z_tiles, o_tiles, q_full, q_empty, k_full, v_full, empty, z_full, z_empty, turn_bars, out_desc,
              out, lse, plan, rows_of_tiles, all_heads, section, H, SQ, SK, scale, softcap, ob, os, oh, lengths, sinks, slopes, ab, seed,
              limit, stay, EIGHTHS, WIDTH, OVER, GROUPS, STAGES, BM, BN, LEFT, RIGHT, CAP, PING, PACKED, BIAS, DROP, SHORT, REST, REST_V)),
            (_consume,
             (2, q_tiles, k_ring, v_ring, z_tiles, o_tiles, q_full, q_empty, k_full, v_full, empty, z_full, z_empty, turn_bars, out_desc,
              out, lse, plan, rows_of_tiles, all_heads, section, H, SQ, SK, scale, softcap, ob, os, oh, lengths, sinks, slopes, ab, seed,
              limit, stay, EIGHTHS, WIDTH, OVER, GROUPS, STAGES, BM, BN, LEFT, RIGHT, CAP, PING, PACKED, BIAS, DROP, SHORT, REST, REST_V)),
            (load_tiles,
             (q_desc, k_desc, v_desc, bias_desc, q_tiles, k_ring, v_ring, z_tiles, q_full, q_empty, k_full, v_full, empty, z_full, z_empty,
              plan, rows_of_tiles, all_heads, section, H, GROUP, SQ, SK, lengths, GROUPS, STAGES, BM, BN, LEFT, RIGHT, PACKED, BIAS)),
        ], [4, 4, 1], [160, 160, 24])


@dataclass(frozen=True)
class Config:
    """`GROUPS` consumer warp groups of 64 queries each, tiles of `BN` keys, a ring buffer of `STAGES` of them. `PING`: ping-pong, two
    groups issue their products in turn. `MAXIMA`: the maximum of a row is subtracted even from scores that a soft cap bounds."""

    GROUPS: int = 2
    BN: int = 128
    STAGES: int = 2
    PING: bool = True
    MAXIMA: bool = False


def _over(p: Problem) -> bool:
    """Whether the result is staged in the memory of the queries, because there is no room for both."""
    return shared.width(p["q"].shape[3]) == shared.width(p["v"].shape[3]) == 256


def supports(p: Problem) -> str | None:
    if reason := shared.refused(p, ("mask", "page_table", "q_scale", "k_scale", "v_scale"), dropout=True):
        return reason
    if p.get("alibi_slopes") is not None and max(p["q"].shape[1], p["k"].shape[1]) > 2**22:
        return "takes alibi_slopes with at most 2^22 queries and keys"
    if _over(p) and (shared.packed(p) or p.get("cache_lengths") is not None or (int(p.option("right")) >= 0 and p["q"].shape[1] > p["k"].shape[1])):
        return (
            "of 256 columns it takes calls alone in which every query sees a key: the result of one that sees none would be staged where "
            "queries come"
        )
    if (bias := p.get("bias")) is not None:
        if shared.width(max(p["q"].shape[3], p["v"].shape[3])) == 256:
            return "takes a bias with heads of at most 128 columns: on an H200 wider ones gave other results than the portable kernel"
        if bias.dtype != p["q"].dtype or bias.shape[2:] != (p["q"].shape[1], p["k"].shape[1]):
            return f"takes a bias of the dtype of q with all rows and columns; given {bias.dtype} {list(bias.shape)}"
        if reason := not_copied(bias):
            return f"TMA does not copy bias: {reason}"
    for name in ("q", "k", "v", "out"):
        if reason := not_copied(p[name], *shared.heads_first(p, name)):
            return f"TMA does not copy {name}: {reason}"
    return None


def _cap(p: Problem, config: Config) -> int:
    cap = shared.softcap(p)
    if cap == 0:
        return 0
    bounded = cap <= HIGHEST and p["q"].dtype == "bf16" and all(p.get(n) is None for n in ("bias", "alibi_slopes", "sinks")) and not config.MAXIMA
    return (BOUNDED if bounded else CAPPED).value


SHORT = 512  # queries of a packed sequence, on average: with fewer, much of a tile of 128 keys would be masked and its copy not hidden


def choose(p: Problem) -> Config:
    wide = shared.width(max(p["q"].shape[3], p["v"].shape[3]))
    if wide == 128 and shared.packed(p) and p["q"].shape[1] <= SHORT * (p["cu_seqlens_q"].shape[0] - 1):
        return Config(BN=64, STAGES=3)
    return Config(BN=64 if wide == 256 else 128, STAGES=4 if wide == 64 else 2)


def configs(p: Problem) -> list[Config]:
    size = max(shared.width(p["q"].shape[3]), shared.width(p["v"].shape[3]))
    found = [Config(2, bn, s, ping) for bn in ((64, 128) if size < 256 else (32, 64)) for s in (2, 3, 4, 6) for ping in (False, True)]
    found += [Config(3, 64, s, False) for s in (3, 4, 6) if size == 64]  # with three groups the registers hold no more scores
    if _cap(p, Config()) == BOUNDED.value:
        found += [replace(c, MAXIMA=True) for c in found]
    return [
        c for c in found if 2 * size * ((1 if _over(p) else 2) * 64 * c.GROUPS + 2 * c.BN * c.STAGES) + 1024 <= p.device.shared_per_block
    ]


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    return {"plan": Meta((8 * (1 + shared.tiles(p, 64 * config.GROUPS)),), "i32")} if shared.packed(p) else {}


def for_any_rows(p: Problem) -> str:
    return "it takes prefill alone, and begins at the last key: decoding adds the keys in another order"


def launches(p: Problem, config: Config) -> list[Launch]:
    from triton.experimental.gluon.language import bfloat16, float16

    batch, queries, heads, size = p["q"].shape
    keys, key_heads = p["k"].shape[1:3]
    kind = bfloat16 if p["q"].dtype == "bf16" else float16

    def tiled(name: str, rows: int, columns: int) -> Descriptor:
        block = (1, 1, rows, columns)
        shape, strides = shared.heads_first(p, name)
        return Descriptor(name, block, gl.NVMMASharedLayout.get_default_for(list(block), kind), shape=shape, strides=strides)

    wide, wide_v = shared.width(size), shared.width(p["v"].shape[3])
    packed, rows_of_tiles = shared.packed(p), shared.tiles(p, 64 * config.GROUPS)
    section = batch * heads if packed else max(1, p.device.l2_bytes // 2 // (keys * (size + p["v"].shape[3]) * 2)) * (heads // key_heads)
    tiles = rows_of_tiles * batch * heads
    biased, tile = p.get("bias") is not None, (1, 1, 64, config.BN)
    args = {
        "q_desc": tiled("q", 64, wide), "k_desc": tiled("k", config.BN, wide), "v_desc": tiled("v", config.BN, wide_v),
        "out_desc": tiled("out", 64, wide_v),
        "bias_desc": Descriptor("bias", tile, gl.NVMMASharedLayout.get_default_for(list(tile), kind)) if biased
        else tiled("out", 64, wide_v), "BIAS": biased, "out": "out", "lse": "lse", "plan": "plan" if packed else "lse", "PACKED": packed,
        "rows_of_tiles": rows_of_tiles, "all_heads": batch * heads, "section": min(section, batch * heads), "H": heads,
        "GROUP": heads // key_heads, "SQ": queries, "SK": keys, "scale": "scale", "softcap": shared.softcap(p), **shared.strides(p, "o", "out"),
        "WIDTH": p["v"].shape[3], "OVER": _over(p), "GROUPS": config.GROUPS, "STAGES": config.STAGES, "BN": config.BN, **shared.windows(p),
        "CAP": _cap(p, config), "PING": config.PING,
    }
    args |= {to: name for to, name in (("lengths", "cache_lengths"), ("sinks", "sinks"), ("slopes", "alibi_slopes")) if p.get(name) is not None}
    if (slopes := p.get("alibi_slopes")) is not None:
        args["ab"] = heads if len(slopes.shape) == 2 else 0
    for name, columns in (("REST", size), ("REST_V", p["v"].shape[3])):
        if rest := shared.rest(columns, max(wide, wide_v)):
            args[name] = rest
    if float(p.option("dropout_p")):
        args |= {"seed": "seed", "stay": 1.0 - float(p.option("dropout_p")), **shared.dropout(p)}
    made = [Launch(_forward, (min(tiles, p.device.sms),), args, warps=4)]
    if packed:
        bounds = {
            "cu_q": "cu_seqlens_q", "cu_k": "cu_seqlens_k", "plan": "plan", "N": p["cu_seqlens_q"].shape[0] - 1, "TQ": queries, "TK": keys
        }
        made.insert(0, Launch(plan_tiles, (-(-queries // (64 * config.GROUPS)),), {**bounds, "BM": 64 * config.GROUPS, "CHUNK": CHUNK}, 4))
    return made
