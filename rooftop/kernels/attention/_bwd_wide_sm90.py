"""Backward of attention on Hopper, for heads of more than 128 columns: a consumer group has registers for only one gradient of 64 keys."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from rooftop.kernels.attention._bwd_sm90 import LOG2E, flat, inside_of, place_of, queries_of, store_rows
from rooftop.kernels.attention._dropout_sm90 import kept_keys


@gluon.jit
def _half_steps(to, norm, delta, k_tile, v_tile, q_ring, g_ring, q_full, g_full, empty, norm_at, delta_at, n, first, last, factor, columns,
                SQ, position, seed, limit, again, EIGHTHS, bh, first_key, INDEX: gl.constexpr, STAGES: gl.constexpr, BM: gl.constexpr,
                LEFT: gl.constexpr, RIGHT: gl.constexpr, MASKED: gl.constexpr, DROP: gl.constexpr, SHORT: gl.constexpr):
    """Like `_key_steps`, for one of the two gradients: of the values (INDEX 0) or of the keys."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BM, 16])
    LEFT_OPERAND: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=to.type.layout, k_width=2)
    LINE: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    ACROSS: gl.constexpr = gl.SliceLayout(0, SCORES)
    for i in range(first, last):
        stage = n % STAGES
        phase = n // STAGES & 1
        mbarrier.wait(q_full.index(stage), phase)
        z = gl.zeros((64, BM), gl.float32, SCORES)
        z = warpgroup_mma(k_tile, flat(q_ring.index(stage)).permute((1, 0)), z, use_acc=False, is_async=True)
        mbarrier.wait(g_full.index(stage), phase)
        across = gl.convert_layout(norm, ACROSS)
        ahead = (i + 1) * BM + gl.arange(0, BM, LINE)
        norm = gl.load(norm_at + ahead)
        rows = i * BM + gl.arange(0, BM, ACROSS)
        if INDEX == 0:
            z = warpgroup_mma_wait(num_outstanding=0, deps=(z,))
            x = gl.exp2(z * factor - across[None, :])
            if DROP:
                x = gl.where(kept_keys(x, seed, limit, bh, i * BM, first_key, SQ, EIGHTHS, SHORT), x, 0.0)
        else:
            dp = gl.zeros((64, BM), gl.float32, SCORES)
            dp = warpgroup_mma(v_tile, flat(g_ring.index(stage)).permute((1, 0)), dp, use_acc=False, is_async=True)
            across_delta = gl.convert_layout(delta, ACROSS)
            delta = gl.load(delta_at + ahead)
            z = warpgroup_mma_wait(num_outstanding=1, deps=(z,))
            x = gl.exp2(z * factor - across[None, :])
            dp = warpgroup_mma_wait(num_outstanding=0, deps=(dp,))
            if DROP:
                dp = gl.where(kept_keys(x, seed, limit, bh, i * BM, first_key, SQ, EIGHTHS, SHORT), dp * again, 0.0)
            x = x * (dp - across_delta[None, :])
        if MASKED:
            x = gl.where(inside_of(rows[None, :], columns[:, None], position, SQ, LEFT, RIGHT, True), x, 0.0)
        u = gl.convert_layout(x.to(q_ring.dtype), LEFT_OPERAND, assert_trivial=True)
        if INDEX == 0:
            to = warpgroup_mma(u, flat(g_ring.index(stage)), to, is_async=True)
        else:
            to = warpgroup_mma(u, flat(q_ring.index(stage)), to, is_async=True)
        to = warpgroup_mma_wait(num_outstanding=0, deps=(to,))
        mbarrier.arrive(empty.index(stage), count=1)
        n += 1
    return to, norm, delta, n


@gluon.jit
def to_half(INDEX: gl.constexpr, k_tiles, v_tiles, q_ring, g_ring, kv_full, q_full, g_full, empty, norms, deltas, dk, dv, tiles, all_heads,
             section, H, GROUP, SQ, SK, PADDED, scale, yb, ys, yh, wb, ws, wh, softcap, slopes, ab, seed, limit, again,
             EIGHTHS, D: gl.constexpr, DV: gl.constexpr, STAGES: gl.constexpr, BM: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr,
             CAP: gl.constexpr, DROP: gl.constexpr, SHORT: gl.constexpr):
    """One consumer warp group of the second launch, for heads of more than 128 columns: one of the two gradients of the 64 keys of the
    block."""
    SIZE: gl.constexpr = v_tiles.shape[4] if INDEX == 0 else k_tiles.shape[4]
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BM, 16])
    TO: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, SIZE, 16])
    LINE: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    tile, bh = place_of(tiles, all_heads, section)
    key_heads = H // GROUP
    batch = bh // key_heads
    key_head = bh % key_heads
    column = tile * 64
    position = SK - SQ
    begin, end, whole, edge = queries_of(column, SQ, SK, BM, 64, LEFT, RIGHT)
    columns = column + gl.arange(0, 64, gl.SliceLayout(1, SCORES))
    to = gl.zeros((64, SIZE), gl.float32, TO)
    factor = scale * LOG2E
    n = 0
    if end > begin:
        mbarrier.wait(kv_full.index(0), 0)
    for g in range(GROUP):
        of = batch * H + key_head * GROUP + g
        at = of.to(gl.int64) * PADDED
        line = begin * BM + gl.arange(0, BM, LINE)
        norm = gl.load(norms + at + line)
        delta = gl.load(deltas + at + line)
        k_tile = flat(k_tiles.index(0))
        v_tile = flat(v_tiles.index(0))
        norms_at = norms + at
        deltas_at = deltas + at
        if RIGHT >= 0:
            to, norm, delta, n = _half_steps(to, norm, delta, k_tile, v_tile, q_ring, g_ring, q_full, g_full, empty, norms_at, deltas_at, n,
                                             begin, whole, factor, columns, SQ, position, seed, limit, again, EIGHTHS, of, column, INDEX, STAGES,
                                         BM, LEFT, RIGHT, True, DROP, SHORT)
        to, norm, delta, n = _half_steps(to, norm, delta, k_tile, v_tile, q_ring, g_ring, q_full, g_full, empty, norms_at, deltas_at, n,
                                         whole, edge, factor, columns, SQ, position, seed, limit, again, EIGHTHS, of, column, INDEX, STAGES,
                                         BM, LEFT, RIGHT, False, DROP, SHORT)
        to, norm, delta, n = _half_steps(to, norm, delta, k_tile, v_tile, q_ring, g_ring, q_full, g_full, empty, norms_at, deltas_at, n,
                                         edge, end, factor, columns, SQ, position, seed, limit, again, EIGHTHS, of, column, INDEX, STAGES,
                                         BM, LEFT, RIGHT, True, DROP, SHORT)
    b = batch.to(gl.int64)
    h = key_head.to(gl.int64)
    rows = column + gl.arange(0, 64, gl.SliceLayout(1, TO))
    if INDEX == 0:
        store_rows(dv + b * wb + h * wh, to * again if DROP else to, rows, SK, ws, gl.arange(0, SIZE, gl.SliceLayout(0, TO)), DV)
    else:
        store_rows(dk + b * yb + h * yh, to * scale, rows, SK, ys, gl.arange(0, SIZE, gl.SliceLayout(0, TO)), D)
