/* rooftop
op     = "rms_norm"
idea   = "Right, though it looks wrong: groups of sixteen threads shuffle among themselves, while the other half of their warp is elsewhere."
dtypes = ["f32"]
args   = ["R: i32", "C: i32", "x: T[R, C]", "y: T[R, C]", "eps: f32"]

[[launch]]
kernel = "tiles_of_sixteen"
grid   = ["ceil(R / 2)"]
block  = [32]
*/
#include <cooperative_groups.h>

__global__ void tiles_of_sixteen(int R, int C, const float* __restrict__ x, float* __restrict__ y, float eps) {
    const auto tile = cooperative_groups::tiled_partition<16>(cooperative_groups::this_thread_block());
    const int row = blockIdx.x * 2 + threadIdx.x / 16, lane = tile.thread_rank();
    if (row >= R) return;  // a whole tile
    x += static_cast<long long>(row) * C;
    y += static_cast<long long>(row) * C;
    float s = 0;
    for (int c = lane; c < C; c += 16) s += x[c] * x[c];
    for (int step = 8; step > 0; step /= 2) s += tile.shfl_xor(s, step);
    tile.sync();
    const float scale = 1 / sqrtf(s / C + eps);
    for (int c = lane; c < C; c += 16) y[c] = x[c] * scale;
}
