// Planted faults between blocks: beside the words this_grid() in a comment, in cooperative launches, and in clusters that the source asks for.
#include <cooperative_groups.h>
#include <cstdio>
#define FIXED 0
namespace cg = cooperative_groups;

// launch: --grid 4 --block 32 --arg out=f32:4:zeros
__global__ void beside_a_comment(float* out) {  // once with this_grid().sync() here
    if (threadIdx.x == 0) out[FIXED ? blockIdx.x : 0] = blockIdx.x + 1.0f;  // BUG: global-race
}

// launch: --grid 4 --block 32 --cooperative --arg out=f32:4:zeros
__global__ void two_write_one(float* out) {
    cg::this_grid().sync();
    if (threadIdx.x == 0) out[FIXED ? blockIdx.x : blockIdx.x / 2] = blockIdx.x + 1.0f;  // BUG: global-race
}

// launch: --grid 4 --block 32 --cooperative --arg parts=f32:4:empty --arg out=f32:4:empty
__global__ void read_before_the_barrier(float* parts, float* out) {
    if (threadIdx.x == 0) parts[blockIdx.x] = blockIdx.x;  // BUG: global-race
    if (FIXED) cg::this_grid().sync();
    if (threadIdx.x == 0) out[blockIdx.x] = parts[(blockIdx.x + 1) % 4];  // MAY: global-race, uninitialised
}

// launch: --grid 4 --block 32 --cooperative --arg parts=f32:4:empty --arg out=f32:4:empty
__global__ void second_barrier_missing(float* parts, float* out) {
    const auto grid = cg::this_grid();
    if (threadIdx.x == 0) parts[blockIdx.x] = blockIdx.x;
    grid.sync();
    if (threadIdx.x == 0) out[blockIdx.x] = parts[3 - blockIdx.x];  // MAY: global-race
    if (FIXED) grid.sync();
    if (threadIdx.x == 0) parts[blockIdx.x] = 2 * out[blockIdx.x];  // BUG: global-race
}

// launch: --grid 2 --block 64 --cooperative --arg out=f32:128:empty
__global__ void inside_a_block(float* out) {
    float* mine = out + 64 * blockIdx.x;
    mine[threadIdx.x] = threadIdx.x;
    cg::this_grid().sync();
    const float next = mine[(threadIdx.x + 32) % 64];  // MAY: global-race
    if (FIXED) __syncthreads();
    mine[threadIdx.x] = next;
    if (FIXED) __syncthreads();
    if (threadIdx.x == 0) mine[0] = mine[33];  // BUG: global-race
}

// launch: --grid 8 --block 32 --cooperative --arg count=i32:1:zeros
__global__ void counter_without_atomic(int* count) {
    if (threadIdx.x == 0) {
        if (FIXED) atomicAdd(count, 1);
        else *count += 1;  // BUG: global-race
    }
}

// launch: --grid 4 --block 32 --arg out=f32:4:zeros
// fixed: --cooperative
__global__ void barrier_of_a_plain_launch(float* out) {
    cg::this_grid().sync();  // BUG: assert
    if (threadIdx.x == 0) out[blockIdx.x] = 1;
}

// launch: --grid 4 --block 32 --cooperative --arg out=f32:4:zeros
__global__ void barrier_skipped_by_a_block(float* out) {
    if (threadIdx.x == 0) out[blockIdx.x] = 1;
    if (!FIXED && blockIdx.x == 2) return;
    cg::this_grid().sync();  // BUG: deadlock
}

// launch: --grid 4 --block 64 --arg out=f32:4:zeros
__global__ void __cluster_dims__(2, 1, 1) neighbour_without_sync(float* out) {
    __shared__ float held;
    const auto cluster = cg::this_cluster();
    cluster.sync();
    if (threadIdx.x == 0) held = blockIdx.x;  // BUG: shared-race
    if (FIXED) cluster.sync();
    if (threadIdx.x == 32) out[blockIdx.x] = *cluster.map_shared_rank(&held, cluster.block_rank() ^ 1);  // MAY: shared-race, uninitialised
    cluster.sync();
}

// launch: --grid 4 --block 32 --arg out=f32:4:zeros
__cluster_dims__(2) __global__ void neighbour_has_ended(float* out) {
    __shared__ float held;
    const auto cluster = cg::this_cluster();
    held = 1;  // MAY: warp-race
    cluster.sync();
    if (threadIdx.x == 0 && cluster.block_rank() == 1) {
        float s = 0;
        for (int i = 0; i < 200; ++i) s += *cluster.map_shared_rank(&held, 0), __nanosleep(1);  // BUG: out-of-bounds
        out[blockIdx.x] = s;
    }
    if (FIXED) cluster.sync();
}

// launch: --grid 4 --block 32 --arg out=f32:4:zeros
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(32) rank_outside_the_cluster(float* out) {
    __shared__ float held;
    const auto cluster = cg::this_cluster();
    if (threadIdx.x == 0) held = 1;
    cluster.sync();
    if (threadIdx.x == 0) out[blockIdx.x] = *cluster.map_shared_rank(&held, FIXED ? 1 : 2);  // BUG: assert
    cluster.sync();
}

// launch: --grid 4 --block 32 --arg out=f32:2:zeros
constexpr int PAIR = 2;
__global__ void __cluster_dims__(PAIR) both_write_the_pairs_sum(float* out) {
    unsigned id;
    asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(id));
    if (threadIdx.x == 0 && (!FIXED || cg::this_cluster().block_rank() == 0)) out[id] += 1;  // BUG: global-race
}
