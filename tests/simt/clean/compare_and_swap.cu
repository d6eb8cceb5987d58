/* rooftop
op     = "rms_norm"
idea   = "Right, though it looks wrong: a sum in shared memory by a loop of atomicCAS on its bits."
dtypes = ["f32"]
args   = ["C: i32", "x: T[R, C]", "y: T[R, C]", "eps: f32"]

[[launch]]
kernel = "compare_and_swap"
grid   = ["R"]
block  = [128]
*/
__global__ void compare_and_swap(int C, const float* __restrict__ x, float* __restrict__ y, float eps) {
    __shared__ unsigned total;
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    const int t = threadIdx.x;
    x += static_cast<long long>(blockIdx.x) * C;
    y += static_cast<long long>(blockIdx.x) * C;
    float s = 0;
    for (int c = t; c < C; c += 128) s += x[c] * x[c];
    unsigned seen = atomicAdd(&total, 0), was;
    do {
        was = seen;
        seen = atomicCAS(&total, was, __float_as_uint(__uint_as_float(was) + s));
    } while (seen != was);
    __syncthreads();
    const float scale = 1 / sqrtf(__uint_as_float(total) / C + eps);
    for (int c = t; c < C; c += 128) y[c] = x[c] * scale;
}
