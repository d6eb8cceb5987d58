/* rooftop
op     = "rms_norm"
idea   = "Planted fault: a block may end while its neighbour still reads its shared memory: the last barrier of the cluster is missing."
limit  = "On a GPU: an illegal access or another block's data, when the blocks run apart."
dtypes = ["f32"]
args   = ["C: i32", "x: T[R, C]", "y: T[R, C]", "eps: f32"]
arch   = 90

[[launch]]
kernel = "cluster_exit_before_read"
grid   = ["2 * R"]
block  = [32]
cluster = [2]
*/
#include <cooperative_groups.h>

#define FIXED 0

__global__ void cluster_exit_before_read(int C, const float* __restrict__ x, float* __restrict__ y, float eps) {
    __shared__ float mine;
    const auto cluster = cooperative_groups::this_cluster();
    const int lane = threadIdx.x, rank = cluster.block_rank();
    const long long row = blockIdx.x / 2;
    x += row * C;
    y += row * C;
    float s = 0;
    for (int c = rank * 32 + lane; c < C; c += 64) s += x[c] * x[c];
    for (int step = 16; step > 0; step /= 2) s += __shfl_xor_sync(~0u, s, step);
    if (lane == 0) mine = s;  // MAY: shared-race
    cluster.sync();
    s += *cluster.map_shared_rank(&mine, rank ^ 1);  // BUG: out-of-bounds, shared-race, uninitialised
#if FIXED
    cluster.sync();
#endif
    const float scale = 1 / sqrtf(s / C + eps);
    for (int c = rank * 32 + lane; c < C; c += 64) y[c] = x[c] * scale;
}
