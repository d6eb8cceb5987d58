"""Products of many matrices whose sizes only the device knows, on Hopper: a persistent, warp-specialised kernel in Gluon in the form of
`_product_gluon`.

Tiles are numbered group by group and assigned to blocks by a fixed stride, so the group number of a block's tiles only grows: the producer
and the consumers each walk the offsets once. TMA does not know where a group ends. ROWS: a box may contain rows of the next group; their
results are not stored. A tile that its group fills is stored by TMA, any other from shared memory through registers, row by row. DEPTH: a
box may contain a part of K of the next group; the consumers set it to zero, in a and in b, before they multiply (a NaN of another group
times 0 would be NaN). MASKED: only the first offsets[g] rows of matrix g are computed; the others become zeros.

fp8 with scales: each slice of 128 products is accumulated by itself and added to a float32 sum, times its scales if they are of blocks;
those of rows and columns follow the last slice."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from rooftop.kernels._device.gluon_tiles import bring, flat, halves
from rooftop.kernels.gemm import _group_scheduler

UNSCALED, LINES, BLOCKS = gl.constexpr(0), gl.constexpr(1), gl.constexpr(2)  # of rows and columns; of 128 along K, and 128 columns
FORMS, ROWS, DEPTH, MASKED = _group_scheduler.FORMS, _group_scheduler.ROWS, _group_scheduler.DEPTH, _group_scheduler.MASKED
walk = _group_scheduler
tiles_of, advance, start_of, work_of = (gluon.jit(f.fn) for f in (walk.tiles_of, walk.advance, walk.start_of, walk.work_of))


@gluon.jit
def load(a_desc, b_desc, a_ring, b_ring, full, empty, offsets, G, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr,
         GROUPS: gl.constexpr, STAGES: gl.constexpr, A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr, FORM: gl.constexpr):
    """The producer warp."""
    RM: gl.constexpr = BM // GROUPS
    BYTES: gl.constexpr = GROUPS * a_desc.block_type.nbytes + b_desc.block_type.nbytes
    n = 0
    g = 0
    base = 0
    begin = 0
    end = start_of(offsets, G, M, FORM)
    total = G * tiles_of(0, M, N, BM, BN)
    t = gl.program_id(0)
    if FORM == ROWS:
        g, base, begin, end = advance(t, g, base, begin, end, offsets, G, M, N, BM, BN)
    while (g <= G) & ((FORM == ROWS) | (t < total)):
        z, row, column, _, first, last = work_of(t, g, base, begin, end, offsets, G, M, N, K, BM, BN, FORM)
        for k in range(first, last, BK):
            stage = n % STAGES
            mbarrier.wait(empty.index(stage), (n // STAGES & 1) ^ 1)
            mbarrier.expect(full.index(stage), BYTES)
            for i in gl.static_range(GROUPS):
                bring(
                    a_desc, 0 if FORM != MASKED else z, row + i * RM, k, A_COLUMNS, True, full.index(stage),
                    a_ring.index(stage * GROUPS + i)
                )
            bring(b_desc, 0 if FORM == DEPTH else z, k, column, B_COLUMNS, True, full.index(stage), b_ring.index(stage))
            n += 1
        t += gl.num_programs(0)
        if FORM == ROWS:
            g, base, begin, end = advance(t, g, base, begin, end, offsets, G, M, N, BM, BN)


@gluon.jit
def clear_past(x, left, DIM: gl.constexpr):
    """Writes zeros to a box [1, ., .] from index `left` of dimension DIM on. Several warp groups may write the same at once."""
    x = x.reshape([x.shape[1], x.shape[2]])
    L: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    values = x.load(L)
    if DIM == 0:
        inside = (gl.arange(0, x.shape[0], gl.SliceLayout(1, L)) < left)[:, None]
    else:
        inside = (gl.arange(0, x.shape[1], gl.SliceLayout(0, L)) < left)[None, :]
    x.store(gl.where(inside, values, gl.zeros_like(values)))


@gluon.jit
def consume(GROUP_INDEX: gl.constexpr, a_ring, b_ring, c_ring, full, empty, out_desc, out, ldo, zo, offsets, G, M, N, K, BM: gl.constexpr,
            BN: gl.constexpr, BK: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr, A_COLUMNS: gl.constexpr,
            B_COLUMNS: gl.constexpr, FORM: gl.constexpr, scale_a, scale_b, SCALED: gl.constexpr):
    """One consumer warp group: rows from GROUP_INDEX · RM on of each tile."""
    RM: gl.constexpr = BM // GROUPS
    WIDTH: gl.constexpr = 256 // a_ring.dtype.primitive_bitwidth
    MMA: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, WIDTH])
    n = 0
    g = 0
    base = 0
    begin = 0
    end = start_of(offsets, G, M, FORM)
    total = G * tiles_of(0, M, N, BM, BN)
    t = gl.program_id(0)
    acc = gl.zeros((RM, BN), gl.float32, MMA)
    if FORM == ROWS:
        g, base, begin, end = advance(t, g, base, begin, end, offsets, G, M, N, BM, BN)
    while (g <= G) & ((FORM == ROWS) | (t < total)):
        z, row, column, limit, first, last = work_of(t, g, base, begin, end, offsets, G, M, N, K, BM, BN, FORM)
        if SCALED != UNSCALED:
            total_acc = gl.zeros((RM, BN), gl.float32, MMA)
            of_a = (0 if FORM == ROWS else z.to(gl.int64) * M) + (row + GROUP_INDEX * RM + gl.arange(0, RM, gl.SliceLayout(1, MMA))).to(gl.int64)
            there = row + GROUP_INDEX * RM + gl.arange(0, RM, gl.SliceLayout(1, MMA)) < limit
            across = gl.cdiv(N, 128)
        for k in range(first, last, BK):
            stage = n % STAGES
            mbarrier.wait(full.index(stage), n // STAGES & 1)
            if FORM == DEPTH:  # noqa: SIM102
                if last - k < BK:
                    clear_past(a_ring.index(stage * GROUPS + GROUP_INDEX), last - k, 0 if A_COLUMNS else 1)
                    clear_past(b_ring.index(stage), last - k, 1 if B_COLUMNS else 0)
                    fence_async_shared()
            a = flat(a_ring.index(stage * GROUPS + GROUP_INDEX), A_COLUMNS, True)
            b = flat(b_ring.index(stage), B_COLUMNS, True)
            if SCALED != UNSCALED:
                acc = warpgroup_mma(a, b, acc, use_acc=False, is_async=True)
                if SCALED == BLOCKS:  # loaded while the slice is multiplied
                    slices = gl.cdiv(K, BK)
                    of_rows = gl.load(scale_a + of_a * slices + k // BK, mask=there, other=0.0)
                    of_block = gl.load(scale_b + (z.to(gl.int64) * slices + k // BK) * across + column // 128)
                acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
                mbarrier.arrive(empty.index(stage), count=1)
                if SCALED == BLOCKS:
                    total_acc += acc * (of_rows * of_block)[:, None]
                else:
                    total_acc += acc
            else:
                acc = warpgroup_mma(a, b, acc, use_acc=k > first, is_async=True)
                acc = warpgroup_mma_wait(num_outstanding=1, deps=(acc,))
                mbarrier.arrive(empty.index((n + STAGES - 1) % STAGES), count=1, pred=k > first)
            n += 1
        if SCALED == UNSCALED:
            acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
            mbarrier.arrive(empty.index((n + STAGES - 1) % STAGES), count=1, pred=last > first)
            put_tile(GROUP_INDEX, acc, c_ring, out_desc, out, ldo, zo, z, row + GROUP_INDEX * RM, column, limit, M, N, last > first, FORM)
        else:
            if SCALED == LINES:
                columns = column + gl.arange(0, BN, gl.SliceLayout(0, MMA))
                of_rows = gl.load(scale_a + of_a, mask=there, other=0.0)
                of_columns = gl.load(scale_b + z.to(gl.int64) * N + columns, mask=(columns < N) & (last > first), other=0.0)
                total_acc = total_acc * of_rows[:, None] * of_columns[None, :]
            put_tile(
                GROUP_INDEX, total_acc, c_ring, out_desc, out, ldo, zo, z, row + GROUP_INDEX * RM, column, limit, M, N, last > first, FORM
            )
        t += gl.num_programs(0)
        if FORM == ROWS:
            g, base, begin, end = advance(t, g, base, begin, end, offsets, G, M, N, BM, BN)
    tma.store_wait(0)


@gluon.jit
def put_tile(GROUP_INDEX: gl.constexpr, acc, c_ring, out_desc, out, ldo, zo, z, row, column, limit, M, N, made, FORM: gl.constexpr):
    """Stores one group's part of a tile, 64 columns at a time. `made`: whether there was something to multiply; else the result is
    zeros."""
    RM: gl.constexpr = acc.shape[0]
    BN: gl.constexpr = acc.shape[1]
    WIDTH: gl.constexpr = acc.type.layout.instr_shape[2]
    HALF: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN // 2, WIDTH])
    FLAT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    if BN == 64:
        pieces = (acc,)
    elif BN == 128:
        pieces = halves(acc, HALF)
    else:
        QUARTER: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN // 4, WIDTH])
        left, right = halves(acc, HALF)
        pieces = halves(left, QUARTER) + halves(right, QUARTER)
    whole = made & (row + RM <= limit)
    for i in gl.static_range(BN // 64):
        buffer = c_ring.index(GROUP_INDEX * 2 + i % 2).reshape([RM, 64])
        if whole:
            tma.store_wait(1 if BN > 64 else 0)
        else:  # this path issues no TMA store, so there is none to leave in flight
            tma.store_wait(0)
        buffer.store(pieces[i].to(out_desc.dtype))
        if whole:
            fence_async_shared()
            tma.async_copy_shared_to_global(
                out_desc, [0 if FORM == ROWS else z, row, column + i * 64], c_ring.index(GROUP_INDEX * 2 + i % 2)
            )
        else:
            values = buffer.load(FLAT)
            rows = row + gl.arange(0, RM, gl.SliceLayout(1, FLAT))
            columns = column + i * 64 + gl.arange(0, 64, gl.SliceLayout(0, FLAT))
            written = limit if FORM == ROWS else M
            values = gl.where((rows < (limit if made else row))[:, None], values, gl.zeros_like(values))
            at = z.to(gl.int64) * zo + (rows.to(gl.int64) * ldo)[:, None] + columns[None, :]
            gl.store(out + at, values, mask=(rows < written)[:, None] & (columns < N)[None, :])


@gluon.jit(do_not_specialize=("G", "M", "K"))
def grouped(a_desc, b_desc, out_desc, out, ldo, zo, offsets, G, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr,
            GROUPS: gl.constexpr, STAGES: gl.constexpr, A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr, FORM: gl.constexpr, scale_a=None,
            scale_b=None, SCALED: gl.constexpr = 0):
    """Boxes are [1, ., .] of three-dimensional tensors. X_COLUMNS: the descriptor is of the transposed operand."""
    a_ring = gl.allocate_shared_memory(a_desc.dtype, [STAGES * GROUPS] + a_desc.block_type.shape, a_desc.layout)
    b_ring = gl.allocate_shared_memory(b_desc.dtype, [STAGES] + b_desc.block_type.shape, b_desc.layout)
    c_ring = gl.allocate_shared_memory(out_desc.dtype, [2 * GROUPS] + out_desc.block_type.shape, out_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=GROUPS)
    fence_async_shared()
    if GROUPS == 1:
        gl.warp_specialize([
            (consume,
                       (0, a_ring, b_ring, c_ring, full, empty, out_desc, out, ldo, zo, offsets, G, M, N, K, BM, BN, BK, GROUPS, STAGES,
                       A_COLUMNS, B_COLUMNS, FORM, scale_a, scale_b, SCALED)),
            (
                load,
                (a_desc, b_desc, a_ring, b_ring, full, empty, offsets, G, M, N, K, BM, BN, BK, GROUPS, STAGES, A_COLUMNS, B_COLUMNS, FORM)
            ),
        ], [1], [40])
    else:
        gl.warp_specialize([
            (consume,
                       (0, a_ring, b_ring, c_ring, full, empty, out_desc, out, ldo, zo, offsets, G, M, N, K, BM, BN, BK, GROUPS, STAGES,
                       A_COLUMNS, B_COLUMNS, FORM, scale_a, scale_b, SCALED)),
            (consume,
                       (1, a_ring, b_ring, c_ring, full, empty, out_desc, out, ldo, zo, offsets, G, M, N, K, BM, BN, BK, GROUPS, STAGES,
                       A_COLUMNS, B_COLUMNS, FORM, scale_a, scale_b, SCALED)),
            (
                load,
                (a_desc, b_desc, a_ring, b_ring, full, empty, offsets, G, M, N, K, BM, BN, BK, GROUPS, STAGES, A_COLUMNS, B_COLUMNS, FORM)
            ),
        ], [4, 1], [232, 40])
