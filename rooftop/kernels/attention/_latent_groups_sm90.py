"""Latent attention on Hopper: the producer warp, and the two warp groups that take turns with the scores of tiles of tokens."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from rooftop.kernels.attention._packed_sm90 import clear_rows

LOG2E = gl.constexpr(1.4426950408889634)


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
def load_tokens(c_desc, r_desc, c_ring, r_ring, full, empty, table, begin, end, batch, key_head, V: gl.constexpr, R: gl.constexpr, PAGE: gl.constexpr,
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
def even(q_tiles, q_more, c_ring, r_ring, p_tile, tops, sums, full, empty, q_full, p_full, summed, q, table, out, lse, parts, norms, factor,
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
def odd(q_tiles, q_more, c_ring, r_ring, p_tile, tops, sums, full, empty, q_full, p_full, summed, q, table, out, lse, parts, norms, factor,
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
