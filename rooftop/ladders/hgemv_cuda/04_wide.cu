/* rooftop
idea    = "Eight elements per load of 16 bytes, four loads of the row in flight."
predict = { speedup = 1.4, sectors_read = 16 }
limit   = "For each 16 bytes of the row, 16 bytes of the vector from L1 and eight conversions of them."
dtypes  = ["bf16", "f16"]
args    = ["M: i32", "K: i32", "a: T[B, M, K]", "am: i64 = stride(a, 1)", "x: T[B, R, K]", "y: T[B, R, M]"]
demands = { has = ["LDG.E.128"], spills = 0 }

[requires]
"B == 1 and R == 1" = "takes one matrix and one vector"
"M * K > 0" = "there is nothing to multiply"
"stride(a, 2) == 1 and stride(x, 2) == 1" = "the rows of a, and x, must be neighbours along K"
"K % (16 // bytes(a)) == 0 and aligned(a, 16) and starts(x, 16)" = "rows and x must start on 16-byte boundaries"

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

/// A pack: 16 bytes of a row, one vector access.
template <typename T>
struct alignas(16) Pack {
    static constexpr int N = 16 / sizeof(T);
    T v[N];
};

template <typename T>
__global__ void __launch_bounds__(256) gemv(int M, int K, const T* __restrict__ a, long long am, const T* __restrict__ x, T* __restrict__ y) {
    using P = Pack<T>;
    const int m = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (m >= M) return;
    const P *row = reinterpret_cast<const P*>(a + m * am), *v = reinterpret_cast<const P*>(x);
    float sum = 0;
#pragma unroll 4
    for (int k = lane; k < K / P::N; k += 32) {
        const P p = row[k], q = v[k];
#pragma unroll
        for (int j = 0; j < P::N; ++j) sum = fmaf(static_cast<float>(p.v[j]), static_cast<float>(q.v[j]), sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) y[m] = static_cast<T>(sum);
}
