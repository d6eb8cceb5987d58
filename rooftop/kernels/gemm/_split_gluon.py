"""The Hopper matrix product of operands in two parts each, in Gluon: a b = a1 b1 + a1 b2 + a2 b1, the smallest terms first.

A block is one producer warp and one or two consumer warp groups, as in `gemm_gluon`, from which the tile scheduler comes. A stage of the ring buffer holds a
slice of all four parts: 4 boxes for 3 multiplies, while one long product of [a2 a1 a1] and [b1 b2 b1] would load 6. Tensor cores truncate when they
accumulate, by up to one unit in the last place of the sum each time: over all of K that would be a larger error than the split leaves, so each slice is
accumulated separately and added in float32."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents

from rooftop.kernels._device.gemm_gluon import finish, item, keep, place, put, share, vector


@gluon.jit
def load_parts(a_desc, b_desc, a_ring, b_ring, full, empty, M, N, K, batch, whole, streamed, group, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr,
               GROUPS: gl.constexpr, STAGES: gl.constexpr, SPLIT: gl.constexpr):  # fmt: skip
    """The producer warp. Part p of matrix z is matrix p · batch + z of a descriptor."""
    RM: gl.constexpr = BM // GROUPS
    BYTES: gl.constexpr = 2 * (GROUPS * a_desc.block_type.nbytes + b_desc.block_type.nbytes)
    slices = gl.cdiv(K, BK)
    turns, begin, end, _ = share(whole, streamed, slices, SPLIT)
    n = 0
    for i in range(turns):
        tile, first, last = item(i, turns, begin, end, whole, streamed, slices, False, SPLIT)
        pm, pn, z = place(tile, M, N, group, BM, BN)
        for k in range(first, last):
            stage = n % STAGES
            mbarrier.wait(empty.index(stage), (n // STAGES & 1) ^ 1)
            mbarrier.expect(full.index(stage), BYTES)
            for part in gl.static_range(2):
                for g in gl.static_range(GROUPS):
                    tma.async_copy_global_to_shared(a_desc, [z + part * batch, pm * BM + g * RM, k * BK], full.index(stage),
                                                    a_ring.index((stage * GROUPS + g) * 2 + part))  # fmt: skip
                tma.async_copy_global_to_shared(b_desc, [z + part * batch, pn * BN, k * BK], full.index(stage), b_ring.index(stage * 2 + part))
            n += 1
    if SPLIT > 1:
        gdc_launch_dependents()  # the reduction of the parts: its blocks start while the last tiles are computed, and wait


@gluon.jit
def matrix(x, TURNED: gl.constexpr):
    """A box [1, rows, K] as the matrix that wgmma reads."""
    x = x.reshape([x.shape[1], x.shape[2]])
    if TURNED:
        x = x.permute((1, 0))
    return x


@gluon.jit
def consume_parts(GROUP_INDEX: gl.constexpr, a_ring, b_ring, full, empty, out, ldo, zo, pieces_at, M, N, K, whole, streamed, group, alpha, beta, c, ldc, zc,
                  bias, gate, ldg, zg, residual, ldr, zr, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr,
                  SPLIT: gl.constexpr, ACT: gl.constexpr):  # fmt: skip
    """One consumer warp group: rows from GROUP_INDEX · RM on of each tile. Results are stored straight from registers: four lanes write a sector of 32
    bytes."""
    RM: gl.constexpr = BM // GROUPS
    MMA: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 256 // a_ring.dtype.primitive_bitwidth])
    slices = gl.cdiv(K, BK)
    turns, begin, end, _ = share(whole, streamed, slices, SPLIT)
    n = 0
    acc = gl.zeros((RM, BN), gl.float32, MMA)
    for i in range(turns):
        tile, first, last = item(i, turns, begin, end, whole, streamed, slices, False, SPLIT)
        pm, pn, z = place(tile, M, N, group, BM, BN)
        total = gl.zeros((RM, BN), gl.float32, MMA)
        for _ in range(first, last):
            stage = n % STAGES
            mbarrier.wait(full.index(stage), n // STAGES & 1)
            at = (stage * GROUPS + GROUP_INDEX) * 2
            a1, a2 = matrix(a_ring.index(at), False), matrix(a_ring.index(at + 1), False)
            b1, b2 = matrix(b_ring.index(stage * 2), True), matrix(b_ring.index(stage * 2 + 1), True)
            acc = warpgroup_mma(a2, b1, acc, use_acc=False, is_async=True)
            acc = warpgroup_mma(a1, b2, acc, is_async=True)
            acc = warpgroup_mma(a1, b1, acc, is_async=True)
            acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
            mbarrier.arrive(empty.index(stage), count=1)
            total += acc
            n += 1
        row, column = pm * BM + GROUP_INDEX * RM, pn * BN
        if SPLIT > 1 and last - first < slices:
            keep(total, pieces_at, gl.program_id(0) + i * gl.num_programs(0) - whole, GROUP_INDEX * RM, BM, BN)
        else:
            rows, columns = row + gl.arange(0, RM, gl.SliceLayout(1, MMA)), column + gl.arange(0, BN, gl.SliceLayout(0, MMA))
            x = finish(total, rows, columns, z, M, N, alpha, beta, rows, columns, c, ldc, zc, rows, vector(bias, columns, N), gate, ldg, zg, residual, ldr,
                       zr, False, False, bias is not None, False, ACT, False)  # fmt: skip
            put(x, rows, columns, z, M, N, out, ldo, zo, False)


@gluon.jit(do_not_specialize=("M", "K", "whole", "streamed", "group", "batch"))
def product_of_parts(a_desc, b_desc, out, ldo, zo, pieces_at, M, N, K, batch, whole, streamed, group, alpha, beta, c, ldc, zc, bias, gate, ldg, zg, residual,
                     ldr, zr, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr, SPLIT: gl.constexpr,
                     ACT: gl.constexpr):  # fmt: skip
    """out = act(alpha · (a1 b1 + a1 b2 + a2 b1) + beta c + bias) · gate + residual. a_desc: boxes [1, BM / GROUPS, BK] of [2 batch, M, K]; b_desc: boxes [1,
    BN, BK] of [2 batch, N, K]. Both are contiguous along K, the only layout that wgmma supports for TF32."""
    a_ring = gl.allocate_shared_memory(a_desc.dtype, [STAGES * GROUPS * 2] + a_desc.block_type.shape, a_desc.layout)
    b_ring = gl.allocate_shared_memory(b_desc.dtype, [STAGES * 2] + b_desc.block_type.shape, b_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=GROUPS)
    fence_async_shared()
    if GROUPS == 1:
        gl.warp_specialize([
            (consume_parts, (0, a_ring, b_ring, full, empty, out, ldo, zo, pieces_at, M, N, K, whole, streamed, group, alpha, beta, c, ldc, zc, bias, gate,
                             ldg, zg, residual, ldr, zr, BM, BN, BK, GROUPS, STAGES, SPLIT, ACT)),
            (load_parts, (a_desc, b_desc, a_ring, b_ring, full, empty, M, N, K, batch, whole, streamed, group, BM, BN, BK, GROUPS, STAGES, SPLIT)),
        ], [1], [40])  # fmt: skip
    else:
        gl.warp_specialize([
            (consume_parts, (0, a_ring, b_ring, full, empty, out, ldo, zo, pieces_at, M, N, K, whole, streamed, group, alpha, beta, c, ldc, zc, bias, gate,
                             ldg, zg, residual, ldr, zr, BM, BN, BK, GROUPS, STAGES, SPLIT, ACT)),
            (consume_parts, (1, a_ring, b_ring, full, empty, out, ldo, zo, pieces_at, M, N, K, whole, streamed, group, alpha, beta, c, ldc, zc, bias, gate,
                             ldg, zg, residual, ldr, zr, BM, BN, BK, GROUPS, STAGES, SPLIT, ACT)),
            (load_parts, (a_desc, b_desc, a_ring, b_ring, full, empty, M, N, K, batch, whole, streamed, group, BM, BN, BK, GROUPS, STAGES, SPLIT)),
        ], [4, 1], [232, 40])  # fmt: skip
