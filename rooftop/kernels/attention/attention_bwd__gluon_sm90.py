"""FlashAttention backward on Hopper, deterministic: plain, causal, windowed, with dropout. Contract: rooftop/ops/attention.py

Three launches, no atomics. The first computes, for each query, log2 of its normaliser and delta = sum_d dout_d · out_d - dlse. In the
second a block has 128 keys and computes their dk and dv; in the third it has 128 queries and computes their dq. Both are warp-specialised:
one producer warp, which loads the tiles of the other side by TMA into a ring, and two consumer warp groups of 64 rows each, so that the
exponentials of one overlap with the products of the other. The second launch computes transposed scores: weights and their gradients stay
in registers, as the left operands of wgmma. The products that need them run while the scores of the next tile are computed: 0.93 to 0.97 of
the time of the third launch on an H200, with tiles of 64 keys (of 128, which leave few registers, it was slower), and 0.91 to 0.97 of the
second's with heads of 64 columns; wider ones lack the registers. Seven products of tiles; five would suffice if dq were summed by atomics.

Where key heads are few, several blocks of the second launch share a key head, each with some of its query heads. They write float32 parts
of dk and dv, which one more launch for each of the two adds in their order.

For heads of more than 128 columns the registers of a group hold one gradient of 64 keys: a block of the second launch has 64 keys, one
group computes dv and the other dk. That is an eighth product."""

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
from rooftop.kernels.attention._bwd_sm90 import LOG2E, capped, common_of, factors_of, flat, inside_of, keys_of, place_of, queries_of, store_rows, weights_of
from rooftop.kernels.attention._bwd_wide_sm90 import to_half
from rooftop.kernels.attention._dropout_sm90 import dropped, eighths, is_dropped, kept_keys, marked
from rooftop.kernels.attention._sinks import to_sinks

# ptxas keeps addresses that loops share in local memory; none of them is read in the loops without a mask.
DEMANDS = {"has": ["HGMMA", "UTMALDG"], "spills": 256}
ROWS = 64  # of a consumer warp group, and of a block of the first launch


@gluon.jit
def _left(x, ring, acc):
    """Scores in registers as the left operand of a product with a tile of `ring`."""
    operand: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=acc.type.layout, k_width=2)
    return gl.convert_layout(x.to(ring.dtype), operand, assert_trivial=True)


