/* rooftop
idea    = "A thread computes a column of 8 outputs: one number of b, kept in a register, is multiplied by eight of a."
predict = { speedup = 2.0, wavefronts_per_fma = 0.65 }
limit   = "Nine numbers from shared memory for eight FMAs: the compiler loads those of a two at a time or more, but the bandwidth of shared memory used is that of nine."
dtypes  = ["f32"]
args    = ["M: i32", "N: i32", "K: i32", "alpha: f32", "a: f32[M, K]", "lda: i64 = stride(a, 0)", "b: f32[K, N]", "ldb: i64 = stride(b, 0)", "beta: f32", "c: f32[M, N]?", "ldc: i64 = stride(c, 0)", "out: f32[M, N]", "ldo: i64 = stride(out, 0)"]
demands = { has = ["FFMA", "LDS"], spills = 0 }

[requires]
"M * N > 0" = "there is nothing to compute"
"stride(a, 1) == 1 or K <= 1" = "the elements of a row of a must be neighbours"
"stride(b, 1) == 1 or N == 1" = "the elements of a row of b must be neighbours"
"not present(c) or stride(c, 1) == 1 or N == 1" = "the elements of a row of c must be neighbours"
"stride(out, 1) == 1 or N == 1" = "the elements of a row of out must be neighbours"

[config]
BM = 64
BN = 64
BK = 8
TM = 8

[[launch]]
kernel = "sgemm<{BM}, {BN}, {BK}, {TM}>"
grid   = ["ceil(M / BM) * ceil(N / BN)"]
block  = ["BM * BN / TM"]
*/
template <int BM, int BN, int BK, int TM>
__global__ __launch_bounds__(BM / TM * BN) void sgemm(
    int M, int N, int K, float alpha, const float* __restrict__ a, long long lda, const float* __restrict__ b, long long ldb,
    float beta, const float* c, long long ldc, float* out, long long ldo) {
    constexpr int THREADS = BM / TM * BN;
    static_assert(BM * BK == THREADS && BK * BN == THREADS, "each thread copies one number of a and one of b");
    __shared__ float a_tile[BM][BK], b_tile[BK][BN];
    const int tiles_n = (N - 1) / BN + 1;
    const long long m0 = blockIdx.x / tiles_n * static_cast<long long>(BM), n0 = blockIdx.x % tiles_n * static_cast<long long>(BN);
    const int rows = M - m0 < BM ? M - m0 : BM, cols = N - n0 < BN ? N - n0 : BN;
    const int tid = threadIdx.x;
    a += m0 * lda;
    b += n0;
    const int a_m = tid / BK, a_k = tid % BK, b_k = tid / BN, b_n = tid % BN;
    const int m_thread = tid / BN * TM, n_thread = tid % BN;

    float sum[TM] = {};
    for (int left = K; left > 0; left -= BK) {
        a_tile[a_m][a_k] = a_m < rows && a_k < left ? a[a_m * lda + a_k] : 0;
        b_tile[b_k][b_n] = b_k < left && b_n < cols ? b[b_k * ldb + b_n] : 0;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < BK; ++k) {
            const float b_now = b_tile[k][n_thread];
#pragma unroll
            for (int i = 0; i < TM; ++i) sum[i] = fmaf(a_tile[m_thread + i][k], b_now, sum[i]);
        }
        __syncthreads();
        a += BK;
        b += BK * ldb;
    }

    out += (m0 + m_thread) * ldo + n0 + n_thread;
    const bool add = beta != 0 && c != nullptr;
    if (add) c += (m0 + m_thread) * ldc + n0 + n_thread;
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        if (m_thread + i >= rows || n_thread >= cols) break;
        const float r = alpha * sum[i];
        out[i * ldo] = add ? fmaf(beta, c[i * ldc], r) : r;
    }
}
