/* rooftop
idea    = """For few tiles. The blocks of a cluster divide K: each multiplies its part, and adds a share of the tile over the shared memory \
  of all, always in one order, so that there is no second launch. Operands of any stride and address are copied by cp.async, 16 aligned \
  bytes at a time, several slices ahead; rows that do not start on 16 bytes are moved to their place when their slice is multiplied."""
limit   = "predicted: latency. Launch, first copy, the two barriers of the cluster and the store take two thirds of the time"
arch    = 90
dtypes  = ["f16", "bf16"]
args    = ["alpha: f32", "beta: f32", "act: i32 = 0 if activation == 'none' else 1", "wide: i32 = 0 if to == '' else 1"]
demands = { has = ["HMMA.16816.F32", "LDGSTS", "LDSM"], spills = 0 }
python  = ["supports", "choose", "configs", "launches", "explains", "for_any_rows"]

[config]
BM     = 64
BN     = 64
WM     = 32
WN     = 32
STAGES = 4
SPLIT  = 1
*/
#include <cooperative_groups.h>

#include "pdl.cuh"
#include "_unpack_pairs.cuh"

constexpr int BK = 64;  // k of a slice

__device__ inline uint4 load_turned(unsigned from) {
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z),
        "=r"(v.w) : "r"(from) : "memory");
    return v;
}

/// 16 bytes from byte `by` (even, under 16) of v and w.
__device__ inline uint4 between(const uint4& v, const uint4& w, unsigned by) {
    const bool two = by & 8, one = by & 4;
    const unsigned x[6] = {two ? v.z : v.x, two ? v.w : v.y, two ? w.x : v.z, two ? w.y : v.w, two ? w.z : w.x, two ? w.w : w.y};
    unsigned y[5];
#pragma unroll
    for (int i = 0; i < 5; ++i) y[i] = one ? x[i + 1] : x[i];
    const unsigned bits = by % 4 * 8;
    return make_uint4(__funnelshift_r(y[0], y[1], bits), __funnelshift_r(y[1], y[2], bits), __funnelshift_r(y[2], y[3], bits),
                      __funnelshift_r(y[3], y[4], bits));
}

/// A slice of an operand in shared memory: LINES lines of WIDE elements, as they lie in device memory: EXT rows of a (columns of b) along K,
/// or ACROSS: BK lines of EXT elements. Packs are 16 bytes. Pack p of a line lies at p ^ key(line), so that ldmatrix finds 8 lines in
/// different banks and 32 bytes come from one sector: cp.async would ask for each pack by itself otherwise (docs/persistent.md). ODD: lines
/// start anywhere. They are copied from the sector on in which they begin, the last two packs beside the others, and moved to their place
/// before the products.
template <typename T, int EXT, int THREADS, bool ACROSS, bool ODD>
struct Slices {
    static constexpr int LINES = ACROSS ? BK : EXT, WIDE = ACROSS ? EXT : BK, OF_LINE = WIDE / 8, PACKS = OF_LINE + ODD;
    static constexpr int ALIGNED = LINES * OF_LINE * 16, BYTES = ALIGNED + (ODD ? LINES * 32 : 0), ROUNDS = (LINES * PACKS + THREADS - 1) / THREADS;
    const char* base;          // of the matrix: nothing before it is read
    const char* from[ROUNDS];  // this thread's packs
    int left[ROUNDS];          // bytes from there to the end of what the line has
    int to[ROUNDS];            // where they go in a stage
    long long step;            // bytes from a slice to the next
    unsigned low, apart;       // lines start low + line · apart bytes after a boundary of 32

    static __device__ int place(int line, int pack) {
        constexpr int PER = OF_LINE < 8 ? 8 / OF_LINE : 1, KEYS = OF_LINE < 8 ? OF_LINE : 8;
        return (line * OF_LINE + (pack ^ line / PER % KEYS)) * 16;
    }
    /// Of ODD: slot q of a line, in packs from the sector on in which it begins.
    static __device__ int slot(int line, int q) { return (q < OF_LINE ? line * OF_LINE + q : LINES * OF_LINE + line * 2 + q - OF_LINE) * 16; }
    __device__ int before(int line) const { return static_cast<int>(low + line * apart & 31); }

