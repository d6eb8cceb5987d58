/* rooftop
idea    = "One warp per row: 32 neighbours per load, 64 bytes of 16-bit elements."
predict = { speedup = 8, sectors_read = 2 }
limit   = "Half of the bytes that a load of 32 lanes could bring, and two conversions for each FMA."
dtypes  = ["bf16", "f16"]
args    = ["M: i32", "K: i32", "a: T[B, M, K]", "am: i64 = stride(a, 1)", "x: T[B, R, K]", "y: T[B, R, M]"]

[requires]
"B == 1 and R == 1" = "takes one matrix and one vector"
"M * K > 0" = "there is nothing to multiply"
"stride(a, 2) == 1 and stride(x, 2) == 1" = "the rows of a, and x, must be neighbours along K"

[[launch]]
kernel = "gemv<{T}>"
grid   = ["ceil(M / 8)"]
block  = [256]
*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float warp_sum(float v) {
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
    return v;
}

template <typename T>
__global__ void __launch_bounds__(256) gemv(int M, int K, const T* __restrict__ a, long long am, const T* __restrict__ x, T* __restrict__ y) {
    const int m = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (m >= M) return;
    a += m * am;
    float sum = 0;
    for (int k = lane; k < K; k += 32) sum = fmaf(static_cast<float>(a[k]), static_cast<float>(x[k]), sum);
    sum = warp_sum(sum);
    if (lane == 0) y[m] = static_cast<T>(sum);
}
