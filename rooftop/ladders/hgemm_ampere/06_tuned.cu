/* rooftop
idea    = "A warp computes 64 x 64, a block 128 x 256: 16 bytes of shared memory per instruction. The operands of the next step are loaded into a second set of registers while one is multiplied, across slices too. Tiles are processed in groups of rows, which share a and b in L2, and results are stored in pairs."
predict = { speedup = 1.15 }
limit   = "mma.sync: on an H200 its rate is about 0.63 of wgmma's (62 % of 989 TFLOP/s), on an A100 it is the full rate. One block per multiprocessor, since the accumulators alone need 128 registers per thread."
dtypes  = ["bf16", "f16"]
args    = ["M: i32", "N: i32", "K: i32", "alpha: f32", "a: T[M, K]", "lda: i64 = stride(a, 0)", "b: T[K, N]", "ldb: i64 = stride(b, 1)", "beta: f32", "c: T[M, N]?", "ldc: i64 = stride(c, 0)", "out: T[M, N]", "ldo: i64 = stride(out, 0)", "GROUP: i32"]
demands = { has = ["HMMA", "LDGSTS", "LDSM", "STG"], spills = 0 }

configs = [{ GROUP = [4, 8, 16] }, { STAGES = 3 }, { BN = 128, WN = 32 }, { BM = 64, BN = 128, WM = 32, WN = 32 }]
valid   = "STAGES >= 2 and STAGES * (BM + BN) * BK * 2 <= 99 * 1024"

[requires]
"M * N > 0" = "there is nothing to compute"
"stride(a, 1) == 1 or K <= 1" = "the elements of a row of a must be neighbours"
"stride(b, 0) == 1 or K <= 1" = "the elements of a column of b must be neighbours"
"not present(c) or stride(c, 1) == 1 or N == 1" = "the elements of a row of c must be neighbours"
"stride(out, 1) == 1 or N == 1" = "the elements of a row of out must be neighbours"
"K % 8 == 0 and stride(a, 0) % 8 == 0 and stride(b, 1) % 8 == 0 and starts(a, 16) and starts(b, 16)" = "rows of a and columns of b are copied 16 bytes at a time"

[config]
BM     = 128
BN     = 256
BK     = 32
WM     = 64
WN     = 64
STAGES = 4
GROUP  = 8

[[launch]]
kernel = "hgemm<{T}, {BM}, {BN}, {BK}, {WM}, {WN}, {STAGES}, {N % 2 == 0 and stride(out, 0) % 2 == 0 and starts(out, 4)}>"
grid   = ["ceil(M / BM) * ceil(N / BN)"]
block  = ["BM // WM * (BN // WN) * 32"]
shared = "STAGES * (BM + BN) * BK * 2"
*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>

/// Two neighbouring numbers of 16 bits, as a register of an operand holds them.
template <typename T>
__device__ unsigned pair(T low, T high) {
    return static_cast<unsigned>(__builtin_bit_cast(unsigned short, low)) | static_cast<unsigned>(__builtin_bit_cast(unsigned short, high)) << 16;
}

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

template <typename T, int BM, int BN, int BK, int WM, int WN, int STAGES, bool PAIRS>
__global__ __launch_bounds__(BM / WM * (BN / WN) * 32, 1) void hgemm(
    int M, int N, int K, float alpha, const T* __restrict__ a, long long lda, const T* __restrict__ b, long long ldb, float beta, const T* c,
    long long ldc, T* out, long long ldo, int group) {
    constexpr int THREADS = BM / WM * (BN / WN) * 32, CHUNKS = BK / 8;   // of 16 bytes in a row
    constexpr int MI = WM / 16, NI = WN / 8;                             // instructions down and across the tile of a warp
    static_assert(BM * CHUNKS % THREADS == 0 && BN * CHUNKS % THREADS == 0, "the copies come out even");
    extern __shared__ __align__(128) unsigned char memory[];
    T* const a_tile = reinterpret_cast<T*>(memory);                      // [STAGES][BM][BK], then of b [STAGES][BN][BK]
    T* const b_tile = a_tile + STAGES * BM * BK;
    const int tiles_m = (M - 1) / BM + 1, tiles_n = (N - 1) / BN + 1, width = group * tiles_n, tile = static_cast<int>(blockIdx.x);
    const int first = tile / width * group, high = min(tiles_m - first, group);   // grouped order: `group` rows of tiles, column by column
    const int m0 = (first + tile % width % high) * BM, n0 = tile % width / high * BN;
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
    unsigned x[2][MI][4], y[2][NI][2];
    auto fetch = [&](int stage, int k, int to) {                              // one of two sets of operands of one step of 16 along K, into registers
#pragma unroll
        for (int i = 0; i < MI; ++i)
            ldmatrix(x[to][i][0], x[to][i][1], x[to][i][2], x[to][i][3], &a_tile[stage * BM * BK + at(wm + i * 16 + lane % 16, k / 8 + lane / 16)]);
#pragma unroll
        for (int j = 0; j < NI; j += 2)
            ldmatrix(y[to][j][0], y[to][j][1], y[to][j + 1][0], y[to][j + 1][1],
                     &b_tile[stage * BN * BK + at(wn + j * 8 + lane / 16 * 8 + lane % 8, k / 8 + lane / 8 % 2)]);
    };
    float sum[MI][NI][4] = {};
    auto multiply = [&](int from) {
#pragma unroll
        for (int i = 0; i < MI; ++i)
#pragma unroll
            for (int j = 0; j < NI; ++j) mma<T>(sum[i][j], x[from][i], y[from][j]);
    };

    const int slices = (K - 1) / BK + 1;
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        if (s < slices) copy(s, s * BK);
        __pipeline_commit();
    }
    __pipeline_wait_prior(STAGES - 2);
    __syncthreads();
    fetch(0, 0, 0);
    for (int s = 0, stage = 0; s < slices; ++s) {
        const int next = stage == STAGES - 1 ? 0 : stage + 1;
        if (s + STAGES - 1 < slices) copy(stage == 0 ? STAGES - 1 : stage - 1, (s + STAGES - 1) * BK);
        __pipeline_commit();
#pragma unroll
        for (int k = 0; k < BK; k += 16) {
            if (k + 16 < BK) {
                fetch(stage, k + 16, (k / 16 + 1) % 2);
            } else {                                                     // load the next slice's first step while this one's last is multiplied
                __pipeline_wait_prior(STAGES - 2);
                __syncthreads();
                if (s + 1 < slices) fetch(next, 0, (k / 16 + 1) % 2);
            }
            multiply(k / 16 % 2);
        }
        stage = next;
    }
    static_assert(BK / 16 % 2 == 0, "a slice begins with the first set of registers");

#pragma unroll
    for (int i = 0; i < MI; ++i)
#pragma unroll
        for (int j = 0; j < NI; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = m0 + wm + i * 16 + g + half * 8, column = n0 + wn + j * 8 + t;
                if (row >= M || column >= N) continue;
                float v[2] = {alpha * sum[i][j][half * 2], alpha * sum[i][j][half * 2 + 1]};
#pragma unroll
                for (int q = 0; q < 2; ++q)
                    if (beta != 0 && c != nullptr && column + q < N) v[q] += beta * static_cast<float>(c[row * ldc + column + q]);
                T* const to = &out[row * ldo + column];
                if constexpr (PAIRS) {
                    *reinterpret_cast<unsigned*>(to) = pair(static_cast<T>(v[0]), static_cast<T>(v[1]));
                } else {
                    to[0] = static_cast<T>(v[0]);
                    if (column + 1 < N) to[1] = static_cast<T>(v[1]);
                }
            }
}