    /// x: the matrix; its element of the tile's first row (column) and of k0 is `at` further; ld: elements from a line to the next. extent:
    /// rows (columns) that are there; depth: k that are there.
    __device__ Slices(const T* x, long long at, long long ld, int extent, int depth) {
        base = reinterpret_cast<const char*>(x);
        const char* first = base + at * 2;
        low = static_cast<unsigned>(reinterpret_cast<unsigned long long>(first)) & 31, apart = static_cast<unsigned>(ld * 2) & 31;
        step = ACROSS ? ld * (2 * BK) : 2 * BK;
#pragma unroll
        for (int j = 0; j < ROUNDS; ++j) {
            const int i = threadIdx.x + j * THREADS, line = i / PACKS, pack = i % PACKS;
            const int within = ODD ? before(line) % 16 : 0;  // bytes of the first pack that are not of the line
            from[j] = first + line * ld * 2 + pack * 16 - within;
            left[j] = (ACROSS ? extent : depth) * 2 - pack * 16 + within;
            if (line >= (ACROSS ? LINES : extent) || (ODD && pack == OF_LINE && within == 0)) left[j] = 0;
            to[j] = ODD ? slot(line, before(line) / 16 + pack) : place(line, pack);
        }
    }

    /// Starts the copies of a slice, of which `deep` k are there, and goes on to the next. What is not there becomes zero.
    __device__ void ask(char* stage, int deep) {
#pragma unroll
        for (int j = 0; j < ROUNDS; ++j) {
            const int i = threadIdx.x + j * THREADS;
            if (LINES * PACKS % THREADS == 0 || i < LINES * PACKS) {
                const int size = ACROSS && i / PACKS >= deep ? 0 : max(0, min(left[j], 16));
                if (ODD && size > 0 && from[j] < base) {  // the matrix begins inside of this pack
#pragma unroll 1
                    for (int e = static_cast<int>(base - from[j]) / 2; e < 8; ++e)
                        reinterpret_cast<T*>(stage + to[j])[e] = e * 2 < size ? reinterpret_cast<const T*>(from[j])[e] : T(0.f);
                } else {
                    copy_async(static_cast<unsigned>(__cvta_generic_to_shared(stage + to[j])), size > 0 ? from[j] : nowhere(), size);
                }
            }
            from[j] += step;
            if (!ACROSS) left[j] = max(0, left[j] - 2 * BK);
        }
    }
    /// An aligned address that copies of nothing name.
    __device__ const char* nowhere() const { return reinterpret_cast<const char*>(reinterpret_cast<unsigned long long>(base) & ~15ull); }

    /// ODD: moves the lines of a stage to their place.
    __device__ void align(const char* stage, char* aligned) const {
#pragma unroll 2
        for (int i = threadIdx.x; i < LINES * OF_LINE; i += THREADS) {
            const int line = i / OF_LINE, pack = i % OF_LINE, by = before(line), q = by / 16 + pack;
            const uint4 v = *reinterpret_cast<const uint4*>(stage + slot(line, q)), w = *reinterpret_cast<const uint4*>(stage + slot(line, q + 1));
            *reinterpret_cast<uint4*>(aligned + place(line, pack)) = between(v, w, by & 15);
        }
    }

    /// 16 x 16 elements from row (column) x and k on as fragments: of A the registers of one, of B those of two with 8 columns each.
    template <bool B>
    static __device__ uint4 fragments(unsigned at, int x, int k) {
        const int lane = threadIdx.x % 32, half = lane % 8 + lane / 16 * 8, other = lane / 8 % 2;  // the second and third matrix swapped
        const bool swap = B != ACROSS;
        const int line = (ACROSS ? k : x) + (swap ? half : lane % 16), pack = (ACROSS ? x : k) / 8 + (swap ? other : lane / 16);
        const unsigned from = at + place(line, pack);
        return ACROSS ? load_turned(from) : load_matrices(from);
    }
};

/// What follows the product: a tensor of any of the three types, by its number, or none.
struct More {
    const void* x;
    int type;  // 0: float32, 1: float16, 2: bfloat16
    __device__ float operator[](long long i) const {
        return type == 0 ? static_cast<const float*>(x)[i]
             : type == 1 ? __half2float(static_cast<const __half*>(x)[i]) : __bfloat162float(static_cast<const __nv_bfloat16*>(x)[i]);
    }
};

