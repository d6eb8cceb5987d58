// Planted faults as they are met in the wild: a fence, a wait or a barrier that is missing, indices that wrap, shared memory that is too large or too small.
#include <cooperative_groups.h>
#include <cuda/atomic>
#include <cuda_pipeline.h>
#define FIXED 0
#define TRY_WAIT(ok, bar)                                                                                                                     \
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }" : "=r"(ok) : "r"(to_shared(&bar)) \
                 : "memory")
namespace cg = cooperative_groups;
__device__ unsigned to_shared(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// launch: --grid 4 --block 64 --arg n=256 --arg x=f32:256 --arg partial=f32:4:empty --arg done=u32:1:zeros --arg y=f32:1:empty
__global__ void last_block_without_a_fence(int n, const float* x, float* partial, unsigned* done, float* y) {
    __shared__ bool last;
    float v = x[64 * blockIdx.x + threadIdx.x];
    for (int o = 16; o; o /= 2) v += __shfl_xor_sync(~0u, v, o);
    __shared__ float sums[2];
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = sums[0] + sums[1];  // MAY: global-race
        if (FIXED) __threadfence();
        last = atomicAdd(done, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        float s = 0;
        for (int i = 0; i < 4; ++i) s += partial[i];  // BUG: global-race
        y[0] = s;
    }
}

// launch: --grid 1 --block 64 --arg x=f32:64 --arg y=f32:64:empty
__global__ void barrier_missing_in_one_arm(const float* x, float* y) {
    __shared__ float held[64];
    held[threadIdx.x] = x[threadIdx.x];  // MAY: shared-race
    if (x[0] > 100.0f || FIXED) __syncthreads();
    y[threadIdx.x] = held[threadIdx.x ^ 32];  // BUG: shared-race, uninitialised
}

// launch: --grid 1 --block 64 --arg y=i32:64:empty
__global__ void named_barrier_of_the_wrong_size(int* y) {
    __shared__ int held[64];
    held[threadIdx.x] = threadIdx.x;  // MAY: shared-race
    asm volatile("bar.sync 1, %0;" ::"r"(FIXED ? 64 : 32) : "memory");
    y[threadIdx.x] = held[threadIdx.x ^ 32];  // BUG: uninitialised, shared-race
}

// launch: --grid 1 --block 32 --shared 1023 --arg x=f32:256 --arg y=f32:256:empty
// fixed: --shared 1024
__global__ void async_copy_one_byte_short(const float4* x, float4* y) {
    extern __shared__ float4 ring[];
    for (int i = threadIdx.x; i < 64; i += 32) __pipeline_memcpy_async(ring + i, x + i, 16);  // BUG: out-of-bounds
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncwarp();
    for (int i = threadIdx.x; i < 64; i += 32) y[i] = ring[63 - i];  // BUG: out-of-bounds
}

// launch: --grid 1 --block 64 --arg x=f32:512 --arg y=f32:256:empty
__global__ void second_stage_not_waited_for(const float* x, float* y) {
    __shared__ alignas(16) float ring[2][256];
    for (int s = 0; s < 2; ++s) {
        __pipeline_memcpy_async(&ring[s][4 * threadIdx.x], x + 256 * s + 4 * threadIdx.x, 16);
        __pipeline_commit();
    }
    __pipeline_wait_prior(FIXED ? 0 : 1);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += 64) y[i] = ring[0][i] + ring[1][255 - i];  // BUG: missing-wait, uninitialised
}

// launch: --grid 1 --block 64 --arg x=f32:64 --arg y=f32:64:empty
__global__ void mbarrier_never_waited_for(const float* x, float* y) {
    __shared__ float held[64];
    __shared__ alignas(8) unsigned long long bar;
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 64;" ::"r"(to_shared(&bar)));
    __syncthreads();
    held[threadIdx.x] = x[threadIdx.x];  // MAY: shared-race
    asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }" ::"r"(to_shared(&bar)) : "memory");
    if (FIXED) {
        unsigned ok = 0;
        while (!ok)
            TRY_WAIT(ok, bar);
    }
    y[threadIdx.x] = held[63 - threadIdx.x];  // BUG: shared-race, uninitialised
}

// launch: --grid 1 --block 64 --arg y=f32:64:empty
__global__ void mbarrier_counts_one_too_many(float* y) {
    __shared__ alignas(8) unsigned long long bar;
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(to_shared(&bar)), "r"(FIXED ? 64 : 65));
    __syncthreads();
    asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }" ::"r"(to_shared(&bar)) : "memory");
    unsigned ok = 0;
    while (!ok)
        TRY_WAIT(ok, bar);  // BUG: deadlock
    y[threadIdx.x] = 1;
}

// launch: --grid 4 --block 32 --arg y=f32:4:empty
__global__ void __cluster_dims__(4, 1, 1) sum_of_the_cluster(float* y) {
    __shared__ float part;
    const auto cluster = cg::this_cluster();
    if (threadIdx.x == 0) part = cluster.block_rank();
    cluster.sync();
    if (threadIdx.x == 0) {
        float s = 0;
        for (int r = 0; r < 4; ++r) s += *cluster.map_shared_rank(&part, r);  // MAY: shared-race
        y[blockIdx.x] = s;
    }
    if (FIXED) cluster.sync();
    if (threadIdx.x == 0) part = 0;  // BUG: shared-race
    cluster.sync();
}

