/* rooftop
idea    = "One thread per row of the matrix: what one would write for a CPU."
predict = { sectors_read = 16.5 }
limit   = "The 32 threads of a warp read 32 rows: 32 sectors per load, and L1 must keep them for the next seven loads. 8192 rows are 32 blocks for 132 multiprocessors."
dtypes  = ["f32"]
args    = ["M: i32", "K: i32", "a: T[B, M, K]", "am: i64 = stride(a, 1)", "x: T[B, R, K]", "y: T[B, R, M]"]

[requires]
"B == 1 and R == 1" = "takes one matrix and one vector"
"M * K > 0" = "there is nothing to multiply"
"stride(a, 2) == 1 and stride(x, 2) == 1" = "the rows of a, and x, must be neighbours along K"

[[launch]]
kernel = "gemv<{T}>"
grid   = ["ceil(M / 256)"]
block  = [256]
*/
template <typename T>
__global__ void __launch_bounds__(256) gemv(int M, int K, const T* __restrict__ a, long long am, const T* __restrict__ x, T* __restrict__ y) {
    const int m = blockIdx.x * 256 + threadIdx.x;
    if (m >= M) return;
    a += m * am;
    float sum = 0;
    for (int k1 = 0; k1 < K; k1 += 1024) {  // the error of one chain grows as sqrt(K); chains of 32 terms, of 32 sums and of K / 1024 have less
        float more = 0;
        for (int k0 = k1; k0 < min(k1 + 1024, K); k0 += 32) {
            float part = 0;
            for (int k = k0; k < min(k0 + 32, K); ++k) part = fmaf(static_cast<float>(a[k]), static_cast<float>(x[k]), part);
            more += part;
        }
        sum += more;
    }
    y[m] = static_cast<T>(sum);
}
