/* rooftop
idea    = "A block copies a 32 x 32 tile of a and one of b into shared memory and uses each number 32 times."
predict = { speedup = 1.3, sectors_read = 4, wavefronts_per_fma = 1.5 }
limit   = "Still two loads for each FMA, now from shared memory: 128 bytes a clock feed 16 FMAs of the 128."
dtypes  = ["f32"]
args    = ["M: i32", "N: i32", "K: i32", "alpha: f32", "a: f32[M, K]", "lda: i64 = stride(a, 0)", "b: f32[K, N]", "ldb: i64 = stride(b, 0)", "beta: f32", "c: f32[M, N]?", "ldc: i64 = stride(c, 0)", "out: f32[M, N]", "ldo: i64 = stride(out, 0)"]
demands = { has = ["FFMA", "LDS"], spills = 0 }

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
    __shared__ float a_tile[32][32], b_tile[32][32];
    const int tiles_n = (N - 1) / 32 + 1;
    const long long m0 = blockIdx.x / tiles_n * 32ll, n0 = blockIdx.x % tiles_n * 32ll;
    const int rows = M - m0 < 32 ? M - m0 : 32, cols = N - n0 < 32 ? N - n0 : 32;
    const int x = threadIdx.x, y = threadIdx.y;
    a += m0 * lda;
    b += n0;

    float sum = 0;
    for (int left = K; left > 0; left -= 32) {
        a_tile[y][x] = y < rows && x < left ? a[y * lda + x] : 0;
        b_tile[y][x] = y < left && x < cols ? b[y * ldb + x] : 0;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 32; ++k) sum = fmaf(a_tile[y][k], b_tile[k][x], sum);
        __syncthreads();
        a += 32;
        b += 32 * ldb;
    }

    if (y >= rows || x >= cols) return;
    const long long m = m0 + y, n = n0 + x;
    const float r = alpha * sum;
    out[m * ldo + n] = beta != 0 && c != nullptr ? fmaf(beta, c[m * ldc + n], r) : r;
}
