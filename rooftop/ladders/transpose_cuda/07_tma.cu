/* rooftop
idea    = "One thread issues a TMA copy of the tile: it needs no registers and no other instructions. The tile arrives swizzled, so that a thread reads 4 x 4 elements as four vectors without bank conflicts, transposes them in registers, and writes four vectors."
predict = { speedup = 1.0 }
limit   = "A block waits for its tile, transposes it and ends; only other blocks of the multiprocessor read meanwhile."
arch    = 90
dtypes  = ["i32"]
args    = ["R: i32", "C: i32", "x_map: map = x[1, 1, 1, 64, 32] swizzle 128", "out: T[B1, B2, B3, R, C]", "oc: i64 = stride(out, 4)"]
tensors = ["x: T[B1, B2, B3, R, C]"]
demands = { has = ["UTMALDG", "LDS.128", "STG.E.128"], spills = 0 }

[requires]
"B1 * B2 * B3 == 1" = "takes one matrix"
"R * C > 0" = "there is nothing to copy"
"stride(x, 4) == 1 and stride(out, 3) == 1" = "columns must be neighbours in x, and rows in out"
"R % 4 == 0 and aligned(out, 16)" = "columns must start on 16-byte boundaries in out"

[[launch]]
kernel = "transpose"
grid   = ["ceil(R / 64) * ceil(C / 64)"]
block  = [256]
*/
#include "tensor_map.cuh"

constexpr int BOX = 64 * 128;  // bytes of 64 rows of 32 elements

/// Tiles of 64 x 64, as two boxes. The 16 bytes q of row r stand at q ^ r % 8.
__global__ void __launch_bounds__(256) transpose(int R, int C, const __grid_constant__ CUtensorMap x_map, unsigned* __restrict__ out, long long oc) {
    __shared__ __align__(1024) char tile[2 * BOX];
    __shared__ __align__(8) unsigned long long full;
    const int tiles_c = (C - 1) / 64 + 1, r0 = blockIdx.x / tiles_c * 64, c0 = blockIdx.x % tiles_c * 64, t = threadIdx.x;
    const unsigned barrier = static_cast<unsigned>(__cvta_generic_to_shared(&full)), to = static_cast<unsigned>(__cvta_generic_to_shared(tile));
    if (t == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(barrier));
        asm volatile("fence.mbarrier_init.release.cluster;");
        const int boxes = c0 + 32 < C ? 2 : 1;
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(boxes * BOX) : "memory");
        for (int b = 0; b < boxes; ++b) {
            asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %5, %5}], [%2];" ::"r"(to + b * BOX),
                         "l"(&x_map), "r"(barrier), "r"(c0 + 32 * b), "r"(r0), "r"(0)
                         : "memory");
        }
    }
    __syncthreads();
    asm volatile("{\n.reg .pred done;\nwaits:\nmbarrier.try_wait.parity.shared.b64 done, [%0], 0;\n@!done bra waits;\n}" ::"r"(barrier) : "memory");

    // 8 neighbouring lanes read different banks; 8 lanes of a warp write 128 contiguous bytes of a column.
    const int rb = t % 2 + t / 8 % 4 * 2 + t / 128 * 8, cb = t / 2 % 4 + t / 32 % 4 * 4;  // a 4 x 4 tile of elements: rows from 4 rb, columns from 4 cb
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const int row = 4 * rb + j;
        v[j] = *reinterpret_cast<const uint4*>(tile + cb / 8 * BOX + row * 128 + ((cb ^ row) % 8) * 16);
    }
    if (r0 + 4 * rb >= R) return;
    const auto put = [&](int i, uint4 column) {
        if (c0 + 4 * cb + i < C) *reinterpret_cast<uint4*>(out + (c0 + 4 * cb + i) * oc + r0 + 4 * rb) = column;
    };
    put(0, make_uint4(v[0].x, v[1].x, v[2].x, v[3].x));
    put(1, make_uint4(v[0].y, v[1].y, v[2].y, v[3].y));
    put(2, make_uint4(v[0].z, v[1].z, v[2].z, v[3].z));
    put(3, make_uint4(v[0].w, v[1].w, v[2].w, v[3].w));
}
