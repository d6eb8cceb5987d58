"""The Hopper matrix product in Gluon: a persistent, warp-specialised kernel that every product of this family runs.

A block is one producer warp and one or two consumer warp groups. The producer loads slices of A and B by TMA into a ring of stages; each
stage has two mbarriers, `full` (its bytes have arrived) and `empty` (every consumer has released it). A consumer group computes BM / GROUPS
rows of the tile with wgmma, one product in flight, and stores its part while the producer already loads the next tile.

The first `whole` tiles are assigned to blocks by a fixed stride. The others, `streamed` of them, would leave multiprocessors idle, so their
slices of K are divided in one of two ways, and a second launch adds the pieces of a tile, always in the order of K.
SPLIT > 1 (split-K): every such tile is cut into SPLIT nearly equal pieces of K, one work item each; all blocks process the same part of K
at the same time, so that operands shared by tiles are read into L2 once (`gemm_epilogue.add_split`).
STREAM: the slices are divided evenly among the blocks, in order (stream-K, Osama et al. 2023); a tile that one block computed completely is
stored as any other (`gemm_epilogue.add_pieces`).

TMA fills rows and columns past the end with zeros, and the store skips them. Integers are 32 bits wide: TMA uses coordinates,
not offsets."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents

from rooftop.kernels._device import activations, gemm_epilogue
from rooftop.kernels._device.gluon_tiles import bring, flat, halves

place = gluon.jit(gemm_epilogue.place.fn)
begin_of = gluon.jit(gemm_epilogue.begin_of.fn)
finish = gluon.jit(gemm_epilogue.finish.fn)
put = gluon.jit(gemm_epilogue.put.fn)
vector = gluon.jit(gemm_epilogue.vector.fn)
scale_of = gluon.jit(gemm_epilogue.scale_of.fn)
gelu_coarse = gluon.jit(activations.gelu_coarse.fn)
gelu_fine = gluon.jit(activations.gelu_fine.fn)
gelu_tanh_fine = gluon.jit(activations.gelu_tanh_fine.fn)
BLOCKS, GELU, GELU_TANH = gemm_epilogue.BLOCKS, gemm_epilogue.GELU, gemm_epilogue.GELU_TANH


@gluon.jit
def share(whole, streamed, slices, SPLIT: gl.constexpr):
    """This block's work: tiles (and pieces, with SPLIT) assigned by a fixed stride, then its first slice and one past its last among those
    that are divided among the blocks, and the number of pieces."""
    p, blocks = gl.program_id(0), gl.num_programs(0)
    if SPLIT > 1:
        whole += SPLIT * streamed
    turns = gl.cdiv(gl.maximum(whole - p, 0), blocks)
    begin = begin_of(p, blocks, streamed * slices)
    end = begin_of(p + 1, blocks, streamed * slices)
    pieces = 0
    if end > begin:
        pieces = (end - 1) // slices - begin // slices + 1
    return turns, begin, end, pieces


@gluon.jit
def item(i, turns, begin, end, whole, streamed, slices, STREAM: gl.constexpr, SPLIT: gl.constexpr):
    """The i-th work item of this block: tile, first slice, one past the last."""
    tile = gl.program_id(0) + i * gl.num_programs(0)
    first = 0
    last = slices
    if SPLIT > 1:  # noqa: SIM102
        if tile >= whole:
            piece = (tile - whole) // streamed
            tile = whole + (tile - whole) % streamed
            first = begin_of(piece, SPLIT, slices)
            last = begin_of(piece + 1, SPLIT, slices)
    if STREAM:  # noqa: SIM102
        if i >= turns:
            t = begin // slices + i - turns
            tile = whole + t
            first = gl.maximum(begin - t * slices, 0)
            last = gl.minimum(end - t * slices, slices)
    return tile, first, last


@gluon.jit
def load(a_desc, b_desc, a_ring, b_ring, full, empty, M, N, K, whole, streamed, group, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr,
         GROUPS: gl.constexpr, STAGES: gl.constexpr, A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr, BATCHED: gl.constexpr,
         STREAM: gl.constexpr, SPLIT: gl.constexpr):
    """The producer warp. X_COLUMNS: the descriptor is of the transposed operand, whose columns are contiguous in memory."""
    RM: gl.constexpr = BM // GROUPS
    BYTES: gl.constexpr = GROUPS * a_desc.block_type.nbytes + b_desc.block_type.nbytes
    slices = gl.cdiv(K, BK)
    turns, begin, end, pieces = share(whole, streamed, slices, SPLIT)
    items = turns + pieces if STREAM else turns
    n = 0
    for i in range(items):
        tile, first, last = item(i, turns, begin, end, whole, streamed, slices, STREAM, SPLIT)
        pm, pn, z = place(tile, M, N, group, BM, BN)
        for k in range(first, last):
            stage = n % STAGES
            mbarrier.wait(empty.index(stage), (n // STAGES & 1) ^ 1)
            mbarrier.expect(full.index(stage), BYTES)
            for g in gl.static_range(GROUPS):
                bring(a_desc, z, pm * BM + g * RM, k * BK, A_COLUMNS, BATCHED, full.index(stage), a_ring.index(stage * GROUPS + g))
            bring(b_desc, z, k * BK, pn * BN, B_COLUMNS, BATCHED, full.index(stage), b_ring.index(stage))
            n += 1
    if STREAM or SPLIT > 1:
        gdc_launch_dependents()  # the reduction of the parts: its blocks start while the last tiles are computed, and wait


@gluon.jit
def scales_of_slice(scale_a, scale_b, rows, column, M, N, slices, k):
    """Of blocks: the factors of slice k, of these rows and of the block of 128 columns."""
    of_rows = gl.load(scale_a + rows.to(gl.int64) * slices + k, mask=rows < M, other=0.0)
    return of_rows, gl.load(scale_b + k * gl.cdiv(N, 128) + column // 128)


@gluon.jit
def add_scaled(GROUP_INDEX: gl.constexpr, a_ring, b_ring, full, empty, n, acc, total, of_rows, of_block, scale_a, scale_b, rows, column, M, N,
               slices, following, GROUPS: gl.constexpr, STAGES: gl.constexpr, A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr,
               BATCHED: gl.constexpr):
    """Adds slice n of the ring times its factors. Returns those of slice `following` of K too, which are on their way meanwhile."""
    stage = n % STAGES
    mbarrier.wait(full.index(stage), n // STAGES & 1)
    a = flat(a_ring.index(stage * GROUPS + GROUP_INDEX), A_COLUMNS, BATCHED)
    b = flat(b_ring.index(stage), B_COLUMNS, BATCHED)
    acc = warpgroup_mma(a, b, acc, use_acc=False, is_async=True)
    next_rows, next_block = scales_of_slice(scale_a, scale_b, rows, column, M, N, slices, gl.minimum(following, slices - 1))
    acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
    mbarrier.arrive(empty.index(stage), count=1)
    total += acc * (of_rows * of_block)[:, None]
    return acc, total, next_rows, next_block


@gluon.jit
def consume(GROUP_INDEX: gl.constexpr, a_ring, b_ring, c_ring, vectors, full, empty, out_desc, out, ldo, zo, parts, M, N, K, whole,
            streamed, group, alpha, beta, scale_a, scale_b,
            c, ldc, zc, bias, gate, ldg, zg, residual, ldr, zr, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUPS: gl.constexpr,
            STAGES: gl.constexpr,
            A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr, BATCHED: gl.constexpr, STREAM: gl.constexpr, SPLIT: gl.constexpr,
            SWAP: gl.constexpr, RAW: gl.constexpr, PROMOTE: gl.constexpr, SCALES: gl.constexpr,
            ACT: gl.constexpr, SHORT: gl.constexpr, EN: gl.constexpr):
    """One consumer warp group: rows from GROUP_INDEX · RM on of each tile.

    PROMOTE: tensor cores accumulate fp8 products with fewer than 24 bits; so each slice is accumulated separately and added to a float32
    sum. SCALES: the kind of scale_a and scale_b, as in `gemm_epilogue`; BLOCKS requires PROMOTE, BK = 128 and a BN that divides 128."""
    RM: gl.constexpr = BM // GROUPS
    WIDTH: gl.constexpr = 256 // a_ring.dtype.primitive_bitwidth
    LONG: gl.constexpr = 128 if a_ring.dtype == gl.int8 and BN > 128 else BN  # Triton 3.6 has no longer integer instruction
    MMA: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, LONG, WIDTH])
    SUM: gl.constexpr = gl.int32 if a_ring.dtype == gl.int8 else gl.float32
    SCALED_A: gl.constexpr = scale_a is not None and SCALES != BLOCKS
    SCALED_B: gl.constexpr = scale_b is not None and SCALES != BLOCKS
    slices = gl.cdiv(K, BK)
    turns, begin, end, pieces = share(whole, streamed, slices, SPLIT)
    items = turns + pieces if STREAM else turns
    n = 0
    acc = gl.zeros((RM, BN), SUM, MMA)
    for i in range(items):
        tile, first, last = item(i, turns, begin, end, whole, streamed, slices, STREAM, SPLIT)
        pm, pn, z = place(tile, M, N, group, BM, BN)
        row, column = pm * BM + GROUP_INDEX * RM, pn * BN
        # Vectors of one value a row or column are loaded before the main loop and used after it.
        rows = row + gl.arange(0, RM, gl.SliceLayout(1, MMA))
        columns = column + gl.arange(0, BN, gl.BlockedLayout([1], [32], [4], [0]))
        row_bias, column_bias = vector(bias if SWAP else None, rows, M), vector(None if SWAP else bias, columns, N)
        if SCALES == BLOCKS:
            row_scale, column_scale = rows, columns
        else:
            row_scale, column_scale = scale_of(scale_a, rows, M, SCALES), scale_of(scale_b, columns, N, SCALES)
        if PROMOTE:
            total = gl.zeros((RM, BN), SUM, MMA)
        if SCALES == BLOCKS:
            of_rows, of_block = scales_of_slice(scale_a, scale_b, rows, column, M, N, slices, first)
            pairs = (last - first) // 2
            # two slices a turn: factors that are carried around a loop are moved, and waited for, as soon as they are asked for
            for pair in range(pairs):
                k = first + 2 * pair
                acc, total, other_rows, other_block = add_scaled(
                    GROUP_INDEX, a_ring, b_ring, full, empty, n, acc, total, of_rows, of_block, scale_a, scale_b, rows, column, M, N, slices, k + 1,
                    GROUPS, STAGES, A_COLUMNS, B_COLUMNS, BATCHED)
                acc, total, of_rows, of_block = add_scaled(
                    GROUP_INDEX, a_ring, b_ring, full, empty, n + 1, acc, total, other_rows, other_block, scale_a, scale_b, rows, column, M, N,
                    slices, k + 2, GROUPS, STAGES, A_COLUMNS, B_COLUMNS, BATCHED)
                n += 2
            for k in range(first + 2 * pairs, last):
                acc, total, of_rows, of_block = add_scaled(
                    GROUP_INDEX, a_ring, b_ring, full, empty, n, acc, total, of_rows, of_block, scale_a, scale_b, rows, column, M, N, slices, k,
                    GROUPS, STAGES, A_COLUMNS, B_COLUMNS, BATCHED)
                n += 1
        else:
            for k in range(first, last):
                stage = n % STAGES
                mbarrier.wait(full.index(stage), n // STAGES & 1)
                a = flat(a_ring.index(stage * GROUPS + GROUP_INDEX), A_COLUMNS, BATCHED)
                b = flat(b_ring.index(stage), B_COLUMNS, BATCHED)
                if PROMOTE:
                    acc = warpgroup_mma(a, b, acc, use_acc=False, is_async=True)
                    acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
                    mbarrier.arrive(empty.index(stage), count=1)
                    total += acc
                else:
                    acc = warpgroup_mma(a, b, acc, use_acc=k > first, is_async=True)
                    acc = warpgroup_mma_wait(num_outstanding=1, deps=(acc,))
                    mbarrier.arrive(empty.index((n + STAGES - 1) % STAGES), count=1, pred=k > first)
                n += 1
        if PROMOTE:
            sums = total
        else:
            acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
            mbarrier.arrive(empty.index((n + STAGES - 1) % STAGES), count=1)
            sums = acc
        if STREAM or SPLIT > 1:
            if last - first < slices:
                slot = gl.program_id(0) + i * gl.num_programs(0) - whole if SPLIT > 1 else 2 * gl.program_id(0) + gl.minimum(i - turns, 1)
                keep(sums, parts, slot, GROUP_INDEX * RM, BM, BN)
            else:
                store(GROUP_INDEX, sums, c_ring, vectors, out_desc, out, ldo, zo, row, column, z, M, N, alpha, beta, row_scale,
                      column_scale, c, ldc, zc, row_bias, column_bias, gate, ldg, zg,
                      residual, ldr, zr, SCALED_A, SCALED_B, bias is not None, BATCHED, SWAP, RAW, ACT, SHORT, EN)
        else:
            store(GROUP_INDEX, sums, c_ring, vectors, out_desc, out, ldo, zo, row, column, z, M, N, alpha, beta, row_scale, column_scale, c,
                  ldc, zc, row_bias, column_bias, gate, ldg, zg,
                  residual, ldr, zr, SCALED_A, SCALED_B, bias is not None, BATCHED, SWAP, RAW, ACT, SHORT, EN)
    tma.store_wait(0)


@gluon.jit
def keep(x, parts, slot, row, BM: gl.constexpr, BN: gl.constexpr):
    """Stores a part of a tile among the parts (split-K or stream-K)."""
    L: gl.constexpr = x.type.layout
    rows = row + gl.arange(0, x.shape[0], gl.SliceLayout(1, L))
    columns = gl.arange(0, BN, gl.SliceLayout(0, L))
    gl.store(parts + slot.to(gl.int64) * (BM * BN) + (rows * BN)[:, None] + columns[None, :], x)


@gluon.jit
def part_of(x, vectors, which: gl.constexpr, i: gl.constexpr, EN: gl.constexpr, like, THERE: gl.constexpr):
    """Piece i of a vector over the columns, which is in shared memory; for none a dummy value."""
    if not THERE:
        return x
    else:  # noqa: RET505
        return vectors.index(which).slice(i * EN, EN).load(gl.SliceLayout(0, like.type.layout))


@gluon.jit
def gelu_of(x, ACT: gl.constexpr, out):
    """gelu or gelu_tanh as accurate as the type of the result can show. out: its descriptor or its address."""
    NARROW: gl.constexpr = out.dtype == gl.bfloat16 or out.dtype == gl.pointer_type(gl.bfloat16)
    if ACT == GELU_TANH:
        x = gelu_tanh_fine(x)
    elif NARROW:
        x = gelu_coarse(x)
    else:
        x = gelu_fine(x)
    return x


@gluon.jit
def store(GROUP_INDEX: gl.constexpr, acc, c_ring, vectors, out_desc, out, ldo, zo, row, column, z, M, N, alpha, beta, row_scale,
          column_scale, c, ldc, zc, row_bias,
          column_bias, gate, ldg, zg,
          residual, ldr, zr, SCALE_A: gl.constexpr, SCALE_B: gl.constexpr, BIAS: gl.constexpr, BATCHED: gl.constexpr, SWAP: gl.constexpr,
          RAW: gl.constexpr, ACT: gl.constexpr, SHORT: gl.constexpr, EN: gl.constexpr):
    """The epilogue of one group's part of a tile, EN columns at a time."""
    BN: gl.constexpr = acc.shape[1]
    PIECES: gl.constexpr = BN // EN
    VECTORS: gl.constexpr = (1 if SCALE_B else 0) + (1 if BIAS and not SWAP else 0)
    WIDTH: gl.constexpr = acc.type.layout.instr_shape[2]
    HALF: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN // 2, WIDTH])
    QUARTER: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN // 4, WIDTH])
    LINES: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    gl.static_assert(PIECES <= 4)
    if PIECES == 1:
        pieces = (acc,)
    elif PIECES == 2:
        pieces = halves(acc, HALF)
    else:
        left, right = halves(acc, HALF)
        pieces = halves(left, QUARTER) + halves(right, QUARTER)
    if SCALE_B:
        vectors.index(VECTORS * GROUP_INDEX).store(column_scale)
    if BIAS and not SWAP:
        vectors.index(VECTORS * GROUP_INDEX + VECTORS - 1).store(column_bias)
    for i in gl.static_range(PIECES):
        x = pieces[i]
        at = column + i * EN
        rows = row + gl.arange(0, x.shape[0], gl.SliceLayout(1, x.type.layout))
        columns = at + gl.arange(0, x.shape[1], gl.SliceLayout(0, x.type.layout))
        if not RAW:
            scale_here = gl.convert_layout(row_scale, gl.SliceLayout(1, x.type.layout), assert_trivial=True)
            bias_here = gl.convert_layout(row_bias, gl.SliceLayout(1, x.type.layout), assert_trivial=True)
            scale_piece = part_of(column_scale, vectors, VECTORS * GROUP_INDEX, i, EN, x, SCALE_B)
            bias_piece = part_of(column_bias, vectors, VECTORS * GROUP_INDEX + VECTORS - 1, i, EN, x, BIAS and not SWAP)
            if SHORT and (ACT == GELU or ACT == GELU_TANH):  # noqa: SIM109
                x = finish(x, rows, columns, z, M, N, alpha, beta, scale_here, scale_piece, c, ldc, zc, bias_here, bias_piece, None, 0, 0,
                           None, 0, 0, SCALE_A, SCALE_B, BIAS, SWAP, 0, SHORT)
                x = gelu_of(x, ACT, out if out_desc is None else out_desc)
                x = finish(x, rows, columns, z, M, N, 1.0, 0.0, scale_here, scale_piece, None, 0, 0, bias_here, bias_piece, gate, ldg, zg,
                           residual, ldr, zr, False, False, False, SWAP, 0, SHORT)
            else:
                x = finish(x, rows, columns, z, M, N, alpha, beta, scale_here, scale_piece, c, ldc, zc, bias_here, bias_piece, gate, ldg,
                           zg, residual, ldr, zr, SCALE_A, SCALE_B, BIAS, SWAP, ACT, SHORT)
        if out_desc is None:
            if SWAP:
                put(x, rows, columns, z, M, N, out, ldo, zo, SWAP)
            else:  # rows that TMA cannot store: neighbouring lanes write neighbouring elements
                rows = row + gl.arange(0, x.shape[0], gl.SliceLayout(1, LINES))
                columns = at + gl.arange(0, x.shape[1], gl.SliceLayout(0, LINES))
                put(gl.convert_layout(x.to(out.dtype.element_ty), LINES), rows, columns, z, M, N, out, ldo, zo, SWAP)
        else:
            buffer = c_ring.index(GROUP_INDEX * 2 + i % 2)
            tma.store_wait(1 if PIECES > 1 else 0)
            if BATCHED:
                buffer.reshape([buffer.shape[1], buffer.shape[2]]).store(x.to(out_desc.dtype))
                fence_async_shared()
                tma.async_copy_shared_to_global(out_desc, [z, row, at], buffer)
            else:
                buffer.store(x.to(out_desc.dtype))
                fence_async_shared()
                tma.async_copy_shared_to_global(out_desc, [row, at], buffer)


