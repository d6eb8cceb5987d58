/* rooftop
op     = "rms_norm"
idea   = "Planted fault: rows are read two elements at a time though their length is odd: every second row begins off the boundary."
limit  = "On a GPU: the launch fails with a misaligned address, from the second row on."
dtypes = ["f32"]
args   = ["C: i32", "x: T[R, C]", "y: T[R, C]", "eps: f32"]

[[launch]]
kernel = "misaligned_rows"
grid   = ["R"]
block  = [128]
*/
#define FIXED 0

__global__ void misaligned_rows(int C, const float* __restrict__ x, float* __restrict__ y, float eps) {
    __shared__ float warps[4];
    const int t = threadIdx.x;
    x += static_cast<long long>(blockIdx.x) * C;
    y += static_cast<long long>(blockIdx.x) * C;
    float s = 0;
#if FIXED
    for (int c = t; c < C; c += 128) s += x[c] * x[c];
#else
    for (int c = 2 * t; c + 1 < C; c += 256) {
        const float2 p = *reinterpret_cast<const float2*>(x + c);  // BUG: misaligned
        s += p.x * p.x + p.y * p.y;
    }
    if (t == 0 && C % 2) s += x[C - 1] * x[C - 1];
#endif
    for (int step = 16; step > 0; step /= 2) s += __shfl_xor_sync(~0u, s, step);
    if (t % 32 == 0) warps[t / 32] = s;
    __syncthreads();
    const float scale = 1 / sqrtf((warps[0] + warps[1] + warps[2] + warps[3]) / C + eps);
    for (int c = t; c < C; c += 128) y[c] = x[c] * scale;
}
