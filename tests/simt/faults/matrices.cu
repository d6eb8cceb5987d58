// Planted faults around matrices: instructions that take all 32 lanes, metadata, rows that are not there.
#include <cuda_fp16.h>
#include <mma.h>
#define FIXED 0
#define SPARSE(c, meta)                                                                                                                            \
    asm volatile("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %4, %4, %4}, {%4, %4, %4, %4}, "  \
                 "{%0, %1, %2, %3}, %5, 0x0;" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(0), "r"(meta))
__device__ unsigned to_shared(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// launch: --grid 1 --block 32 --arg y=u32:32:empty
__global__ void half_a_warp_moves_a_matrix(unsigned* y) {
    unsigned r = threadIdx.x;
    if (FIXED || threadIdx.x < 16)
        asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(r));  // BUG: absent-lane
    y[threadIdx.x] = r;
}

// launch: --grid 1 --block 32 --arg y=f32:32:empty
__global__ void half_a_warp_multiplies(float* y) {
    float c[4] = {0, 0, 0, 0};
    if (FIXED || threadIdx.x < 16)
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %4}, {%4}, {%0, %1, %2, %3};"  // BUG: absent-lane
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(0));
    y[threadIdx.x] = c[0];
}

// launch: --grid 1 --block 32 --arg y=f32:32:empty
__global__ void a_lane_short_multiplies_sparse(float* y) {
    float c[4] = {0, 0, 0, 0};
    if (FIXED || threadIdx.x < 31)
        SPARSE(c, 0xeeeeeeee);  // BUG: absent-lane
    y[threadIdx.x] = c[0];
}

// launch: --grid 1 --block 32 --arg y=f32:32:empty
__global__ void metadata_falls(float* y) {
    float c[4] = {0, 0, 0, 0};
    const unsigned e = FIXED ? 0xeeeeeeee : 0xeeeebeee;
    SPARSE(c, e);  // BUG: assert
    y[threadIdx.x] = c[0];
}

// launch: --grid 1 --block 16 --arg x=f16:256 --arg y=f32:256:empty
// fixed: --block 32
__global__ void fragments_of_half_a_warp(const __half* x, float* y) {
    using namespace nvcuda;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> c;
    wmma::fill_fragment(c, 0.0f);
    wmma::load_matrix_sync(a, x, 16);
    wmma::load_matrix_sync(b, x, 16);  // MAY: absent-lane
    wmma::mma_sync(c, a, b, c);  // BUG: absent-lane
    wmma::store_matrix_sync(y, c, 16, wmma::mem_row_major);
}

// launch: --grid 1 --block 32 --arg x=f16:128 --arg y=u32:64:zeros
__global__ void ldmatrix_behind_a_return(const __half* x, unsigned* y) {
    __shared__ alignas(16) __half tile[128];
    for (int i = threadIdx.x; i < 128; i += 32) tile[i] = x[i];
    __syncwarp();
    if (!FIXED && threadIdx.x >= 24) return;
    unsigned r[2];
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"  // BUG: absent-lane
                 : "=r"(r[0]), "=r"(r[1]) : "r"(to_shared(tile + 8 * (threadIdx.x % 16))));
    y[threadIdx.x] = r[0] + r[1];
}

// launch: --grid 1 --block 32 --arg x=f16:256 --arg y=u32:128:empty
__global__ void ldmatrix_of_the_next_rows(const __half* x, unsigned* y) {
    __shared__ alignas(16) __half tile[16 * 16];
    for (int i = threadIdx.x; i < 256; i += 32) tile[i] = x[i];
    __syncwarp();
    unsigned r[4];
    const int row = FIXED ? threadIdx.x % 16 : threadIdx.x % 16 + 8;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"  // BUG: out-of-bounds
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(to_shared(tile + 16 * row + 8 * (threadIdx.x / 16))));
    for (int i = 0; i < 4; ++i) y[32 * i + threadIdx.x] = r[i];
}

// launch: --grid 1 --block 64 --arg x=f16:64 --arg y=u32:64:zeros
__global__ void ldmatrix_before_the_barrier(const __half* x, unsigned* y) {
    __shared__ alignas(16) __half tile[64];
    tile[threadIdx.x] = x[threadIdx.x];  // MAY: shared-race, warp-race
    if (FIXED) __syncthreads();
    unsigned r;
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"  // BUG: shared-race, warp-race, uninitialised
                 : "=r"(r) : "r"(to_shared(tile + 8 * (threadIdx.x % 8))));
    y[threadIdx.x] = r;
}

// launch: --grid 1 --block 32 --arg y=f32:32:empty
__global__ void stmatrix_over_the_edge(float* y) {
    __shared__ alignas(16) __half tile[64];
    const unsigned at = to_shared(tile + 8 * (threadIdx.x % 8)) + (FIXED ? 0 : 16);
    asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::"r"(at), "r"(threadIdx.x) : "memory");  // BUG: out-of-bounds
    __syncwarp();
    y[threadIdx.x] = __half2float(tile[threadIdx.x]);  // MAY: uninitialised
}
