/* rooftop
idea    = """A block computes a tile of outputs, each thread up to 8 x 16 of them in registers. A performance model in the .py file of the \
  same stem chooses the tile. Asynchronous copies (cp.async) fill four stages of shared memory or more; an operand that is contiguous along \
  K is transposed on the way. While one slice of k is multiplied, the next is loaded into a second set of registers. The FMAs walk the \
  thread's tile in a serpentine, so that each finds one operand in the register reuse cache. Blocks process tiles in groups of rows, which \
  share operands in L2. Copies of 4 bytes are half as fast as FMAs: where the model says so, an operand along K or off 16 bytes is first \
  written as rows of K on 16 bytes. If there are too few tiles for the device, K is split and a second kernel adds the parts, always in one order."""
limit   = """Issue slots: 1,024 of the 1,110 instructions in the main loop of the largest tile are FMAs, and about one slot in twelve is \
  lost to register-bank conflicts."""
dtypes  = ["f32"]
args    = [
    "alpha: f32", "beta: f32", "bias: f32[N]?", "act: i32 = 0 if activation == 'none' else 1", "zg: i64 = stride(gate, 0)",
    "zr: i64 = stride(residual, 0)",
]
demands = { has = ["FFMA", "LDS.128", "LDGSTS"], spills = 0 }
python  = ["supports", "choose", "configs", "launches", "scratch", "explains", "for_any_rows"]

[config]
BM     = 128
BN     = 256
WM     = 32
WN     = 128
TM     = 8
TN     = 16
STAGES = 4
BLOCKS = 1
GROUP  = 8
PART   = 0
COPIED = 0
*/
#include <cuda_pipeline.h>

#include "pdl.cuh"

/// V neighbouring floats, one access.
template <int V>
struct alignas(4 * V) Floats {
    float v[V];
};

