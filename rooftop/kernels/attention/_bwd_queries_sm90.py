"""Backward of attention on Hopper: the gradient of queries, by tiles of keys."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_wait

from rooftop.kernels.attention._bwd_sm90 import (
    LOG2E,
    block_of,
    capped,
    factors_of,
    inside_of,
    keys_of,
    left_operand,
    load_bias,
    store_columns,
    weights_of,
)
from rooftop.kernels.attention._dropout_sm90 import dropped, eighths
from rooftop.kernels.attention._packed_sm90 import clear_rows, length_of
from rooftop.kernels.attention._scores_sm90 import columns_of, flat, scores_of


@gluon.jit
def _product(u, k_tile, to_q, more_q, use_acc, REST: gl.constexpr):
    """Begins the sums of gradients times keys: of REST columns and the 64 before, or of all."""
    if REST:
        to_q = warpgroup_mma(u, columns_of(k_tile, 0, 64), to_q, use_acc=use_acc, is_async=True)
        more_q = warpgroup_mma(u, columns_of(k_tile, 64, REST), more_q, use_acc=use_acc, is_async=True)
    else:
        to_q = warpgroup_mma(u, flat(k_tile), to_q, use_acc=use_acc, is_async=True)
    return to_q, more_q


@gluon.jit
def _query_steps(to_q, more_q, ds, norm, delta, q_tile, g_tile, k_ring, v_ring, z_tiles, k_full, v_full, empty, z_full, z_empty, n, first, last,
                 factor, cap, slope, rows, SK, position, seed, limit, again, numbers, STAGES: gl.constexpr, BN: gl.constexpr,
                 LEFT: gl.constexpr, RIGHT: gl.constexpr, MASKED: gl.constexpr, CAP: gl.constexpr, ALIBI: gl.constexpr, DROP: gl.constexpr,
                 CLEAR: gl.constexpr, INDEX: gl.constexpr, BIAS: gl.constexpr,
                 REST: gl.constexpr, REST_V: gl.constexpr):
    """Main loop over tiles of keys `first` to one before `last`. The product of the gradients `ds` of the tile before runs while those of a
    tile are computed. CLEAR: keys behind the last of a sequence become zeros, since 0 times what is there may be NaN."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16])
    for i in range(first, last):
        stage = n % STAGES
        done = gl.maximum(n - 1, 0) % STAGES  # the first tile: itself; what that product holds is not used
        phase = n // STAGES & 1
        u = left_operand(ds, k_ring, to_q)
        mbarrier.wait(k_full.index(stage), phase)
        if CLEAR and MASKED:  # noqa: SIM102  decided when it is compiled
            if (i + 1) * BN > SK:
                clear_rows(flat(k_ring.index(stage)), SK - i * BN, BN)
        z = scores_of(q_tile, k_ring.index(stage), SCORES, REST)
        mbarrier.wait(v_full.index(stage), phase)
        dp = scores_of(g_tile, v_ring.index(stage), SCORES, REST_V)
        to_q, more_q = _product(u, k_ring.index(done), to_q, more_q, n > 1, REST)
        z = warpgroup_mma_wait(num_outstanding=(2 if REST else 1) + (2 if REST_V else 1), deps=(z,))
        z = capped(z, cap, CAP)
        added = 0.0
        if BIAS:
            mbarrier.wait(z_full.index(INDEX), n & 1)
            added = flat(z_tiles.index(INDEX)).load(SCORES)
        ahead = i * BN + gl.arange(0, BN, gl.SliceLayout(0, SCORES))
        p = weights_of(z, factor, norm[:, None], rows[:, None], ahead[None, :], position, slope, added, ALIBI, BIAS)
        if CAP:
            p = p * (1.0 - z * z)
        dp = warpgroup_mma_wait(num_outstanding=2 if REST else 1, deps=(dp,))
        if BIAS:  # not before: the loads of other warps may still wait for the shared memory when this one has got its numbers
            mbarrier.arrive(z_empty.index(INDEX), count=1)
        if DROP:
            dp = dropped(dp, seed, limit, numbers, i * BN) * again
        ds = p * (dp - delta[:, None])
        if MASKED:
            columns = i * BN + gl.arange(0, BN, gl.SliceLayout(0, SCORES))
            ds = gl.where(inside_of(rows[:, None], columns[None, :], position, SK, LEFT, RIGHT, False), ds, 0.0)
        to_q = warpgroup_mma_wait(num_outstanding=0, deps=(to_q,))
        if REST:
            more_q = warpgroup_mma_wait(num_outstanding=0, deps=(more_q,))
        mbarrier.arrive(empty.index(done), count=1, pred=n > 0)
        n += 1
    return to_q, more_q, ds, n


