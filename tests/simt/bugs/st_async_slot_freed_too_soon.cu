/* rooftop
op     = "rms_norm"
idea   = "Planted fault: two slots in turn, but a block says that it is a row further before its other warp has read the row before: its slot is written too soon."
limit  = "On a GPU: right nearly always; the second warp must fall two rows behind to get a later sum."
dtypes = ["f32"]
args   = ["R: i32", "C: i32", "x: T[R, C]", "y: T[R, C]", "eps: f32"]
arch   = 90

[[launch]]
kernel = "st_async_slot_freed_too_soon"
grid   = ["2 * ceil(R / 4)"]
block  = [64]
cluster = [2]
*/
#include <cooperative_groups.h>

#define FIXED 0

__device__ inline unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

/// The same place in the shared memory of the cluster's block `rank`.
__device__ inline unsigned there(const void* p, int rank) {
    unsigned to;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(shared_address(p)), "r"(rank));
    return to;
}
__device__ inline void init(unsigned long long* come) { asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(come)) : "memory"); }
__device__ inline void expect(unsigned long long* come) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 4;" ::"r"(shared_address(come)) : "memory");
}
__device__ inline void wait(unsigned long long* come, int parity) {
    unsigned over = 0;
    while (!over) {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(over) : "r"(shared_address(come)), "r"(parity) : "memory");
    }
    __syncthreads();
}

__global__ void st_async_slot_freed_too_soon(int R, int C, const float* __restrict__ x, float* __restrict__ y, float eps) {
    __shared__ float theirs[2];
    __shared__ unsigned long long come[2];
    const auto cluster = cooperative_groups::this_cluster();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = cluster.block_rank();
    const int row = blockIdx.x / 2 * 4;
    x += static_cast<long long>(row) * C;
    y += static_cast<long long>(row) * C;
    if (threadIdx.x < 2) init(&come[threadIdx.x]);
    cluster.sync();
    for (int k = 0; k < 4 && row + k < R; ++k, x += C, y += C) {
        float s = 0;
        for (int c = rank * 32 + lane; c < C; c += 64) s += x[c] * x[c];
        for (int step = 16; step > 0; step /= 2) s += __shfl_xor_sync(~0u, s, step);
        if (threadIdx.x == 0) {
            expect(&come[k % 2]);
            asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];"  // BUG: shared-race
                         ::"r"(there(&theirs[k % 2], rank ^ 1)), "f"(s), "r"(there(&come[k % 2], rank ^ 1)) : "memory");
        }
        wait(&come[k % 2], k / 2 % 2);
        s += theirs[k % 2];  // BUG: shared-race, missing-wait
        const float scale = 1 / sqrtf(s / C + eps);
        for (int c = warp * 64 + rank * 32 + lane; c < C; c += 128) y[c] = x[c] * scale;
#if FIXED
        __syncthreads();
#endif
    }
    cluster.sync();
}
