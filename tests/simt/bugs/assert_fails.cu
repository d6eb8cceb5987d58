/* rooftop
op     = "rms_norm"
idea   = "Planted fault: a tree of sums that needs a power of two of threads is launched with 96, and asserts it."
limit  = "On a GPU: the launch fails with a device-side assert."
dtypes = ["f32"]
args   = ["C: i32", "x: T[R, C]", "y: T[R, C]", "eps: f32"]

[config]
fixed = 0

[[launch]]
kernel = "assert_fails"
grid   = ["R"]
block  = ["96 + 32 * fixed"]
*/
#define FIXED 0

__global__ void assert_fails(int C, const float* __restrict__ x, float* __restrict__ y, float eps) {
    __shared__ float sums[128];
    const int t = threadIdx.x, threads = blockDim.x;
    assert((threads & (threads - 1)) == 0);  // BUG: assert
    x += static_cast<long long>(blockIdx.x) * C;
    y += static_cast<long long>(blockIdx.x) * C;
    float s = 0;
    for (int c = t; c < C; c += threads) s += x[c] * x[c];
    sums[t] = s;
    __syncthreads();
    for (int half = threads / 2; half > 0; half /= 2) {
        if (t < half) sums[t] += sums[t + half];  // MAY: shared-race, warp-race, uninitialised
        __syncthreads();
    }
    const float scale = 1 / sqrtf(sums[0] / C + eps);
    for (int c = t; c < C; c += threads) y[c] = x[c] * scale;
}