// launch: --grid 2 --block 32 --cluster 2 --arg y=f32:2:zeros
__global__ void remote_atomic_not_ordered(float* y) {
    __shared__ int count;
    const auto cluster = cg::this_cluster();
    if (threadIdx.x == 0) count = 0;
    cluster.sync();
    if (threadIdx.x == 0) atomicAdd(cluster.map_shared_rank(&count, 0), 1);  // BUG: shared-race
    if (FIXED) cluster.sync();
    if (threadIdx.x == 0 && cluster.block_rank() == 0) y[0] = *static_cast<int*>(&count);  // MAY: shared-race
    cluster.sync();
}

// launch: --grid 1 --block 32 --arg rows=i32:32:70000 --arg x=f32:32 --arg y=f32:32:empty
__global__ void product_of_indices_overflows(const int* rows, const float* x, float* y) {
    const int at = FIXED ? 0 : rows[threadIdx.x] * 70000;
    y[threadIdx.x] = x[at + threadIdx.x];  // BUG: out-of-bounds
}

// launch: --grid 1 --block 32 --arg n=5 --arg x=f32:32 --arg y=f32:32:empty
__global__ void unsigned_difference_wraps(unsigned n, const float* x, float* y) {
    const unsigned i = threadIdx.x;
    y[i] = FIXED && i < n ? 0 : x[FIXED ? i : i - n];  // BUG: out-of-bounds
}

// launch: --grid 65 --block 32 --arg y=i32:2080:zeros
__global__ void index_of_sixteen_bits(int* y) {
    const unsigned char b = blockIdx.x * 4;
    if (FIXED) y[blockIdx.x * 32 + threadIdx.x] = blockIdx.x;
    else y[b / 4 * 32 + threadIdx.x] = blockIdx.x;  // BUG: global-race
}

// launch: --grid 1 --block 64 --arg lock=i32:1:zeros --arg count=i32:1:zeros
__global__ void lock_taken_by_a_lane(int* lock, int* count) {
    bool mine = false;
    do {
        if (atomicCAS(lock, 0, 1) == 0) {
            if (FIXED) __threadfence();
            *count += 1;  // BUG: global-race
            if (FIXED) __threadfence();
            if (FIXED) atomicExch(lock, 0);
            else *lock = 0;  // MAY: global-race
            mine = true;
        }
    } while (!mine);
}

// launch: --grid 1 --block 256 --arg x=f32:256 --arg y=f32:1:empty
__global__ void second_warp_sum_overwrites(const float* x, float* y) {
    __shared__ float sums[8];
    for (int pass = 0; pass < 2; ++pass) {
        float v = x[threadIdx.x] * (pass + 1);
        for (int o = 16; o; o /= 2) v += __shfl_down_sync(~0u, v, o);
        if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = v;  // BUG: shared-race, warp-race
        __syncthreads();
        float s = 0;
        for (int i = 0; i < 8; ++i) s += sums[i];  // MAY: shared-race, warp-race
        if (threadIdx.x == 0) y[0] = s;
        if (FIXED) __syncthreads();
    }
}

// launch: --grid 1 --block 64 --arg x=f32:64 --arg y=f32:64:empty
__global__ void warps_specialised_without_the_second_barrier(const float* x, float* y) {
    __shared__ float box[32];
    if (threadIdx.x < 32) {
        for (int i = 0; i < 2; ++i) {
            box[threadIdx.x] = x[32 * i + threadIdx.x];  // MAY: shared-race
            asm volatile("bar.arrive 1, 64;" ::: "memory");
            if (FIXED) asm volatile("bar.sync 2, 64;" ::: "memory");
        }
    } else {
        for (int i = 0; i < 2; ++i) {
            asm volatile("bar.sync 1, 64;" ::: "memory");  // MAY: deadlock
            y[32 * i + threadIdx.x - 32] = box[63 - threadIdx.x];  // BUG: shared-race
            if (FIXED) asm volatile("bar.arrive 2, 64;" ::: "memory");
        }
    }
}

// launch: --grid 2 --block 32 --arg flag=u32:1:zeros --arg data=f32:32:zeros --arg y=f32:32:zeros
__global__ void atomic_ref_relaxed(unsigned* flag, float* data, float* y) {
    cuda::atomic_ref<unsigned, cuda::thread_scope_device> f(*flag);
    if (blockIdx.x == 0) {
        data[threadIdx.x] = 1;  // MAY: global-race
        __syncwarp();
        if (threadIdx.x == 0) f.store(1, FIXED ? cuda::memory_order_release : cuda::memory_order_relaxed);
    } else {
        while (f.load(FIXED ? cuda::memory_order_acquire : cuda::memory_order_relaxed) == 0) {}
        y[threadIdx.x] = data[threadIdx.x];  // BUG: global-race
    }
}

// launch: --grid 1 --block 64 --arg y=f32:64:empty
__global__ void variables_beyond_48_kib(float* y) {
    __shared__ float large[FIXED ? 64 : 12289];  // BUG: out-of-bounds
    large[threadIdx.x] = 1;
    __syncthreads();
    y[threadIdx.x] = large[63 - threadIdx.x];
}

// launch: --grid 1 --block 32 --arg n=8 --arg x=f32:32 --arg y=f32:32:empty
__global__ void local_array_by_argument(int n, const float* x, float* y) {
    float kept[8];
    for (int i = 0; i < (FIXED ? n : n + 1); ++i)
        kept[i] = x[i];  // BUG: out-of-bounds
    __syncwarp();
    float s = 0;
    for (int i = 0; i < n; ++i) s += kept[i];
    y[threadIdx.x] = s;
}