@gluon.jit
def _key_steps(to_k, to_v, p, ds, norm, delta, k_tile, v_tile, q_ring, g_ring, q_full, g_full, empty, norm_at, delta_at, n, first, last,
               factor, cap, slope, columns, SQ, position, seed, limit, again, EIGHTHS, bh, first_key, STAGES: gl.constexpr, BM: gl.constexpr,
               LEFT: gl.constexpr, RIGHT: gl.constexpr, MASKED: gl.constexpr, PIPED: gl.constexpr, CAP: gl.constexpr, ALIBI: gl.constexpr,
               DROP: gl.constexpr, SHORT: gl.constexpr):
    """Main loop over tiles of queries `first` to one before `last`. `norm` and `delta` are those of the first; those of the next are loaded
    while a tile is computed. PIPED: the products of the weights `p` and gradients `ds` of the tile before run meanwhile."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BM, 16])
    LINE: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    ACROSS: gl.constexpr = gl.SliceLayout(0, SCORES)
    for i in range(first, last):
        stage = n % STAGES
        phase = n // STAGES & 1
        if PIPED:
            done = gl.maximum(n - 1, 0) % STAGES  # the first tile: itself; what that product holds is not used
            w = _left(p, g_ring, to_v)
            u = _left(ds, q_ring, to_k)
        else:
            done = stage
        mbarrier.wait(q_full.index(stage), phase)
        z = gl.zeros((64, BM), gl.float32, SCORES)
        z = warpgroup_mma(k_tile, flat(q_ring.index(stage)).permute((1, 0)), z, use_acc=False, is_async=True)
        mbarrier.wait(g_full.index(stage), phase)
        dp = gl.zeros((64, BM), gl.float32, SCORES)
        dp = warpgroup_mma(v_tile, flat(g_ring.index(stage)).permute((1, 0)), dp, use_acc=False, is_async=True)
        if PIPED:
            to_v = warpgroup_mma(w, flat(g_ring.index(done)), to_v, use_acc=n > 1, is_async=True)
            to_k = warpgroup_mma(u, flat(q_ring.index(done)), to_k, use_acc=n > 1, is_async=True)
        across = gl.convert_layout(norm, ACROSS)
        ahead = (i + 1) * BM + gl.arange(0, BM, LINE)
        norm = gl.load(norm_at + ahead)
        z = warpgroup_mma_wait(num_outstanding=3 if PIPED else 1, deps=(z,))
        rows = i * BM + gl.arange(0, BM, ACROSS)
        z = capped(z, cap, CAP)
        p = weights_of(z, factor, across[None, :], rows[None, :], columns[:, None], position, slope, ALIBI)
        if MASKED:
            inside = inside_of(rows[None, :], columns[:, None], position, SQ, LEFT, RIGHT, True)
            p = gl.where(inside, p, 0.0)
        if DROP:
            p = marked(p, kept_keys(p, seed, limit, bh, i * BM, first_key, SQ, EIGHTHS, SHORT))
        if not PIPED:
            w = _left(gl.where(is_dropped(p), 0.0, p) if DROP else p, g_ring, to_v)
        across_delta = gl.convert_layout(delta, ACROSS)
        delta = gl.load(delta_at + ahead)
        dp = warpgroup_mma_wait(num_outstanding=2 if PIPED else 0, deps=(dp,))
        if not PIPED:
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
            to_k = warpgroup_mma(_left(ds, q_ring, to_k), flat(q_ring.index(stage)), to_k, is_async=True)
        to_v, to_k = warpgroup_mma_wait(num_outstanding=0, deps=(to_v, to_k))
        mbarrier.arrive(empty.index(done), count=1, pred=n > 0 if PIPED else True)
        n += 1
    return to_k, to_v, p, ds, norm, delta, n


@gluon.jit
def _to_keys(INDEX: gl.constexpr, k_tiles, v_tiles, q_ring, g_ring, kv_full, q_full, g_full, empty, norms, deltas, dk, dv, tiles, all_heads,
             section, H, GROUP, SQ, SK, PADDED, scale, yb, ys, yh, wb, ws, wh, softcap, slopes, ab, seed, limit, again,
             EIGHTHS, D: gl.constexpr, DV: gl.constexpr, STAGES: gl.constexpr, BM: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr,
             CAP: gl.constexpr, DROP: gl.constexpr, SHORT: gl.constexpr):
    """One consumer warp group of the second launch: keys from INDEX · 64 on of the block."""
    SIZE: gl.constexpr = k_tiles.shape[4]
    SIZE_V: gl.constexpr = v_tiles.shape[4]
    PIPED: gl.constexpr = SIZE + SIZE_V <= 128  # else registers are lacking, and ptxas would make each product wait for the one before
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BM, 16])
    TO_K: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, SIZE, 16])
    TO_V: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, SIZE_V, 16])
    LINE: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    tile, bh = place_of(tiles, all_heads, section)
    key_heads = H // GROUP
    batch = bh // key_heads
    key_head = bh % key_heads
    column = tile * 128
    position = SK - SQ
    begin, end, whole, edge = queries_of(column, SQ, SK, BM, 128, LEFT, RIGHT)
    columns = column + INDEX * 64 + gl.arange(0, 64, gl.SliceLayout(1, SCORES))
    to_k = gl.zeros((64, SIZE), gl.float32, TO_K)
    to_v = gl.zeros((64, SIZE_V), gl.float32, TO_V)
    p = gl.zeros((64, BM), gl.float32, SCORES)
    ds = gl.zeros((64, BM), gl.float32, SCORES)
    factor, cap = factors_of(scale, softcap, CAP)
    slope = 0.0
    n = 0
    if end > begin:
        mbarrier.wait(kv_full.index(0), 0)
    for g in range(GROUP):
        of = batch * H + key_head * GROUP + g
        at = of.to(gl.int64) * PADDED
        if slopes is not None:
            slope = gl.load(slopes + batch * ab + of % H) * LOG2E
        line = begin * BM + gl.arange(0, BM, LINE)
        norm = gl.load(norms + at + line)
        delta = gl.load(deltas + at + line)
        k_tile = flat(k_tiles.index(INDEX))
        v_tile = flat(v_tiles.index(INDEX))
        norms_at = norms + at
        deltas_at = deltas + at
        if RIGHT >= 0:
            to_k, to_v, p, ds, norm, delta, n = _key_steps(
                to_k, to_v, p, ds, norm, delta, k_tile, v_tile, q_ring, g_ring, q_full, g_full, empty, norms_at, deltas_at, n, begin, whole,
                factor, cap, slope, columns, SQ, position, seed, limit, again, EIGHTHS, of, column + INDEX * 64, STAGES, BM,
                LEFT, RIGHT, True, PIPED, CAP, slopes is not None, DROP, SHORT
            )
        to_k, to_v, p, ds, norm, delta, n = _key_steps(
            to_k, to_v, p, ds, norm, delta, k_tile, v_tile, q_ring, g_ring, q_full, g_full, empty, norms_at, deltas_at, n, whole, edge,
            factor, cap, slope, columns, SQ, position, seed, limit, again, EIGHTHS, of, column + INDEX * 64, STAGES, BM,
            LEFT, RIGHT, False, PIPED, CAP, slopes is not None, DROP, SHORT
        )
        to_k, to_v, p, ds, norm, delta, n = _key_steps(
            to_k, to_v, p, ds, norm, delta, k_tile, v_tile, q_ring, g_ring, q_full, g_full, empty, norms_at, deltas_at, n, edge, end,
            factor, cap, slope, columns, SQ, position, seed, limit, again, EIGHTHS, of, column + INDEX * 64, STAGES, BM,
            LEFT, RIGHT, True, PIPED, CAP, slopes is not None, DROP, SHORT
        )
    if PIPED:  # noqa: SIM102  decided when it is compiled
        if n > 0:  # the products of the last tile
            last = (n - 1) % STAGES
            to_v = warpgroup_mma(_left(p, g_ring, to_v), flat(g_ring.index(last)), to_v, use_acc=n > 1, is_async=True)
            to_k = warpgroup_mma(_left(ds, q_ring, to_k), flat(q_ring.index(last)), to_k, use_acc=n > 1, is_async=True)
            to_v, to_k = warpgroup_mma_wait(num_outstanding=0, deps=(to_v, to_k))
    b = batch.to(gl.int64)
    h = key_head.to(gl.int64)
    first = column + INDEX * 64
    store_rows(
        dk + b * yb + h * yh, to_k * scale, first + gl.arange(0, 64, gl.SliceLayout(1, TO_K)), SK, ys,
        gl.arange(0, SIZE, gl.SliceLayout(0, TO_K)), D
    )
    store_rows(
        dv + b * wb + h * wh, to_v * again if DROP else to_v, first + gl.arange(0, 64, gl.SliceLayout(1, TO_V)), SK, ws,
        gl.arange(0, SIZE_V, gl.SliceLayout(0, TO_V)), DV
    )


@gluon.jit
def _load_queries(q_desc, k_desc, v_desc, g_desc, k_tiles, v_tiles, q_ring, g_ring, kv_full, q_full, g_full, empty, tiles, all_heads,
                  section, H, GROUP, SQ, SK, STAGES: gl.constexpr, BM: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr,
                  TILES: gl.constexpr, PARTS: gl.constexpr):
    """The producer warp of the second launch, of TILES times 64 keys."""
    tile, bh = place_of(tiles, all_heads, section)
    key_heads = H // GROUP
    batch = bh // key_heads
    key_head = bh % key_heads
    column = tile * 64 * TILES
    begin, end, _, _ = queries_of(column, SQ, SK, BM, 64 * TILES, LEFT, RIGHT)
    if end > begin:
        mbarrier.expect(kv_full.index(0), TILES * (k_desc.block_type.nbytes + v_desc.block_type.nbytes))
        for g in gl.static_range(TILES):
            tma.async_copy_global_to_shared(k_desc, [batch, key_head // PARTS, column + g * 64, 0], kv_full.index(0), k_tiles.index(g))
            tma.async_copy_global_to_shared(v_desc, [batch, key_head // PARTS, column + g * 64, 0], kv_full.index(0), v_tiles.index(g))
        n = 0
        for g in range(GROUP):
            for i in range(begin, end):
                stage = n % STAGES
                mbarrier.wait(empty.index(stage), (n // STAGES & 1) ^ 1)
                mbarrier.expect(q_full.index(stage), q_desc.block_type.nbytes)
                tma.async_copy_global_to_shared(q_desc, [batch, key_head * GROUP + g, i * BM, 0], q_full.index(stage), q_ring.index(stage))
                mbarrier.expect(g_full.index(stage), g_desc.block_type.nbytes)
                tma.async_copy_global_to_shared(g_desc, [batch, key_head * GROUP + g, i * BM, 0], g_full.index(stage), g_ring.index(stage))
                n += 1


@gluon.jit(do_not_specialize=("SQ", "SK", "PADDED", "tiles", "all_heads", "section", "H", "GROUP", "ab", "seed", "limit", "EIGHTHS"))
def _keys(q_desc, k_desc, v_desc, g_desc, norms, deltas, dk, dv, tiles, all_heads, section, H, GROUP, SQ, SK, PADDED, scale, yb, ys, yh, wb,
          ws, wh, D: gl.constexpr, DV: gl.constexpr, STAGES: gl.constexpr, BM: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr,
          TILES: gl.constexpr, PARTS: gl.constexpr, softcap=None, slopes=None, ab=None, seed=None, limit=None, again=None, EIGHTHS=None,
          CAP: gl.constexpr = False, DROP: gl.constexpr = False, SHORT: gl.constexpr = True):
    """dk and dv of TILES times 64 keys a block: with 2 tiles each warp group has 64 keys, with 1 one of the two gradients. Strides of
    batch, token and head: dk (y), dv (w). PARTS: so many blocks share a key head, with GROUP query heads each; dk and dv are then of
    parts of key heads. DROP: dropout; `again`: 1 / (1 - dropout_p)."""
    k_tiles = gl.allocate_shared_memory(k_desc.dtype, [TILES] + k_desc.block_type.shape, k_desc.layout)
    v_tiles = gl.allocate_shared_memory(v_desc.dtype, [TILES] + v_desc.block_type.shape, v_desc.layout)
    q_ring = gl.allocate_shared_memory(q_desc.dtype, [STAGES] + q_desc.block_type.shape, q_desc.layout)
    g_ring = gl.allocate_shared_memory(g_desc.dtype, [STAGES] + g_desc.block_type.shape, g_desc.layout)
    kv_full = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    q_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    g_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(kv_full.index(0), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(g_full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    fence_async_shared()
    if TILES == 2:
        gl.warp_specialize([
            (_to_keys,
                        (0, k_tiles, v_tiles, q_ring, g_ring, kv_full, q_full, g_full, empty, norms, deltas, dk, dv, tiles, all_heads,
                        section, H, GROUP, SQ, SK, PADDED, scale, yb, ys, yh, wb, ws, wh, softcap, slopes, ab, seed, limit, again, EIGHTHS, D,
                        DV, STAGES, BM, LEFT, RIGHT, CAP, DROP, SHORT)),
            (_to_keys,
                        (1, k_tiles, v_tiles, q_ring, g_ring, kv_full, q_full, g_full, empty, norms, deltas, dk, dv, tiles, all_heads,
                        section, H, GROUP, SQ, SK, PADDED, scale, yb, ys, yh, wb, ws, wh, softcap, slopes, ab, seed, limit, again, EIGHTHS, D,
                        DV, STAGES, BM, LEFT, RIGHT, CAP, DROP, SHORT)),
            (_load_queries,
                             (q_desc, k_desc, v_desc, g_desc, k_tiles, v_tiles, q_ring, g_ring, kv_full, q_full, g_full, empty, tiles,
                             all_heads, section, H, GROUP, SQ, SK, STAGES, BM, LEFT, RIGHT, TILES, PARTS)),
        ], [4, 1], [240, 24])
    else:
        gl.warp_specialize([
            (to_half,
                       (0, k_tiles, v_tiles, q_ring, g_ring, kv_full, q_full, g_full, empty, norms, deltas, dk, dv, tiles, all_heads,
                       section, H, GROUP, SQ, SK, PADDED, scale, yb, ys, yh, wb, ws, wh, softcap, slopes, ab, seed, limit, again, EIGHTHS, D,
                        DV, STAGES, BM, LEFT, RIGHT, CAP, DROP, SHORT)),
            (to_half,
                       (1, k_tiles, v_tiles, q_ring, g_ring, kv_full, q_full, g_full, empty, norms, deltas, dk, dv, tiles, all_heads,
                       section, H, GROUP, SQ, SK, PADDED, scale, yb, ys, yh, wb, ws, wh, softcap, slopes, ab, seed, limit, again, EIGHTHS, D,
                        DV, STAGES, BM, LEFT, RIGHT, CAP, DROP, SHORT)),
            (_load_queries,
                             (q_desc, k_desc, v_desc, g_desc, k_tiles, v_tiles, q_ring, g_ring, kv_full, q_full, g_full, empty, tiles,
                             all_heads, section, H, GROUP, SQ, SK, STAGES, BM, LEFT, RIGHT, TILES, PARTS)),
        ], [4, 1], [240, 24])


@triton.jit
def _sum_parts(x, out, N, H, ob, os, oh, S, D: tl.constexpr, SIZE: tl.constexpr, PARTS: tl.constexpr,  # type: ignore[no-untyped-def]
               ROWS_OF: tl.constexpr):
    """out [B, S, H, D] = the sum over the parts of x [B, S, H, PARTS, D], in their order. N rows of B, S and H."""
    row = tl.program_id(0).to(tl.int64) * ROWS_OF + tl.arange(0, ROWS_OF)
    d = tl.arange(0, SIZE)
    inside = (row < N)[:, None] & (d < D)[None, :]
    total = tl.zeros((ROWS_OF, SIZE), tl.float32)
    for part in tl.static_range(PARTS):
        total += tl.load(x + ((row * PARTS + part) * D)[:, None] + d[None, :], mask=inside, other=0.0)
    to = out + row // (S * H) * ob + row // H % S * os + row % H * oh
    tl.store(to[:, None] + d[None, :], total.to(out.dtype.element_ty), mask=inside)


@gluon.jit
def _query_steps(to_q, ds, norm, delta, q_tile, g_tile, k_ring, v_ring, k_full, v_full, empty, n, first, last, factor, cap, slope,
                 rows, SK, position, seed, limit, again, numbers, STAGES: gl.constexpr, BN: gl.constexpr, LEFT: gl.constexpr,
                 RIGHT: gl.constexpr, MASKED: gl.constexpr, CAP: gl.constexpr, ALIBI: gl.constexpr, DROP: gl.constexpr):
    """Main loop over tiles of keys `first` to one before `last`. The product of the gradients `ds` of the tile before runs while those of a
    tile are computed."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16])
    for i in range(first, last):
        stage = n % STAGES
        done = gl.maximum(n - 1, 0) % STAGES  # the first tile: itself; what that product holds is not used
        phase = n // STAGES & 1
        u = _left(ds, k_ring, to_q)
        mbarrier.wait(k_full.index(stage), phase)
        z = gl.zeros((64, BN), gl.float32, SCORES)
        z = warpgroup_mma(q_tile, flat(k_ring.index(stage)).permute((1, 0)), z, use_acc=False, is_async=True)
        mbarrier.wait(v_full.index(stage), phase)
        dp = gl.zeros((64, BN), gl.float32, SCORES)
        dp = warpgroup_mma(g_tile, flat(v_ring.index(stage)).permute((1, 0)), dp, use_acc=False, is_async=True)
        to_q = warpgroup_mma(u, flat(k_ring.index(done)), to_q, use_acc=n > 1, is_async=True)
        z = warpgroup_mma_wait(num_outstanding=2, deps=(z,))
        z = capped(z, cap, CAP)
        p = weights_of(z, factor, norm[:, None], rows[:, None], i * BN + gl.arange(0, BN, gl.SliceLayout(0, SCORES))[None, :], position, slope, ALIBI)
        if CAP:
            p = p * (1.0 - z * z)
        dp = warpgroup_mma_wait(num_outstanding=1, deps=(dp,))
        if DROP:
            dp = dropped(dp, seed, limit, numbers, i * BN) * again
        ds = p * (dp - delta[:, None])
        if MASKED:
            columns = i * BN + gl.arange(0, BN, gl.SliceLayout(0, SCORES))
            ds = gl.where(inside_of(rows[:, None], columns[None, :], position, SK, LEFT, RIGHT, False), ds, 0.0)
        to_q = warpgroup_mma_wait(num_outstanding=0, deps=(to_q,))
        mbarrier.arrive(empty.index(done), count=1, pred=n > 0)
        n += 1
    return to_q, ds, n


