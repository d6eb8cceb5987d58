/* rooftop
idea    = "A block of 8 warps makes a tile of 128 x 256 outputs, each thread 8 x 16 of them in registers. Four stages of shared memory are filled by asynchronous copies, A transposed on its way; while one slice of k is multiplied, the next is fetched into a second set of registers. The FMAs walk the thread's tile in a serpentine, so that each finds one operand in the register cache. Blocks take tiles in groups of rows, to share them in L2. Where there are too few tiles for the device, K is split and a second kernel adds the parts."
limit   = "Issue slots: of 1,110 instructions in the main loop 1,024 are FMAs, and about one slot in twelve is lost to register-bank conflicts."
dtypes  = ["f32"]
args    = ["M: i32", "N: i32", "K: i32", "alpha: f32", "a: f32[M, K]", "lda: i64 = stride(a, 0)", "b: f32[K, N]", "ldb: i64 = stride(b, 0)", "beta: f32", "c: f32[M, N]?", "ldc: i64 = stride(c, 0)", "out: f32[M, N]", "ldo: i64 = stride(out, 0)"]
demands = { has = ["FFMA", "LDS.128", "LDGSTS"], spills = 0 }
configs = [
    { GROUP = 4 }, { GROUP = 16 }, { STAGES = 3 }, { WM = 64, WN = 64 }, { BN = 128, BLOCKS = 2 }, { BN = 128, BLOCKS = 2, SPLITS = 2 },
    { BN = 128, BLOCKS = 2, SPLITS = 4 }, { BN = 128, BLOCKS = 2, SPLITS = 8 }, { BN = 128, BLOCKS = 2, SPLITS = 16 },
    { BN = 128, BLOCKS = 2, SPLITS = 32 }, { BN = 128, BLOCKS = 2, SPLITS = 64 },
]
valid   = "BM % WM == 0 and BN % WN == 0 and WM // TM * (WN // TN) == 32 and SPLITS >= 1"

[requires]
"M * N > 0" = "there is nothing to compute"
"stride(a, 1) == 1 or K <= 1" = "the elements of a row of a must be neighbours"
"stride(b, 1) == 1 or N == 1" = "the elements of a row of b must be neighbours"
"not present(c) or stride(c, 1) == 1 or N == 1" = "the elements of a row of c must be neighbours"
"stride(out, 1) == 1 or N == 1" = "the elements of a row of out must be neighbours"

[config]
BM     = 128
BN     = 256
BK     = 8
WM     = 32
WN     = 128
TM     = 8
TN     = 16
STAGES = 4
GROUP  = 8
BLOCKS = 1
SPLITS = 1

[[choice]]
when   = "M <= 64 and ceil(N / 128) * 16 <= 4 * sms and K >= 1024"
BM     = 64
BN     = 128
WN     = 64
TN     = 8
BLOCKS = 4
SPLITS = 16

[[choice]]
when   = "M <= 64 and ceil(N / 128) * 4 <= 4 * sms and K >= 256"
BM     = 64
BN     = 128
WN     = 64
TN     = 8
BLOCKS = 4
SPLITS = 4

[[choice]]
when   = "M <= 64"
BM     = 64
BN     = 128
WN     = 64
TN     = 8
BLOCKS = 4
SPLITS = 1

[[choice]]
when   = "ceil(M / 128) * ceil(N / 128) * 64 <= 2 * sms and K >= 4096"
BN     = 128
BLOCKS = 2
SPLITS = 64

[[choice]]
when   = "ceil(M / 128) * ceil(N / 128) * 32 <= 2 * sms and K >= 2048"
BN     = 128
BLOCKS = 2
SPLITS = 32

[[choice]]
when   = "ceil(M / 128) * ceil(N / 128) * 16 <= 2 * sms and K >= 1024"
BN     = 128
BLOCKS = 2
SPLITS = 16

[[choice]]
when   = "ceil(M / 128) * ceil(N / 128) * 8 <= 2 * sms and K >= 512"
BN     = 128
BLOCKS = 2
SPLITS = 8

[[choice]]
when   = "ceil(M / 128) * ceil(N / 128) * 4 <= 2 * sms and K >= 256"
BN     = 128
BLOCKS = 2
SPLITS = 4

[[choice]]
when   = "ceil(M / 128) * ceil(N / 128) * 2 <= 2 * sms and K >= 128"
BN     = 128
BLOCKS = 2
SPLITS = 2

[[choice]]
when   = "ceil(M / 128) * ceil(N / 256) <= sms // 2"
BN     = 128
BLOCKS = 2

[scratch]
parts = "f32[SPLITS if SPLITS > 1 else 0, M, N]"

[[launch]]
when   = "SPLITS == 1"
kernel = "sgemm<{BM}, {BN}, {BK}, {WM}, {WN}, {TM}, {TN}, {STAGES}, {GROUP}, {BLOCKS}, {N % 4 == 0 and aligned(b, 16) and aligned(c, 16) and aligned(out, 16)}>"
grid   = ["ceil(M / BM) * ceil(N / BN)"]
block  = ["BM // WM * (BN // WN) * 32"]
shared = "4 * STAGES * BK * (BM + 4 + BN)"

[[launch]]
when   = "SPLITS > 1"
kernel = "sgemm<{BM}, {BN}, {BK}, {WM}, {WN}, {TM}, {TN}, {STAGES}, {GROUP}, {BLOCKS}, {N % 4 == 0 and aligned(b, 16) and aligned(c, 16) and aligned(out, 16)}>"
grid   = ["ceil(M / BM) * ceil(N / BN)", "SPLITS"]
block  = ["BM // WM * (BN // WN) * 32"]
shared = "4 * STAGES * BK * (BM + 4 + BN)"
args   = ["M: i32", "N: i32", "K: i32", "one: f32 = 1", "a: f32[M, K]", "lda: i64 = stride(a, 0)", "b: f32[K, N]", "ldb: i64 = stride(b, 0)", "zero: f32 = 0", "c: f32[M, N]?", "ldc: i64 = stride(c, 0)", "parts: f32[SPLITS, M, N]", "ldp: i64 = N"]

[[launch]]
when   = "SPLITS > 1"
kernel = "add_parts"
grid   = ["ceil(M * N / 256)"]
block  = ["256"]
args   = ["M: i32", "N: i32", "SPLITS: i32", "alpha: f32", "parts: f32[SPLITS, M, N]", "beta: f32", "c: f32[M, N]?", "ldc: i64 = stride(c, 0)", "out: f32[M, N]", "ldo: i64 = stride(out, 0)"]
*/
#include <cuda_pipeline.h>

