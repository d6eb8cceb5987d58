/* rooftop
op     = "rms_norm"
idea   = "Right, though it looks wrong: one block of a cluster tells the other by a flag in its shared memory that its sum may be read: a fence before it is raised, an atomic to see it."
dtypes = ["f32"]
args   = ["C: i32", "x: T[R, C]", "y: T[R, C]", "eps: f32"]
arch   = 90

[[launch]]
kernel = "flag_between_blocks"
grid   = ["2 * R"]
block  = [32]
cluster = [2]
*/
#include <cooperative_groups.h>

__global__ void flag_between_blocks(int C, const float* __restrict__ x, float* __restrict__ y, float eps) {
    __shared__ float mine;
    __shared__ int theirs_is_there;
    const auto cluster = cooperative_groups::this_cluster();
    const int lane = threadIdx.x, rank = cluster.block_rank();
    const long long row = blockIdx.x / 2;
    x += row * C;
    y += row * C;
    if (lane == 0) theirs_is_there = 0;
    cluster.sync();
    float s = 0;
    for (int c = rank * 32 + lane; c < C; c += 64) s += x[c] * x[c];
    for (int step = 16; step > 0; step /= 2) s += __shfl_xor_sync(~0u, s, step);
    if (lane == 0) {
        mine = s;
        __threadfence();
        atomicExch(cluster.map_shared_rank(&theirs_is_there, rank ^ 1), 1);
        while (atomicAdd(&theirs_is_there, 0) == 0) {}
    }
    __syncwarp();
    s += *cluster.map_shared_rank(&mine, rank ^ 1);
    const float scale = 1 / sqrtf(s / C + eps);
    for (int c = rank * 32 + lane; c < C; c += 64) y[c] = x[c] * scale;
    cluster.sync();
}
