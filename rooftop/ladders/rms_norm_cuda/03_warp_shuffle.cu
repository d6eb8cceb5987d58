/* rooftop
idea    = "The sums are reduced within each warp by shuffles, and only one value per warp goes through shared memory: one barrier instead of nine."
predict = { speedup = 1.05 }
limit   = "The same as for rung 02: its barriers cost almost nothing. 245.4 µs for 246.6 at 8192 columns of bf16, and no difference beyond noise at longer rows."
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

__device__ float warp_sum(float v, int width) {
    for (int step = width / 2; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
    return v;
}

template <typename T, int THREADS>
__global__ void rms_norm(long long R, unsigned C, const T* __restrict__ x, long long xs, const T* __restrict__ w, T* __restrict__ y, long long ys, float eps) {
    constexpr int WARPS = THREADS / 32;
    __shared__ float sums[WARPS];
    const unsigned tid = threadIdx.x;
    x += blockIdx.x * xs;
    y += blockIdx.x * ys;

    float s = 0;
    for (unsigned c = tid; c < C; c += THREADS) {
        const float v = static_cast<float>(x[c]);
        s += v * v;
    }
    s = warp_sum(s, 32);
    if (tid % 32 == 0) sums[tid / 32] = s;
    __syncthreads();
    const float scale = 1 / sqrtf(warp_sum(sums[tid % WARPS], WARPS) / C + eps);

    for (unsigned c = tid; c < C; c += THREADS) y[c] = T(static_cast<float>(x[c]) * scale * (w ? static_cast<float>(w[c]) : 1));
}
