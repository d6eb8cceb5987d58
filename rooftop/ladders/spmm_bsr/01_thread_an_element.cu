/* rooftop
idea    = "One thread per element of the result, neighbours in a warp along N: an element of a block is read once for 32 of them."
predict = { speedup = 1.0 }
limit   = "No tensor cores: one FMA for each load of b."
dtypes  = ["bf16"]
args    = ["M: i32", "N: i32", "K: i32", "high: i32 = H", "wide: i32 = W", "values: T[B, H, W]", "columns: i32[B]", "offsets: i32[P]", "b: T[K, N]", "bs: i64 = stride(b, 0)", "out: T[M, N]"]

[requires]
"not present(bias) and alpha == 1 and activation == 'none'" = "the product alone"
"stride(b, 1) == 1 or N == 1" = "neighbours of a row of b must be neighbours"
"stride(values, 2) == 1 and stride(values, 1) == W" = "blocks must lie by rows"
"M * N * K > 0" = "there must be something to multiply"
"B > 0" = "there must be blocks"

[[launch]]
kernel = "thread_an_element<{T}>"
grid   = ["ceil(N / 128)", "M"]
block  = [128]
*/
#include <cuda_bf16.h>

template <typename T>
__global__ void thread_an_element(int M, int N, int K, int high, int wide, const T* __restrict__ values, const int* __restrict__ columns, const int* __restrict__ offsets,
                                  const T* __restrict__ b, long long bs, T* __restrict__ out) {
    const int n = blockIdx.x * 128 + threadIdx.x, m = blockIdx.y, r = m / high;
    if (n >= N) return;
    float sum = 0;
    for (int i = offsets[r]; i < offsets[r + 1]; ++i) {
        const T* row = values + (static_cast<long long>(i) * high + m % high) * wide;
        const int first = columns[i] * wide, count = min(wide, K - first);
        for (int k = 0; k < count; ++k) sum += static_cast<float>(row[k]) * static_cast<float>(b[(first + k) * bs + n]);
    }
    out[static_cast<long long>(m) * N + n] = T(sum);
}
