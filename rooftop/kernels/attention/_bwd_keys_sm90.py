"""Backward of attention on Hopper: the gradients of keys and values, by tiles of queries."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from rooftop.kernels.attention._bwd_sm90 import (
    LOG2E,
    block_of,
    capped,
    factors_of,
    inside_of,
    left_operand,
    load_bias,
    queries_of,
    store_columns,
    weights_of,
)
from rooftop.kernels.attention._dropout_sm90 import is_dropped, kept_keys, marked
from rooftop.kernels.attention._packed_sm90 import clear_rows, length_of
from rooftop.kernels.attention._scores_sm90 import columns_of, flat, scores_of


@gluon.jit
def _clear(q_ring, g_ring, q_full, g_full, stage, phase, there, BM: gl.constexpr):
    """Zeros behind the last query of a sequence, in a tile that reaches past it: 0 times what is there may be NaN."""
    if there < BM:
        mbarrier.wait(q_full.index(stage), phase)
        clear_rows(flat(q_ring.index(stage)), there, BM)
        mbarrier.wait(g_full.index(stage), phase)
        clear_rows(flat(g_ring.index(stage)), there, BM)


@gluon.jit
def _seen_of(lengths, batch, column, SQ, SK):
    """(queries, keys) for the keys from `column` on; with lengths no query where no key is."""
    if lengths is not None:
        SK = length_of(lengths + batch, SK)
        SQ = SQ if column < SK else 0
    return SQ, SK


@gluon.jit
def _key_steps(to_k, more_k, to_v, more_v, p, ds, norm, delta, k_tile, v_tile, q_ring, g_ring, z_tiles, q_full, g_full, empty, z_full, z_empty, norm_at,
               delta_at, n, first, last, factor, cap, slope, columns, token, SQ, TQ, position, seed, limit, again, EIGHTHS, bh, first_key,
               STAGES: gl.constexpr, BM: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, MASKED: gl.constexpr, PIPED: gl.constexpr,
               CAP: gl.constexpr, ALIBI: gl.constexpr, DROP: gl.constexpr, SHORT: gl.constexpr, PACKED: gl.constexpr, INDEX: gl.constexpr,
               BIAS: gl.constexpr, REST: gl.constexpr, REST_V: gl.constexpr):
    """Main loop over tiles of queries `first` to one before `last`. `norm` and `delta` are those of the first; those of the next are loaded
    while a tile is computed. `token`: the first query of the sequence; TQ: queries of all. PIPED: the products of the weights `p` and
    gradients `ds` of the tile before run meanwhile. With REST, `to_k` has 64 columns and `more_k` REST; with REST_V so for the values."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BM, 16])
    LINE: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    ACROSS: gl.constexpr = gl.SliceLayout(0, SCORES)
    for i in range(first, last):
        stage = n % STAGES
        phase = n // STAGES & 1
        if PIPED:
            done = gl.maximum(n - 1, 0) % STAGES  # the first tile: itself; what that product holds is not used
            w = left_operand(p, g_ring, to_v)
            u = left_operand(ds, q_ring, to_k)
        else:
            done = stage
        if PACKED and MASKED:
            _clear(q_ring, g_ring, q_full, g_full, stage, phase, SQ - i * BM, BM)
        mbarrier.wait(q_full.index(stage), phase)
        z = scores_of(k_tile, q_ring.index(stage), SCORES, REST)
        mbarrier.wait(g_full.index(stage), phase)
        dp = scores_of(v_tile, g_ring.index(stage), SCORES, REST_V)
        if PIPED:
            to_v = warpgroup_mma(w, flat(g_ring.index(done)), to_v, use_acc=n > 1, is_async=True)
            to_k = warpgroup_mma(u, flat(q_ring.index(done)), to_k, use_acc=n > 1, is_async=True)
        across = gl.convert_layout(norm, ACROSS)
        ahead = (i + 1) * BM + gl.arange(0, BM, LINE)
        norm = gl.load(norm_at + ahead)
        z = warpgroup_mma_wait(num_outstanding=3 if PIPED else 2 if REST_V else 1, deps=(z,))
        rows = i * BM + gl.arange(0, BM, ACROSS)
        z = capped(z, cap, CAP)
        added = 0.0
        if BIAS:
            mbarrier.wait(z_full.index(INDEX), n & 1)
            added = flat(z_tiles.index(INDEX)).permute((1, 0)).load(SCORES)
        p = weights_of(z, factor, across[None, :], rows[None, :], columns[:, None], position, slope, added, ALIBI, BIAS)
        if MASKED:
            inside = inside_of(rows[None, :], columns[:, None], position, SQ, LEFT, RIGHT, True)
            p = gl.where(inside, p, 0.0)
        if DROP:
            p = marked(p, kept_keys(p, seed, limit, bh, token + i * BM, first_key, TQ, EIGHTHS, SHORT))
        if not PIPED:
            w = left_operand(gl.where(is_dropped(p), 0.0, p) if DROP else p, g_ring, to_v)
        across_delta = gl.convert_layout(delta, ACROSS)
        delta = gl.load(delta_at + ahead)
        dp = warpgroup_mma_wait(num_outstanding=2 if PIPED else 0, deps=(dp,))
        if BIAS:  # not before: the loads of other warps may still wait for the shared memory when this one has got its numbers
            mbarrier.arrive(z_empty.index(INDEX), count=1)
        if not PIPED:
            if REST_V:
                to_v = warpgroup_mma(w, columns_of(g_ring.index(stage), 0, 64), to_v, is_async=True)
                more_v = warpgroup_mma(w, columns_of(g_ring.index(stage), 64, REST_V), more_v, is_async=True)
            else:
                to_v = warpgroup_mma(w, flat(g_ring.index(stage)), to_v, is_async=True)
        steep = p * (1.0 - z * z) if CAP else p
        if DROP:
            ds = gl.abs(steep) * (gl.where(is_dropped(p), 0.0, dp * again) - across_delta[None, :])
            if PIPED:
                p = gl.where(is_dropped(p), 0.0, p)
        else:
            ds = steep * (dp - across_delta[None, :])
        if MASKED:
            ds = gl.where(inside, ds, 0.0)
        if not PIPED:
            u = left_operand(ds, q_ring, to_k)
            if REST:
                to_k = warpgroup_mma(u, columns_of(q_ring.index(stage), 0, 64), to_k, is_async=True)
                more_k = warpgroup_mma(u, columns_of(q_ring.index(stage), 64, REST), more_k, is_async=True)
            else:
                to_k = warpgroup_mma(u, flat(q_ring.index(stage)), to_k, is_async=True)
        to_v, to_k = warpgroup_mma_wait(num_outstanding=0, deps=(to_v, to_k))
        if REST:
            more_k = warpgroup_mma_wait(num_outstanding=0, deps=(more_k,))
        if REST_V:
            more_v = warpgroup_mma_wait(num_outstanding=0, deps=(more_v,))
        mbarrier.arrive(empty.index(done), count=1, pred=n > 0 if PIPED else True)
        n += 1
    return to_k, more_k, to_v, more_v, p, ds, norm, delta, n