/// act: index in `rooftop.ops.matmul.ACTIVATIONS`.
__device__ inline float activated(float x, int act) {
    if (act == 1) return x < 0 ? 0.0f : x;
    if (act == 2) return x / (1 + __expf(-x));
    if (act == 3) return 0.5f * x * (1 + erff(x * 0.70710678f));
    if (act == 4) return 0.5f * x * (1 + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    return x;
}

/// N words of 32 bits, one access.
template <int N>
struct alignas(4 * N) Words {
    unsigned v[N];
};

__device__ inline unsigned bits_of(__half x) { return __half_as_ushort(x); }
__device__ inline unsigned bits_of(__nv_bfloat16 x) { return __bfloat16_as_ushort(x); }

template <typename O, int V>
__device__ inline auto words(const O (&x)[V]) {
    constexpr int EACH = 4 / sizeof(O);
    Words<V / EACH> w;
#pragma unroll
    for (int i = 0; i < V / EACH; ++i) {
        if constexpr (EACH == 1) w.v[i] = __float_as_uint(x[i]);
        else w.v[i] = bits_of(x[2 * i]) | bits_of(x[2 * i + 1]) << 16;
    }
    return w;
}

/// out = act(alpha · a b + beta · c + bias) · gate + residual. Block `part` of cluster `tile` multiplies `each` of K. A block computes BM x
/// BN, a warp WM x WN. A, B: 0 along K, 1 the same at any address, 2 and 3 across. V: results in a store. MORE: the epilogue is more than alpha.
template <typename T, typename O, int BM, int BN, int WM, int WN, int STAGES, int A, int B, int V, bool MORE>
__global__ void __launch_bounds__(BM / WM * (BN / WN) * 32)
divided(int M, int N, int K, int splits, int each, int tall, const T* __restrict__ a, long long lda, long long za, const T* __restrict__ b,
        long long ldb, long long zb, O* __restrict__ out, long long ldo, long long zo, float alpha, float beta, const void* c, int c_type,
        long long ldc, long long zc, const void* bias, int bias_type, int act, const void* gate, int gate_type, long long ldg, long long zg,
        const void* residual, int residual_type, long long ldr, long long zr) {
    constexpr int THREADS = BM / WM * (BN / WN) * 32, HIGH = WM / 16, ACROSS = WN / 8, SUMS = BN + 8;
    using Rows = Slices<T, BM, THREADS, A / 2 == 1, A % 2 == 1>;
    using Columns = Slices<T, BN, THREADS, B / 2 == 1, B % 2 == 1>;
    constexpr int STAGE = Rows::BYTES + Columns::BYTES;
    static_assert(BM * SUMS * 4 <= STAGES * STAGE, "the sums have room in the stages");
    extern __shared__ uint4 memory[];
    char* const shared = reinterpret_cast<char*>(memory);
    char* const aligned_a = shared + STAGES * STAGE;
    char* const aligned_b = aligned_a + (A % 2 == 1 ? Rows::ALIGNED : 0);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, m_warp = warp / (BN / WN) * WM, n_warp = warp % (BN / WN) * WN;
    gdc_wait();
    gdc_launch_dependents();  // all blocks of few tiles are resident: the next kernel's may wait beside them

    const int tile = blockIdx.x / splits, part = blockIdx.x % splits;
    const int tiles_m = (M + BM - 1) / BM, tiles_n = (N + BN - 1) / BN;
    const int group = tile / (tall * tiles_n), in_group = tile % (tall * tiles_n), height = min(tall, tiles_m - group * tall);
    const long long m0 = static_cast<long long>(group * tall + in_group % height) * BM, n0 = static_cast<long long>(in_group / height) * BN;
    const long long k0 = static_cast<long long>(part) * each, z = blockIdx.y;
    const int depth = static_cast<int>(max(0ll, min(static_cast<long long>(each), K - k0))), slices = (depth + BK - 1) / BK;

    Rows rows(a + z * za, A / 2 == 1 ? k0 * lda + m0 : m0 * lda + k0, lda, static_cast<int>(min(M - m0, static_cast<long long>(BM))), depth);
    Columns columns(b + z * zb, B / 2 == 1 ? k0 * ldb + n0 : n0 * ldb + k0, ldb, static_cast<int>(min(N - n0, static_cast<long long>(BN))), depth);
    int asked = 0, write = 0;
    const auto ask = [&] {
        if (asked < slices) {
            rows.ask(shared + write, depth - asked * BK);
            columns.ask(shared + write + Rows::BYTES, depth - asked * BK);
            write = write == (STAGES - 1) * STAGE ? 0 : write + STAGE;
            ++asked;
        }
        commit_copies();
    };
#pragma unroll 1
    for (int s = 0; s < STAGES - 1; ++s) ask();

    float sum[HIGH][ACROSS][4] = {};
    int stage = 0;
    for (int s = 0; s < slices; ++s) {
        wait_for_copies<STAGES - 2>();
        __syncthreads();  // the slice is there, and the one before has been multiplied
        ask();
        char* const here = shared + stage;
        if (A % 2 == 1) rows.align(here, aligned_a);
        if (B % 2 == 1) columns.align(here + Rows::BYTES, aligned_b);
        if (A % 2 == 1 || B % 2 == 1) __syncthreads();
        const unsigned a_at = static_cast<unsigned>(__cvta_generic_to_shared(A % 2 == 1 ? aligned_a : here));
        const unsigned b_at = static_cast<unsigned>(__cvta_generic_to_shared(B % 2 == 1 ? aligned_b : here + Rows::BYTES));
#pragma unroll
        for (int k = 0; k < BK; k += 16) {
            uint4 x[HIGH], y[ACROSS / 2];
#pragma unroll
            for (int i = 0; i < HIGH; ++i) x[i] = Rows::template fragments<false>(a_at, m_warp + i * 16, k);
#pragma unroll
            for (int j = 0; j < ACROSS / 2; ++j) y[j] = Columns::template fragments<true>(b_at, n_warp + j * 16, k);
#pragma unroll
            for (int i = 0; i < HIGH; ++i) {
                const unsigned of_a[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
#pragma unroll
                for (int j = 0; j < ACROSS; ++j)
                    multiply(sum[i][j], of_a, j % 2 ? y[j / 2].z : y[j / 2].x, j % 2 ? y[j / 2].w : y[j / 2].y, static_cast<const T*>(nullptr));
            }
        }
        stage = stage == (STAGES - 1) * STAGE ? 0 : stage + STAGE;
    }
    wait_for_copies<0>();
    __syncthreads();

    // The sums of this part to shared memory; then each block adds every splits-th V results over the blocks.
    float* const sums = reinterpret_cast<float*>(shared);
#pragma unroll
    for (int i = 0; i < HIGH; ++i)
#pragma unroll
        for (int j = 0; j < ACROSS; ++j)
#pragma unroll
            for (int h = 0; h < 2; ++h)
                *reinterpret_cast<float2*>(sums + (m_warp + i * 16 + h * 8 + lane / 4) * SUMS + n_warp + j * 8 + lane % 4 * 2) =
                    make_float2(sum[i][j][2 * h], sum[i][j][2 * h + 1]);
    const auto cluster = cooperative_groups::this_cluster();
    if (splits > 1) cluster.sync();
    else __syncthreads();
    const More of_c{c, c_type}, of_bias{bias, bias_type}, of_gate{gate, gate_type}, of_residual{residual, residual_type};
    for (int i = threadIdx.x * splits + part; i < BM * (BN / V); i += THREADS * splits) {
        const int row = i / (BN / V), column = i % (BN / V) * V;
        const long long m = m0 + row, n = n0 + column;
        if (m >= M || n >= N) continue;
        float r[V] = {};
#pragma unroll 4
        for (int s = 0; s < splits; ++s) {
            const float* from = sums + row * SUMS + column;
            if (splits > 1) from = cluster.map_shared_rank(from, s);
            constexpr int W = V < 4 ? V : 4;
#pragma unroll
            for (int q = 0; q < V; q += W) {
                const auto v = *reinterpret_cast<const Words<W>*>(from + q);
#pragma unroll
                for (int w = 0; w < W; ++w) r[q + w] += __uint_as_float(v.v[w]);
            }
        }
        O made[V];
#pragma unroll
        for (int q = 0; q < V; ++q) {
            float x = alpha * r[q];
            if constexpr (MORE) {
                if (beta != 0 && c != nullptr) x = fmaf(beta, of_c[z * zc + m * ldc + n + q], x);
                if (bias != nullptr) x += of_bias[n + q];
                x = activated(x, act);
                if (gate != nullptr) x *= of_gate[z * zg + m * ldg + n + q];
                if (residual != nullptr) x += of_residual[z * zr + m * ldr + n + q];
            }
            made[q] = static_cast<O>(x);
        }
        O* const to = out + z * zo + m * ldo + n;
        if constexpr (V * sizeof(O) == 16) {
            const auto w = words(made);
            __stcg(reinterpret_cast<uint4*>(to), make_uint4(w.v[0], w.v[1], w.v[2], w.v[3]));
        } else if constexpr (V * sizeof(O) % 4 == 0) {
            *reinterpret_cast<Words<V * sizeof(O) / 4>*>(to) = words(made);
        } else {
            *to = made[0];
        }
    }
    if (splits > 1) cluster.sync();  // until the others have read
}
