/* rooftop
op     = "rms_norm"
idea   = "Planted fault: threads without a column return before they have cleared their place in the tree of sums."
limit  = "On a GPU: the sum holds whatever the kernel before left in shared memory."
dtypes = ["f32"]
args   = ["C: i32", "x: T[R, C]", "y: T[R, C]", "eps: f32"]

[[launch]]
kernel = "early_return"
grid   = ["R"]
block  = [128]
*/
#define FIXED 0

__global__ void early_return(int C, const float* __restrict__ x, float* __restrict__ y, float eps) {
    __shared__ float sums[128];
    const int t = threadIdx.x;
    x += static_cast<long long>(blockIdx.x) * C;
    y += static_cast<long long>(blockIdx.x) * C;
#if !FIXED
    if (t >= C) return;
#endif
    float s = 0;
    for (int c = t; c < C; c += 128) s += x[c] * x[c];
    sums[t] = s;
    __syncthreads();  // MAY: barrier-divergence
    for (int half = 64; half > 0; half /= 2) {
        if (t < half) sums[t] += sums[t + half];  // BUG: uninitialised
        __syncthreads();  // MAY: barrier-divergence
    }
    const float scale = 1 / sqrtf(sums[0] / C + eps);
    for (int c = t; c < C; c += 128) y[c] = x[c] * scale;
}
