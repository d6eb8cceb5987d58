/* rooftop
op     = "rms_norm"
idea   = "Planted fault: the lower half of the warp folds the upper half's values in, with a mask that names the lower half alone."
limit  = "On a GPU: what comes from a lane outside the mask is undefined: half of the sum is missing now and then."
dtypes = ["f32"]
args   = ["C: i32", "x: T[R, C]", "y: T[R, C]", "eps: f32"]

[[launch]]
kernel = "shuffle_from_outside_the_mask"
grid   = ["R"]
block  = [32]
*/
#define FIXED 0

__global__ void shuffle_from_outside_the_mask(int C, const float* __restrict__ x, float* __restrict__ y, float eps) {
    const int lane = threadIdx.x;
    x += static_cast<long long>(blockIdx.x) * C;
    y += static_cast<long long>(blockIdx.x) * C;

    float s = 0;
    for (int c = lane; c < C; c += 32) s += x[c] * x[c];
#if FIXED
    s += __shfl_down_sync(~0u, s, 16);
#else
    if (lane < 16) s += __shfl_down_sync(0xffffu, s, 16);  // BUG: absent-lane
#endif
    for (int step = 8; step > 0; step /= 2) s += __shfl_xor_sync(~0u, s, step, 16);
    s = __shfl_sync(~0u, s, 0);
    const float scale = 1 / sqrtf(s / C + eps);
    for (int c = lane; c < C; c += 32) y[c] = x[c] * scale;
}
