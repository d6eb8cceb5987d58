"""FlashAttention-3 forward on Hopper for queries, keys and values of 8 bits: both products in e4m3. Contract: rooftop/ops/attention.py

The blocks, rings and turns are those of attention__gluon_sm90.py. What 8 bits change:

wgmma reads 8-bit operands with the summed dimension last alone: of the values that is the keys. So a first launch writes them transposed,
[B, Hk, Dv, keys]. Scores leave wgmma with keys 2t, 2t + 1, 8 + 2t and 9 + 2t of 16 in thread t of a quad, and the left operand of the next has
4t to 4t + 3 there: the first launch writes the keys of 16 in that order, and weights stay in their threads.

Weights are at most 2^8, not 1: the sum has the same factor, which cancels. e4m3 has 3 bits of fraction from 2^-6 on, and reaches 2^-9, so that
weights of 2^-14 of the largest have 3 bits, and those of less than 2^-18 are lost. The sum is of the weights before they are rounded.

The tensor cores add 8-bit products in some 14 bits. A sum over all keys would lose what one tile adds to it; so each tile has accumulators of its
own, which are added to those in float32 (`EXACT`). That product runs before the scores of the next tile, which hide the addition, and its accumulators are free
for the exponentials; of more than 128 columns it is made in parts of 64. On an H200 it was slower, tried together, to round
the weights before the tensor cores are waited for (by a branch that ptxas cannot move) and to have four chains of maxima and sums a thread; with
those three groups were slower still, and to run the product during the exponentials, which the registers just hold, gained a part of that back.
Tiles of 64 keys, two of them in flight in each group, so that the exponentials of one run beside the products of the other, without turns between
the groups, took 1.2 times as long in full and 1.6 to 1.7 times in causal order."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from rooftop.core.spec import Descriptor, Launch, Meta, Problem
from rooftop.core.tensor_maps import not_copied
from rooftop.kernels.attention import _arguments as shared
from rooftop.kernels.attention._eight_sums_sm90 import begin_product, end_product, operand
from rooftop.kernels.attention._fwd_sm90 import place, range_of, store_tile
from rooftop.kernels.attention._scores_sm90 import SMALL, TANH_OF, TANH_OPERANDS, flat

DEMANDS = {"has": ["QGMMA", "UTMALDG", "UTMASTG"], "spills": 16}
LOG2E = gl.constexpr(1.4426950408889634)
SHIFT = gl.constexpr(8.0)  # weights are at most 2^SHIFT


@triton.jit(do_not_specialize=["S"])
def turn_values(v, out, S, PADDED, vb, vs, vh, H, DV: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """out [B, H, DV, PADDED]: the values transposed, the keys of 16 in the order of the weights' threads; zeros from S on."""
    start = tl.program_id(0) * ROWS
    head = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    at = start + tl.arange(0, ROWS)
    token = (at // 16 * 16 + at % 4 // 2 * 8 + at % 16 // 4 * 2 + at % 2).to(tl.int64)
    d = tl.arange(0, SIZE)
    x = tl.load(v + batch * vb + head.to(tl.int64) * vh + token[:, None] * vs + d[None, :], mask=(token < S)[:, None] & (d < DV)[None, :], other=0.0)
    to = out + ((batch * H + head) * DV + d[:, None]) * PADDED + at[None, :]
    tl.store(to, tl.trans(x), mask=(at < PADDED)[None, :] & (d < DV)[:, None])


@gluon.jit
def _load_values(v_desc, v_ring, v_full, empty, b, h, column, n, STAGES: gl.constexpr):
    """Loads the n-th tile of values, after the keys of the next tile, which are needed earlier."""
    stage = n % STAGES
    mbarrier.wait(empty.index(2 * stage + 1), (n // STAGES & 1) ^ 1)
    mbarrier.expect(v_full.index(stage), v_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(v_desc, [b, h, 0, column], v_full.index(stage), v_ring.index(stage))


@gluon.jit
def _load(q_desc, k_desc, v_desc, q_tiles, k_ring, v_ring, q_full, q_empty, k_full, v_full, empty, rows_of_tiles, all_heads, section, H, GROUP,
          SQ, SK, GROUPS: gl.constexpr, STAGES: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr):
    """The producer warp."""
    n = 0
    used = 0
    tiles = rows_of_tiles * all_heads
    turns = gl.cdiv(tiles, gl.num_programs(0))
    for turn in range(turns):
        there, tile, bh = place(turn, tiles, rows_of_tiles, all_heads, section)
        if there:
            b = bh // H
            h = bh % H
            row = tile * BM
            begin, end, _, _ = range_of(row, SQ, SK, BM, BN, LEFT, RIGHT)
            if end > begin:
                for g in gl.static_range(GROUPS):
                    mbarrier.wait(q_empty.index(g), (used & 1) ^ 1)
                    mbarrier.expect(q_full.index(g), q_desc.block_type.nbytes)
                    tma.async_copy_global_to_shared(q_desc, [b, h, row + g * 64, 0], q_full.index(g), q_tiles.index(g))
                used += 1
                for i in range(end - begin):
                    stage = n % STAGES
                    mbarrier.wait(empty.index(2 * stage), (n // STAGES & 1) ^ 1)
                    mbarrier.expect(k_full.index(stage), k_desc.block_type.nbytes)
                    tma.async_copy_global_to_shared(k_desc, [b, h // GROUP, (end - 1 - i) * BN, 0], k_full.index(stage), k_ring.index(stage))
                    if i > 0:
                        _load_values(v_desc, v_ring, v_full, empty, b, h // GROUP, (end - i) * BN, n - 1, STAGES)
                    n += 1
                _load_values(v_desc, v_ring, v_full, empty, b, h // GROUP, begin * BN, n - 1, STAGES)


@gluon.jit
def _weights(z, top, total, factor, cap, rows, column, SK, position, LEFT: gl.constexpr, RIGHT: gl.constexpr, CAP: gl.constexpr,
             MASKED: gl.constexpr):
    """(p, the new base, the new sum, the factor that rescales the old ones) for scores of one tile of keys, which starts at `column`; all in
    base 2. `top` is the largest score less SHIFT."""
    L: gl.constexpr = z.type.layout
    EACH: gl.constexpr = z.shape[1] // 2  # scores of a thread
    # Not pure: the lanes of a warp vote, so that it must not be moved to where some of them do not come.
    if CAP:
        z = gl.inline_asm_elementwise(TANH_OF[EACH], TANH_OPERANDS[EACH], [z * cap], dtype=gl.float32, is_pure=False, pack=EACH)
    if MASKED:
        columns = column + gl.arange(0, z.shape[1], gl.SliceLayout(0, L))
        limit = gl.zeros_like(rows) + SK
        if RIGHT >= 0:
            limit = gl.minimum(limit, rows + (position + RIGHT + 1))
        inside = columns[None, :] < limit[:, None]
        if LEFT >= 0:
            inside &= columns[None, :] >= (rows + (position - LEFT))[:, None]
        z = gl.where(inside, z, float("-inf"))
    new = gl.maximum(top, gl.max(z, 1) * factor - SHIFT)
    base = gl.where(new == float("-inf"), 0.0, new)
    p = gl.exp2(z * factor - base[:, None])
    shrink = gl.exp2(top - base)
    return p, new, total * shrink + gl.sum(p, 1), shrink


@gluon.jit
def _steps(acc, w, top, total, shrink, q, k_ring, v_ring, k_full, v_full, empty, turn_bars, n, first, last, factor, cap, rows, SK, position,
           INDEX: gl.constexpr, STAGES: gl.constexpr, BN: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, CAP: gl.constexpr,
           MASKED: gl.constexpr, PING: gl.constexpr, EXACT: gl.constexpr):
    """Main loop over tiles of keys from `first` down to one past `last`: the scores of each are issued together with the product of the
    weights of the tile before it."""
    SCORES: gl.constexpr = w.type.layout
    LEFT_OPERAND: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=acc.type.layout, k_width=4)
    for i in range(first - last):
        before = (n - 1) % STAGES
        stage = n % STAGES
        mbarrier.wait(k_full.index(stage), n // STAGES & 1)
        if PING:
            mbarrier.wait(turn_bars.index(INDEX), n & 1)
        z = gl.zeros((64, BN), gl.float32, SCORES)
        if EXACT:
            # The product first: it is added while the scores are computed, and its registers are free for the exponentials.
            mbarrier.wait(v_full.index(before), (n - 1) // STAGES & 1)
            acc, running = begin_product(acc, shrink, operand(w, LEFT_OPERAND), v_ring.index(before))
            z = warpgroup_mma(q, flat(k_ring.index(stage)).permute((1, 0)), z, use_acc=False, is_async=True)
            if PING:
                mbarrier.arrive(turn_bars.index(1 - INDEX), count=1)
            acc = end_product(acc, shrink, running, 1)
            mbarrier.arrive(empty.index(2 * before + 1), count=1)
            z = warpgroup_mma_wait(num_outstanding=0, deps=(z,))
            mbarrier.arrive(empty.index(2 * stage), count=1)
            w, top, total, shrink = _weights(z, top, total, factor, cap, rows, (first - 1 - i) * BN, SK, position, LEFT, RIGHT, CAP, MASKED)
        else:
            p = operand(w, LEFT_OPERAND)
            z = warpgroup_mma(q, flat(k_ring.index(stage)).permute((1, 0)), z, use_acc=False, is_async=True)
            mbarrier.wait(v_full.index(before), (n - 1) // STAGES & 1)
            acc = warpgroup_mma(p, flat(v_ring.index(before)).permute((1, 0)), acc, is_async=True)
            if PING:
                mbarrier.arrive(turn_bars.index(1 - INDEX), count=1)
            z = warpgroup_mma_wait(num_outstanding=1, deps=(z,))
            mbarrier.arrive(empty.index(2 * stage), count=1)
            w, top, total, shrink = _weights(z, top, total, factor, cap, rows, (first - 1 - i) * BN, SK, position, LEFT, RIGHT, CAP, MASKED)
            # Waiting for the next keys here ends a basic block: within one, ptxas moves the exponentials behind the wait for the product.
            mbarrier.wait(k_full.index((n + 1) % STAGES), (n + 1) // STAGES & 1, pred=i + 1 < first - last)
            acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
            mbarrier.arrive(empty.index(2 * before + 1), count=1)
            acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, acc.type.layout), assert_trivial=True)[:, None]
        n += 1
    return acc, w, top, total, shrink, n


@gluon.jit
def _consume(INDEX: gl.constexpr, q_tiles, k_ring, v_ring, o_tiles, q_full, q_empty, k_full, v_full, empty, turn_bars, out_desc, lse, q_scale,
             k_scale, v_scale, qg, kg, vg, rows_of_tiles, all_heads, section, H, GROUP, SQ, SK, scale, softcap, GROUPS: gl.constexpr,
             STAGES: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, CAP: gl.constexpr,
             PING: gl.constexpr, EXACT: gl.constexpr):
    """One consumer warp group: the 64 queries from INDEX · 64 on of each tile."""
    DV: gl.constexpr = v_ring.shape[3]
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 32])
    RESULT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, DV, 32])
    LEFT_OPERAND: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=RESULT, k_width=4)
    ROWS: gl.constexpr = gl.SliceLayout(1, SCORES)
    n = 0
    used = 0
    tiles = rows_of_tiles * all_heads
    turns = gl.cdiv(tiles, gl.num_programs(0))
    for turn in range(turns):
        there, tile, bh = place(turn, tiles, rows_of_tiles, all_heads, section)
        if there:
            h = bh % H
            row = tile * BM
            position = SK - SQ
            by = scale
            if q_scale is not None:
                by *= gl.load(q_scale + h * qg)
            if k_scale is not None:
                by *= gl.load(k_scale + h // GROUP * kg)
            cap = 0.0
            if CAP:
                cap = by / softcap * (2 / SMALL)
                factor = softcap * LOG2E
            else:
                factor = by * LOG2E
            begin, end, whole, edge = range_of(row, SQ, SK, BM, BN, LEFT, RIGHT)
            rows = row + INDEX * 64 + gl.arange(0, 64, ROWS)
            acc = gl.zeros((64, DV), gl.float32, RESULT)
            top = gl.full((64,), float("-inf"), gl.float32, ROWS)
            total = gl.zeros((64,), gl.float32, ROWS)
            if end > begin:
                q = flat(q_tiles.index(INDEX))
                mbarrier.wait(q_full.index(INDEX), used & 1)
                stage = n % STAGES
                mbarrier.wait(k_full.index(stage), n // STAGES & 1)
                if PING:
                    mbarrier.wait(turn_bars.index(INDEX), n & 1)
                z = gl.zeros((64, BN), gl.float32, SCORES)
                z = warpgroup_mma(q, flat(k_ring.index(stage)).permute((1, 0)), z, use_acc=False, is_async=True)
                z = warpgroup_mma_wait(num_outstanding=0, deps=(z,))
                if PING:
                    mbarrier.arrive(turn_bars.index(1 - INDEX), count=1)
                mbarrier.arrive(empty.index(2 * stage), count=1)
                w, top, total, shrink = _weights(z, top, total, factor, cap, rows, (end - 1) * BN, SK, position, LEFT, RIGHT, CAP, True)
                n += 1
                edge = gl.maximum(gl.minimum(edge, end - 1), begin)
                if RIGHT >= 0:  # without, only the last tile needs a mask at that end: the one above
                    acc, w, top, total, shrink, n = _steps(acc, w, top, total, shrink, q, k_ring, v_ring, k_full, v_full, empty, turn_bars, n,
                                                           end - 1, edge, factor, cap, rows, SK, position, INDEX, STAGES, BN, LEFT, RIGHT, CAP,
                                                           True, PING, EXACT)
                inner = gl.minimum(gl.maximum(whole, begin), edge)
                acc, w, top, total, shrink, n = _steps(acc, w, top, total, shrink, q, k_ring, v_ring, k_full, v_full, empty, turn_bars, n,
                                                       edge, inner, factor, cap, rows, SK, position, INDEX, STAGES, BN, LEFT, RIGHT, CAP,
                                                       False, PING, EXACT)
                if LEFT >= 0:
                    acc, w, top, total, shrink, n = _steps(acc, w, top, total, shrink, q, k_ring, v_ring, k_full, v_full, empty, turn_bars, n,
                                                           inner, begin, factor, cap, rows, SK, position, INDEX, STAGES, BN, LEFT, RIGHT, CAP,
                                                           True, PING, EXACT)
                mbarrier.arrive(q_empty.index(INDEX), count=1)
                before = (n - 1) % STAGES
                mbarrier.wait(v_full.index(before), (n - 1) // STAGES & 1)
                p = operand(w, LEFT_OPERAND)
                if EXACT:
                    acc, running = begin_product(acc, shrink, p, v_ring.index(before))
                    acc = end_product(acc, shrink, running, 0)
                else:
                    acc = warpgroup_mma(p, flat(v_ring.index(before)).permute((1, 0)), acc, is_async=True)
                    acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
                mbarrier.arrive(empty.index(2 * before + 1), count=1)
                used += 1
            share = 1.0 / gl.where(total == 0, 1.0, total)
            if v_scale is not None:
                share *= gl.load(v_scale + h // GROUP * vg)
            made = (acc * gl.convert_layout(share, gl.SliceLayout(1, RESULT), assert_trivial=True)[:, None]).to(out_desc.dtype)
            store_tile(o_tiles.index(INDEX), made, out_desc, bh // H, h, row + INDEX * 64)
            norm = (top + gl.log2(total)) * (1.0 / LOG2E)
            gl.store(lse + bh.to(gl.int64) * SQ + rows, norm, mask=rows < SQ)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=("SQ", "SK", "rows_of_tiles", "all_heads", "section", "H", "GROUP", "qg", "kg", "vg"))
def _forward(q_desc, k_desc, v_desc, out_desc, lse, q_scale, k_scale, v_scale, qg, kg, vg, rows_of_tiles, all_heads, section, H, GROUP, SQ, SK,
             scale, softcap, GROUPS: gl.constexpr, STAGES: gl.constexpr, BN: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr,
             CAP: gl.constexpr, PING: gl.constexpr, EXACT: gl.constexpr):
    """Strides of the scales over heads: qg, kg, vg."""
    BM: gl.constexpr = 64 * GROUPS
    q_tiles = gl.allocate_shared_memory(q_desc.dtype, [GROUPS] + q_desc.block_type.shape, q_desc.layout)
    k_ring = gl.allocate_shared_memory(k_desc.dtype, [STAGES] + k_desc.block_type.shape, k_desc.layout)
    v_ring = gl.allocate_shared_memory(v_desc.dtype, [STAGES] + v_desc.block_type.shape, v_desc.layout)
    o_tiles = gl.allocate_shared_memory(out_desc.dtype, [GROUPS] + out_desc.block_type.shape, out_desc.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [2 * STAGES, 1], mbarrier.MBarrierLayout())
    turn_bars = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(empty.index(2 * i), count=GROUPS)
        mbarrier.init(empty.index(2 * i + 1), count=GROUPS)
    for i in gl.static_range(GROUPS):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=1)
    for i in gl.static_range(2):
        mbarrier.init(turn_bars.index(i), count=1)
    fence_async_shared()
    if PING:
        mbarrier.arrive(turn_bars.index(0), count=1)
    gl.warp_specialize([
        (_consume, (0, q_tiles, k_ring, v_ring, o_tiles, q_full, q_empty, k_full, v_full, empty, turn_bars, out_desc, lse, q_scale, k_scale,
                    v_scale, qg, kg, vg, rows_of_tiles, all_heads, section, H, GROUP, SQ, SK, scale, softcap, GROUPS, STAGES, BM, BN, LEFT,
                    RIGHT, CAP, PING, EXACT)),
        (_consume, (1, q_tiles, k_ring, v_ring, o_tiles, q_full, q_empty, k_full, v_full, empty, turn_bars, out_desc, lse, q_scale, k_scale,
                    v_scale, qg, kg, vg, rows_of_tiles, all_heads, section, H, GROUP, SQ, SK, scale, softcap, GROUPS, STAGES, BM, BN, LEFT,
                    RIGHT, CAP, PING, EXACT)),
        (_load, (q_desc, k_desc, v_desc, q_tiles, k_ring, v_ring, q_full, q_empty, k_full, v_full, empty, rows_of_tiles, all_heads, section, H,
                 GROUP, SQ, SK, GROUPS, STAGES, BM, BN, LEFT, RIGHT)),
    ], [4, 1], [240, 24])


@dataclass(frozen=True)
class Config:
    """Tiles of `BN` keys, a ring buffer of `STAGES` of them. `PING`: ping-pong, two groups issue their products in turn. `EXACT`: what a tile
    of keys adds to the result is added in float32."""

    BN: int = 128
    STAGES: int = 3
    PING: bool = True
    EXACT: bool = True


GROUPS = 2  # consumer warp groups of 64 queries each
ROWS = 128  # keys of a program of the first launch


def supports(p: Problem) -> str | None:
    if reason := shared.refused(p, ("bias", "mask", "cu_seqlens_q", "page_table", "cache_lengths", "sinks", "alibi_slopes"), eight=True):
        return reason
    if p["q"].dtype != shared.EIGHT_BITS:
        return f"takes queries, keys and values of {shared.EIGHT_BITS}; given {p['q'].dtype}"
    for name in ("q", "k", "out"):
        if reason := not_copied(p[name], *shared.heads_first(p, name)):
            return f"TMA does not copy {name}: {reason}"
    return None


def choose(p: Problem) -> Config:
    return Config(BN=64 if max(p["q"].shape[3], p["v"].shape[3]) > 128 else 128)


def configs(p: Problem) -> list[Config]:
    size, size_v = shared.width(p["q"].shape[3]), shared.width(p["v"].shape[3])
    found = [Config(bn, s, ping, exact) for bn in (64, 128) for s in (2, 3, 4) for ping in (False, True) for exact in (False, True)]
    return [c for c in found if 64 * GROUPS * (size + 2 * size_v) + c.BN * c.STAGES * (size + size_v) + 1024 <= p.device.shared_per_block]


def _padded(p: Problem) -> int:
    """Keys of the transposed values: TMA copies rows of multiples of 16 bytes."""
    return -(-p["k"].shape[1] // 16) * 16


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    batch, _, key_heads, size_v = p["v"].shape
    return {"turned": Meta((batch, key_heads, size_v, _padded(p)), "f8e4m3")}


def for_any_rows(p: Problem) -> str:
    return "it takes prefill alone, and begins at the last key: decoding adds the keys in another order"


def launches(p: Problem, config: Config) -> list[Launch]:
    batch, queries, heads, size = p["q"].shape
    (keys, key_heads), size_v, padded = p["k"].shape[1:3], p["v"].shape[3], _padded(p)

    def tiled(name: str, block: tuple[int, ...], shape: tuple[int, ...] = (), strides: tuple[int, ...] = ()) -> Descriptor:
        kind = gl.bfloat16 if name == "out" else gl.float8e4nv
        return Descriptor(name, block, gl.NVMMASharedLayout.get_default_for(list(block), kind), shape=shape, strides=strides)

    def rows_of(name: str, rows: int) -> Descriptor:
        shape, strides = shared.heads_first(p, name)
        return tiled(name, (1, 1, rows, shared.width(shape[3])), shape, strides)

    rows_of_tiles = -(-queries // (64 * GROUPS))
    section = min(max(1, p.device.l2_bytes // 2 // (keys * (size + size_v))) * (heads // key_heads), batch * heads)
    args = {
        "q_desc": rows_of("q", 64), "k_desc": rows_of("k", config.BN), "v_desc": tiled("turned", (1, 1, shared.width(size_v), config.BN)),
        "out_desc": rows_of("out", 64), "lse": "lse", **{f"{n}_scale": f"{n}_scale" if p.get(f"{n}_scale") else None for n in "qkv"},
        **shared.scale_strides(p), "rows_of_tiles": rows_of_tiles, "all_heads": batch * heads, "section": section, "H": heads,
        "GROUP": heads // key_heads, "SQ": queries, "SK": keys, "scale": "scale", "softcap": shared.softcap(p), "GROUPS": GROUPS,
        "STAGES": config.STAGES, "BN": config.BN, **shared.windows(p), "CAP": shared.softcap(p) != 0, "PING": config.PING, "EXACT": config.EXACT,
    }
    turned = {
        "v": "v", "out": "turned", "S": keys, "PADDED": padded, **shared.strides(p, "v", "v"), "H": key_heads, "DV": size_v, "ROWS": ROWS,
        "SIZE": shared.width(size_v),
    }
    return [
        Launch(turn_values, (-(-padded // ROWS), key_heads, batch), turned, 4),
        Launch(_forward, (min(rows_of_tiles * batch * heads, p.device.sms),), args, warps=4),
    ]
