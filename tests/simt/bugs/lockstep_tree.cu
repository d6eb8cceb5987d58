/* rooftop
op     = "rms_norm"
idea   = "Planted fault: the last steps of a tree of sums, all in one warp, rely on lockstep: no __syncwarp between them."
limit  = "On a GPU: right on Pascal; on later cards right only as long as the compiler and the scheduler keep the lanes together."
dtypes = ["f32"]
args   = ["C: i32", "x: T[R, C]", "y: T[R, C]", "eps: f32"]

[[launch]]
kernel = "lockstep_tree"
grid   = ["R"]
block  = [64]
*/
#define FIXED 0

__global__ void lockstep_tree(int C, const float* __restrict__ x, float* __restrict__ y, float eps) {
    __shared__ float sums[64];
    const int t = threadIdx.x;
    x += static_cast<long long>(blockIdx.x) * C;
    y += static_cast<long long>(blockIdx.x) * C;
    float s = 0;
    for (int c = t; c < C; c += 64) s += x[c] * x[c];
    sums[t] = s;
    __syncthreads();
    if (t < 32) {
        sums[t] += sums[t + 32];  // BUG: warp-race
        for (int half = 16; half > 0; half /= 2) {
#if FIXED
            __syncwarp();
#endif
            if (t < half) sums[t] += sums[t + half];  // BUG: warp-race
        }
    }
    __syncthreads();
    const float scale = 1 / sqrtf(sums[0] / C + eps);
    for (int c = t; c < C; c += 64) y[c] = x[c] * scale;
}