@gluon.jit
def _to_queries(INDEX: gl.constexpr, q_tiles, g_tiles, k_ring, v_ring, qg_full, k_full, v_full, empty, norms, deltas, dq, tiles, all_heads,
                section, H, SQ, SK, PADDED, scale, xb, xs, xh, softcap, slopes, ab, seed, limit, again, EIGHTHS, D: gl.constexpr,
                STAGES: gl.constexpr, BN: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, CAP: gl.constexpr, DROP: gl.constexpr,
                SHORT: gl.constexpr):
    """One consumer warp group of the third launch: queries from INDEX · 64 on of the block."""
    SIZE: gl.constexpr = q_tiles.shape[4]
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16])
    TO_Q: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, SIZE, 16])
    place, bh = place_of(tiles, all_heads, section)
    row = (tiles - 1 - place) * 128
    position = SK - SQ
    begin, end, whole, edge = keys_of(row, SQ, SK, BN, 128, LEFT, RIGHT)
    rows = row + INDEX * 64 + gl.arange(0, 64, gl.SliceLayout(1, SCORES))
    at = bh.to(gl.int64) * PADDED + rows
    norm = gl.load(norms + at, mask=rows < PADDED, other=0.0)
    delta = gl.load(deltas + at, mask=rows < PADDED, other=0.0)
    numbers = rows
    if DROP:
        numbers = eighths(bh, rows, SQ, EIGHTHS, SHORT)
    to_q = gl.zeros((64, SIZE), gl.float32, TO_Q)
    ds = gl.zeros((64, BN), gl.float32, SCORES)
    factor, cap = factors_of(scale, softcap, CAP)
    slope = 0.0
    if slopes is not None:
        slope = gl.load(slopes + bh // H * ab + bh % H) * LOG2E
    n = 0
    if end > begin:
        mbarrier.wait(qg_full.index(0), 0)
    q_tile = flat(q_tiles.index(INDEX))
    g_tile = flat(g_tiles.index(INDEX))
    if LEFT >= 0:
        to_q, ds, n = _query_steps(
            to_q, ds, norm, delta, q_tile, g_tile, k_ring, v_ring, k_full, v_full, empty, n, begin, whole, factor, cap, slope, rows, SK,
            position, seed, limit, again, numbers, STAGES, BN, LEFT, RIGHT, True, CAP, slopes is not None, DROP
        )
    to_q, ds, n = _query_steps(
        to_q, ds, norm, delta, q_tile, g_tile, k_ring, v_ring, k_full, v_full, empty, n, whole, edge, factor, cap, slope, rows, SK,
        position, seed, limit, again, numbers, STAGES, BN, LEFT, RIGHT, False, CAP, slopes is not None, DROP
    )
    to_q, ds, n = _query_steps(
        to_q, ds, norm, delta, q_tile, g_tile, k_ring, v_ring, k_full, v_full, empty, n, edge, end, factor, cap, slope, rows, SK,
        position, seed, limit, again, numbers, STAGES, BN, LEFT, RIGHT, True, CAP, slopes is not None, DROP
    )
    if n > 0:  # the product of the last tile
        to_q = warpgroup_mma(_left(ds, k_ring, to_q), flat(k_ring.index((n - 1) % STAGES)), to_q, use_acc=n > 1, is_async=True)
        to_q = warpgroup_mma_wait(num_outstanding=0, deps=(to_q,))
    to = dq + (bh // H).to(gl.int64) * xb + (bh % H).to(gl.int64) * xh
    first = row + INDEX * 64
    store_rows(to, to_q * scale, first + gl.arange(0, 64, gl.SliceLayout(1, TO_Q)), SQ, xs, gl.arange(0, SIZE, gl.SliceLayout(0, TO_Q)), D)


@gluon.jit
def _load_keys(q_desc, k_desc, v_desc, g_desc, q_tiles, g_tiles, k_ring, v_ring, qg_full, k_full, v_full, empty, tiles, all_heads, section,
               H, GROUP, SQ, SK, STAGES: gl.constexpr, BN: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr):
    """The producer warp of the third launch."""
    place, bh = place_of(tiles, all_heads, section)
    row = (tiles - 1 - place) * 128
    batch = bh // H
    head = bh % H
    begin, end, _, _ = keys_of(row, SQ, SK, BN, 128, LEFT, RIGHT)
    if end > begin:
        mbarrier.expect(qg_full.index(0), 2 * (q_desc.block_type.nbytes + g_desc.block_type.nbytes))
        for g in gl.static_range(2):
            tma.async_copy_global_to_shared(q_desc, [batch, head, row + g * 64, 0], qg_full.index(0), q_tiles.index(g))
            tma.async_copy_global_to_shared(g_desc, [batch, head, row + g * 64, 0], qg_full.index(0), g_tiles.index(g))
        for n in range(end - begin):
            stage = n % STAGES
            column = (begin + n) * BN
            mbarrier.wait(empty.index(stage), (n // STAGES & 1) ^ 1)
            mbarrier.expect(k_full.index(stage), k_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(k_desc, [batch, head // GROUP, column, 0], k_full.index(stage), k_ring.index(stage))
            mbarrier.expect(v_full.index(stage), v_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(v_desc, [batch, head // GROUP, column, 0], v_full.index(stage), v_ring.index(stage))


@gluon.jit(do_not_specialize=("SQ", "SK", "PADDED", "tiles", "all_heads", "section", "H", "GROUP", "ab", "seed", "limit", "EIGHTHS"))
def _queries(q_desc, k_desc, v_desc, g_desc, norms, deltas, dq, tiles, all_heads, section, H, GROUP, SQ, SK, PADDED, scale, xb, xs, xh,
             D: gl.constexpr, STAGES: gl.constexpr, BN: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, softcap=None,
             slopes=None, ab=None, seed=None, limit=None, again=None, EIGHTHS=None, CAP: gl.constexpr = False, DROP: gl.constexpr = False,
             SHORT: gl.constexpr = True):
    """dq of 128 queries a block; those with the most keys start first. Strides of batch, token and head: dq (x)."""
    q_tiles = gl.allocate_shared_memory(q_desc.dtype, [2] + q_desc.block_type.shape, q_desc.layout)
    g_tiles = gl.allocate_shared_memory(g_desc.dtype, [2] + g_desc.block_type.shape, g_desc.layout)
    k_ring = gl.allocate_shared_memory(k_desc.dtype, [STAGES] + k_desc.block_type.shape, k_desc.layout)
    v_ring = gl.allocate_shared_memory(v_desc.dtype, [STAGES] + v_desc.block_type.shape, v_desc.layout)
    qg_full = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(qg_full.index(0), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    fence_async_shared()
    gl.warp_specialize([
        (_to_queries,
                       (0, q_tiles, g_tiles, k_ring, v_ring, qg_full, k_full, v_full, empty, norms, deltas, dq, tiles, all_heads, section,
                       H, SQ, SK, PADDED, scale, xb, xs, xh, softcap, slopes, ab, seed, limit, again, EIGHTHS, D, STAGES, BN, LEFT, RIGHT, CAP,
                       DROP, SHORT)),
        (_to_queries,
                       (1, q_tiles, g_tiles, k_ring, v_ring, qg_full, k_full, v_full, empty, norms, deltas, dq, tiles, all_heads, section,
                       H, SQ, SK, PADDED, scale, xb, xs, xh, softcap, slopes, ab, seed, limit, again, EIGHTHS, D, STAGES, BN, LEFT, RIGHT, CAP,
                       DROP, SHORT)),
        (_load_keys,
                      (q_desc, k_desc, v_desc, g_desc, q_tiles, g_tiles, k_ring, v_ring, qg_full, k_full, v_full, empty, tiles, all_heads,
                      section, H, GROUP, SQ, SK, STAGES, BN, LEFT, RIGHT)),
    ], [4, 1], [240, 24])


@dataclass(frozen=True)
class Config:
    """Queries of a tile and stages of the ring buffer in the second launch; keys and stages in the third. `parts`: blocks of the second
    launch that share a key head; with more than 1, two more launches add what they computed."""

    BM: int = 64
    KEY_STAGES: int = 3
    BN: int = 64
    QUERY_STAGES: int = 4
    parts: int = 1


def _width(n: int) -> int:
    """Columns of a head, padded to the tile."""
    return 64 if n <= 64 else 128 if n <= 128 else 256


def _wide(p: Problem) -> bool:
    """Whether the registers of a warp group hold only one gradient of 64 keys."""
    return max(p["q"].shape[3], p["v"].shape[3]) > 128


def supports(p: Problem) -> str | None:
    names = ("mask", "bias", "cu_seqlens_q", "page_table", "cache_lengths", "q_scale", "k_scale", "v_scale")
    if reason := shared.refused(p, names, dropout=True):
        return reason
    if _wide(p) and (float(p.option("softcap")) or p.get("alibi_slopes") is not None):
        return "takes a soft cap and alibi_slopes with heads of at most 128 columns"
    if p.get("alibi_slopes") is not None and max(p["q"].shape[1], p["k"].shape[1]) > 2**22:
        return "takes alibi_slopes with at most 2^22 queries and keys"
    for name in ("q", "k", "v", "dout"):
        if reason := not_copied(_heads_first(p, name)[0], *_heads_first(p, name)[1]):
            return f"TMA does not copy {name}: {reason}"
    for name in ("dlse", "lse"):
        if (m := p.get(name)) is not None and not m.contiguous:
            return f"{name} must lie without gaps"
    if max(p["q"].shape[0], p["q"].shape[2]) > 65535:
        return "more heads or batches than one launch may have"
    return None


def choose(p: Problem) -> Config:
    parts = _parts(p)
    if _wide(p):
        return Config(KEY_STAGES=2, BN=32, QUERY_STAGES=3, parts=parts)
    narrow = max(_width(p["q"].shape[3]), _width(p["v"].shape[3])) == 64
    return Config(KEY_STAGES=4 if narrow else 3, parts=parts)


def _group(p: Problem) -> int:
    return p["q"].shape[2] // max(p["k"].shape[2], 1)


def _parts(p: Problem) -> int:
    """Into how many blocks the query heads of a key head are divided: with few key heads most multiprocessors are idle, and the blocks of
    the first keys, which all queries see in causal order, run alone. In pairs of a block's keys and a tile of queries; such a step takes
    some 2 µs, in which the card adds some 2 MiB of parts."""
    batch, queries, _, size = p["q"].shape
    keys, key_heads = p["k"].shape[1:3]
    group, owned = _group(p), 64 if _wide(p) else 128
    tiles, steps, causal = -(-keys // owned), -(-queries // 64), p.option("right") == 0
    added = batch * keys * key_heads * (size + p["v"].shape[3]) * 8 / (2 << 20)
    best, least = 1, float("inf")
    for n in range(1, group + 1):
        if group % n:
            continue
        longest, blocks = group // n * steps, tiles * batch * key_heads * n
        shared_out = blocks * longest / p.device.sms
        time = max(longest, shared_out * 0.55) if causal else -(-blocks // p.device.sms) * longest
        if (time := time + (added * n if n > 1 else 0.0)) < least * 0.97:
            best, least = n, time
    return best


def configs(p: Problem) -> list[Config]:
    size = _width(p["q"].shape[3]) + _width(p["v"].shape[3])
    found = [Config(bm, ks, bn, qs, _parts(p)) for bm in (64, 128) for bn in (32, 64, 128) for ks in (2, 3, 4) for qs in (2, 3, 4)]
    most, keys = p.device.shared_per_block - 1024, 64 if _wide(p) else 128
    return [
        c for c in found if 2 * size * max(keys + c.BM * c.KEY_STAGES, 128 + c.BN * c.QUERY_STAGES) <= most and (size == 128 or c.BM == 64)
    ]


def _padded(p: Problem, config: Config) -> int:
    """Queries of a head that the second launch loops over, and one more tile, which it prefetches."""
    return (-(-p["q"].shape[1] // config.BM) + 1) * config.BM


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    batch, _, heads, _ = p["q"].shape
    found = {name: Meta((batch * heads, _padded(p, config)), "f32") for name in ("norms", "deltas")}
    if config.parts > 1:
        (_, keys, key_heads, size), size_v = p["k"].shape, p["v"].shape[3]
        found |= {n: Meta((batch, keys, key_heads * config.parts, d), "f32") for n, d in (("dk_parts", size), ("dv_parts", size_v))}
    return found


def _heads_first(p: Problem, name: str):  # type: ignore[no-untyped-def]
    """The tensor, and its shape and strides as [B, H, S, D]."""
    m = p[name]
    (b, s, h, d), (sb, ss, sh, sd) = m.shape, m.strides
    return m, ((b, h, s, d), (sb, sh, ss, sd))


def launches(p: Problem, config: Config) -> list[Launch]:
    from triton.experimental.gluon.language import bfloat16, float16

    batch, queries, heads, size = p["q"].shape
    keys, key_heads = p["k"].shape[1:3]
    size_v, kind, padded = p["v"].shape[3], bfloat16 if p["q"].dtype == "bf16" else float16, _padded(p, config)

    def tiled(name: str, rows: int) -> Descriptor:
        block = (1, 1, rows, _width(p[name].shape[3]))
        shape, strides = _heads_first(p, name)[1]
        return Descriptor(name, block, gl.NVMMASharedLayout.get_default_for(list(block), kind), shape=shape, strides=strides)

    def section(walked: int, together: int) -> int:
        """Heads, `together` at a time, whose tensors that are read repeatedly fill half of the L2."""
        return max(1, p.device.l2_bytes // 2 // (walked * (size + size_v) * 2)) * together

    common = {
        "dout": "dout", "out": "out", "dlse": "dlse" if p.get("dlse") else None, "lse": "lse", "norms": "norms", "deltas": "deltas",
        "SQ": queries, "PADDED": padded, "H": heads, **shared.strides(p, "g", "dout"), **shared.strides(p, "o", "out"), "DV": size_v,
        "SIZE": _width(size_v),
    }
    parts = config.parts
    args = {"norms": "norms", "deltas": "deltas", "H": heads, "SQ": queries, "SK": keys, "PADDED": padded, "scale": "scale", "D": size,
            **shared.windows(p)}
    if shared.softcap(p):
        args |= {"softcap": shared.softcap(p), "CAP": True}
    if (slopes := p.get("alibi_slopes")) is not None:
        args |= {"slopes": "alibi_slopes", "ab": heads if len(slopes.shape) == 2 else 0}
    if float(p.option("dropout_p")):
        args |= {"seed": "seed", "again": 1.0 / (1.0 - float(p.option("dropout_p"))), **shared.dropout(p)}
    owned = 1 if _wide(p) else 2
    key_tiles, query_tiles = -(-keys // (64 * owned)), -(-queries // 128)
    virtual = key_heads * parts  # key heads of the second launch
    if parts > 1:
        where = {"dk": "dk_parts", "dv": "dv_parts"}
        strides = {
            f"{letter}{n}": s
            for letter, d in (("y", size), ("w", size_v)) for n, s in (("b", keys * virtual * d), ("s", virtual * d), ("h", d))
        }
    else:
        where, strides = {"dk": "dk", "dv": "dv"}, {**shared.strides(p, "y", "dk"), **shared.strides(p, "w", "dv")}
    to_keys = {
        "q_desc": tiled("q", config.BM), "k_desc": tiled("k", ROWS), "v_desc": tiled("v", ROWS), "g_desc": tiled("dout", config.BM),
        **where, "tiles": key_tiles, "all_heads": batch * virtual, "GROUP": _group(p) // parts,
        "section": min(section(queries * _group(p) // parts, 1), batch * virtual), **strides, "DV": size_v, "STAGES": config.KEY_STAGES,
        "BM": config.BM, "TILES": owned, "PARTS": parts,
    }
    to_queries = {
        "q_desc": tiled("q", ROWS), "k_desc": tiled("k", config.BN), "v_desc": tiled("v", config.BN), "g_desc": tiled("dout", ROWS),
        "dq": "dq", "tiles": query_tiles, "all_heads": batch * heads, "GROUP": _group(p),
        "section": min(section(keys, _group(p)), batch * heads),
        **shared.strides(p, "x", "dq"), "STAGES": config.QUERY_STAGES, "BN": config.BN,
    }
    rows = batch * keys * key_heads
    sums = []
    for name, d in (("dk", size), ("dv", size_v)) if parts > 1 else ():
        ob, os, oh = (p[name].strides[i] for i in (0, 1, 2))
        of = max(1, 4096 // _width(d))
        given = {"x": f"{name}_parts", "out": name, "N": rows, "H": key_heads, "ob": ob, "os": os, "oh": oh, "S": keys, "D": d,
                 "SIZE": _width(d), "PARTS": parts, "ROWS_OF": of}
        sums.append(Launch(_sum_parts, (-(-rows // of),), given, 4))
    if p.get("sinks") is not None:
        given = {"sinks": "sinks", "lse": "lse", "delta": "deltas", "dsinks": "dsinks", "B": batch, "SQ": queries, "H": heads, "BLOCK": 1024}
        sums.append(Launch(to_sinks, (heads,), {**given, "PADDED": padded}, 4))
    return [
        Launch(common_of, (-(-padded // ROWS), heads, batch), common, 4),
        Launch(_keys, (key_tiles * batch * virtual,), {**args, **to_keys}, 4),
        *sums,
        Launch(_queries, (query_tiles * batch * heads,), {**args, **to_queries}, 4),
    ]
