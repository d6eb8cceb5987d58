/* rooftop
idea    = "One block per row: neighbouring threads read neighbouring elements, and their sums are reduced in shared memory, with half of the threads at each step."
predict = { speedup = 12, sectors_read = 2, reads = 3 }
limit   = "Each load or store moves one element: 10 instructions per element in the loop of the sum, 21 in that of the result, which has one load of the row in flight per thread. 1.38 times the time of a copy at 8192 columns of bf16, 2.27 times at 32768."
dtypes  = ["f32", "bf16"]
args   = ["R: i64", "C: u32", "x: T[R, C]", "xs: i64 = stride(x, 0)", "weight: T[C]?", "y: T[R, C]", "ys: i64 = stride(y, 0)", "eps: f32"]

[requires]
"not present(residual) and not present(bias)" = "this rung adds nothing before and nothing after"

[config]
threads = 256

[[launch]]
kernel = "rms_norm<{T}, {threads}>"
grid   = ["R"]
block  = ["threads"]
*/
#include <cuda_bf16.h>

template <typename T, int THREADS>
__global__ void rms_norm(long long R, unsigned C, const T* __restrict__ x, long long xs, const T* __restrict__ w, T* __restrict__ y, long long ys, float eps) {
    __shared__ float sums[THREADS];
    const unsigned tid = threadIdx.x;
    x += blockIdx.x * xs;
    y += blockIdx.x * ys;

    float s = 0;
    for (unsigned c = tid; c < C; c += THREADS) {
        const float v = static_cast<float>(x[c]);
        s += v * v;
    }
    sums[tid] = s;
    __syncthreads();
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        if (tid < half) sums[tid] += sums[tid + half];
        __syncthreads();
    }
    const float scale = 1 / sqrtf(sums[0] / C + eps);

    for (unsigned c = tid; c < C; c += THREADS) y[c] = T(static_cast<float>(x[c]) * scale * (w ? static_cast<float>(w[c]) : 1));
}
