"""The product of _product_gluon.py with three consumer warp groups, for tiles of 192 rows: of fp8 whose slices are added in float32 a warp
group holds two sums of 64 x 128, so that a tile of 128 columns has at most 64 rows a group; 192 rows take a sixth less from the L2 for each
product than 128."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from rooftop.kernels.gemm._product_gluon import BLOCKS, consume, load


@gluon.jit(do_not_specialize=("M", "K", "whole", "streamed", "group"))
def product_tall(a_desc, b_desc, out_desc, out, ldo, zo, parts, M, N, K, whole, streamed, group, alpha, beta, scale_a, scale_b, c, ldc, zc,
                      bias, gate, ldg, zg, residual, ldr, zr,
                 BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr, A_COLUMNS: gl.constexpr,
                 B_COLUMNS: gl.constexpr, BATCHED: gl.constexpr, STREAM: gl.constexpr, SPLIT: gl.constexpr, SWAP: gl.constexpr,
                 RAW: gl.constexpr, PROMOTE: gl.constexpr, SCALES: gl.constexpr, ACT: gl.constexpr, SHORT: gl.constexpr, EN: gl.constexpr):
    """As `product`, with GROUPS = 3."""
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
