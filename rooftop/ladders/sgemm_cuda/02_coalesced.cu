/* rooftop
idea    = "Neighbouring threads compute neighbouring columns: a warp reads 128 contiguous bytes of a row of b and one number of a, and writes 128 contiguous bytes."
predict = { speedup = 8.0, sectors_read = 2.5, sectors_written = 4 }
limit   = "Two loads for each FMA, and the L1 cache serves one per clock."
dtypes  = ["f32"]
args    = ["M: i32", "N: i32", "K: i32", "alpha: f32", "a: f32[M, K]", "lda: i64 = stride(a, 0)", "b: f32[K, N]", "ldb: i64 = stride(b, 0)", "beta: f32", "c: f32[M, N]?", "ldc: i64 = stride(c, 0)", "out: f32[M, N]", "ldo: i64 = stride(out, 0)"]
demands = { has = ["FFMA"], spills = 0 }

[requires]
"M * N > 0" = "there is nothing to compute"
"stride(a, 1) == 1 or K <= 1" = "the elements of a row of a must be neighbours"
"stride(b, 1) == 1 or N == 1" = "the elements of a row of b must be neighbours"
"not present(c) or stride(c, 1) == 1 or N == 1" = "the elements of a row of c must be neighbours"
"stride(out, 1) == 1 or N == 1" = "the elements of a row of out must be neighbours"

[[launch]]
kernel = "sgemm"
grid   = ["ceil(M / 32) * ceil(N / 32)"]
block  = ["32", "32"]
*/
__global__ void sgemm(
    int M, int N, int K, float alpha, const float* __restrict__ a, long long lda, const float* __restrict__ b, long long ldb,
    float beta, const float* c, long long ldc, float* out, long long ldo) {
    const int tiles_n = (N - 1) / 32 + 1;
    const long long m = blockIdx.x / tiles_n * 32ll + threadIdx.y, n = blockIdx.x % tiles_n * 32ll + threadIdx.x;
    if (m >= M || n >= N) return;
    float sum = 0;
    for (int k = 0; k < K; ++k) sum = fmaf(a[m * lda + k], b[k * ldb + n], sum);
    const float r = alpha * sum;
    out[m * ldo + n] = beta != 0 && c != nullptr ? fmaf(beta, c[m * ldc + n], r) : r;
}
