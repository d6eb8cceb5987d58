/* rooftop
idea    = "Two elements per load (half2): 128 bytes for a warp."
predict = { speedup = 1.6, sectors_read = 4 }
limit   = "4 bytes per thread and load."
dtypes  = ["bf16", "f16"]
args    = ["M: i32", "K: i32", "a: T[B, M, K]", "am: i64 = stride(a, 1)", "x: T[B, R, K]", "y: T[B, R, M]"]

[requires]
"B == 1 and R == 1" = "takes one matrix and one vector"
"M * K > 0" = "there is nothing to multiply"
"stride(a, 2) == 1 and stride(x, 2) == 1" = "the rows of a, and x, must be neighbours along K"
"K % 2 == 0 and aligned(a, 4) and starts(x, 4)" = "rows and x must start on 4-byte boundaries"

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
struct alignas(4) Pair {
    T a, b;
};

template <typename T>
__global__ void __launch_bounds__(256) gemv(int M, int K, const T* __restrict__ a, long long am, const T* __restrict__ x, T* __restrict__ y) {
    const int m = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (m >= M) return;
    a += m * am;
    float sum = 0;
    for (int k = 2 * lane; k < K; k += 64) {
        const Pair<T> p = *reinterpret_cast<const Pair<T>*>(a + k), q = *reinterpret_cast<const Pair<T>*>(x + k);
        sum = fmaf(static_cast<float>(p.a), static_cast<float>(q.a), sum);
        sum = fmaf(static_cast<float>(p.b), static_cast<float>(q.b), sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) y[m] = static_cast<T>(sum);
}
