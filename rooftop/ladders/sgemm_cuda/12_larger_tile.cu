/* rooftop
idea    = "A block computes 128 x 256 outputs and a thread 8 x 16: 24 numbers from shared memory for 128 FMAs instead of 16 for 64. One block fits a multiprocessor instead of two, and its four stages no longer fit the 48 KiB of static shared memory."
predict = { speedup = 1.12, wavefronts_per_fma = 0.17 }
limit   = "Latency of shared memory: with 204 registers per thread there are two warps per scheduler, and the loads of a slice of k are not far enough ahead of the FMAs that use them. 1.14 times rung 11 at 4096 cubed on an H200. Counted on an H100 for this tile in the tuned kernel (rung 16): 0.18 wavefronts of shared memory for each FMA instead of 0.23, and 3.2 GB read from the L2 instead of 4.2."
dtypes  = ["f32"]
args    = ["M: i32", "N: i32", "K: i32", "alpha: f32", "a: f32[M, K]", "lda: i64 = stride(a, 0)", "b: f32[K, N]", "ldb: i64 = stride(b, 0)", "beta: f32", "c: f32[M, N]?", "ldc: i64 = stride(c, 0)", "out: f32[M, N]", "ldo: i64 = stride(out, 0)"]
demands = { has = ["FFMA", "LDS.128", "LDGSTS"], spills = 0 }

[requires]
"M * N > 0" = "there is nothing to compute"
"stride(a, 1) == 1 or K <= 1" = "the elements of a row of a must be neighbours"
"stride(b, 1) == 1 or N == 1" = "the elements of a row of b must be neighbours"
"not present(c) or stride(c, 1) == 1 or N == 1" = "the elements of a row of c must be neighbours"
"stride(out, 1) == 1 or N == 1" = "the elements of a row of out must be neighbours"

[config]
BM = 128
BN = 256
BK = 8
WM = 32
WN = 128
TM = 8
TN = 16
STAGES = 4

[[launch]]
kernel = "sgemm<{BM}, {BN}, {BK}, {WM}, {WN}, {TM}, {TN}, {STAGES}, {4 if N % 4 == 0 and aligned(b, 16) and aligned(c, 16) and aligned(out, 16) else 1}>"
grid   = ["ceil(M / BM) * ceil(N / BN)"]
block  = ["BM // WM * (BN // WN) * 32"]
shared = "4 * STAGES * BK * (BM + 4 + BN)"
*/
#include <cuda_pipeline.h>

/// V neighbouring floats: one access.
template <int V>
struct alignas(4 * V) Floats {
    float v[V];
};

template <int V>
__device__ Floats<V> load(const float* from) {
    return *reinterpret_cast<const Floats<V>*>(from);
}

template <int V>
__device__ void store(float* to, Floats<V> x) {
    if constexpr (V == 4)
        *reinterpret_cast<float4*>(to) = make_float4(x.v[0], x.v[1], x.v[2], x.v[3]);
    else
        *to = x.v[0];
}