@gluon.jit(do_not_specialize=("M", "K", "whole", "streamed", "group"))
def product(a_desc, b_desc, out_desc, out, ldo, zo, parts, M, N, K, whole, streamed, group, alpha, beta, scale_a, scale_b, c, ldc, zc, bias,
            gate, ldg, zg, residual, ldr, zr,
            BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr, A_COLUMNS: gl.constexpr,
            B_COLUMNS: gl.constexpr, BATCHED: gl.constexpr, STREAM: gl.constexpr, SPLIT: gl.constexpr, SWAP: gl.constexpr,
            RAW: gl.constexpr, PROMOTE: gl.constexpr, SCALES: gl.constexpr, ACT: gl.constexpr, SHORT: gl.constexpr, EN: gl.constexpr):
    """out = act(alpha · scale_a · scale_b · a b + beta c + bias) · gate + residual, as in `gemm_epilogue.finish`; RAW: out = a b. With SWAP
    the kernel computes the transposed result: its A is b transposed, its B is a transposed, and out_desc is None."""
    a_ring = gl.allocate_shared_memory(a_desc.dtype, [STAGES * GROUPS] + a_desc.block_type.shape, a_desc.layout)
    b_ring = gl.allocate_shared_memory(b_desc.dtype, [STAGES] + b_desc.block_type.shape, b_desc.layout)
    if out_desc is None:
        c_ring: gl.constexpr = None
    else:
        c_ring = gl.allocate_shared_memory(out_desc.dtype, [2 * GROUPS] + out_desc.block_type.shape, out_desc.layout)
    VECTORS: gl.constexpr = (0 if scale_b is None or SCALES == BLOCKS else 1) + (0 if bias is None or SWAP else 1)
    if VECTORS == 0:
        vectors: gl.constexpr = None
    else:
        vectors = gl.allocate_shared_memory(gl.float32, [VECTORS * GROUPS, BN], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=GROUPS)
    fence_async_shared()
    if GROUPS == 1:
        gl.warp_specialize([
            (consume,
                       (0, a_ring, b_ring, c_ring, vectors, full, empty, out_desc, out, ldo, zo, parts, M, N, K, whole, streamed, group,
                       alpha, beta, scale_a, scale_b, c, ldc, zc,
                       bias, gate, ldg, zg, residual, ldr, zr, BM, BN, BK, GROUPS, STAGES, A_COLUMNS, B_COLUMNS, BATCHED, STREAM, SPLIT,
                       SWAP, RAW, PROMOTE, SCALES, ACT, SHORT, EN)),
            (load,
                    (a_desc, b_desc, a_ring, b_ring, full, empty, M, N, K, whole, streamed, group, BM, BN, BK, GROUPS, STAGES, A_COLUMNS,
                    B_COLUMNS, BATCHED, STREAM, SPLIT)),
        ], [1], [40])
    else:
        gl.warp_specialize([
            (consume,
                       (0, a_ring, b_ring, c_ring, vectors, full, empty, out_desc, out, ldo, zo, parts, M, N, K, whole, streamed, group,
                       alpha, beta, scale_a, scale_b, c, ldc, zc,
                       bias, gate, ldg, zg, residual, ldr, zr, BM, BN, BK, GROUPS, STAGES, A_COLUMNS, B_COLUMNS, BATCHED, STREAM, SPLIT,
                       SWAP, RAW, PROMOTE, SCALES, ACT, SHORT, EN)),
            (consume,
                       (1, a_ring, b_ring, c_ring, vectors, full, empty, out_desc, out, ldo, zo, parts, M, N, K, whole, streamed, group,
                       alpha, beta, scale_a, scale_b, c, ldc, zc,
                       bias, gate, ldg, zg, residual, ldr, zr, BM, BN, BK, GROUPS, STAGES, A_COLUMNS, B_COLUMNS, BATCHED, STREAM, SPLIT,
                       SWAP, RAW, PROMOTE, SCALES, ACT, SHORT, EN)),
            (load,
                    (a_desc, b_desc, a_ring, b_ring, full, empty, M, N, K, whole, streamed, group, BM, BN, BK, GROUPS, STAGES, A_COLUMNS,
                    B_COLUMNS, BATCHED, STREAM, SPLIT)),
        ], [4, 1], [232, 40])


