/* rooftop
idea    = "One thread per element of the result: it reads the code of each group of four, and multiplies the two values with the rows of b that the code selects."
predict = { speedup = 0.02 }
limit   = "No tensor cores, and some ten instructions for two products."
dtypes  = ["bf16"]
args    = ["M: i32", "N: i32", "groups: i32 = H // 2", "blocks: i32 = C", "values: T[M, H]", "meta: i32[S, C, L, 4]", "b: T[K, N]", "kb: i64 = stride(b, 0)", "nb: i64 = stride(b, 1)", "om: i64 = 1 if transposed else N", "on: i64 = M if transposed else 1", "out: T[P, Q]"]

[requires]
"not present(bias) and alpha == 1 and activation == 'none'" = "the product alone"
"K % 4 == 0" = "whole groups of four"
"M * N * K > 0" = "there must be something to multiply"

[[launch]]
kernel = "with_metadata<{T}>"
grid   = ["ceil(N / 128)", "M"]
block  = [128]
*/
#include <cuda_bf16.h>

template <typename T>
__global__ void with_metadata(int M, int N, int groups, int blocks, const T* __restrict__ values, const int* __restrict__ meta, const T* __restrict__ b, long long kb,
                              long long nb, long long om, long long on, T* __restrict__ out) {
    const int n = blockIdx.x * 128 + threadIdx.x, m = blockIdx.y;
    if (n >= N) return;
    float sum = 0;
    for (int group = 0; group < groups; ++group) {
        // Word i of lane 4 g + t of block c: rows g and g + 8 of the stripe, the four groups from 64 c + 16 i + 4 t on.
        const int c = group / 64, i = group / 16 % 4, t = group / 4 % 4, lane = m % 8 * 4 + t;
        const int word = meta[((static_cast<long long>(m / 16) * blocks + c) * 32 + lane) * 4 + i];
        const int code = word >> (16 * (m / 8 % 2) + 4 * (group % 4)) & 15;
        const T* pair = values + (static_cast<long long>(m) * groups + group) * 2;
        sum += static_cast<float>(pair[0]) * static_cast<float>(b[(4 * group + code % 4) * kb + n * nb]);
        sum += static_cast<float>(pair[1]) * static_cast<float>(b[(4 * group + code / 4) * kb + n * nb]);
    }
    out[m * om + n * on] = T(sum);
}
