/* rooftop
op     = "rms_norm"
idea   = "Planted fault: the blocks of a cluster add to a total in the first one's shared memory, which it may not have cleared yet."
limit  = "On a GPU: parts that come before the clearing are lost; where the first block has not begun, an illegal access."
dtypes = ["f32"]
args   = ["C: i32", "x: T[R, C]", "y: T[R, C]", "eps: f32"]
arch   = 90

[[launch]]
kernel = "cluster_atomic_before_start"
grid   = ["2 * R"]
block  = [32]
cluster = [2]
*/
#include <cooperative_groups.h>

#define FIXED 0

__global__ void cluster_atomic_before_start(int C, const float* __restrict__ x, float* __restrict__ y, float eps) {
    __shared__ float total;
    const auto cluster = cooperative_groups::this_cluster();
    const int lane = threadIdx.x, rank = cluster.block_rank();
    const long long row = blockIdx.x / 2;
    x += row * C;
    y += row * C;
    if (lane == 0) total = 0;  // MAY: shared-race
    float s = 0;
    for (int c = rank * 32 + lane; c < C; c += 64) s += x[c] * x[c];
    for (int step = 16; step > 0; step /= 2) s += __shfl_xor_sync(~0u, s, step);
#if FIXED
    cluster.sync();
#endif
    float* const sum = cluster.map_shared_rank(&total, 0);
    if (lane == 0) atomicAdd(sum, s);  // BUG: out-of-bounds, shared-race, uninitialised
    cluster.sync();
    const float scale = 1 / sqrtf(*sum / C + eps);
    cluster.sync();
    for (int c = rank * 32 + lane; c < C; c += 64) y[c] = x[c] * scale;
}
