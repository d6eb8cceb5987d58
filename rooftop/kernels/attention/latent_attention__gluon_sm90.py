"""Attention to a cache of latent vectors on Hopper: wgmma and TMA, warps specialised. Contract: rooftop/ops/latent_attention.py

A block has 64 rows (heads and queries of a key head) and a part of the tokens, in tiles of 64. The queries stay in shared memory, 72 KB of
512 + 64 columns, beside two tiles of tokens of 72 KB: that is all there is room for. So a tile is read once from memory, and both products
read it from shared memory. A producer warp copies it in three pieces (the two halves of the columns of a value, and the others), each of
which is released, and copied anew, as soon as nobody needs it.

The result, 64 x 512 in float32, needs the registers of two warp groups: each has half of the columns. Both need the weights of every tile.
The first group computes the scores of the even tiles and the second those of the odd ones, so that none are computed twice; the weights go
to the other group through 8 KB of shared memory, with the maximum of each row so far. Meanwhile the tensor cores have the products of the
other group: the second computes its scores and its half of the even tile's product while the first computes weights, and the reverse.

A tile of 64 rows takes 2,176 clocks of the tensor cores (64 · 64 · (576 + 512) products of bf16), with 16 heads too, where three of four rows
are empty. A multiprocessor's share of an H200's memory is 72 KB in some 4,000 clocks: so up to 64 heads the read bounds it, with 128 heads
(two blocks, of which the second reads from L2) the products."""

from __future__ import annotations

from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from rooftop.core.spec import Descriptor, Launch, Meta, Problem, pow2
from rooftop.core.tensor_maps import not_copied
from rooftop.kernels.attention import _arguments as shared
from rooftop.kernels.attention import _latent
from rooftop.kernels.attention._latent_coded_sm90 import load_codes
from rooftop.kernels.attention._packed_sm90 import clear_rows

# Of a cache of 8 bits, four warps need registers that the groups have otherwise: each keeps what it reads once in local memory.
DEMANDS = {"has": ["HGMMA"], "spills": 112}
LOG2E = gl.constexpr(1.4426950408889634)
ROWS, TOKENS = 64, 64  # of a block, and of a tile


@gluon.jit
def _flat(x):
    """A tile [1, 1, rows, columns] as the matrix that wgmma reads."""
    return x.reshape([x.shape[2], x.shape[3]])


@gluon.jit
def _base(top):
    return gl.where(top == float("-inf"), 0.0, top)


