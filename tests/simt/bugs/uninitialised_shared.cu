/* rooftop
op     = "rms_norm"
idea   = "Planted fault: four warps leave their sums in shared memory, and 32 places of it are added up."
limit  = "On a GPU: the sum holds what another kernel left there: right in a fresh process, wrong later."
dtypes = ["f32"]
args   = ["C: i32", "x: T[R, C]", "y: T[R, C]", "eps: f32"]

[[launch]]
kernel = "uninitialised_shared"
grid   = ["R"]
block  = [128]
*/
#define FIXED 0

__global__ void uninitialised_shared(int C, const float* __restrict__ x, float* __restrict__ y, float eps) {
    __shared__ float warps[32];
    const int t = threadIdx.x;
    x += static_cast<long long>(blockIdx.x) * C;
    y += static_cast<long long>(blockIdx.x) * C;
    float s = 0;
    for (int c = t; c < C; c += 128) s += x[c] * x[c];
    for (int step = 16; step > 0; step /= 2) s += __shfl_xor_sync(~0u, s, step);
    if (t % 32 == 0) warps[t / 32] = s;
    __syncthreads();
#if FIXED
    s = t % 32 < 4 ? warps[t % 32] : 0;
#else
    s = warps[t % 32];  // BUG: uninitialised
#endif
    for (int step = 16; step > 0; step /= 2) s += __shfl_xor_sync(~0u, s, step);
    const float scale = 1 / sqrtf(s / C + eps);
    for (int c = t; c < C; c += 128) y[c] = x[c] * scale;
}