/// act: index in `rooftop.ops.matmul.ACTIVATIONS`.
__device__ inline float activated(float x, int act) {
    if (act == 1) return x < 0 ? 0.0f : x;
    if (act == 2) return x / (1 + expf(-x));
    if (act == 3) return 0.5f * x * (1 + erff(x * 0.70710678f));
    if (act == 4) return 0.5f * x * (1 + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    return x;
}

/// The epilogue, for matrix z of a batch: act(alpha · sum + beta · c + bias) · gate + residual. Absent tensors are null; ld·: elements from
/// one row to the
/// next, z·: from one matrix to the next.
struct After {
    const float *c, *bias, *gate, *residual;
    long long ldc, zc, ldg, zg, ldr, zr;
    float alpha, beta;
    int act;

    __device__ float first(float sum, long long z, long long m, long long n) const {
        const float r = alpha * sum;
        return c != nullptr ? fmaf(beta, c[z * zc + m * ldc + n], r) : r;
    }
    __device__ float more(float r, long long z, long long m, long long n) const {
        if (bias != nullptr) r += bias[n];
        r = activated(r, act);
        if (gate != nullptr) r *= gate[z * zg + m * ldg + n];
        if (residual != nullptr) r += residual[z * zr + m * ldr + n];
        return r;
    }
};

template <int BYTES>
__device__ inline void copy(float* to, const float* from) {
    __pipeline_memcpy_async(to, from, BYTES);
}

/// How the threads of a block copy slices of one operand to shared memory: [BK][ROW], EXT neighbouring rows (of a) or columns (of b). MODE
/// 0: the operand is contiguous along K, and copies of 4 bytes transpose it, 8 lanes per row; ROW is 4 more than EXT, so that the 8 k of a
/// transposed row are in different banks. MODE 1,
/// 2 and 4: it is contiguous along EXT, in copies of 1, 2 or 4 floats.
template <int EXT, int BK, int THREADS, int MODE>
struct Slices {
    static constexpr int VEC = MODE == 0 ? 1 : MODE, ROW = EXT + (MODE == 0 ? 4 : 0), FLOATS = BK * ROW, SPAN = THREADS * VEC;
    static constexpr int ACROSS = MODE != 0 && EXT > SPAN ? EXT / SPAN : 1;  // copies of a thread in one row of a slice
    static constexpr int DEEP = EXT > SPAN ? 1 : SPAN / EXT;  // rows of a slice that all threads copy in one round
    static constexpr int ROUNDS = MODE == 0 ? EXT * BK / THREADS : (BK + DEEP - 1) / DEEP;
    static constexpr bool MANY = MODE == 0 && ROUNDS > 8;                  // a pointer for each copy would take too many registers
    static constexpr int POINTERS = MODE != 0 ? ACROSS : MANY ? 1 : ROUNDS;
    static_assert(MODE != 0 || EXT * BK % THREADS == 0, "the copies of what lies along K come out even");
    static_assert(MODE == 0 || SPAN % EXT == 0 || EXT % SPAN == 0, "a round of copies is whole rows, or a row whole rounds");
    static_assert(BK == 8, "a slice of what lies along K is 8 lanes wide");

    const float* from[POINTERS];
    long long pitch;  // floats from one k to the next, or from one row of MANY to its next
    int k, to, limit;

    /// extent: the number of rows or columns from x on; ld: floats from one row of the operand in memory to the next.
    __device__ Slices(const float* x, long long ld, long long k0, int extent, float* shared, int stages, int stage) {
        const int tid = threadIdx.x;
        if constexpr (MODE == 0) {
            k = tid % 8;
            to = k * ROW + tid / 8;
            if constexpr (MANY) {
                pitch = THREADS / 8 * ld;
                limit = (extent - tid / 8 + THREADS / 8 - 1) / (THREADS / 8);
                from[0] = x + min(tid / 8, extent - 1) * ld + k0 + k;
                if (extent < EXT) {  // what is not copied is never stored, but multiplied
                    for (int s = 0; s < stages; ++s)
                        for (int i = tid; i < FLOATS; i += THREADS) shared[s * stage + i] = 0;
                    __syncthreads();
                }
            } else {
#pragma unroll
                for (int i = 0; i < ROUNDS; ++i) from[i] = x + min((tid + i * THREADS) / 8, extent - 1) * ld + k0 + k;
            }
        } else {
            k = tid / (EXT / VEC);
            const int n = tid % (EXT / VEC) * VEC;
            to = k * ROW + n;
            pitch = ld;
#pragma unroll
            for (int i = 0; i < ACROSS; ++i) from[i] = x + (k0 + k) * ld + min(n + i * SPAN, (extent - 1) / VEC * VEC);
        }
    }

    /// Rows and columns past the edge are copied from the last one inside, or not at all: the outputs computed from them are not stored.
    /// From k = deep on zeros are copied.
    __device__ void ask(float* stage, int deep, bool full) const {
        if constexpr (MODE == 0) {
            const float* p = from[0];
#pragma unroll
            for (int i = 0; i < ROUNDS; ++i) {
                float* at = stage + to + i * (THREADS / 8);
                if (full || k < deep) {
                    if (!MANY || i < limit) copy<4>(at, MANY ? p : from[MANY ? 0 : i]);
                } else {
                    *at = 0;
                }
                if constexpr (MANY) p += pitch;
            }
        } else {
#pragma unroll
            for (int i = 0; i < ROUNDS; ++i) {
                const int row = k + i * DEEP;
                if (ROUNDS * DEEP > BK && row >= BK) continue;
#pragma unroll
                for (int j = 0; j < ACROSS; ++j) {
                    float* at = stage + to + i * DEEP * ROW + j * SPAN;
                    if (full || row < deep)
                        copy<4 * VEC>(at, from[j] + i * DEEP * pitch);
                    else
                        for (int v = 0; v < VEC; ++v) at[v] = 0;
                }
            }
        }
    }

    __device__ void advance(int deep) {
        if constexpr (MODE == 0) {
#pragma unroll
            for (int i = 0; i < POINTERS; ++i) from[i] += deep;
        } else {
#pragma unroll
            for (int i = 0; i < ACROSS; ++i) from[i] += deep * pitch;
        }
    }
};

/// out = epilogue(a b). blockIdx.x is the tile, blockIdx.y the part of K (split-K), `part` long, and blockIdx.z the matrix of a batch. With
/// several parts each writes its own `plane` floats of out. A block computes BM x BN outputs, a warp WM x WN and a thread TM x TN; a
/// pipeline stage holds BK columns of a and rows of b. A, B: the modes of Slices. WIDE: rows of c and out are multiples of 16 bytes. MORE:
/// the epilogue is more than alpha and c.
template <int BM, int BN, int WM, int WN, int TM, int TN, int STAGES, int BLOCKS, int A, int B, bool WIDE, bool MORE>
__global__ __launch_bounds__(BM / WM * (BN / WN) * 32, BLOCKS) void sgemm(
    int M, int N, int K, int part, int tall, const float* __restrict__ a, long long lda, long long za, const float* __restrict__ b,
        long long ldb, long long zb,
    float* __restrict__ out, long long ldo, long long zo, long long plane, float alpha, float beta, const float* __restrict__ c,
    long long ldc, long long zc,
    const float* __restrict__ bias, int act, const float* __restrict__ gate, long long ldg, long long zg,
    const float* __restrict__ residual, long long ldr,
    long long zr) {
    constexpr int BK = 8, THREADS = BM / WM * (BN / WN) * 32;
    constexpr int LANES_M = WM / TM, LANES_N = WN / TN;   // lanes of a warp along the rows and columns of its tile
    using Rows = Slices<BM, BK, THREADS, A>;
    using Columns = Slices<BN, BK, THREADS, B>;
    constexpr int A_ROW = Rows::ROW, B_ROW = Columns::ROW, AT_B = Rows::FLOATS, STAGE = AT_B + Columns::FLOATS;
    static_assert(LANES_M * LANES_N == 32 && TM % 4 == 0 && TN % 4 == 0, "a warp is 32 lanes, a thread's tile is made of 4 x 4 squares");
    static_assert(THREADS / 32 * LANES_M * (WN + 4) <= STAGES * STAGE, "a row of each lane has room on its way out");
    extern __shared__ float4 memory[];
    float* const shared = reinterpret_cast<float*>(memory);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    gdc_wait();

    // Grouped order: tiles go down the rows of a group, then to its next column, so that blocks that run together share rows of a and
    // columns of b in the L2.
    const int tiles_m = (M - 1) / BM + 1, tiles_n = (N - 1) / BN + 1;
    const int group = blockIdx.x / (tall * tiles_n), in_group = blockIdx.x % (tall * tiles_n);
    const int height = min(tall, tiles_m - group * tall);
    const long long m0 = static_cast<long long>(group * tall + in_group % height) * BM;
    const long long n0 = static_cast<long long>(in_group / height) * BN;
    const int rows = M - m0 < BM ? M - m0 : BM, cols = N - n0 < BN ? N - n0 : BN;

    const long long k0 = static_cast<long long>(blockIdx.y) * part;
    const int depth = K - k0 < part ? (K > k0 ? K - k0 : 0) : part;
    const int tiles = depth / BK + (depth % BK != 0);
    const int first = depth - (tiles - 1) * BK;  // the partial tile comes first, so that the others need no check

    Rows as(a + blockIdx.z * za + (A == 0 ? m0 * lda : m0), lda, k0, rows, shared, STAGES, STAGE);
    Columns bs(b + blockIdx.z * zb + (B == 0 ? n0 * ldb : n0), ldb, k0, cols, shared + AT_B, STAGES, STAGE);
    auto ask = [&](float* stage, int deep, bool full) __attribute__((always_inline)) {
        as.ask(stage, deep, full);
        bs.ask(stage + AT_B, deep, full);
        as.advance(deep);
        bs.advance(deep);
    };

    const int m_thread = warp / (BN / WN) * WM + lane / LANES_N * 4;   // a thread's rows are m_thread + 4 LANES_M g + 0..3
    const int n_thread = warp % (BN / WN) * WN + lane % LANES_N * 4;
    int a_read = m_thread, b_read = AT_B + n_thread;  // offsets in the stage that is being multiplied
    // One accumulation chain along the part of K: with operands of one sign its error grows as the square root of K, up to 7 times cuBLAS's
    // at K of some thousand. Shorter chains cost time. The registers are full. A second set of accumulators in shared memory takes 128 KiB,
    // and each addition to it moves
    // 256 KiB: 2,048 cycles, 1.6 % of the 131,072 that 512 of K take. In global memory the latency is as long.
    float sum[TM][TN] = {};
    float a_next[2][TM], b_next[2][TN];  // double buffer in registers: slice k is multiplied while k + 1 is loaded
    auto fetch = [&](int set, int k) {
#pragma unroll
        for (int i = 0; i < TM; i += 4)
            *reinterpret_cast<float4*>(&a_next[set][i]) = *reinterpret_cast<const float4*>(shared + a_read + k * A_ROW + i * LANES_M);
#pragma unroll
        for (int j = 0; j < TN; j += 4)
            *reinterpret_cast<float4*>(&b_next[set][j]) = *reinterpret_cast<const float4*>(shared + b_read + k * B_ROW + j * LANES_N);
    };

    constexpr int LAST = (STAGES - 1) * STAGE;
    int stage = 0;  // offset of the stage that is being multiplied
    float* write = shared + LAST;  // the stage to fill next: the one before it
    if (tiles > 0) ask(shared, first, false);
    __pipeline_commit();
#pragma unroll
    for (int s = 1; s < STAGES - 1; ++s) {
        if (s < tiles) ask(shared + s * STAGE, BK, true);
        __pipeline_commit();
    }
    __pipeline_wait_prior(STAGES - 2);
    __syncthreads();
    fetch(0, 0);

    auto multiply = [&](bool copying) __attribute__((always_inline)) {
#pragma unroll
        for (int k = 0; k < BK; ++k) {
            if (k == BK - 1) {  // all warps have loaded the last slice of this stage, so the next fetch may overwrite it
                __pipeline_wait_prior(STAGES - 2);
                __syncthreads();
                const int step = stage == LAST ? -LAST : STAGE;
                stage += step;
                a_read += step;
                b_read += step;
            }
            fetch((k + 1) % 2, (k + 1) % BK);  // after the last tile: loaded and not used
            if (k == 3) {
                if (copying) {
                    ask(write, BK, true);
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

    const After after{beta != 0 ? c : nullptr, bias, gate, residual, ldc, zc, ldg, zg, ldr, zr, alpha, beta, act};
    const long long z = blockIdx.z;
    out += blockIdx.y * plane + z * zo;
    static_assert(!(WIDE && MORE), "what more follows is done once in the code for each row, not for each sum");
    if constexpr (WIDE) {
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            const int m = m_thread + i / 4 * 4 * LANES_M + i % 4;
            if (m >= rows) break;
#pragma unroll
            for (int j = 0; j < TN; j += 4) {
                const int n = n_thread + j * LANES_N;
                if (n >= cols) break;
                float r[4];
#pragma unroll
                for (int q = 0; q < 4; ++q) r[q] = alpha * sum[i][j + q];
                if (after.c != nullptr) {
                    const Floats<4> old = *reinterpret_cast<const Floats<4>*>(after.c + z * zc + (m0 + m) * ldc + n0 + n);
#pragma unroll
                    for (int q = 0; q < 4; ++q) r[q] = fmaf(beta, old.v[q], r[q]);
                }
                *reinterpret_cast<float4*>(out + (m0 + m) * ldo + n0 + n) = make_float4(r[0], r[1], r[2], r[3]);
            }
        }
    } else {  // through shared memory, so that a warp writes neighbours
        __syncthreads();
        constexpr int ACROSS = WN < 32 ? WN : 32;         // lanes along a row
        float* const mine = shared + warp * LANES_M * (WN + 4);
        const int n_warp = warp % (BN / WN) * WN + lane % ACROSS;
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            const int m = m_thread - lane / LANES_N * 4 + i / 4 * 4 * LANES_M + i % 4;   // of the warp's first row; the others are 4 apart
#pragma unroll
            for (int j = 0; j < TN; j += 4)
                *reinterpret_cast<float4*>(mine + lane / LANES_N * (WN + 4) + lane % LANES_N * 4 + j * LANES_N) =
                    make_float4(sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]);
            __syncwarp();
#pragma unroll 1
            for (int r = lane / ACROSS; r < LANES_M; r += 32 / ACROSS) {
                const int row = m + r * 4;
                float* const to = out + (m0 + row) * ldo + n0 + n_warp;
#pragma unroll
                for (int j = 0; j < WN; j += ACROSS) {
                    if (row < rows && n_warp + j < cols) {
                        const float v = after.first(mine[r * (WN + 4) + lane % ACROSS + j], z, m0 + row, n0 + n_warp + j);
                        to[j] = MORE ? after.more(v, z, m0 + row, n0 + n_warp + j) : v;
                    }
                }
            }
            __syncwarp();
        }
    }
}

/// out [K, pitch] = x, for copies of 16 bytes; zeros from N on. TURNED: x is [N, K], else [K, N]; ld: floats from one of its rows to the next.
template <bool TURNED>
__global__ void __launch_bounds__(256) rows_of_k(int N, int K, int pitch, const float* __restrict__ x, long long ld, float* __restrict__ out) {
    __shared__ float tile[32][33];
    gdc_wait();
    const int lane = threadIdx.x % 32, line = threadIdx.x / 32, across = (pitch + 31) / 32;
    const int n0 = blockIdx.x % across * 32, k0 = blockIdx.x / across * 32;
#pragma unroll
    for (int i = line; i < 32; i += 8) {
        const int n = n0 + (TURNED ? i : lane), k = k0 + (TURNED ? lane : i);
        const float v = n < N && k < K ? x[(TURNED ? n : k) * ld + (TURNED ? k : n)] : 0.0f;
        (TURNED ? tile[lane][i] : tile[i][lane]) = v;
    }
    __syncthreads();
#pragma unroll
    for (int i = line; i < 32; i += 8) {
        if (n0 + lane < pitch && k0 + i < K) out[(k0 + i) * static_cast<long long>(pitch) + n0 + lane] = tile[i][lane];
    }
}

/// The reduction of split-K: out = epilogue(the sum of the parts), always in the same order. Rows of parts are `pitch` floats apart, a
/// multiple of 4; a thread has 4 neighbours, and EACH threads of a block share the parts of the same 4.
template <int EACH, bool MORE>
__global__ void __launch_bounds__(256) add_parts(
    int M, int N, int splits, int pitch, long long plane, const float* __restrict__ parts, float* __restrict__ out, long long ldo,
        long long zo, float alpha,
    float beta, const float* __restrict__ c, long long ldc, long long zc, const float* __restrict__ bias, int act,
    const float* __restrict__ gate, long long ldg,
    long long zg, const float* __restrict__ residual, long long ldr, long long zr) {
    constexpr int FOURS = 256 / EACH;
    __shared__ float4 sums[EACH > 1 ? 256 : 1];
    gdc_wait();
    const int along = threadIdx.x % FOURS, down = threadIdx.x / FOURS;
    const long long i = (blockIdx.x * static_cast<long long>(FOURS) + along) * 4;
    float4 sum = make_float4(0, 0, 0, 0);
    const auto add = [&](float4 v) { sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w; };
    if (i < plane) {
#pragma unroll 8
        for (int s = down; s < splits; s += EACH) add(*reinterpret_cast<const float4*>(parts + s * plane + i));
    }
    if constexpr (EACH > 1) {
        sums[threadIdx.x] = sum;
        __syncthreads();
        if (down > 0) return;
#pragma unroll
        for (int k = 1; k < EACH; ++k) add(sums[k * FOURS + along]);
    }
    if (i >= plane) return;
    const After after{beta != 0 ? c : nullptr, bias, gate, residual, ldc, zc, ldg, zg, ldr, zr, alpha, beta, act};
    const long long row = i / pitch, n = i % pitch, z = row / M, m = row % M;
    const float found[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int q = 0; q < 4; ++q) {
        if (n + q >= N) break;
        const float r = after.first(found[q], z, m, n + q);
        out[z * zo + m * ldo + n + q] = MORE ? after.more(r, z, m, n + q) : r;
    }
}
