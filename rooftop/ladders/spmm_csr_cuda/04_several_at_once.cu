/* rooftop
idea    = "Eight elements at a time: their indices first, then their rows of b, then the products, so that eight rows are in flight together."
predict = { speedup = 2.0 }
limit   = "Load imbalance: one warp processes a row of many elements while others are done; if N is under 128, lanes are idle."
dtypes  = ["f32"]
args    = ["M: i32", "N: i32", "values: T[Z]", "columns: i32[Z]", "offsets: i32[P]", "b: T[K, N]", "bs: i64 = stride(b, 0)", "out: T[M, N]"]

[requires]
"not present(bias) and alpha == 1 and activation == 'none'" = "the product alone"
"stride(b, 1) == 1 or N == 1" = "neighbours of a row of b must be neighbours"
"numel(out) > 0" = "there is nothing to compute"
"K > 0" = "b has no rows"
"N % 4 == 0 and aligned(b, 16)" = "rows of b must begin on 16 bytes"

[[launch]]
kernel = "several_at_once<{T}>"
grid   = ["ceil(M / 8)", "ceil(N / 128)"]
block  = [256]
*/

template <typename T>
__global__ void several_at_once(int M, int N, const T* __restrict__ values, const int* __restrict__ columns, const int* __restrict__ offsets, const T* __restrict__ b, long long bs,
                                T* __restrict__ out) {
    const int m = blockIdx.x * 8 + threadIdx.x / 32, n = (blockIdx.y * 32 + threadIdx.x % 32) * 4;
    if (m >= M || n >= N) return;
    float4 sum = make_float4(0, 0, 0, 0), part = sum, more = sum;
    int parts = 0;
    const int end = offsets[m + 1];
    for (int i = offsets[m]; i < end; i += 8) {
        float v[8];
        float4 x[8];
#pragma unroll
        for (int u = 0; u < 8; ++u) {
            const bool here = i + u < end;
            v[u] = here ? values[i + u] : 0.f;
            x[u] = here ? *reinterpret_cast<const float4*>(b + columns[i + u] * bs + n) : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (int u = 0; u < 8; ++u) part.x += v[u] * x[u].x, part.y += v[u] * x[u].y, part.z += v[u] * x[u].z, part.w += v[u] * x[u].w;
        ++parts;
        if (parts % 8 == 0 || i + 8 >= end) {  // sums of 64, of 1024 and of the row: the rounding error of one chain grows with its length
            more.x += part.x, more.y += part.y, more.z += part.z, more.w += part.w;
            part = make_float4(0, 0, 0, 0);
        }
        if (parts % 128 == 0 || i + 8 >= end) {
            sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
            more = make_float4(0, 0, 0, 0);
        }
    }
    *reinterpret_cast<float4*>(out + static_cast<long long>(m) * N + n) = sum;
}
