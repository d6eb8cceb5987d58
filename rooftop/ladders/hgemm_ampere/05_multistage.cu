/* rooftop
idea    = "Four stages instead of two: three slices are in flight while one is multiplied. They need more than 48 KiB of shared memory, so it is dynamic."
predict = { speedup = 1.2 }
limit   = "Shared memory is read right before each multiplication, so a warp waits some 30 clocks for each 16 of K; and with 64 x 32 outputs per warp, each instruction needs 24 bytes of shared memory."
dtypes  = ["bf16", "f16"]
args    = ["M: i32", "N: i32", "K: i32", "alpha: f32", "a: T[M, K]", "lda: i64 = stride(a, 0)", "b: T[K, N]", "ldb: i64 = stride(b, 1)", "beta: f32", "c: T[M, N]?", "ldc: i64 = stride(c, 0)", "out: T[M, N]", "ldo: i64 = stride(out, 0)"]
demands = { has = ["HMMA", "LDGSTS", "LDSM"], spills = 0 }

[requires]
"M * N > 0" = "there is nothing to compute"
"stride(a, 1) == 1 or K <= 1" = "the elements of a row of a must be neighbours"
"stride(b, 0) == 1 or K <= 1" = "the elements of a column of b must be neighbours"
"not present(c) or stride(c, 1) == 1 or N == 1" = "the elements of a row of c must be neighbours"
"stride(out, 1) == 1 or N == 1" = "the elements of a row of out must be neighbours"
"K % 8 == 0 and stride(a, 0) % 8 == 0 and stride(b, 1) % 8 == 0 and starts(a, 16) and starts(b, 16)" = "rows of a and columns of b are copied 16 bytes at a time"

[config]
BM     = 128
BN     = 128
BK     = 32
WM     = 64
WN     = 32
STAGES = 4

[[launch]]
kernel = "hgemm<{T}, {BM}, {BN}, {BK}, {WM}, {WN}, {STAGES}>"
grid   = ["ceil(M / BM) * ceil(N / BN)"]
block  = ["BM // WM * (BN // WN) * 32"]
shared = "STAGES * (BM + BN) * BK * 2"
*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>

template <typename T>
constexpr bool IS_HALF = false;
template <>
constexpr bool IS_HALF<__half> = true;

/// c [16, 8] += a [16, 16] b [16, 8]. Lane l holds, with g = l / 4 and t = l % 4, of a the rows g and g + 8 at columns 2t, 2t + 1, 2t + 8, 2t + 9, of b the
/// column g at these as rows, of c the rows g and g + 8 at columns 2t, 2t + 1.
template <typename T>
__device__ void mma(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    if constexpr (IS_HALF<T>)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// ldmatrix: four 8 x 8 matrices; lanes 8 i to 8 i + 7 give the addresses of the rows of matrix i.
__device__ void ldmatrix(unsigned& x0, unsigned& x1, unsigned& x2, unsigned& x3, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x0), "=r"(x1), "=r"(x2), "=r"(x3) : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row))) : "memory");
}

template <typename T, int BM, int BN, int BK, int WM, int WN, int STAGES>
__global__ __launch_bounds__(BM / WM * (BN / WN) * 32) void hgemm(
    int M, int N, int K, float alpha, const T* __restrict__ a, long long lda, const T* __restrict__ b, long long ldb, float beta, const T* c,
    long long ldc, T* out, long long ldo) {
    constexpr int THREADS = BM / WM * (BN / WN) * 32, CHUNKS = BK / 8;   // of 16 bytes in a row
    constexpr int MI = WM / 16, NI = WN / 8;                             // instructions down and across the tile of a warp
    static_assert(BM * CHUNKS % THREADS == 0 && BN * CHUNKS % THREADS == 0, "the copies come out even");
    extern __shared__ __align__(128) unsigned char memory[];
    T* const a_tile = reinterpret_cast<T*>(memory);                      // [STAGES][BM][BK], then of b [STAGES][BN][BK]
    T* const b_tile = a_tile + STAGES * BM * BK;
    const int tiles_n = (N - 1) / BN + 1;
    const int m0 = static_cast<int>(blockIdx.x) / tiles_n * BM, n0 = static_cast<int>(blockIdx.x) % tiles_n * BN;
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4, t = lane % 4 * 2;
    const int wm = warp / (BN / WN) * WM, wn = warp % (BN / WN) * WN;    // the start of the warp's tile
    // Chunk p of row r lies at chunk p ^ (r / 2 % 4): the 8 rows that one matrix of ldmatrix reads, 64 bytes apart, fall into 8 different groups of banks.
    auto at = [](int row, int chunk) { return row * BK + (chunk ^ (row / 2 % CHUNKS)) * 8; };
    auto copy = [&](int stage, int k0) {                                 // zeros past K; rows past the edge repeat the last one
#pragma unroll
        for (int i = 0; i < BM * CHUNKS / THREADS; ++i) {
            const int row = (tid + i * THREADS) / CHUNKS, chunk = tid % CHUNKS, k = k0 + chunk * 8;
            __pipeline_memcpy_async(&a_tile[stage * BM * BK + at(row, chunk)], a + min(m0 + row, M - 1) * lda + (k < K ? k : 0), 16, k < K ? 0 : 16);
        }
#pragma unroll
        for (int i = 0; i < BN * CHUNKS / THREADS; ++i) {
            const int row = (tid + i * THREADS) / CHUNKS, chunk = tid % CHUNKS, k = k0 + chunk * 8;
            __pipeline_memcpy_async(&b_tile[stage * BN * BK + at(row, chunk)], b + min(n0 + row, N - 1) * ldb + (k < K ? k : 0), 16, k < K ? 0 : 16);
        }
    };
    unsigned x[MI][4], y[NI][2];
    auto fetch = [&](int stage, int k) {                              // the operands of one step of 16 along K, into registers
#pragma unroll
        for (int i = 0; i < MI; ++i)
            ldmatrix(x[i][0], x[i][1], x[i][2], x[i][3], &a_tile[stage * BM * BK + at(wm + i * 16 + lane % 16, k / 8 + lane / 16)]);
#pragma unroll
        for (int j = 0; j < NI; j += 2)
            ldmatrix(y[j][0], y[j][1], y[j + 1][0], y[j + 1][1],
                     &b_tile[stage * BN * BK + at(wn + j * 8 + lane / 16 * 8 + lane % 8, k / 8 + lane / 8 % 2)]);
    };
    float sum[MI][NI][4] = {};
    auto multiply = [&]() {
#pragma unroll
        for (int i = 0; i < MI; ++i)
#pragma unroll
            for (int j = 0; j < NI; ++j) mma<T>(sum[i][j], x[i], y[j]);
    };

    const int slices = (K - 1) / BK + 1;
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        if (s < slices) copy(s, s * BK);
        __pipeline_commit();
    }
    for (int s = 0; s < slices; ++s) {
        __pipeline_wait_prior(STAGES - 2);
        __syncthreads();                                                 // all threads have written this slice, and have read the one before it
        if (s + STAGES - 1 < slices) copy((s + STAGES - 1) % STAGES, (s + STAGES - 1) * BK);
        __pipeline_commit();
#pragma unroll
        for (int k = 0; k < BK; k += 16) {
            fetch(s % STAGES, k);
            multiply();
        }
    }

#pragma unroll
    for (int i = 0; i < MI; ++i)
#pragma unroll
        for (int j = 0; j < NI; ++j)
#pragma unroll
            for (int q = 0; q < 4; ++q) {
                const int row = m0 + wm + i * 16 + g + q / 2 * 8, column = n0 + wn + j * 8 + t + q % 2;
                if (row >= M || column >= N) continue;
                float v = alpha * sum[i][j][q];
                if (beta != 0 && c != nullptr) v += beta * static_cast<float>(c[row * ldc + column]);
                out[row * ldo + column] = static_cast<T>(v);
            }
}