@gluon.jit(do_not_specialize=("M", "K", "whole", "streamed", "group"))
def product_tall(a_desc, b_desc, out_desc, out, ldo, zo, parts, M, N, K, whole, streamed, group, alpha, beta, scale_a, scale_b, c, ldc, zc,
                      bias, gate, ldg, zg, residual, ldr, zr,
                 BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr, A_COLUMNS: gl.constexpr,
                 B_COLUMNS: gl.constexpr, BATCHED: gl.constexpr, STREAM: gl.constexpr, SPLIT: gl.constexpr, SWAP: gl.constexpr,
                 RAW: gl.constexpr, PROMOTE: gl.constexpr, SCALES: gl.constexpr, ACT: gl.constexpr, SHORT: gl.constexpr, EN: gl.constexpr):
    """As `product`, with GROUPS = 3: of fp8 whose slices are added in float32 a warp group holds two sums of 64 x 128, and a tile of 192 rows
    takes a sixth less from the L2 for each product than one of 128."""
    a_ring = gl.allocate_shared_memory(a_desc.dtype, [STAGES * GROUPS] + a_desc.block_type.shape, a_desc.layout)
    b_ring = gl.allocate_shared_memory(b_desc.dtype, [STAGES] + b_desc.block_type.shape, b_desc.layout)
    if out_desc is None:
        c_ring: gl.constexpr = None
    else:
        c_ring = gl.allocate_shared_memory(out_desc.dtype, [2 * GROUPS] + out_desc.block_type.shape, out_desc.layout)
    VECTORS: gl.constexpr = (0 if scale_b is None or SCALES == BLOCKS else 1) + (0 if bias is None or SWAP else 1)
    if VECTORS == 0:
        vectors: gl.constexpr = None
    else:
        vectors = gl.allocate_shared_memory(gl.float32, [VECTORS * GROUPS, BN], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=GROUPS)
    fence_async_shared()
    gl.warp_specialize([
        (consume,
                   (0, a_ring, b_ring, c_ring, vectors, full, empty, out_desc, out, ldo, zo, parts, M, N, K, whole, streamed, group,
                   alpha, beta, scale_a, scale_b, c, ldc, zc,
                   bias, gate, ldg, zg, residual, ldr, zr, BM, BN, BK, GROUPS, STAGES, A_COLUMNS, B_COLUMNS, BATCHED, STREAM, SPLIT,
                   SWAP, RAW, PROMOTE, SCALES, ACT, SHORT, EN)),
        (consume,
                   (1, a_ring, b_ring, c_ring, vectors, full, empty, out_desc, out, ldo, zo, parts, M, N, K, whole, streamed, group,
                   alpha, beta, scale_a, scale_b, c, ldc, zc,
                   bias, gate, ldg, zg, residual, ldr, zr, BM, BN, BK, GROUPS, STAGES, A_COLUMNS, B_COLUMNS, BATCHED, STREAM, SPLIT,
                   SWAP, RAW, PROMOTE, SCALES, ACT, SHORT, EN)),
        (consume,
                   (2, a_ring, b_ring, c_ring, vectors, full, empty, out_desc, out, ldo, zo, parts, M, N, K, whole, streamed, group,
                   alpha, beta, scale_a, scale_b, c, ldc, zc,
                   bias, gate, ldg, zg, residual, ldr, zr, BM, BN, BK, GROUPS, STAGES, A_COLUMNS, B_COLUMNS, BATCHED, STREAM, SPLIT,
                   SWAP, RAW, PROMOTE, SCALES, ACT, SHORT, EN)),
        (load,
                (a_desc, b_desc, a_ring, b_ring, full, empty, M, N, K, whole, streamed, group, BM, BN, BK, GROUPS, STAGES, A_COLUMNS,
                B_COLUMNS, BATCHED, STREAM, SPLIT)),
    ], [4, 4, 1], [160, 160, 32])
