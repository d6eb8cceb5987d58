/* rooftop
idea    = "A lane computes four columns, 16 bytes: a quarter of the loads of b, and of an element's index and value, for the same products."
predict = { speedup = 2.0 }
limit   = "Still one load in flight per warp; if N is under 128, lanes are idle."
dtypes  = ["f32"]
args    = ["M: i32", "N: i32", "values: T[Z]", "columns: i32[Z]", "offsets: i32[P]", "b: T[K, N]", "bs: i64 = stride(b, 0)", "out: T[M, N]"]

[requires]
"not present(bias) and alpha == 1 and activation == 'none'" = "the product alone"
"stride(b, 1) == 1 or N == 1" = "neighbours of a row of b must be neighbours"
"numel(out) > 0" = "there is nothing to compute"
"K > 0" = "b has no rows"
"N % 4 == 0 and aligned(b, 16)" = "rows of b must begin on 16 bytes"

[[launch]]
kernel = "vectorised<{T}>"
grid   = ["ceil(M / 8)", "ceil(N / 128)"]
block  = [256]
*/

template <typename T>
__global__ void vectorised(int M, int N, const T* __restrict__ values, const int* __restrict__ columns, const int* __restrict__ offsets, const T* __restrict__ b, long long bs,
                           T* __restrict__ out) {
    const int m = blockIdx.x * 8 + threadIdx.x / 32, n = (blockIdx.y * 32 + threadIdx.x % 32) * 4;
    if (m >= M || n >= N) return;
    float4 sum = make_float4(0, 0, 0, 0);
    const int end = offsets[m + 1];
    for (int i = offsets[m]; i < end;) {  // 64 at a time: the rounding error of one accumulation chain grows with its length
        float4 part = make_float4(0, 0, 0, 0);
        for (const int stop = min(i + 64, end); i < stop; ++i) {
            const float v = values[i];
            const float4 x = *reinterpret_cast<const float4*>(b + columns[i] * bs + n);
            part.x += v * x.x, part.y += v * x.y, part.z += v * x.z, part.w += v * x.w;
        }
        sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
    }
    *reinterpret_cast<float4*>(out + static_cast<long long>(m) * N + n) = sum;
}
