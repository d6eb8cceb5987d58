/* rooftop
idea    = "Blocks process tiles in groups of 8 rows: down the rows of a group, then on to the next column. Concurrent blocks share rows of a and columns of b in L2."
predict = { speedup = 1.03 }
limit   = "No gain at 4096 cubed (0.5 %), since a, b and the result nearly fit the L2 of an H200; at 8192 cubed 132 concurrent tiles read 168 MiB of operands instead of 276 (computed from the order of the tiles; hardware counters are not recorded yet). What remains is the check in the loop, which keeps the compiler from moving FMAs across it, and sizes that leave multiprocessors idle."
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
GROUP = 8

[[launch]]
kernel = "sgemm<{BM}, {BN}, {BK}, {WM}, {WN}, {TM}, {TN}, {STAGES}, {GROUP}, {4 if N % 4 == 0 and aligned(b, 16) and aligned(c, 16) and aligned(out, 16) else 1}>"
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

template <int BM, int BN, int BK, int WM, int WN, int TM, int TN, int STAGES, int GROUP, int VN>
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
    const int tiles_m = (M - 1) / BM + 1, tiles_n = (N - 1) / BN + 1;
    const int group = blockIdx.x / (GROUP * tiles_n), in_group = blockIdx.x % (GROUP * tiles_n);
    const int height = min(GROUP, tiles_m - group * GROUP);
    const long long m0 = static_cast<long long>(group * GROUP + in_group % height) * BM;
    const long long n0 = static_cast<long long>(in_group / height) * BN;
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
    float a_now[2][TM], b_now[2][TN];                     // two register sets: slice k is multiplied from one while k + 1 is loaded into the other
    int stage = 0;
    auto fetch = [&](int set, int k) {
#pragma unroll
        for (int i = 0; i < TM; i += 4) *reinterpret_cast<float4*>(&a_now[set][i]) = *reinterpret_cast<const float4*>(&a_tile[stage][k][m_thread + i * LANES_M]);
#pragma unroll
        for (int j = 0; j < TN; j += 4) *reinterpret_cast<float4*>(&b_now[set][j]) = *reinterpret_cast<const float4*>(&b_tile[stage][k][n_thread + j * LANES_N]);
    };
    __pipeline_wait_prior(STAGES - 2);
    __syncthreads();
    fetch(0, 0);
    for (int left = tiles; left > 0; --left) {
#pragma unroll
        for (int k = 0; k < BK; ++k) {
            if (k == BK - 1) {                            // all warps have loaded the last slice of this stage: the next copies may overwrite it
                __pipeline_wait_prior(STAGES - 2);
                __syncthreads();
                stage = stage == STAGES - 1 ? 0 : stage + 1;
            }
            fetch((k + 1) % 2, (k + 1) % BK);             // after the last tile: loaded and not used
            if (k == 3) {
                if (left >= STAGES) copy(stage == 0 ? STAGES - 1 : stage - 1, BK);
                __pipeline_commit();
            }
#pragma unroll
            for (int e = 0; e < TM * TN; ++e) {           // down one column of the thread's tile, up the next
                const int j = e / TM, i = j % 2 == 1 ? e % TM : TM - 1 - e % TM;
                sum[i][j] = fmaf(a_now[k % 2][i], b_now[k % 2][j], sum[i][j]);
            }
        }
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
