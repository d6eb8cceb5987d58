/* rooftop
idea    = "32 elements of a row at a time are loaded to shared memory, coalesced: two loads of a warp instead of 64 that all its lanes repeat."
predict = { speedup = 1.1 }
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
kernel = "shared_tile<{T}>"
grid   = ["ceil(M / 8)", "ceil(N / 128)"]
block  = [256]
*/

template <typename T>
__global__ void shared_tile(int M, int N, const T* __restrict__ values, const int* __restrict__ columns, const int* __restrict__ offsets, const T* __restrict__ b, long long bs,
                            T* __restrict__ out) {
    __shared__ T value[8][32];
    __shared__ int column[8][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, m = blockIdx.x * 8 + warp, n = (blockIdx.y * 32 + lane) * 4;
    if (m >= M) return;
    float4 sum = make_float4(0, 0, 0, 0);
    const int end = offsets[m + 1];
    for (int first = offsets[m]; first < end; first += 32) {
        __syncwarp();
        value[warp][lane] = first + lane < end ? values[first + lane] : T(0);
        column[warp][lane] = first + lane < end ? columns[first + lane] : 0;
        __syncwarp();
        if (n >= N) continue;
        float4 part = make_float4(0, 0, 0, 0);  // of 32: the rounding error of one accumulation chain grows with its length
        for (int i = 0; i < min(32, end - first); i += 8) {
            float4 x[8];
#pragma unroll
            for (int u = 0; u < 8; ++u)
                x[u] = first + i + u < end ? *reinterpret_cast<const float4*>(b + column[warp][i + u] * bs + n) : make_float4(0, 0, 0, 0);
#pragma unroll
            for (int u = 0; u < 8; ++u) {
                const float v = value[warp][i + u];
                part.x += v * x[u].x, part.y += v * x[u].y, part.z += v * x[u].z, part.w += v * x[u].w;
            }
        }
        sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
    }
    if (n < N) *reinterpret_cast<float4*>(out + static_cast<long long>(m) * N + n) = sum;
}
