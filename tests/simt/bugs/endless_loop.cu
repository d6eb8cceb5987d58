/* rooftop
op     = "rms_norm"
idea   = "Planted fault: the step of a loop is a quotient of integers that comes to zero."
limit  = "On a GPU: the kernel never ends."
dtypes = ["f32"]
args   = ["C: i32", "x: T[R, C]", "y: T[R, C]", "eps: f32"]

[[launch]]
kernel = "endless_loop"
grid   = ["R"]
block  = [32]
*/
#define FIXED 0

__global__ void endless_loop(int C, const float* __restrict__ x, float* __restrict__ y, float eps) {
    const int lane = threadIdx.x, step = FIXED ? 32 : 32 / (2 * blockDim.x);
    x += static_cast<long long>(blockIdx.x) * C;
    y += static_cast<long long>(blockIdx.x) * C;
    float s = 0;
    for (int c = lane; c < C; c += step) s += x[c] * x[c];  // BUG: deadlock
    for (int half = 16; half > 0; half /= 2) s += __shfl_xor_sync(~0u, s, half);
    const float scale = 1 / sqrtf(s / C + eps);
    for (int c = lane; c < C; c += 32) y[c] = x[c] * scale;
}