@gluon.jit
def to_queries(INDEX: gl.constexpr, q_tiles, g_tiles, k_ring, v_ring, z_tiles, qg_full, k_full, v_full, empty, z_full, z_empty, norms,
               deltas, dq, tiles, all_heads, section, plan, lengths, H, TQ, TK, PADDED, scale, xb, xs, xh, softcap, slopes, ab, seed, limit,
               again, EIGHTHS, D: gl.constexpr, STAGES: gl.constexpr, BN: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr,
               CAP: gl.constexpr, DROP: gl.constexpr, SHORT: gl.constexpr, BIAS: gl.constexpr, REST: gl.constexpr, REST_V: gl.constexpr):
    """One consumer warp group of the third launch: queries from INDEX · 64 on of the block."""
    SIZE: gl.constexpr = q_tiles.shape[4]
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16])
    MAIN: gl.constexpr = 64 if REST else SIZE
    TO_Q: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, MAIN, 16])
    MORE_Q: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, REST if REST else 8, 16])
    bh, token, SQ, _unused, SK, row = block_of(plan, tiles, all_heads, section, TQ, TK, 128, True)
    if lengths is not None:
        SK = length_of(lengths + bh // H, TK)
    CLEAR: gl.constexpr = plan is not None or lengths is not None
    position = SK - SQ
    begin, end, whole, edge = keys_of(row, SQ, SK, BN, 128, LEFT, RIGHT)
    rows = row + INDEX * 64 + gl.arange(0, 64, gl.SliceLayout(1, SCORES))
    at = bh.to(gl.int64) * PADDED + token + rows
    norm = gl.load(norms + at, mask=token + rows < PADDED, other=0.0)
    delta = gl.load(deltas + at, mask=token + rows < PADDED, other=0.0)
    numbers = rows
    if DROP:
        numbers = eighths(bh, token + rows, TQ, EIGHTHS, SHORT)
    to_q = gl.zeros((64, MAIN), gl.float32, TO_Q)
    more_q = 0.0
    if REST:
        more_q = gl.zeros((64, REST), gl.float32, MORE_Q)
    ds = gl.zeros((64, BN), gl.float32, SCORES)
    factor, cap = factors_of(scale, softcap, CAP)
    slope = 0.0
    if slopes is not None:
        slope = gl.load(slopes + bh // H * ab + bh % H) * LOG2E
    n = 0
    if end > begin:
        mbarrier.wait(qg_full.index(0), 0)
    q_tile = q_tiles.index(INDEX)
    g_tile = g_tiles.index(INDEX)
    if LEFT >= 0:
        to_q, more_q, ds, n = _query_steps(
            to_q, more_q, ds, norm, delta, q_tile, g_tile, k_ring, v_ring, z_tiles, k_full, v_full, empty, z_full, z_empty, n, begin, whole, factor,
            cap, slope, rows, SK, position, seed, limit, again, numbers, STAGES, BN, LEFT, RIGHT, True, CAP, slopes is not None, DROP,
            CLEAR, INDEX, BIAS, REST, REST_V
        )
    to_q, more_q, ds, n = _query_steps(
        to_q, more_q, ds, norm, delta, q_tile, g_tile, k_ring, v_ring, z_tiles, k_full, v_full, empty, z_full, z_empty, n, whole, edge, factor, cap,
        slope, rows, SK, position, seed, limit, again, numbers, STAGES, BN, LEFT, RIGHT, False, CAP, slopes is not None, DROP, CLEAR, INDEX,
        BIAS, REST, REST_V
    )
    to_q, more_q, ds, n = _query_steps(
        to_q, more_q, ds, norm, delta, q_tile, g_tile, k_ring, v_ring, z_tiles, k_full, v_full, empty, z_full, z_empty, n, edge, end, factor, cap,
        slope, rows, SK, position, seed, limit, again, numbers, STAGES, BN, LEFT, RIGHT, True, CAP, slopes is not None, DROP, CLEAR, INDEX,
        BIAS, REST, REST_V
    )
    if n > 0:  # the product of the last tile
        to_q, more_q = _product(left_operand(ds, k_ring, to_q), k_ring.index((n - 1) % STAGES), to_q, more_q, n > 1, REST)
        to_q = warpgroup_mma_wait(num_outstanding=0, deps=(to_q,))
        if REST:
            more_q = warpgroup_mma_wait(num_outstanding=0, deps=(more_q,))
    to = dq + (bh // H).to(gl.int64) * xb + (bh % H).to(gl.int64) * xh
    store_columns(to, to_q * scale, 0, token, row + INDEX * 64, SQ, SQ, xs, D)
    if REST:
        store_columns(to, more_q * scale, 64, token, row + INDEX * 64, SQ, SQ, xs, D)


@gluon.jit
def load_keys(q_desc, k_desc, v_desc, g_desc, z_desc, q_tiles, g_tiles, k_ring, v_ring, z_tiles, qg_full, k_full, v_full, empty, z_full,
              z_empty, tiles, all_heads, section, plan, lengths, H, GROUP, TQ, TK, STAGES: gl.constexpr, BN: gl.constexpr,
              LEFT: gl.constexpr, RIGHT: gl.constexpr, BIAS: gl.constexpr):
    """The producer warp of the third launch."""
    bh, token, SQ, first_key, SK, row = block_of(plan, tiles, all_heads, section, TQ, TK, 128, True)
    batch = bh // H
    head = bh % H
    if lengths is not None:
        SK = length_of(lengths + batch, TK)
    begin, end, _, _ = keys_of(row, SQ, SK, BN, 128, LEFT, RIGHT)
    if end > begin:
        mbarrier.expect(qg_full.index(0), 2 * (q_desc.block_type.nbytes + g_desc.block_type.nbytes))
        for g in gl.static_range(2):
            tma.async_copy_global_to_shared(q_desc, [batch, head, token + row + g * 64, 0], qg_full.index(0), q_tiles.index(g))
            tma.async_copy_global_to_shared(g_desc, [batch, head, token + row + g * 64, 0], qg_full.index(0), g_tiles.index(g))
        for n in range(end - begin):
            stage = n % STAGES
            column = first_key + (begin + n) * BN
            mbarrier.wait(empty.index(stage), (n // STAGES & 1) ^ 1)
            mbarrier.expect(k_full.index(stage), k_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(k_desc, [batch, head // GROUP, column, 0], k_full.index(stage), k_ring.index(stage))
            mbarrier.expect(v_full.index(stage), v_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(v_desc, [batch, head // GROUP, column, 0], v_full.index(stage), v_ring.index(stage))
            if BIAS:
                load_bias(z_desc, z_tiles, z_full, z_empty, batch, head, row, column, 64, 0, n)
    if gl.program_id(0) == gl.num_programs(0) - 1:
        gdc_wait()  # so that this launch does not end before the second has