/// V neighbouring floats, moved by one instruction.
template <int V>
struct alignas(4 * V) Floats {
    float v[V];
};

/// out = alpha a b + beta c: blockIdx.x is the tile, blockIdx.y the part of K. Of several parts, each goes to its own matrix `out`.
/// A block makes BM x BN outputs with warps of WM x WN and threads of TM x TN; BK columns of a and rows of b are a stage.
template <int BM, int BN, int BK, int WM, int WN, int TM, int TN, int STAGES, int GROUP, int BLOCKS, bool VECTOR>
__global__ __launch_bounds__(BM / WM * (BN / WN) * 32, BLOCKS) void sgemm(
    int M, int N, int K, float alpha, const float* __restrict__ a, long long lda, const float* __restrict__ b, long long ldb,
    float beta, const float* c, long long ldc, float* out, long long ldo) {
    constexpr int THREADS = BM / WM * (BN / WN) * 32;
    constexpr int LANES_M = WM / TM, LANES_N = WN / TN;   // lanes of a warp along the rows and columns of its tile
    constexpr int A_ROW = BM + 4;                         // 4 more, so that the 8 k of a transposed row lie in different banks
    constexpr int STAGE = BK * (A_ROW + BN);              // floats: a as [BK][A_ROW], then b as [BK][BN]
    constexpr int VEC = VECTOR ? 4 : 1;                   // floats of b in a copy
    constexpr int A_COPIES = BM * BK / THREADS, B_COPIES = BK * BN / (THREADS * VEC);
    constexpr int B_ROWS = THREADS * VEC / BN;            // rows of b that one round of copies fills
    static_assert(LANES_M * LANES_N == 32 && TM % 4 == 0 && TN % 4 == 0, "a warp is 32 lanes, a thread's tile is made of 4 x 4 squares");
    static_assert(BK % 8 == 0 && 8 * BM % THREADS == 0 && BM * BK % THREADS == 0, "the copies of a come out even");
    static_assert(B_ROWS * BN == THREADS * VEC && BK % B_ROWS == 0, "the copies of b come out even");
    extern __shared__ float4 memory[];
    float* const shared = reinterpret_cast<float*>(memory);
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;

    // Tiles go down the rows of a group and then on to its next column: blocks that run together share rows of a and columns of b.
    const int tiles_m = (M - 1) / BM + 1, tiles_n = (N - 1) / BN + 1;
    const int group = blockIdx.x / (GROUP * tiles_n), in_group = blockIdx.x % (GROUP * tiles_n);
    const int height = min(GROUP, tiles_m - group * GROUP);
    const long long m0 = static_cast<long long>(group * GROUP + in_group % height) * BM;
    const long long n0 = static_cast<long long>(in_group / height) * BN;
    const int rows = M - m0 < BM ? M - m0 : BM, cols = N - n0 < BN ? N - n0 : BN;

    const long long part = K / gridDim.y + (K % gridDim.y != 0), k0 = blockIdx.y * part;
    const int depth = K - k0 < part ? (K > k0 ? K - k0 : 0) : part;
    const int tiles = depth / BK + (depth % BK != 0);
    const int first = depth - (tiles - 1) * BK;           // the tile that may be short comes first, so that the others need no check

    // Rows and columns past the edge are copied from the last one inside: what is made of them is not stored.
    const int a_k = tid % 8, a_to = a_k * A_ROW + tid / 8;   // 8 lanes read 32 neighbouring bytes
    const float* a_from[A_COPIES];
#pragma unroll
    for (int i = 0; i < A_COPIES; ++i) {
        const int e = tid + i * THREADS;
        a_from[i] = a + (m0 + min(e / 8 % BM, rows - 1)) * lda + k0 + e % 8 + e / (8 * BM) * 8;
    }
    const int b_k = tid / (BN / VEC), b_n = tid % (BN / VEC) * VEC;
    const int b_to = BK * A_ROW + b_k * BN + b_n;
    const float* b_from = b + (k0 + b_k) * ldb + n0 + min(b_n, cols - VEC);

    auto copy = [&](float* stage, int limit, bool full) {
#pragma unroll
        for (int i = 0; i < A_COPIES; ++i) {
            const int k = i * THREADS / (8 * BM) * 8, m = i * THREADS / 8 % BM;
            float* to = stage + a_to + k * A_ROW + m;
            if (full || a_k + k < limit)
                __pipeline_memcpy_async(to, a_from[i], 4);
            else
                *to = 0;
        }
#pragma unroll
        for (int i = 0; i < B_COPIES; ++i) {
            float* to = stage + b_to + i * B_ROWS * BN;
            if (full || b_k + i * B_ROWS < limit)
                __pipeline_memcpy_async(to, b_from + i * B_ROWS * ldb, 4 * VEC);
            else
                for (int j = 0; j < VEC; ++j) to[j] = 0;
        }
    };
    auto advance = [&](int k) {
#pragma unroll
        for (int i = 0; i < A_COPIES; ++i) a_from[i] += k;
        b_from += k * ldb;
    };

    const int m_thread = warp / (BN / WN) * WM + lane / LANES_N * 4;   // a thread's rows are m_thread + 4 LANES_M g + 0..3
    const int n_thread = warp % (BN / WN) * WN + lane % LANES_N * 4;
    int a_read = m_thread, b_read = BK * A_ROW + n_thread;   // in the stage that is being multiplied
    // One chain of sums along the part of K: with operands of one sign its error grows as the root of K, up to 7 times cuBLAS's at K of some thousand.
    // Shorter chains cost time. The registers are full. In shared memory a second set of sums takes 128 KiB more, and each time that it is added to
    // 256 KiB go through it: 2,048 cycles, 1.6 % of the 131,072 that 512 of K take. In global memory the wait is as long.
    float sum[TM][TN] = {};
    float a_next[2][TM], b_next[2][TN];                   // slice k is multiplied from one set while k + 1 is fetched into the other
    auto fetch = [&](int set, int k) {
#pragma unroll
        for (int i = 0; i < TM; i += 4)
            *reinterpret_cast<float4*>(&a_next[set][i]) = *reinterpret_cast<const float4*>(shared + a_read + k * A_ROW + i * LANES_M);
#pragma unroll
        for (int j = 0; j < TN; j += 4)
            *reinterpret_cast<float4*>(&b_next[set][j]) = *reinterpret_cast<const float4*>(shared + b_read + k * BN + j * LANES_N);
    };

    constexpr int LAST = (STAGES - 1) * STAGE;
    int stage = 0;                                        // that is being multiplied, as an offset
    float* write = shared + LAST;                         // the stage to fill next: the one before it
    if (tiles > 0) {
        copy(shared, first, false);
        advance(first);
    }
    __pipeline_commit();
#pragma unroll
    for (int s = 1; s < STAGES - 1; ++s) {
        if (s < tiles) {
            copy(shared + s * STAGE, BK, true);
            advance(BK);
        }
        __pipeline_commit();
    }
    __pipeline_wait_prior(STAGES - 2);
    __syncthreads();
    fetch(0, 0);

    auto multiply = [&](bool copying) __attribute__((always_inline)) {
#pragma unroll
        for (int k = 0; k < BK; ++k) {
            if (k == BK - 1) {                            // everyone has fetched the last slice of this stage: the next is its to fill
                __pipeline_wait_prior(STAGES - 2);
                __syncthreads();
                const int step = stage == LAST ? -LAST : STAGE;
                stage += step;
                a_read += step;
                b_read += step;
            }
            fetch((k + 1) % 2, (k + 1) % BK);             // after the last tile of all: never used
            if (k == 3) {
                if (copying) {
                    copy(write, BK, true);
                    advance(BK);
                    write = stage == 0 ? shared : write + STAGE;
                }
                __pipeline_commit();
            }
#pragma unroll
            for (int e = 0; e < TM * TN; ++e) {
                const int j = e / TM, i = j % 2 == 1 ? e % TM : TM - 1 - e % TM;
                sum[i][j] = fmaf(a_next[k % 2][i], b_next[k % 2][j], sum[i][j]);
            }
        }
    };
    int left = tiles;
    for (; left >= STAGES; --left) multiply(true);
    for (; left > 0; --left) multiply(false);

    out += (blockIdx.y * static_cast<long long>(M) + m0 + m_thread) * ldo + n0 + n_thread;
    const bool add = beta != 0 && c != nullptr;
    if (add) c += (m0 + m_thread) * ldc + n0 + n_thread;
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const int m = i / 4 * 4 * LANES_M + i % 4;
        if (m_thread + m >= rows) break;
#pragma unroll
        for (int j = 0; j < TN; j += VEC) {
            const int n = j / 4 * 4 * LANES_N + j % 4;
            if (n_thread + n >= cols) break;
            float r[VEC];
#pragma unroll
            for (int q = 0; q < VEC; ++q) r[q] = alpha * sum[i][j + q];
            if (add) {
                const Floats<VEC> old = *reinterpret_cast<const Floats<VEC>*>(c + m * ldc + n);
#pragma unroll
                for (int q = 0; q < VEC; ++q) r[q] = fmaf(beta, old.v[q], r[q]);
            }
            if constexpr (VECTOR)
                *reinterpret_cast<float4*>(out + m * ldo + n) = make_float4(r[0], r[1], r[2], r[3]);
            else
                out[m * ldo + n] = r[0];
        }
    }
}

/// out = alpha (sum of the parts) + beta c, one thread an output, always in the same order.
__global__ void add_parts(int M, int N, int splits, float alpha, const float* parts, float beta, const float* c, long long ldc,
                          float* out, long long ldo) {
    const long long outputs = static_cast<long long>(M) * N, i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= outputs) return;
    float sum = 0;
#pragma unroll 8
    for (int s = 0; s < splits; ++s) sum += parts[s * outputs + i];
    const long long m = i / N, n = i % N;
    const float r = alpha * sum;
    out[m * ldo + n] = beta != 0 && c != nullptr ? fmaf(beta, c[m * ldc + n], r) : r;
}