@gluon.jit
def to_keys(INDEX: gl.constexpr, k_tiles, v_tiles, q_ring, g_ring, z_tiles, kv_full, q_full, g_full, empty, z_full, z_empty, norms, deltas,
            dk, dv, tiles, all_heads, section, plan, lengths, H, GROUP, TQ, TK, PADDED, scale, yb, ys, yh, wb, ws, wh, softcap, slopes, ab,
            seed, limit, again, EIGHTHS, D: gl.constexpr, DV: gl.constexpr, STAGES: gl.constexpr, BM: gl.constexpr, LEFT: gl.constexpr,
            RIGHT: gl.constexpr, CAP: gl.constexpr, DROP: gl.constexpr, SHORT: gl.constexpr, BIAS: gl.constexpr, REST: gl.constexpr,
            REST_V: gl.constexpr):
    """One consumer warp group of the second launch: keys from INDEX · 64 on of the block."""
    SIZE: gl.constexpr = k_tiles.shape[4]
    SIZE_V: gl.constexpr = v_tiles.shape[4]
    MORE_K: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, REST if REST else 8, 16])
    MORE_V: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, REST_V if REST_V else 8, 16])
    PIPED: gl.constexpr = SIZE + SIZE_V <= 128  # else registers are lacking, and ptxas would make each product wait for the one before
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BM, 16])
    MAIN: gl.constexpr = 64 if REST else SIZE
    MAIN_V: gl.constexpr = 64 if REST_V else SIZE_V
    TO_K: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, MAIN, 16])
    TO_V: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, MAIN_V, 16])
    LINE: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    bh, first_key, SK, token, SQ, column = block_of(plan, tiles, all_heads, section, TK, TQ, 128, False)
    key_heads = H // GROUP
    batch = bh // key_heads
    key_head = bh % key_heads
    stored = SK
    SQ, SK = _seen_of(lengths, batch, column, SQ, SK)
    position = SK - SQ
    begin, end, whole, edge = queries_of(column, SQ, SK, BM, 128, LEFT, RIGHT)
    columns = column + INDEX * 64 + gl.arange(0, 64, gl.SliceLayout(1, SCORES))
    to_k = gl.zeros((64, MAIN), gl.float32, TO_K)
    to_v = gl.zeros((64, MAIN_V), gl.float32, TO_V)
    more_k, more_v = 0.0, 0.0
    if REST:
        more_k = gl.zeros((64, REST), gl.float32, MORE_K)
    if REST_V:
        more_v = gl.zeros((64, REST_V), gl.float32, MORE_V)
    p = gl.zeros((64, BM), gl.float32, SCORES)
    ds = gl.zeros((64, BM), gl.float32, SCORES)
    factor, cap = factors_of(scale, softcap, CAP)
    slope = 0.0
    n = 0
    for g in range(GROUP):
        of = batch * H + key_head * GROUP + g
        at = of.to(gl.int64) * PADDED + token
        if slopes is not None:
            slope = gl.load(slopes + batch * ab + of % H) * LOG2E
        line = begin * BM + gl.arange(0, BM, LINE)
        norm = gl.load(norms + at + line)
        delta = gl.load(deltas + at + line)
        if end > begin:
            mbarrier.wait(kv_full.index(0), 0)  # of the block; behind the loads, which take as long as its first copies
        k_tile = k_tiles.index(INDEX)
        v_tile = v_tiles.index(INDEX)
        norms_at = norms + at
        deltas_at = deltas + at
        if RIGHT >= 0:
            to_k, more_k, to_v, more_v, p, ds, norm, delta, n = _key_steps(
                to_k, more_k, to_v, more_v, p, ds, norm, delta, k_tile, v_tile, q_ring, g_ring, z_tiles, q_full, g_full, empty, z_full, z_empty, norms_at,
                deltas_at, n, begin, whole, factor, cap, slope, columns, token, SQ, TQ, position, seed, limit, again, EIGHTHS, of,
                column + INDEX * 64, STAGES, BM, LEFT, RIGHT, True, PIPED, CAP, slopes is not None, DROP, SHORT, plan is not None, INDEX,
                BIAS, REST, REST_V
            )
        to_k, more_k, to_v, more_v, p, ds, norm, delta, n = _key_steps(
            to_k, more_k, to_v, more_v, p, ds, norm, delta, k_tile, v_tile, q_ring, g_ring, z_tiles, q_full, g_full, empty, z_full, z_empty, norms_at,
            deltas_at, n, whole, edge, factor, cap, slope, columns, token, SQ, TQ, position, seed, limit, again, EIGHTHS, of,
            column + INDEX * 64, STAGES, BM, LEFT, RIGHT, False, PIPED, CAP, slopes is not None, DROP, SHORT, plan is not None, INDEX, BIAS, REST, REST_V
        )
        to_k, more_k, to_v, more_v, p, ds, norm, delta, n = _key_steps(
            to_k, more_k, to_v, more_v, p, ds, norm, delta, k_tile, v_tile, q_ring, g_ring, z_tiles, q_full, g_full, empty, z_full, z_empty, norms_at,
            deltas_at, n, edge, end, factor, cap, slope, columns, token, SQ, TQ, position, seed, limit, again, EIGHTHS, of,
            column + INDEX * 64, STAGES, BM, LEFT, RIGHT, True, PIPED, CAP, slopes is not None, DROP, SHORT, plan is not None, INDEX, BIAS, REST, REST_V
        )
    if PIPED:  # noqa: SIM102  decided when it is compiled
        if n > 0:  # the products of the last tile
            last = (n - 1) % STAGES
            to_v = warpgroup_mma(left_operand(p, g_ring, to_v), flat(g_ring.index(last)), to_v, use_acc=n > 1, is_async=True)
            to_k = warpgroup_mma(left_operand(ds, q_ring, to_k), flat(q_ring.index(last)), to_k, use_acc=n > 1, is_async=True)
            to_v, to_k = warpgroup_mma_wait(num_outstanding=0, deps=(to_v, to_k))
    b = batch.to(gl.int64)
    h = key_head.to(gl.int64)
    rows = column + INDEX * 64
    most = stored if lengths is None else SK  # rows of keys that do not exist may hold anything: zeros are stored
    to = dk + b * yb + h * yh
    store_columns(to, to_k * scale, 0, first_key, rows, stored, most, ys, D)
    if REST:
        store_columns(to, more_k * scale, 64, first_key, rows, stored, most, ys, D)
    by = again if DROP else 1.0
    to = dv + b * wb + h * wh
    store_columns(to, to_v * by, 0, first_key, rows, stored, most, ws, DV)
    if REST_V:
        store_columns(to, more_v * by, 64, first_key, rows, stored, most, ws, DV)


