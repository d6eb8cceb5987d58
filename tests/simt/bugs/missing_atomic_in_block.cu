/* rooftop
op     = "rms_norm"
idea   = "Planted fault: all threads of a block add to one total in shared memory with a plain read and write."
limit  = "On a GPU: most of the sum is lost."
dtypes = ["f32"]
args   = ["C: i32", "x: T[R, C]", "y: T[R, C]", "eps: f32"]

[[launch]]
kernel = "missing_atomic_in_block"
grid   = ["R"]
block  = [128]
*/
#define FIXED 0

__global__ void missing_atomic_in_block(int C, const float* __restrict__ x, float* __restrict__ y, float eps) {
    __shared__ float total;
    const int t = threadIdx.x;
    x += static_cast<long long>(blockIdx.x) * C;
    y += static_cast<long long>(blockIdx.x) * C;
    if (t == 0) total = 0;
    __syncthreads();
    float s = 0;
    for (int c = t; c < C; c += 128) s += x[c] * x[c];
#if FIXED
    atomicAdd(&total, s);
#else
    total += s;  // BUG: shared-race, warp-race
#endif
    __syncthreads();
    const float scale = 1 / sqrtf(total / C + eps);
    for (int c = t; c < C; c += 128) y[c] = x[c] * scale;
}
