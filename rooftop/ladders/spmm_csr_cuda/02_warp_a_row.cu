/* rooftop
idea    = "One warp per row: its lanes are 32 neighbouring columns, so that a load of a row of b is one line, and an element is read once for all of them."
predict = { speedup = 8.0 }
limit   = "One load of b in flight per warp: the latency of L2 for each element. 4 bytes per lane."
dtypes  = ["f32"]
args    = ["M: i32", "N: i32", "values: T[Z]", "columns: i32[Z]", "offsets: i32[P]", "b: T[K, N]", "bs: i64 = stride(b, 0)", "out: T[M, N]"]

[requires]
"not present(bias) and alpha == 1 and activation == 'none'" = "the product alone"
"stride(b, 1) == 1 or N == 1" = "neighbours of a row of b must be neighbours"
"numel(out) > 0" = "there is nothing to compute"
"K > 0" = "b has no rows"

[[launch]]
kernel = "warp_a_row<{T}>"
grid   = ["ceil(M / 8)", "ceil(N / 32)"]
block  = [256]
*/

template <typename T>
__global__ void warp_a_row(int M, int N, const T* __restrict__ values, const int* __restrict__ columns, const int* __restrict__ offsets, const T* __restrict__ b, long long bs,
                           T* __restrict__ out) {
    const int m = blockIdx.x * 8 + threadIdx.x / 32, n = blockIdx.y * 32 + threadIdx.x % 32;
    if (m >= M || n >= N) return;
    T sum = 0;
    const int end = offsets[m + 1];
    for (int i = offsets[m]; i < end;) {  // 64 at a time: the rounding error of one accumulation chain grows with its length
        T part = 0;
        for (const int stop = min(i + 64, end); i < stop; ++i) part += values[i] * b[columns[i] * bs + n];
        sum += part;
    }
    out[static_cast<long long>(m) * N + n] = sum;
}
