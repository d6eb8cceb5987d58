/* rooftop
idea    = "One warp group a 64 x 64 tile of c: TMA brings 64 x 64 tiles of a and b, wgmma multiplies them out of shared memory."
dtypes  = ["bf16"]
tensors = ["a: T[M, K]", "b: T[N, K]"]
args    = ["M: i32", "N: i32", "K: i32", "a_map: map = a[64, 64] swizzle 128", "b_map: map = b[64, 64] swizzle 128", "c: T[M, N]"]
demands = { has = ["HGMMA", "UTMALDG"], spills = 0 }

[[launch]]
kernel  = "mmt"
grid    = ["ceil(N / 64)", "ceil(M / 64)"]
block   = [128]
pdl = true
*/
#include <cuda_bf16.h>
#include "pdl.cuh"
#include "tensor_map.cuh"

constexpr int TILE = 64;  // rows of a tile and elements of a row: 128 bytes, the width of the swizzle

__device__ inline unsigned in_shared(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// A tile to shared memory, by one thread; `barrier` counts its bytes. What lies outside the tensor arrives as zeros.
__device__ inline void load_tile(const CUtensorMap& map, const void* to, unsigned barrier, int column, int row) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(in_shared(to)),
                 "l"(&map), "r"(barrier), "r"(column), "r"(row)
                 : "memory");
}

// How wgmma finds a tile: rows of 128 bytes with swizzle 128, groups of 8 rows 1024 bytes apart (PTX ISA, "Matrix descriptor"). 16 elements further
// along the rows are 32 bytes, 2 in the descriptor's units.
__device__ inline unsigned long long tile_descriptor(const void* tile) {
    return (in_shared(tile) >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

__device__ inline void multiply(float (&c)[32], unsigned long long a, unsigned long long b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, 1, 1, 1, 0, 0;"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]),
          "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]),
          "+f"(c[21]), "+f"(c[22]), "+f"(c[23]), "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31])
        : "l"(a), "l"(b));
}

__global__ void __launch_bounds__(128)
mmt(int M, int N, int K, const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map, __nv_bfloat16* __restrict__ c) {
    __shared__ alignas(1024) __nv_bfloat16 a[TILE * TILE], b[TILE * TILE];
    __shared__ alignas(8) unsigned long long arrived;
    const unsigned barrier = in_shared(&arrived);
    const int row = blockIdx.y * TILE, column = blockIdx.x * TILE;
    if (threadIdx.x == 0) {
        prefetch_map(a_map);
        prefetch_map(b_map);
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    gdc_wait();
    float sum[32] = {};
    for (int k = 0, phase = 0; k < K; k += TILE, phase ^= 1) {
        if (threadIdx.x == 0) {
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(2 * TILE * TILE * 2) : "memory");
            load_tile(a_map, a, barrier, k, row);
            load_tile(b_map, b, barrier, k, column);
        }
        for (unsigned done = 0; !done;)
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                         : "=r"(done)
                         : "r"(barrier), "r"(phase)
                         : "memory");
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        for (int i = 0; i < TILE / 16; i++) multiply(sum, tile_descriptor(a) + 2 * i, tile_descriptor(b) + 2 * i);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        __syncthreads();  // the next tiles overwrite these
    }
    const int lane = threadIdx.x % 32, r = row + threadIdx.x / 32 * 16 + lane / 4;
    for (int i = 0; i < 32; i++) {  // two neighbours of row r, two of row r + 8, and so on in steps of 8 columns
        const int y = r + i / 2 % 2 * 8, x = column + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (y < M && x < N) c[static_cast<long long>(y) * N + x] = __float2bfloat16(sum[i]);
    }
}
