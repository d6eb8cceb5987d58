/* rooftop
op     = "rms_norm"
idea   = "Planted fault: lanes without a column return before the shuffles that name all 32 lanes."
limit  = "On a GPU: the value that comes from a lane that has left is undefined; the sum is wrong on short rows."
dtypes = ["f32"]
args   = ["C: i32", "x: T[R, C]", "y: T[R, C]", "eps: f32"]

[[launch]]
kernel = "shuffle_after_exit"
grid   = ["R"]
block  = [32]
*/
#define FIXED 0

__global__ void shuffle_after_exit(int C, const float* __restrict__ x, float* __restrict__ y, float eps) {
    const int lane = threadIdx.x;
    x += static_cast<long long>(blockIdx.x) * C;
    y += static_cast<long long>(blockIdx.x) * C;

#if FIXED
    float s = lane < C ? x[lane] * x[lane] : 0;
#else
    if (lane >= C) return;
    float s = x[lane] * x[lane];
#endif
    for (int step = 16; step > 0; step /= 2)
        s += __shfl_xor_sync(~0u, s, step);  // BUG: absent-lane
    const float scale = 1 / sqrtf(s / C + eps);
    if (lane < C) y[lane] = x[lane] * scale;
}
