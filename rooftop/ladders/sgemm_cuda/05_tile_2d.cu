/* rooftop
idea    = "A thread computes an 8 x 8 tile of outputs: each slice of k loads eight numbers of a and eight of b into registers, and their outer product is 64 FMAs."
predict = { speedup = 1.9, wavefronts_per_fma = 0.33, conflicts = 2, sectors_written = 32 }
limit   = "Bank conflicts, and copies of one number per instruction."
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
BM = 128
BN = 128
BK = 8
TM = 8
TN = 8

[[launch]]
kernel = "sgemm<{BM}, {BN}, {BK}, {TM}, {TN}>"
grid   = ["ceil(M / BM) * ceil(N / BN)"]
block  = ["BM // TM * (BN // TN)"]
*/
template <int BM, int BN, int BK, int TM, int TN>
__global__ __launch_bounds__(BM / TM * (BN / TN), 2) void sgemm(
    int M, int N, int K, float alpha, const float* __restrict__ a, long long lda, const float* __restrict__ b, long long ldb,
    float beta, const float* c, long long ldc, float* out, long long ldo) {
    constexpr int THREADS = BM / TM * (BN / TN);
    constexpr int A_STEP = THREADS / BK, B_STEP = THREADS / BN;   // rows that the block copies at once
    static_assert(BM % A_STEP == 0 && BK % B_STEP == 0, "the copies come out even");
    __shared__ float a_tile[BM][BK], b_tile[BK][BN];
    const int tiles_n = (N - 1) / BN + 1;
    const long long m0 = blockIdx.x / tiles_n * static_cast<long long>(BM), n0 = blockIdx.x % tiles_n * static_cast<long long>(BN);
    const int rows = M - m0 < BM ? M - m0 : BM, cols = N - n0 < BN ? N - n0 : BN;
    const int tid = threadIdx.x;
    const int a_m = tid / BK, a_k = tid % BK, b_k = tid / BN, b_n = tid % BN;
    a += (m0 + a_m) * lda + a_k;
    b += b_k * ldb + n0 + b_n;
    const int m_thread = tid / (BN / TN) * TM, n_thread = tid % (BN / TN) * TN;

    float sum[TM][TN] = {};
    for (int left = K; left > 0; left -= BK) {
#pragma unroll
        for (int i = 0; i < BM / A_STEP; ++i) {
            const int m = a_m + i * A_STEP;
            a_tile[m][a_k] = m < rows && a_k < left ? a[i * A_STEP * lda] : 0;
        }
#pragma unroll
        for (int i = 0; i < BK / B_STEP; ++i) {
            const int k = b_k + i * B_STEP;
            b_tile[k][b_n] = k < left && b_n < cols ? b[i * B_STEP * ldb] : 0;
        }
        __syncthreads();
#pragma unroll 4  // unrolled further, the compiler loads a's elements for all k at once: eight do not fit the registers
        for (int k = 0; k < BK; ++k) {
            float a_now[TM], b_now[TN];
#pragma unroll
            for (int i = 0; i < TM; ++i) a_now[i] = a_tile[m_thread + i][k];
#pragma unroll
            for (int j = 0; j < TN; ++j) b_now[j] = b_tile[k][n_thread + j];
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j) sum[i][j] = fmaf(a_now[i], b_now[j], sum[i][j]);
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
        if (m_thread + i >= rows) break;
#pragma unroll
        for (int j = 0; j < TN; ++j) {
            if (n_thread + j >= cols) break;
            const float r = alpha * sum[i][j];
            out[i * ldo + j] = add ? fmaf(beta, c[i * ldc + j], r) : r;
        }
    }
}
