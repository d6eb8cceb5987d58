/* rooftop
op     = "rms_norm"
idea   = "Planted fault: a block stores its sum into its neighbour's shared memory, and nothing says that the neighbour has begun."
limit  = "On a GPU: where the neighbour has not begun, an illegal access, or a sum that its start wipes out."
dtypes = ["f32"]
args   = ["C: i32", "x: T[R, C]", "y: T[R, C]", "eps: f32"]
arch   = 90

[[launch]]
kernel = "cluster_store_before_start"
grid   = ["2 * R"]
block  = [32]
cluster = [2]
*/
#include <cooperative_groups.h>

#define FIXED 0

__global__ void cluster_store_before_start(int C, const float* __restrict__ x, float* __restrict__ y, float eps) {
    __shared__ float theirs;
    const auto cluster = cooperative_groups::this_cluster();
    const int lane = threadIdx.x, rank = cluster.block_rank();
    const long long row = blockIdx.x / 2;
    x += row * C;
    y += row * C;
    float s = 0;
    for (int c = rank * 32 + lane; c < C; c += 64) s += x[c] * x[c];
    for (int step = 16; step > 0; step /= 2) s += __shfl_xor_sync(~0u, s, step);
#if FIXED
    cluster.sync();
#endif
    if (lane == 0) *cluster.map_shared_rank(&theirs, rank ^ 1) = s;  // BUG: out-of-bounds
    cluster.sync();
    const float scale = 1 / sqrtf((s + theirs) / C + eps);
    for (int c = rank * 32 + lane; c < C; c += 64) y[c] = x[c] * scale;
}
