/* rooftop
idea    = "One thread per row and column, columns of one row far apart in the grid: neighbours in a warp have different rows."
predict = { speedup = 1.0 }
limit   = "Each lane loops over a row of its own: its loads of b, of columns and of values touch 32 lines at a time."
dtypes  = ["f32"]
args    = ["M: i32", "N: i32", "values: T[Z]", "columns: i32[Z]", "offsets: i32[P]", "b: T[K, N]", "bs: i64 = stride(b, 0)", "out: T[M, N]"]

[requires]
"not present(bias) and alpha == 1 and activation == 'none'" = "the product alone"
"stride(b, 1) == 1 or N == 1" = "neighbours of a row of b must be neighbours"
"numel(out) > 0" = "there is nothing to compute"
"K > 0" = "b has no rows"

[[launch]]
kernel = "thread_a_row<{T}>"
grid   = ["ceil(M / 256)", "N"]
block  = [256]
*/

template <typename T>
__global__ void thread_a_row(int M, int N, const T* __restrict__ values, const int* __restrict__ columns, const int* __restrict__ offsets, const T* __restrict__ b, long long bs,
                             T* __restrict__ out) {
    const int m = blockIdx.x * 256 + threadIdx.x, n = blockIdx.y;
    if (m >= M) return;
    T sum = 0;
    const int end = offsets[m + 1];
    for (int i = offsets[m]; i < end;) {  // 64 at a time: the rounding error of one accumulation chain grows with its length
        T part = 0;
        for (const int stop = min(i + 64, end); i < stop; ++i) part += values[i] * b[columns[i] * bs + n];
        sum += part;
    }
    out[static_cast<long long>(m) * N + n] = sum;
}