@gluon.jit
def _copy(desc, piece, bar, free, phase, table, token, end, batch, key_head, column, PAGE: gl.constexpr, BN: gl.constexpr):
    """The producer: one piece of a tile, from `column` on, once the groups have released it. Pages that are shorter than a tile are copied in
    boxes of 64 columns, which then lie as in a copy of the whole tile."""
    mbarrier.wait(free, phase ^ 1)
    mbarrier.expect(bar, piece.type.element_ty.primitive_bitwidth // 8 * BN * piece.shape[3])
    if PAGE == 0:
        tma.async_copy_global_to_shared(desc, [batch, key_head, token, column], bar, piece)
    elif PAGE % BN == 0:
        page = gl.load(table + token // PAGE).to(gl.int32)
        tma.async_copy_global_to_shared(desc, [page, key_head, token % PAGE, column], bar, piece)
    else:
        EACH: gl.constexpr = BN // PAGE
        PANELS: gl.constexpr = piece.shape[3] // 64
        boxes = piece._reinterpret(desc.dtype, [PANELS * EACH] + desc.block_type.shape, desc.layout)
        for j in gl.static_range(EACH):
            page = gl.load(table + token // PAGE + j, mask=token + j * PAGE < end, other=-1).to(gl.int32)
            for i in gl.static_range(PANELS):
                tma.async_copy_global_to_shared(desc, [page, key_head, 0, column + i * 64], bar, boxes.index(i * EACH + j))


@gluon.jit
def _load(c_desc, r_desc, c_ring, r_ring, full, empty, table, begin, end, batch, key_head, V: gl.constexpr, R: gl.constexpr, PAGE: gl.constexpr,
          BN: gl.constexpr):
    """The producer warp."""
    HALF: gl.constexpr = c_ring.shape[4]
    for n in range((end - begin + BN - 1) // BN):
        slot = n % 2
        phase = n // 2 & 1
        token = begin + n * BN
        if R:
            _copy(r_desc, r_ring.index(slot), full.index(3 * slot + 2), empty.index(3 * slot + 2), phase, table, token, end, batch, key_head, V, PAGE,
                  BN)
        for half in gl.static_range(2):
            _copy(c_desc, c_ring.index(2 * slot + half), full.index(3 * slot + half), empty.index(3 * slot + half), phase, table, token, end, batch,
                  key_head, half * HALF, PAGE, BN)


@gluon.jit
def _keep(tile, q, first, rows, GROUP, qs, qh, column, columns, M: gl.constexpr):
    """Columns from `column` on of the queries into shared memory, zero outside."""
    COLUMNS: gl.constexpr = tile.shape[1]
    WIDE: gl.constexpr = COLUMNS // 8 if COLUMNS < 256 else 32
    L: gl.constexpr = gl.BlockedLayout([1, 8], [32 // WIDE, WIDE], [4, 1], [1, 0])
    row = first + gl.arange(0, M, gl.SliceLayout(1, L))
    c = column + gl.arange(0, COLUMNS, gl.SliceLayout(0, L))
    at = q + ((row // GROUP).to(gl.int64) * qs + (row % GROUP).to(gl.int64) * qh)[:, None] + c[None, :]
    tile.store(gl.load(at, mask=(row < rows)[:, None] & (c < columns)[None, :], other=0.0))


@gluon.jit
def _zero(i):
    """0, unknown to the compiler: it would keep the addresses of all products of a turn in registers, and those in local memory."""
    return gl.inline_asm_elementwise("mov.b32 $0, 0;", "=r,r", [i], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _landed(bar, phase, CODED: gl.constexpr):
    """A piece of a tile is there for wgmma. CODED: ordinary stores wrote it."""
    mbarrier.wait(bar, phase)
    if CODED:
        fence_async_shared()


@gluon.jit
def _scores(q_tiles, q_more, c_ring, r_ring, full, SLOT: gl.constexpr, i, R: gl.constexpr, BN: gl.constexpr, CODED: gl.constexpr):
    """The scores of the i-th tile in a slot, as 2 products (with R 3) that run."""
    phase = i & 1
    zero = _zero(i)
    L: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16])
    M: gl.constexpr = q_tiles.shape[1]
    z = gl.zeros((M, BN), gl.float32, L)
    if R:
        _landed(full.index(3 * SLOT + 2), phase, CODED)
        z = warpgroup_mma(q_more, _flat(r_ring.index(SLOT)).permute((1, 0)), z, use_acc=False, is_async=True)
    _landed(full.index(3 * SLOT), phase, CODED and R == 0)  # of 8 bits, both are handed over at once
    z = warpgroup_mma(q_tiles.index(zero), _flat(c_ring.index(2 * SLOT + zero)).permute((1, 0)), z, use_acc=R > 0, is_async=True)
    _landed(full.index(3 * SLOT + 1), phase, CODED)
    return warpgroup_mma(q_tiles.index(zero + 1), _flat(c_ring.index(2 * SLOT + 1 + zero)).permute((1, 0)), z, is_async=True)


@gluon.jit
def _missing(table, token, end, PAGES, PAGE: gl.constexpr, BN: gl.constexpr):
    """Whether a page of a tile does not exist."""
    wrong = end < 0
    if PAGE:
        for j in gl.static_range(BN // PAGE if PAGE < BN else 1):
            page = gl.load(table + token // PAGE + j, mask=token + j * PAGE < end, other=0)
            wrong = wrong | (page < 0) | (page >= PAGES)
    return wrong


@gluon.jit
def _weights(z, top, factor, token, end, sure, limit, wrong, table, PAGES, PAGE: gl.constexpr):
    """(weights, the new maximum of each row) of the scores of a tile from `token` on, in base 2. Rows see tokens below `limit`, all of them
    those below `sure`."""
    L: gl.constexpr = z.type.layout
    BN: gl.constexpr = z.shape[1]
    columns = token + gl.arange(0, BN, gl.SliceLayout(0, L))
    if PAGE:  # noqa: SIM102  decided when it is compiled
        if wrong:
            page = gl.load(table + columns // PAGE, mask=columns < end, other=0)
            z = gl.where(((page >= 0) & (page < PAGES))[None, :], z, float("nan"))
    if token + BN > sure:
        z = gl.where(columns[None, :] < limit[:, None], z, float("-inf"))
    new = gl.maximum(top, gl.max(z, 1) * factor)
    return gl.exp2(z * factor - _base(new)[:, None]), new


@gluon.jit
def _publish(p, top, p_tile, tops, bar):
    """Weights and maxima for the other group."""
    p_tile.store(p.to(p_tile.dtype))
    tops.store(top)
    fence_async_shared()
    gl.thread_barrier()
    mbarrier.arrive(bar, count=1)


@gluon.jit
def _clear(piece, token, keys, BN: gl.constexpr, CLEARED: gl.constexpr):
    """Zeros where a tile reaches past the sequence: what lies there may be NaN."""
    if CLEARED:  # noqa: SIM102  decided when it is compiled
        if token + BN > keys:
            clear_rows(_flat(piece), keys - token, BN)


@gluon.jit
def _even(q_tiles, q_more, c_ring, r_ring, p_tile, tops, sums, full, empty, q_full, p_full, summed, q, table, out, lse, parts, norms, factor,
          weight, first, rows, begin, end, keys, part, position, PAGES, GROUP, number, qs, qh, os, oh, V: gl.constexpr, R: gl.constexpr,
          PAGE: gl.constexpr, BN: gl.constexpr, PARTS: gl.constexpr, CAUSAL: gl.constexpr, CLEARED: gl.constexpr, CODED: gl.constexpr):
    """The first group: the scores of even tiles, and the first half of the columns of the result. A turn has the product of an odd tile, whose
    weights come from the other group, and the scores, weights and product of the even tile after it. What the first turn's first product
    adds is not used."""
    M: gl.constexpr = q_tiles.shape[1]
    HALF: gl.constexpr = c_ring.shape[4]
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16])
    RESULT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, HALF, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=RESULT, k_width=2)
    OF: gl.constexpr = gl.SliceLayout(1, SCORES)
    TO: gl.constexpr = gl.SliceLayout(1, RESULT)
    _keep(q_tiles.index(0), q, first, rows, GROUP, qs, qh, 0, V, M)
    fence_async_shared()
    gl.thread_barrier()
    mbarrier.arrive(q_full.index(0), count=1)
    mbarrier.wait(q_full.index(0), 0)
    limit = gl.zeros((M,), gl.int32, OF) + end
    sure = end
    if CAUSAL:
        row = first + gl.arange(0, M, OF)
        limit = gl.minimum(limit, position + row // GROUP + 1)
        sure = gl.minimum(end, position + first // GROUP + 1)
    acc = gl.zeros((M, HALF), gl.float32, RESULT)
    top = gl.full((M,), float("-inf"), gl.float32, OF)
    total = gl.zeros((M,), gl.float32, OF)
    tiles = (end - begin + BN - 1) // BN
    for i in range((tiles + 1) // 2):
        token = begin + 2 * i * BN
        wrong = _missing(table, token, end, PAGES, PAGE, BN)
        mbarrier.wait(p_full.index(1), (i & 1) ^ 1, pred=i > 0)
        if CODED:
            fence_async_shared()
        new = gl.where(i > 0, tops.index(1).load(OF), top)
        shrink = gl.exp2(top - _base(new))
        total = total * shrink
        acc = acc * gl.convert_layout(shrink, TO, assert_trivial=True)[:, None]
        acc = warpgroup_mma(p_tile, _flat(c_ring.index(2)), acc, is_async=True)
        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
        mbarrier.arrive(empty.index(3), count=1, pred=i > 0)
        z = _scores(q_tiles, q_more, c_ring, r_ring, full, 0, i, R, BN, CODED)
        z = warpgroup_mma_wait(num_outstanding=0, deps=(z,))
        if R:
            mbarrier.arrive(empty.index(2), count=1)
        p, top = _weights(z, new, factor, token, end, sure, limit, wrong, table, PAGES, PAGE)
        _publish(p, top, p_tile, tops.index(0), p_full.index(0))
        shrink = gl.exp2(new - _base(top))
        total = total * shrink + gl.sum(p, 1)
        acc = acc * gl.convert_layout(shrink, TO, assert_trivial=True)[:, None]
        _clear(c_ring.index(0), token, keys, BN, CLEARED)
        acc = warpgroup_mma(gl.convert_layout(p.to(p_tile.dtype), LEFT, assert_trivial=True), _flat(c_ring.index(0)), acc, use_acc=i > 0,
                            is_async=True)
        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
        mbarrier.arrive(empty.index(0), count=1)
    if (tiles > 0) & (tiles % 2 == 0):
        _landed(p_full.index(1), (tiles // 2 & 1) ^ 1, CODED)
        new = tops.index(1).load(OF)
        shrink = gl.exp2(top - _base(new))
        total = total * shrink
        top = new
        acc = acc * gl.convert_layout(shrink, TO, assert_trivial=True)[:, None]
        _clear(c_ring.index(2), begin + (tiles - 1) * BN, keys, BN, CLEARED)
        acc = warpgroup_mma(p_tile, _flat(c_ring.index(2)), acc, is_async=True)
        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
    _finish(0, acc, top, total, sums, summed, out, lse, parts, norms, weight, first, rows, part, GROUP, number, os, oh, V, PARTS)


@gluon.jit
def _odd(q_tiles, q_more, c_ring, r_ring, p_tile, tops, sums, full, empty, q_full, p_full, summed, q, table, out, lse, parts, norms, factor,
         weight, first, rows, begin, end, keys, part, position, PAGES, GROUP, number, qs, qh, os, oh, V: gl.constexpr, R: gl.constexpr,
         PAGE: gl.constexpr, BN: gl.constexpr, PARTS: gl.constexpr, CAUSAL: gl.constexpr, CLEARED: gl.constexpr, CODED: gl.constexpr):
    """The second group: the scores of odd tiles, and the second half of the columns of the result. A turn has the scores of an odd tile, the
    product of the even one before it, whose weights come from the other group, and the weights and product of the odd tile."""
    M: gl.constexpr = q_tiles.shape[1]
    HALF: gl.constexpr = c_ring.shape[4]
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16])
    RESULT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, HALF, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=RESULT, k_width=2)
    OF: gl.constexpr = gl.SliceLayout(1, SCORES)
    TO: gl.constexpr = gl.SliceLayout(1, RESULT)
    _keep(q_tiles.index(1), q, first, rows, GROUP, qs, qh, HALF, V, M)
    if R:
        _keep(q_more, q, first, rows, GROUP, qs, qh, V, V + R, M)
    fence_async_shared()
    gl.thread_barrier()
    mbarrier.arrive(q_full.index(0), count=1)
    mbarrier.wait(q_full.index(0), 0)
    limit = gl.zeros((M,), gl.int32, OF) + end
    sure = end
    if CAUSAL:
        row = first + gl.arange(0, M, OF)
        limit = gl.minimum(limit, position + row // GROUP + 1)
        sure = gl.minimum(end, position + first // GROUP + 1)
    acc = gl.zeros((M, HALF), gl.float32, RESULT)
    top = gl.full((M,), float("-inf"), gl.float32, OF)
    total = gl.zeros((M,), gl.float32, OF)
    tiles = (end - begin + BN - 1) // BN
    for i in range(tiles // 2):
        token = begin + (2 * i + 1) * BN
        wrong = _missing(table, token, end, PAGES, PAGE, BN)
        z = _scores(q_tiles, q_more, c_ring, r_ring, full, 1, i, R, BN, CODED)
        _landed(p_full.index(0), i & 1, CODED)
        new = tops.index(0).load(OF)
        shrink = gl.exp2(top - _base(new))
        total = total * shrink
        acc = acc * gl.convert_layout(shrink, TO, assert_trivial=True)[:, None]
        acc = warpgroup_mma(p_tile, _flat(c_ring.index(1)), acc, is_async=True)
        z = warpgroup_mma_wait(num_outstanding=1, deps=(z,))
        if R:
            mbarrier.arrive(empty.index(5), count=1)
        p, top = _weights(z, new, factor, token, end, sure, limit, wrong, table, PAGES, PAGE)
        mbarrier.wait(full.index(4), i & 1)  # has been waited for: it ends a basic block, in which ptxas would move the exponentials down
        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
        mbarrier.arrive(empty.index(1), count=1)
        _publish(p, top, p_tile, tops.index(1), p_full.index(1))
        shrink = gl.exp2(new - _base(top))
        total = total * shrink + gl.sum(p, 1)
        acc = acc * gl.convert_layout(shrink, TO, assert_trivial=True)[:, None]
        _clear(c_ring.index(3), token, keys, BN, CLEARED)
        acc = warpgroup_mma(gl.convert_layout(p.to(p_tile.dtype), LEFT, assert_trivial=True), _flat(c_ring.index(3)), acc, is_async=True)
        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
        mbarrier.arrive(empty.index(4), count=1)
    if tiles % 2 == 1:
        _landed(p_full.index(0), tiles // 2 & 1, CODED)
        new = tops.index(0).load(OF)
        shrink = gl.exp2(top - _base(new))
        total = total * shrink
        top = new
        acc = acc * gl.convert_layout(shrink, TO, assert_trivial=True)[:, None]
        _clear(c_ring.index(1), begin + (tiles - 1) * BN, keys, BN, CLEARED)
        acc = warpgroup_mma(p_tile, _flat(c_ring.index(1)), acc, is_async=True)
        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
    _finish(1, acc, top, total, sums, summed, out, lse, parts, norms, weight, first, rows, part, GROUP, number, os, oh, V, PARTS)


@gluon.jit
def _finish(INDEX: gl.constexpr, acc, top, total, sums, summed, out, lse, parts, norms, weight, first, rows, part, GROUP, number, os, oh,
            V: gl.constexpr, PARTS: gl.constexpr):
    """A group's half of the result, divided by what both groups have added up. `number`: of the first head and query among all rows."""
    M: gl.constexpr = acc.shape[0]
    HALF: gl.constexpr = acc.shape[1]
    OF: gl.constexpr = top.type.layout
    TO: gl.constexpr = gl.SliceLayout(1, acc.type.layout)
    sums.index(INDEX).store(total)
    gl.thread_barrier()
    mbarrier.arrive(summed.index(INDEX), count=1)
    mbarrier.wait(summed.index(1 - INDEX), 0)
    total = sums.index(0).load(OF) + sums.index(1).load(OF)
    share = weight / gl.where(total == 0, 1.0, total)
    made = acc * gl.convert_layout(share, TO, assert_trivial=True)[:, None]
    column = INDEX * HALF + gl.arange(0, HALF, gl.SliceLayout(0, acc.type.layout))
    row = first + gl.arange(0, M, TO)
    queries = rows // GROUP
    inside = (row < rows)[:, None] & (column < V)[None, :]
    mine = first + gl.arange(0, M, OF)
    at = number + (mine % GROUP).to(gl.int64) * queries + mine // GROUP
    norm = top + gl.log2(total)
    if PARTS == 1:
        to = out + ((row // GROUP).to(gl.int64) * os + (row % GROUP).to(gl.int64) * oh)[:, None] + column[None, :]
        gl.store(to, made.to(out.dtype.element_ty), mask=inside)
        if INDEX == 0:
            gl.store(lse + at, norm / LOG2E, mask=mine < rows)
    else:
        to = (number + (row % GROUP).to(gl.int64) * queries + row // GROUP) * PARTS + part
        gl.store(parts + (to * V)[:, None] + column[None, :], made, mask=inside)
        if INDEX == 0:
            gl.store(norms + (at * PARTS + part), norm, mask=mine < rows)


@gluon.jit(do_not_specialize=("SQ", "SK", "PAGES", "H", "GROUP"))
def _part(q, codes, c_desc, r_desc, table, lengths, kv_scale, out, lse, parts, norms, scale, SQ, SK, PAGES, H, GROUP, qb, qs, qh, kb, ks, kh, ob,
          os, oh, tb, kg, V: gl.constexpr, R: gl.constexpr, HALF: gl.constexpr, SIZE_R: gl.constexpr, M: gl.constexpr, BN: gl.constexpr, PAGE: gl.constexpr,
          PARTS: gl.constexpr, CAUSAL: gl.constexpr, C_TILE: gl.constexpr, R_TILE: gl.constexpr,
          Q_TILE: gl.constexpr, Q_MORE: gl.constexpr):
    """Part `program_id(0) % PARTS` of the tokens that a tile of rows sees, the last rows first: out and lse if there is one part, else
    parts [B, H, SQ, PARTS, V] and norms [B, H, SQ, PARTS], in base 2. `codes`: the cache if it has 8 bits, else the descriptors are of it.
    Strides of batch, token and head: q, codes (k, in words of four) and out."""
    part = gl.program_id(0) % PARTS
    first = (gl.num_programs(0) - 1 - gl.program_id(0)) // PARTS * M
    key_head = gl.program_id(1)
    batch = gl.program_id(2)
    wide = batch.to(gl.int64)
    rows = SQ * GROUP
    keys = SK
    if lengths is not None:
        keys = gl.minimum(gl.maximum(gl.load(lengths + batch).to(gl.int32), 0), SK)
    position = keys - SQ
    weight = 1.0
    factor = scale * LOG2E
    if kv_scale is not None:
        weight = gl.load(kv_scale + key_head * kg)
        factor = factor * weight
    high = keys
    if CAUSAL:
        last = (gl.minimum(first + M, rows) - 1) // GROUP
        high = gl.maximum(gl.minimum(keys, position + last + 1), 0)
    each = ((high + BN - 1) // BN + PARTS - 1) // PARTS * BN
    begin = gl.minimum(part * each, high)
    end = gl.minimum(begin + each, high)
    if PAGE:
        table += wide * tb
    q += wide * qb + (key_head * GROUP).to(gl.int64) * qh
    out += wide * ob + (key_head * GROUP).to(gl.int64) * oh
    number = (wide * H + key_head * GROUP) * SQ

    KIND: gl.constexpr = q.dtype.element_ty
    q_tiles = gl.allocate_shared_memory(KIND, [2, M, HALF], Q_TILE)
    c_ring = gl.allocate_shared_memory(KIND, [4, 1, 1, BN, HALF], C_TILE)
    if R:
        q_more = gl.allocate_shared_memory(KIND, [M, SIZE_R], Q_MORE)
        r_ring = gl.allocate_shared_memory(KIND, [2, 1, 1, BN, SIZE_R], R_TILE)
    else:
        q_more = q_tiles
        r_ring = c_ring
    p_tile = gl.allocate_shared_memory(KIND, [M, BN], gl.NVMMASharedLayout.get_default_for([M, BN], KIND))
    LINE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    tops = gl.allocate_shared_memory(gl.float32, [2, M], LINE)
    sums = gl.allocate_shared_memory(gl.float32, [2, M], LINE)
    full = gl.allocate_shared_memory(gl.int64, [6, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [6, 1], mbarrier.MBarrierLayout())
    q_full = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    p_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    summed = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(6):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    for i in gl.static_range(2):
        mbarrier.init(p_full.index(i), count=1)
        mbarrier.init(summed.index(i), count=1)
    mbarrier.init(q_full.index(0), count=2)
    fence_async_shared()
    CODED: gl.constexpr = codes is not None
    CLEARED: gl.constexpr = codes is None and lengths is not None
    if codes is None:
        gl.warp_specialize([
            (_even, (q_tiles, q_more, c_ring, r_ring, p_tile, tops, sums, full, empty, q_full, p_full, summed, q, table, out, lse, parts, norms, factor,
                     weight, first, rows, begin, end, keys, part, position, PAGES, GROUP, number, qs, qh, os, oh, V, R, PAGE, BN, PARTS, CAUSAL, CLEARED,
                     CODED)),
            (_odd, (q_tiles, q_more, c_ring, r_ring, p_tile, tops, sums, full, empty, q_full, p_full, summed, q, table, out, lse, parts, norms, factor,
                    weight, first, rows, begin, end, keys, part, position, PAGES, GROUP, number, qs, qh, os, oh, V, R, PAGE, BN, PARTS, CAUSAL, CLEARED,
                    CODED)),
            (_load, (c_desc, r_desc, c_ring, r_ring, full, empty, table, begin, end, batch, key_head, V, R, PAGE, BN)),
        ], [4, 1], [240, 24])
    else:
        words = codes.to(gl.pointer_type(gl.int32)) + key_head.to(gl.int64) * kh
        if PAGE == 0:
            words += wide * kb
        gl.warp_specialize([
            (_even, (q_tiles, q_more, c_ring, r_ring, p_tile, tops, sums, full, empty, q_full, p_full, summed, q, table, out, lse, parts, norms, factor,
                     weight, first, rows, begin, end, keys, part, position, PAGES, GROUP, number, qs, qh, os, oh, V, R, PAGE, BN, PARTS, CAUSAL, CLEARED,
                     CODED)),
            (_odd, (q_tiles, q_more, c_ring, r_ring, p_tile, tops, sums, full, empty, q_full, p_full, summed, q, table, out, lse, parts, norms, factor,
                    weight, first, rows, begin, end, keys, part, position, PAGES, GROUP, number, qs, qh, os, oh, V, R, PAGE, BN, PARTS, CAUSAL, CLEARED,
                    CODED)),
            (load_codes, (words, c_ring, r_ring, full, empty, table, begin, end, keys, kb, ks, PAGES, V, R, PAGE, BN)),
        ], [4, 4], [192, 120])


@dataclass(frozen=True)
class Config:
    """Parts of the tokens of a sequence."""

    parts: int


def _half(p: Problem) -> int:
    """Columns of half of a value, padded to whole rows of 128 bytes."""
    return max(64, pow2(_latent.columns(p)[0]) // 2)


def _more(p: Problem) -> int:
    more = _latent.columns(p)[1]
    return max(64, pow2(more)) if more else 0


def _held(p: Problem) -> int:
    """Bytes of shared memory: the queries, two tiles of tokens, one of weights; maxima, sums, barriers and what the warps are told."""
    return 2 * 3 * ROWS * (2 * _half(p) + _more(p)) + 2 * ROWS * TOKENS + 2048


def _paged(p: Problem) -> bool:
    return p.get("page_table") is not None


def _coded(p: Problem) -> bool:
    return p["kv"].dtype == shared.EIGHT_BITS


def supports(p: Problem) -> str | None:
    q, kv = p["q"], p["kv"]
    if q.dtype not in ("f16", "bf16") or kv.dtype not in (q.dtype, shared.EIGHT_BITS):
        return f"takes f16 and bf16, and kv of {shared.EIGHT_BITS}; given {q.dtype} and {kv.dtype}"
    if reason := _latent.refused(p):
        return reason
    if _held(p) > p.device.shared_per_block:
        return f"needs {_held(p)} bytes of shared memory"
    page = kv.shape[1]
    if _paged(p) and page % TOKENS and (TOKENS % page or page % 8) and not _coded(p):
        return f"takes pages of 8, 16, 32 and of multiples of {TOKENS} tokens; given {page}"
    if reason := not_copied(kv, *_heads_first(p)):
        return f"TMA does not copy kv: {reason}"
    return None


def choose(p: Problem) -> Config:
    """One block on a multiprocessor. Before its first tile it waits for 72 KB of queries and 72 KB of tokens: 4 tiles a part at least."""
    blocks, tiles = -(-_latent.rows(p) // ROWS) * p["kv"].shape[2] * p["q"].shape[0], -(-_latent.room(p) // TOKENS)
    return Config(_latent.parts(blocks, p.device.sms, tiles, 4))


def configs(p: Problem) -> list[Config]:
    n = choose(p).parts
    return [Config(m) for m in sorted({max(1, n // 2), n, 2 * n}) if m <= _latent.SPLITS]


def for_any_rows(p: Problem) -> str:
    return "how the tokens are split follows from the number of sequences"


def explains(p: Problem, config: Config) -> str:
    return f"tiles of {ROWS} rows and {TOKENS} tokens, {config.parts} parts of the tokens of a sequence"


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    return _latent.scratch(p, config.parts)


def _heads_first(p: Problem) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of kv as [B, Hk, S, D], or of its pages."""
    (b, s, h, d), (sb, ss, sh, sd) = p["kv"].shape, p["kv"].strides
    return (b, h, s, d), (sb, sh, ss, sd)


def launches(p: Problem, config: Config) -> list[Launch]:
    from triton.experimental.gluon.language import bfloat16, float16

    q, kv = p["q"], p["kv"]
    value, more = _latent.columns(p)
    half, size_r, kind = _half(p), _more(p), bfloat16 if q.dtype == "bf16" else float16
    shape, strides = _heads_first(p)
    short = kv.shape[1] if _paged(p) and kv.shape[1] < TOKENS else 0  # tokens of a page, if a tile has several

    def laid(*block: int):  # type: ignore[no-untyped-def]
        return gl.NVMMASharedLayout.get_default_for(list(block), kind)

    def tiled(columns: int, last: int) -> Descriptor:
        block = (1, 1, short or TOKENS, 64 if short else columns)
        return Descriptor("kv", block, laid(*block), shape=(*shape[:3], last), strides=strides)

    coded = _coded(p)
    args = {
        "codes": "kv" if coded else None, "c_desc": None if coded else tiled(half, value),
        "r_desc": None if coded else tiled(size_r or half, value + more), **{n: s // 4 for n, s in shared.strides(p, "k", "kv").items()},
        **_latent.arguments(p, config.parts), "HALF": half, "SIZE_R": size_r, "M": ROWS, "BN": TOKENS, "C_TILE": laid(1, 1, TOKENS, half),
        "R_TILE": laid(1, 1, TOKENS, size_r or half), "Q_TILE": laid(ROWS, half), "Q_MORE": laid(ROWS, size_r or half),
    }
    for name in ("table", "parts", "norms"):
        args[name] = args[name] or "lse"  # unused, but what a warp group is given must be a tensor
    tiles = -(-_latent.rows(p) // ROWS)
    made = [Launch(_part, (tiles * config.parts, kv.shape[2], q.shape[0]), args, warps=4)]
    return made + _latent.joined(p, config.parts)