template <int BM, int BN, int BK, int WM, int WN, int TM, int TN, int STAGES, int VN>
__global__ __launch_bounds__(BM / WM * (BN / WN) * 32) void sgemm(
    int M, int N, int K, float alpha, const float* __restrict__ a, long long lda, const float* __restrict__ b, long long ldb,
    float beta, const float* c, long long ldc, float* out, long long ldo) {
    constexpr int THREADS = BM / WM * (BN / WN) * 32;
    constexpr int LANES_M = WM / TM, LANES_N = WN / TN;    // lanes along the rows and columns of a warp's tile
    static_assert(LANES_M * LANES_N == 32, "a warp is 32 lanes");
    constexpr int A_STEP = THREADS / BK, B_STEP = THREADS * VN / BN;   // rows that the block copies at once
    static_assert(BM % A_STEP == 0 && BK % B_STEP == 0, "the copies come out even");
    extern __shared__ float4 memory[];
    auto a_tile = reinterpret_cast<float (*)[BK][BM + 4]>(memory);
    auto b_tile = reinterpret_cast<float (*)[BK][BN]>(a_tile + STAGES);
    const int tiles_n = (N - 1) / BN + 1;
    const long long m0 = blockIdx.x / tiles_n * static_cast<long long>(BM), n0 = blockIdx.x % tiles_n * static_cast<long long>(BN);
    const int rows = M - m0 < BM ? M - m0 : BM, cols = N - n0 < BN ? N - n0 : BN;
    const int tid = threadIdx.x;
    const int a_m = tid / BK, a_k = tid % BK, b_k = tid * VN / BN, b_n = tid * VN % BN;
    // Rows and columns past the edge are copied from the last one inside: outputs computed from them are not stored.
    const float* a_row[BM / A_STEP];
#pragma unroll
    for (int i = 0; i < BM / A_STEP; ++i) a_row[i] = a + (m0 + (a_m + i * A_STEP < rows ? a_m + i * A_STEP : rows - 1)) * lda + a_k;
    b += b_k * ldb + n0 + (b_n < cols ? b_n : cols - VN);
    const int lane = tid % 32, warp = tid / 32;
    const int m_thread = warp / (BN / WN) * WM + lane / LANES_N * 4;   // a thread's rows are m_thread + 4 LANES_M g + 0..3
    const int n_thread = warp % (BN / WN) * WN + lane % LANES_N * 4;

    auto copy = [&](int stage, int depth) {               // a tile of depth `depth`: BK, except for the partial one
#pragma unroll
        for (int i = 0; i < BM / A_STEP; ++i) {
            const int m = a_m + i * A_STEP;
            if (depth == BK || a_k < depth)
                __pipeline_memcpy_async(&a_tile[stage][a_k][m], a_row[i], 4);
            else
                a_tile[stage][a_k][m] = 0;
            a_row[i] += depth;
        }
#pragma unroll
        for (int i = 0; i < BK / B_STEP; ++i) {
            const int k = b_k + i * B_STEP;
            if (depth == BK || k < depth)
                __pipeline_memcpy_async(&b_tile[stage][k][b_n], b + i * B_STEP * ldb, 4 * VN);
            else
                store(&b_tile[stage][k][b_n], Floats<VN>{});
        }
        b += depth * ldb;
    };

    const int tiles = K / BK + (K % BK != 0);
    if (tiles > 0) copy(0, K - (tiles - 1) * BK);         // the partial tile first: the others need no check
    __pipeline_commit();
#pragma unroll
    for (int stage = 1; stage < STAGES - 1; ++stage) {
        if (stage < tiles) copy(stage, BK);
        __pipeline_commit();
    }

    float sum[TM][TN] = {};
    int stage = 0;
    for (int left = tiles; left > 0; --left) {
        __pipeline_wait_prior(STAGES - 2);
        __syncthreads();                                  // this stage has arrived for all threads, and all have read the one before it
        if (left >= STAGES) copy(stage == 0 ? STAGES - 1 : stage - 1, BK);
        __pipeline_commit();
#pragma unroll 4
        for (int k = 0; k < BK; ++k) {
            float a_now[TM], b_now[TN];
#pragma unroll
            for (int i = 0; i < TM; ++i) a_now[i] = a_tile[stage][k][m_thread + i / 4 * 4 * LANES_M + i % 4];
#pragma unroll
            for (int j = 0; j < TN; ++j) b_now[j] = b_tile[stage][k][n_thread + j / 4 * 4 * LANES_N + j % 4];
#pragma unroll
            for (int j = 0; j < TN; ++j)
#pragma unroll
                for (int i = 0; i < TM; ++i) sum[i][j] = fmaf(a_now[i], b_now[j], sum[i][j]);
        }
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }

    out += (m0 + m_thread) * ldo + n0 + n_thread;
    const bool add = beta != 0 && c != nullptr;
    if (add) c += (m0 + m_thread) * ldc + n0 + n_thread;
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const int m = i / 4 * 4 * LANES_M + i % 4;
        if (m_thread + m >= rows) break;
#pragma unroll
        for (int j = 0; j < TN; j += VN) {
            const int n = j / 4 * 4 * LANES_N + j % 4;
            if (n_thread + n >= cols) break;
            Floats<VN> r = add ? load<VN>(c + m * ldc + n) : Floats<VN>{};
#pragma unroll
            for (int q = 0; q < VN; ++q) r.v[q] = add ? fmaf(beta, r.v[q], alpha * sum[i][j + q]) : alpha * sum[i][j + q];
            store(out + m * ldo + n, r);
        }
    }
}
