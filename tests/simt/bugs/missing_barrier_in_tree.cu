/* rooftop
op     = "rms_norm"
idea   = "Planted fault: the tree of sums in shared memory has no barrier between its steps."
limit  = "On a GPU: the sum is now and then too small."
dtypes = ["f32"]
args   = ["C: i32", "x: T[R, C]", "y: T[R, C]", "eps: f32"]

[[launch]]
kernel = "missing_barrier_in_tree"
grid   = ["R"]
block  = [128]
*/
#define FIXED 0

__global__ void missing_barrier_in_tree(int C, const float* __restrict__ x, float* __restrict__ y, float eps) {
    __shared__ float sums[128];
    const int t = threadIdx.x;
    x += static_cast<long long>(blockIdx.x) * C;
    y += static_cast<long long>(blockIdx.x) * C;
    float s = 0;
    for (int c = t; c < C; c += 128) s += x[c] * x[c];
    sums[t] = s;
    __syncthreads();
    for (int half = 64; half > 0; half /= 2) {
        if (t < half) sums[t] += sums[t + half];  // BUG: shared-race, warp-race
#if FIXED
        __syncthreads();
#endif
    }
    __syncthreads();
    const float scale = 1 / sqrtf(sums[0] / C + eps);
    for (int c = t; c < C; c += 128) y[c] = x[c] * scale;
}
