"""The forward on Hopper, tile of keys by tile of keys: what the producer warp loads, and what a consumer warp group computes."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from rooftop.kernels.attention._dropout_sm90 import dropped
from rooftop.kernels.attention._fwd_sm90 import place, range_of
from rooftop.kernels.attention._packed_sm90 import length_of, tile_of
from rooftop.kernels.attention._scores_sm90 import (
    TANH_OF,
    TANH_OPERANDS,
    WEIGHTS_OF,
    WEIGHTS_OPERANDS,
    columns_of,
    distance,
    flat,
    scores_of,
)

LOG2E = gl.constexpr(1.4426950408889634)
CAPPED, BOUNDED = gl.constexpr(1), gl.constexpr(2)  # a soft cap; one whose weights need no maximum subtracted


@gluon.jit
def _load_values(v_desc, v_ring, v_full, empty, b, h, column, n, STAGES: gl.constexpr):
    """Loads the n-th tile of values, after the keys of the next tile, which are needed earlier."""
    stage = n % STAGES
    mbarrier.wait(empty.index(2 * stage + 1), (n // STAGES & 1) ^ 1)
    mbarrier.expect(v_full.index(stage), v_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(v_desc, [b, h, column, 0], v_full.index(stage), v_ring.index(stage))


@gluon.jit
def load_tiles(q_desc, k_desc, v_desc, z_desc, q_tiles, k_ring, v_ring, z_tiles, q_full, q_empty, k_full, v_full, empty, z_full, z_empty, plan,
          rows_of_tiles, all_heads, section, H, GROUP, TQ, TK, lengths, GROUPS: gl.constexpr, STAGES: gl.constexpr, BM: gl.constexpr,
          BN: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, PACKED: gl.constexpr, BIAS: gl.constexpr):
    """The producer warp."""
    n = 0
    used = 0
    if PACKED:
        rows_of_tiles = gl.load(plan)
    tiles = rows_of_tiles * all_heads
    turns = gl.cdiv(tiles, gl.num_programs(0))
    for turn in range(turns):
        there, tile, bh = place(turn, tiles, rows_of_tiles, all_heads, section)
        if there:
            b = bh // H
            h = bh % H
            first, SQ, first_key, SK, row = tile_of(plan, tile, TQ, TK, BM, PACKED)
            if lengths is not None:
                SK = length_of(lengths + b, TK)
            begin, end, _, _ = range_of(row, SQ, SK, BM, BN, LEFT, RIGHT)
            if end > begin:
                for g in gl.static_range(GROUPS):
                    mbarrier.wait(q_empty.index(g), (used & 1) ^ 1)
                    mbarrier.expect(q_full.index(g), q_desc.block_type.nbytes)
                    tma.async_copy_global_to_shared(q_desc, [b, h, first + row + g * 64, 0], q_full.index(g), q_tiles.index(g))
                used += 1
                for i in range(end - begin):
                    stage = n % STAGES
                    mbarrier.wait(empty.index(2 * stage), (n // STAGES & 1) ^ 1)
                    mbarrier.expect(k_full.index(stage), k_desc.block_type.nbytes)
                    tma.async_copy_global_to_shared(
                        k_desc, [b, h // GROUP, first_key + (end - 1 - i) * BN, 0], k_full.index(stage), k_ring.index(stage)
                    )
                    if i > 0:
                        _load_values(v_desc, v_ring, v_full, empty, b, h // GROUP, first_key + (end - i) * BN, n - 1, STAGES)
                    if BIAS:
                        for g in gl.static_range(GROUPS):
                            mbarrier.wait(z_empty.index(g), (n & 1) ^ 1)
                            mbarrier.expect(z_full.index(g), z_desc.block_type.nbytes)
                            at = [gl.minimum(b, z_desc.shape[0] - 1), gl.minimum(h, z_desc.shape[1] - 1), row + g * 64, (end - 1 - i) * BN]
                            tma.async_copy_global_to_shared(z_desc, at, z_full.index(g), z_tiles.index(g))
                    n += 1
                _load_values(v_desc, v_ring, v_full, empty, b, h // GROUP, first_key + begin * BN, n - 1, STAGES)


@gluon.jit
def weights(z, top, total, factor, cap, z_tiles, z_full, z_empty, n, INDEX: gl.constexpr, BIAS: gl.constexpr, rows, column, SK, position,
             slope, seed, below, numbers, ALIBI: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, CAP: gl.constexpr,
             MASKED: gl.constexpr, DROP: gl.constexpr):
    """(p, the new maximum, the new sum, the factor that rescales the old ones) for scores of one tile of keys, which starts at `column`;
    all in base 2. With DROP some of p are 0, after the sum."""
    L: gl.constexpr = z.type.layout
    EACH: gl.constexpr = z.shape[1] // 2  # scores of a thread
    # Not pure: the lanes of a warp vote, so that it must not be moved to where some of them do not come.
    if CAP == CAPPED:
        z = gl.inline_asm_elementwise(TANH_OF[EACH], TANH_OPERANDS[EACH], [z * cap], dtype=gl.float32, is_pure=False, pack=EACH)
    if CAP == BOUNDED:
        p = gl.inline_asm_elementwise(
            WEIGHTS_OF[EACH], WEIGHTS_OPERANDS[EACH], [z * cap, factor], dtype=gl.float32, is_pure=False, pack=EACH
        )
    if BIAS:
        mbarrier.wait(z_full.index(INDEX), n & 1)
        added = flat(z_tiles.index(INDEX)).load(L)
        z = z * factor + added.to(gl.float32) * LOG2E
    if ALIBI:
        if not BIAS:
            z = z * factor
        apart = column + gl.arange(0, z.shape[1], gl.SliceLayout(0, L))[None, :] - (rows + position)[:, None]
        z -= distance(apart) * slope
    if MASKED:
        columns = column + gl.arange(0, z.shape[1], gl.SliceLayout(0, L))
        limit = gl.zeros_like(rows) + SK
        if RIGHT >= 0:
            limit = gl.minimum(limit, rows + (position + RIGHT + 1))
        inside = columns[None, :] < limit[:, None]
        if LEFT >= 0:
            inside &= columns[None, :] >= (rows + (position - LEFT))[:, None]
        if CAP == BOUNDED:
            p = gl.where(inside, p, 0.0)
        else:
            z = gl.where(inside, z, float("-inf"))
    if CAP == BOUNDED:
        new_total = total + gl.sum(p, 1)
        if DROP:
            p = dropped(p, seed, below, numbers, column)
        return p, top, new_total, total
    if BIAS or ALIBI:
        new = gl.maximum(top, gl.max(z, 1))
        base = gl.where(new == float("-inf"), 0.0, new)
        p = gl.exp2(z - base[:, None])
        if BIAS:  # not before: the loads of other warps may still wait for the shared memory when this one has got its numbers
            mbarrier.arrive(z_empty.index(INDEX), count=1)
    else:
        new = gl.maximum(top, gl.max(z, 1) * factor)
        base = gl.where(new == float("-inf"), 0.0, new)
        p = gl.exp2(z * factor - base[:, None])
    shrink = gl.exp2(top - base)
    new_total = total * shrink + gl.sum(p, 1)
    if DROP:
        p = dropped(p, seed, below, numbers, column)
    return p, new, new_total, shrink


@gluon.jit
def product(p, v_tile, acc, more, REST_V: gl.constexpr):
    """Begins the sums of weights times values."""
    if REST_V:
        acc = warpgroup_mma(p, columns_of(v_tile, 0, 64), acc, is_async=True)
        more = warpgroup_mma(p, columns_of(v_tile, 64, REST_V), more, is_async=True)
    else:
        acc = warpgroup_mma(p, flat(v_tile), acc, is_async=True)
    return acc, more


@gluon.jit
def times(acc, by):
    """Each row times its factor."""
    return acc * gl.convert_layout(by, gl.SliceLayout(1, acc.type.layout), assert_trivial=True)[:, None]


@gluon.jit
def key_steps(acc, more, w, top, total, q, k_ring, v_ring, z_tiles, k_full, v_full, empty, z_full, z_empty, turn_bars, n, first, last, factor,
           cap, rows, SK, position, slope, seed, limit, numbers, ALIBI: gl.constexpr, INDEX: gl.constexpr, STAGES: gl.constexpr,
           BN: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, CAP: gl.constexpr, MASKED: gl.constexpr, PING: gl.constexpr,
           BIAS: gl.constexpr, DROP: gl.constexpr, REST: gl.constexpr, REST_V: gl.constexpr):
    """Main loop over tiles of keys from `first` down to one past `last`: the scores of each are issued together with the product of the
    weights of the tile before it. With REST_V the result's columns from 64 on are in `more`."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16])
    LEFT_OPERAND: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=acc.type.layout, k_width=2)
    for i in range(first - last):
        before = (n - 1) % STAGES
        stage = n % STAGES
        mbarrier.wait(k_full.index(stage), n // STAGES & 1)
        if PING:
            mbarrier.wait(turn_bars.index(INDEX), n & 1)
        p = gl.convert_layout(w.to(v_ring.dtype), LEFT_OPERAND, assert_trivial=True)
        z = scores_of(q, k_ring.index(stage), SCORES, REST)
        mbarrier.wait(v_full.index(before), (n - 1) // STAGES & 1)
        acc, more = product(p, v_ring.index(before), acc, more, REST_V)
        if PING:
            mbarrier.arrive(turn_bars.index(1 - INDEX), count=1)
        z = warpgroup_mma_wait(num_outstanding=2 if REST_V else 1, deps=(z,))
        mbarrier.arrive(empty.index(2 * stage), count=1)
        w, top, total, shrink = weights(z, top, total, factor, cap, z_tiles, z_full, z_empty, n, INDEX, BIAS, rows, (first - 1 - i) * BN,
                                         SK, position, slope, seed, limit, numbers, ALIBI, LEFT, RIGHT, CAP, MASKED, DROP)
        # Waiting for the next keys here ends a basic block: within one, ptxas moves the exponentials behind the wait for the product.
        mbarrier.wait(k_full.index((n + 1) % STAGES), (n + 1) // STAGES & 1, pred=i + 1 < first - last)
        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
        if REST_V:
            more = warpgroup_mma_wait(num_outstanding=0, deps=(more,))
        mbarrier.arrive(empty.index(2 * before + 1), count=1)
        if CAP != BOUNDED:
            acc = times(acc, shrink)
            if REST_V:
                more = times(more, shrink)
        n += 1
    return acc, more, w, top, total, n
