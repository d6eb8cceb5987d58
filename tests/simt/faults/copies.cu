// Planted faults around asynchronous copies, groups and modifiers of PTX.
#include <cooperative_groups.h>
#include <cuda/barrier>
#define FIXED 0
#define COPY_OR_ZERO(to, from, ignore)                                                                        \
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; cp.async.ca.shared.global [%0], [%1], 4, p; }" ::"r"(  \
                     static_cast<unsigned>(__cvta_generic_to_shared(to))),                                    \
                 "l"(from), "r"(static_cast<unsigned>(ignore)))
namespace cg = cooperative_groups;

// launch: --grid 1 --block 32 --arg n=20 --arg x=f32:20 --arg y=f32:32:empty
__global__ void ignores_the_wrong_lanes(int n, const float* x, float* y) {
    __shared__ float held[32];
    const bool inside = threadIdx.x < n;
    COPY_OR_ZERO(held + threadIdx.x, x + threadIdx.x, FIXED ? !inside : inside);  // BUG: out-of-bounds
    asm volatile("cp.async.wait_all;");
    __syncwarp();
    y[threadIdx.x] = held[31 - threadIdx.x];
}

// launch: --grid 1 --block 32 --arg n=20 --arg x=f32:20 --arg y=f32:32:empty
__global__ void zeros_not_waited_for(int n, const float* x, float* y) {
    __shared__ float held[32];
    COPY_OR_ZERO(held + threadIdx.x, x + threadIdx.x, threadIdx.x >= n);
    if (FIXED) asm volatile("cp.async.wait_all;");
    __syncwarp();
    y[threadIdx.x] = held[31 - threadIdx.x];  // BUG: missing-wait, uninitialised
}

// launch: --grid 1 --block 64 --arg x=f32:64 --arg y=f32:64:empty
__global__ void barrier_not_waited_for(const float* x, float* y) {
    __shared__ alignas(16) float held[64];
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    if (threadIdx.x == 0) init(&bar, 64);
    __syncthreads();
    cuda::memcpy_async(cg::this_thread_block(), held, x, sizeof held, bar);  // MAY: shared-race, warp-race
    auto token = bar.arrive();
    if (FIXED) bar.wait(static_cast<decltype(token)&&>(token));
    y[threadIdx.x] = held[63 - threadIdx.x];  // BUG: shared-race, warp-race, uninitialised
}

// launch: --grid 1 --block 64 --arg x=f32:60 --arg y=f32:64:empty
__global__ void copies_past_the_end(const float* x, float* y) {
    __shared__ alignas(16) float held[64];
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    if (threadIdx.x == 0) init(&bar, 64);
    held[threadIdx.x] = 0;
    __syncthreads();
    cuda::memcpy_async(cg::this_thread_block(), held, x, FIXED ? 240 : 256, bar);  // BUG: out-of-bounds
    bar.arrive_and_wait();
    y[threadIdx.x] = held[63 - threadIdx.x];
}

// launch: --grid 1 --block 64 --arg y=f32:2:zeros
__global__ void one_of_each_tile(float* y) {
    __shared__ float sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    const auto tile = cg::tiled_partition<32>(cg::this_thread_block());
    cg::invoke_one(tile, [&] {
        if (FIXED) atomicAdd(&sum, 1.0f);
        else sum += 1;  // BUG: shared-race
    });
    __syncthreads();
    if (threadIdx.x == 0) y[0] = sum;
}

// launch: --grid 1 --block 32 --arg labels=i32:32:range --arg y=i32:32:zeros
__global__ void label_of_another_group(const int* labels, int* y) {
    const auto part = cg::labeled_partition(cg::coalesced_threads(), labels[threadIdx.x] % 3);
    y[threadIdx.x] = FIXED ? part.shfl(labels[threadIdx.x], 0) : __shfl_sync(part.lanes().mask, labels[threadIdx.x], 1);  // BUG: absent-lane
}

// launch: --grid 2 --block 32 --arg data=i32:32:zeros --arg flag=u32:1:zeros --arg y=i32:32:zeros
__global__ void flag_without_release(int* data, unsigned* flag, int* y) {
    if (blockIdx.x == 0) {
        data[threadIdx.x] = threadIdx.x;  // MAY: global-race
        if (FIXED) __syncwarp();
        if (FIXED) __threadfence();
        if (threadIdx.x == 0) asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(1u) : "memory");
    } else {
        unsigned seen;
        do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
        while (!seen);
        y[threadIdx.x] = data[31 - threadIdx.x];  // BUG: global-race
    }
}
