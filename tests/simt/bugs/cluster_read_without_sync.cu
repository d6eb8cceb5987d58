/* rooftop
op     = "rms_norm"
idea   = "Planted fault: a block reads its neighbour's sum out of its shared memory without a barrier of the cluster."
limit  = "On a GPU: the neighbour may not have written it, or not even have started: a wrong sum, or an illegal access."
dtypes = ["f32"]
args   = ["C: i32", "x: T[R, C]", "y: T[R, C]", "eps: f32"]
arch   = 90

[[launch]]
kernel = "cluster_read_without_sync"
grid   = ["2 * R"]
block  = [32]
cluster = [2]
*/
#include <cooperative_groups.h>

#define FIXED 0

__global__ void cluster_read_without_sync(int C, const float* __restrict__ x, float* __restrict__ y, float eps) {
    __shared__ float mine;
    const auto cluster = cooperative_groups::this_cluster();
    const int lane = threadIdx.x, rank = cluster.block_rank();
    const long long row = blockIdx.x / 2;
    x += row * C;
    y += row * C;
    float s = 0;
    for (int c = rank * 32 + lane; c < C; c += 64) s += x[c] * x[c];
    for (int step = 16; step > 0; step /= 2) s += __shfl_xor_sync(~0u, s, step);
    if (lane == 0) mine = s;  // BUG: shared-race
#if FIXED
    cluster.sync();
#endif
    __syncwarp();
    s += *cluster.map_shared_rank(&mine, rank ^ 1);  // BUG: shared-race, uninitialised, out-of-bounds
    cluster.sync();
    const float scale = 1 / sqrtf(s / C + eps);
    for (int c = rank * 32 + lane; c < C; c += 64) y[c] = x[c] * scale;
}