@gluon.jit
def load_queries(q_desc, k_desc, v_desc, g_desc, z_desc, k_tiles, v_tiles, q_ring, g_ring, z_tiles, kv_full, q_full, g_full, empty, z_full,
                 z_empty, tiles, all_heads, section, plan, lengths, H, GROUP, TQ, TK, STAGES: gl.constexpr, BM: gl.constexpr,
                 LEFT: gl.constexpr, RIGHT: gl.constexpr, TILES: gl.constexpr, PARTS: gl.constexpr, BIAS: gl.constexpr):
    """The producer warp of the second launch, of TILES times 64 keys."""
    bh, first_key, SK, token, SQ, column = block_of(plan, tiles, all_heads, section, TK, TQ, 64 * TILES, False)
    key_heads = H // GROUP
    batch = bh // key_heads
    key_head = bh % key_heads
    SQ, SK = _seen_of(lengths, batch, column, SQ, SK)
    begin, end, _, _ = queries_of(column, SQ, SK, BM, 64 * TILES, LEFT, RIGHT)
    if end > begin:
        mbarrier.expect(kv_full.index(0), TILES * (k_desc.block_type.nbytes + v_desc.block_type.nbytes))
        for g in gl.static_range(TILES):
            tma.async_copy_global_to_shared(
                k_desc, [batch, key_head // PARTS, first_key + column + g * 64, 0], kv_full.index(0), k_tiles.index(g)
            )
            tma.async_copy_global_to_shared(
                v_desc, [batch, key_head // PARTS, first_key + column + g * 64, 0], kv_full.index(0), v_tiles.index(g)
            )
        n = 0
        for g in range(GROUP):
            for i in range(begin, end):
                stage = n % STAGES
                mbarrier.wait(empty.index(stage), (n // STAGES & 1) ^ 1)
                mbarrier.expect(q_full.index(stage), q_desc.block_type.nbytes)
                tma.async_copy_global_to_shared(
                    q_desc, [batch, key_head * GROUP + g, token + i * BM, 0], q_full.index(stage), q_ring.index(stage)
                )
                mbarrier.expect(g_full.index(stage), g_desc.block_type.nbytes)
                tma.async_copy_global_to_shared(
                    g_desc, [batch, key_head * GROUP + g, token + i * BM, 0], g_full.index(stage), g_ring.index(stage)
                )
                if BIAS:
                    load_bias(z_desc, z_tiles, z_full, z_empty, batch, key_head * GROUP + g, i * BM, column, 0, 64, n)
                n += 1


@gluon.jit
def _half_steps(to, norm, delta, k_tile, v_tile, q_ring, g_ring, q_full, g_full, empty, norm_at, delta_at, n, first, last, factor, columns,
                token, SQ, TQ, position, seed, limit, again, EIGHTHS, bh, first_key, INDEX: gl.constexpr, STAGES: gl.constexpr,
                BM: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, MASKED: gl.constexpr, DROP: gl.constexpr, SHORT: gl.constexpr,
                PACKED: gl.constexpr):
    """Like `_key_steps`, for one of the two gradients: of the values (INDEX 0) or of the keys."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BM, 16])
    LEFT_OPERAND: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=to.type.layout, k_width=2)
    LINE: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    ACROSS: gl.constexpr = gl.SliceLayout(0, SCORES)
    for i in range(first, last):
        stage = n % STAGES
        phase = n // STAGES & 1
        if PACKED and MASKED:
            _clear(q_ring, g_ring, q_full, g_full, stage, phase, SQ - i * BM, BM)
        mbarrier.wait(q_full.index(stage), phase)
        z = scores_of(k_tile, q_ring.index(stage), SCORES, 0)
        mbarrier.wait(g_full.index(stage), phase)
        across = gl.convert_layout(norm, ACROSS)
        ahead = (i + 1) * BM + gl.arange(0, BM, LINE)
        norm = gl.load(norm_at + ahead)
        rows = i * BM + gl.arange(0, BM, ACROSS)
        if INDEX == 0:
            z = warpgroup_mma_wait(num_outstanding=0, deps=(z,))
            x = gl.exp2(z * factor - across[None, :])
            if DROP:
                x = gl.where(kept_keys(x, seed, limit, bh, token + i * BM, first_key, TQ, EIGHTHS, SHORT), x, 0.0)
        else:
            dp = scores_of(v_tile, g_ring.index(stage), SCORES, 0)
            across_delta = gl.convert_layout(delta, ACROSS)
            delta = gl.load(delta_at + ahead)
            z = warpgroup_mma_wait(num_outstanding=1, deps=(z,))
            x = gl.exp2(z * factor - across[None, :])
            dp = warpgroup_mma_wait(num_outstanding=0, deps=(dp,))
            if DROP:
                dp = gl.where(kept_keys(x, seed, limit, bh, token + i * BM, first_key, TQ, EIGHTHS, SHORT), dp * again, 0.0)
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
def to_half(INDEX: gl.constexpr, k_tiles, v_tiles, q_ring, g_ring, z_tiles, kv_full, q_full, g_full, empty, z_full, z_empty, norms, deltas,
            dk, dv, tiles, all_heads, section, plan, lengths, H, GROUP, TQ, TK, PADDED, scale, yb, ys, yh, wb, ws, wh, softcap, slopes, ab,
            seed, limit, again, EIGHTHS, D: gl.constexpr, DV: gl.constexpr, STAGES: gl.constexpr, BM: gl.constexpr, LEFT: gl.constexpr,
            RIGHT: gl.constexpr, CAP: gl.constexpr, DROP: gl.constexpr, SHORT: gl.constexpr, BIAS: gl.constexpr, REST: gl.constexpr,
            REST_V: gl.constexpr):
    """One consumer warp group of the second launch, for heads of more than 128 columns: one of the two gradients of the 64 keys of the
    block."""
    SIZE: gl.constexpr = v_tiles.shape[4] if INDEX == 0 else k_tiles.shape[4]
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BM, 16])
    TO: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, SIZE, 16])
    LINE: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    bh, first_key, SK, token, SQ, column = block_of(plan, tiles, all_heads, section, TK, TQ, 64, False)
    key_heads = H // GROUP
    batch = bh // key_heads
    key_head = bh % key_heads
    stored = SK
    SQ, SK = _seen_of(lengths, batch, column, SQ, SK)
    position = SK - SQ
    begin, end, whole, edge = queries_of(column, SQ, SK, BM, 64, LEFT, RIGHT)
    columns = column + gl.arange(0, 64, gl.SliceLayout(1, SCORES))
    to = gl.zeros((64, SIZE), gl.float32, TO)
    factor = scale * LOG2E
    n = 0
    for g in range(GROUP):
        of = batch * H + key_head * GROUP + g
        at = of.to(gl.int64) * PADDED + token
        line = begin * BM + gl.arange(0, BM, LINE)
        norm = gl.load(norms + at + line)
        delta = gl.load(deltas + at + line)
        if end > begin:
            mbarrier.wait(kv_full.index(0), 0)  # of the block; behind the loads, which take as long as its first copies
        k_tile = k_tiles.index(0)
        v_tile = v_tiles.index(0)
        norms_at = norms + at
        deltas_at = deltas + at
        if RIGHT >= 0:
            to, norm, delta, n = _half_steps(
                to, norm, delta, k_tile, v_tile, q_ring, g_ring, q_full, g_full, empty, norms_at, deltas_at, n, begin, whole, factor,
                columns, token, SQ, TQ, position, seed, limit, again, EIGHTHS, of, column, INDEX, STAGES, BM, LEFT, RIGHT, True, DROP,
                SHORT, plan is not None
            )
        to, norm, delta, n = _half_steps(
            to, norm, delta, k_tile, v_tile, q_ring, g_ring, q_full, g_full, empty, norms_at, deltas_at, n, whole, edge, factor, columns,
            token, SQ, TQ, position, seed, limit, again, EIGHTHS, of, column, INDEX, STAGES, BM, LEFT, RIGHT, False, DROP, SHORT,
            plan is not None
        )
        to, norm, delta, n = _half_steps(
            to, norm, delta, k_tile, v_tile, q_ring, g_ring, q_full, g_full, empty, norms_at, deltas_at, n, edge, end, factor, columns,
            token, SQ, TQ, position, seed, limit, again, EIGHTHS, of, column, INDEX, STAGES, BM, LEFT, RIGHT, True, DROP, SHORT,
            plan is not None
        )
    b = batch.to(gl.int64)
    h = key_head.to(gl.int64)
    most = stored if lengths is None else SK
    if INDEX == 0:
        store_columns(dv + b * wb + h * wh, to * (again if DROP else 1.0), 0, first_key, column, stored, most, ws, DV)
    else:
        store_columns(dk + b * yb + h * yh, to * scale, 0, first_key, column, stored, most, ys, D)
