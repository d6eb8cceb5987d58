/* rooftop
idea    = """Each thread loads a square tile of N x N elements, N rows of one vector each, and transposes it in registers. The block then \
  exchanges whole vectors once through shared memory, so that global loads and global stores are both coalesced and whole vectors wide."""
limit   = "rows that start at any address are read twice from L1 and shifted into place"
dtypes  = ["i8", "i16", "i32", "i64"]
args    = ["x: T[B1, B2, B3, R, C]", "out: T[B1, B2, B3, R, C]"]
demands = { has = ["LDG", "STG"], spills = 0 }
python  = ["launches"]

[requires]
"stride(x, 4) == 1 and starts(out, 16)" = "columns must be neighbours in x, and the output must start on a 16-byte boundary"
"numel(x) > 0" = "there is nothing to copy"
*/
#include "pdl.cuh"

template <int BYTES>
struct Raw;
template <>
struct Raw<1> { using type = unsigned char; };
template <>
struct Raw<2> { using type = unsigned short; };
template <>
struct Raw<4> { using type = unsigned; };
template <>
struct Raw<8> { using type = uint2; };
template <>
struct Raw<16> { using type = uint4; };
template <int BYTES>
using raw = typename Raw<BYTES>::type;

/// V bytes as 32-bit words.
template <int V>
struct Vec {
    unsigned w[V / 4];
    __device__ static Vec load(const void* p) {
        const raw<V> v = *static_cast<const raw<V>*>(p);
        return reinterpret_cast<const Vec&>(v);
    }
    __device__ void store(void* p) const { *static_cast<raw<V>*>(p) = reinterpret_cast<const raw<V>&>(*this); }
};

__device__ inline unsigned beyond(const void* p, int boundary) { return reinterpret_cast<unsigned long long>(p) % boundary; }

/// The V bytes that start `off` bytes after the start of a, where b follows a.
template <int V>
__device__ Vec<V> amid(const Vec<V>& a, const Vec<V>& b, unsigned off) {
    constexpr int W = V / 4;
    unsigned w[2 * W];
#pragma unroll
    for (int i = 0; i < W; ++i) w[i] = a.w[i], w[i + W] = b.w[i];
    if (W == 4) {
#pragma unroll
        for (int i = 0; i < W + 2; ++i) w[i] = off & 8 ? w[(i + 2) % (2 * W)] : w[i];
    }
#pragma unroll
    for (int i = 0; i < W + 1; ++i) w[i] = off & 4 ? w[i + 1] : w[i];
    Vec<V> v;
#pragma unroll
    for (int i = 0; i < W; ++i) v.w[i] = __funnelshift_r(w[i], w[i + 1], off % 4 * 8);
    return v;
}

/// The N = V / SIZE elements at p, at any alignment, in an array from `begin` to `end`; only `count` elements from p on are needed.
template <int SIZE, int V>
__device__ Vec<V> load_anywhere(const char* p, const char* begin, const char* end, long long count) {
    const unsigned off = beyond(p, V);
    const char* q = p - off;
    if (q >= begin && q + 2 * V <= end) return amid(Vec<V>::load(q), Vec<V>::load(q + V), off);
    Vec<V> v{};
#pragma unroll
    for (int e = 0; e < V / SIZE; ++e) {
        if (e < count) reinterpret_cast<raw<SIZE>*>(&v)[e] = reinterpret_cast<const raw<SIZE>*>(p)[e];
    }
    return v;
}

/// N such rows, `step` bytes apart; rows past the `last` repeat it. All loads are issued before the first is used.
template <int SIZE, int V, int N>
__device__ void load_rows(const char* p, long long step, int last, int count, const char* begin, const char* end, Vec<V> (&rows)[N]) {
    const char* bottom = p + last * step;
    if (p - beyond(p, V) >= begin && bottom - beyond(bottom, V) + 2 * V <= end) {
        Vec<V> next[N];
#pragma unroll
        for (int j = 0; j < N; ++j) {
            const char* q = p + min(j, last) * step;
            q -= beyond(q, V);
            rows[j] = Vec<V>::load(q), next[j] = Vec<V>::load(q + V);
        }
#pragma unroll
        for (int j = 0; j < N; ++j) rows[j] = amid(rows[j], next[j], beyond(p + min(j, last) * step, V));
    } else {
#pragma unroll 1
        for (int j = 0; j < N; ++j) {
            const Vec<V> v = load_anywhere<SIZE, V>(p + min(j, last) * step, begin, end, count);
#pragma unroll
            for (int i = 0; i < N; ++i) {  // all indices are compile-time constants, so rows stay in registers
                if (i == j) rows[i] = v;
            }
        }
    }
}

/// Transposes N x N elements: row r of `rows` becomes element r of all `columns`.
template <int SIZE, int V, int N>
__device__ void exchange(const Vec<V> (&rows)[N], Vec<V> (&columns)[N]) {
    if constexpr (SIZE == 8) {
#pragma unroll
        for (int c = 0; c < N; ++c) {
#pragma unroll
            for (int r = 0; r < N; ++r) columns[c].w[2 * r] = rows[r].w[2 * c], columns[c].w[2 * r + 1] = rows[r].w[2 * c + 1];
        }
    } else if constexpr (SIZE == 4) {
#pragma unroll
        for (int c = 0; c < N; ++c) {
#pragma unroll
            for (int r = 0; r < N; ++r) columns[c].w[r] = rows[r].w[c];
        }
    } else if constexpr (SIZE == 2) {
#pragma unroll
        for (int c = 0; c < N; ++c) {
#pragma unroll
            for (int r = 0; r < N; r += 2) columns[c].w[r / 2] =
                __byte_perm(rows[r].w[c / 2], rows[r + 1].w[c / 2], c % 2 ? 0x7632 : 0x5410);
        }
    } else {
#pragma unroll
        for (int c = 0; c < N; c += 4) {
#pragma unroll
            for (int r = 0; r < N; r += 4) {
                const unsigned a = rows[r].w[c / 4], b = rows[r + 1].w[c / 4], d = rows[r + 2].w[c / 4], e = rows[r + 3].w[c / 4];
                const unsigned low = __byte_perm(a, b, 0x5140), high = __byte_perm(a, b, 0x7362);
                const unsigned low2 = __byte_perm(d, e, 0x5140), high2 = __byte_perm(d, e, 0x7362);
                columns[c].w[r / 4] = __byte_perm(low, low2, 0x5410), columns[c + 1].w[r / 4] = __byte_perm(low, low2, 0x7632);
                columns[c + 2].w[r / 4] = __byte_perm(high, high2, 0x5410), columns[c + 3].w[r / 4] = __byte_perm(high, high2, 0x7632);
            }
        }
    }
}

extern __shared__ __align__(128) char held[];

/// A tile of VB matrices, VR x VC blocks of each. Shared memory holds its columns, VR vectors each, in an order in which both the writes of
/// a warp (to different columns) and its reads (along columns) have no bank conflicts.
/// X: rows of x start and end on vectors. OUT: columns do too. FLAT: columns do not, but are contiguous in `out`, and none is longer than a
/// tile. SHIFT: they do not, and tiles overlap by SKIP rows: of each column a block writes rows from the last multiple of 32 bytes at or
/// before its first row on, as many as tiles are apart, so that no two blocks write to one sector.
template <int SIZE, int VR, int VC, int VB, int THREADS, bool X, bool OUT, bool FLAT, bool SHIFT>
__global__ void __launch_bounds__(THREADS, 768 / THREADS)
    tile(int R, int C, unsigned B2, unsigned B3, unsigned batches, const void* x, void* out, long long span, long long x1, long long x2,
        long long x3,
         long long xr, long long o1, long long o2, long long o3, long long oc) {
    constexpr int N = SIZE < 4 ? 8 : 16 / SIZE, V = N * SIZE, TR = VR * N, TC = VC * N, BLOCKS = VR * VC * VB, BANKS = 128 / V;
    constexpr int SKIP = SHIFT ? 32 / SIZE : 0, APART = TR - SKIP;
    constexpr int GROUP = 16;  // tiles along C before the next along R
    const int tid = threadIdx.x;
    const unsigned tiles_c = (C + TC - 1u) / TC, tiles_r = SHIFT ? (R + SKIP - 1u + APART - 1) / APART : (R + TR - 1u) / TR;
    const unsigned matrix = blockIdx.x / (tiles_c * tiles_r) * VB;
    unsigned t = blockIdx.x % (tiles_c * tiles_r);
    const unsigned group = t / (GROUP * tiles_r), wide = min(static_cast<unsigned>(GROUP), tiles_c - group * GROUP);
    t -= group * GROUP * tiles_r;
    const int r0 = static_cast<int>(t / wide) * APART - SKIP, c0 = (group * GROUP + t % wide) * TC;
    const int rows = min(TR, R - r0), columns = min(TC, C - c0);

    const auto offset = [&](unsigned b, long long s1, long long s2, long long s3) {
        return static_cast<long long>(b / (B2 * B3)) * s1 + static_cast<long long>(b / B3 % B2) * s2 + static_cast<long long>(b % B3) * s3;
    };
    const auto slot = [&](int b, int column, int i) {  // the slot of vector i of a column
        const int at = (b * TC + column) * VR + i, mix = column / N * (VC < BANKS ? BANKS / VC : 1) % BANKS;
        return held + (VR * N >= BANKS ? at ^ mix : at) * V;
    };
    const char* begin = static_cast<const char*>(x);
    const char* end = begin + span * SIZE;

    gdc_wait();
#pragma unroll
    for (int q = 0; q < (BLOCKS + THREADS - 1) / THREADS; ++q) {
        const int block = tid + q * THREADS, k = block % VC, i = block / VC % VR, b = block / (VC * VR);
        if (BLOCKS < THREADS && block >= BLOCKS) break;
        if (matrix + b >= batches || k * N >= columns || i * N >= rows) continue;
        if (SHIFT && r0 + i * N < 0) continue;  // SKIP is a multiple of N
        const char* from = begin + (offset(matrix + b, x1, x2, x3) + (r0 + i * N) * xr + c0 + k * N) * SIZE;
        const int last = min(rows - i * N, N) - 1;  // rows past it repeat it
        Vec<V> a[N], v[N];
        if (X) {
#pragma unroll
            for (int j = 0; j < N; ++j) a[j] = Vec<V>::load(from + min(j, last) * xr * SIZE);
        } else {
            load_rows<SIZE, V, N>(from, xr * SIZE, last, columns - k * N, begin, end, a);
        }
        exchange<SIZE, V, N>(a, v);
#pragma unroll
        for (int j = 0; j < N; ++j) v[j].store(slot(b, k * N + j, i));
    }
    __syncthreads();

    if (FLAT) {  // the columns as one row
        for (int b = 0; b < VB && matrix + b < batches; ++b) {
            char* to = static_cast<char*>(out) + (offset(matrix + b, o1, o2, o3) + c0 * oc) * SIZE;
            const int n = rows * columns, head = min(n, static_cast<int>((V - beyond(to, V)) % V / SIZE)), packs = (n - head) / N;
            const auto element = [&](int e) { return *reinterpret_cast<raw<SIZE>*>(slot(b, e / rows, e % rows / N) + e % rows % N * SIZE);
            };
            for (int m = tid; m < packs; m += THREADS) {
                Vec<V> v;
                int column = (head + m * N) / rows, row = (head + m * N) % rows;
#pragma unroll
                for (int e = 0; e < N; ++e) {
                    reinterpret_cast<raw<SIZE>*>(&v)[e] = *reinterpret_cast<raw<SIZE>*>(slot(b, column, row / N) + row % N * SIZE);
                    if (++row == rows) row = 0, ++column;
                }
                v.store(to + (head + m * N) * SIZE);
            }
            for (int e = tid; e < n - packs * N; e += THREADS) {
                const int at = e < head ? e : e + packs * N;
                reinterpret_cast<raw<SIZE>*>(to)[at] = element(at);
            }
        }
        return;
    }
    if (SHIFT) {
        constexpr int STORES = APART / N * TC * VB;
#pragma unroll 4
        for (int s = tid; s < STORES; s += THREADS) {
            const int m = s % (APART / N), column = s / (APART / N) % TC, b = VB == 1 ? 0 : s / (APART / N * TC);
            if (matrix + b >= batches || column >= columns) continue;
            char* top = static_cast<char*>(out) + (offset(matrix + b, o1, o2, o3) + (c0 + column) * oc) * SIZE;
            const int at = SKIP - static_cast<int>(beyond(top, 32)) / SIZE + m * N, row = r0 + at;  // row in the tile; in the matrix
            if (row <= -N || row >= R) continue;
            char* to = top + static_cast<long long>(row) * SIZE;
            Vec<V> v = Vec<V>::load(slot(b, column, at / N));
            if (at % N > 0) v = amid(v, Vec<V>::load(slot(b, column, at / N + 1)), at % N * SIZE);
            if (row >= 0 && row + N <= R) {
                v.store(to);
            } else {
#pragma unroll
                for (int e = 0; e < N; ++e) {
                    if (row + e >= 0 && row + e < R) reinterpret_cast<raw<SIZE>*>(to)[e] = reinterpret_cast<raw<SIZE>*>(&v)[e];
                }
            }
        }
        return;
    }
    constexpr int STORES = BLOCKS * N;
#pragma unroll 4
    for (int s = tid; s < STORES; s += THREADS) {
        const int m = s % VR, column = s / VR % TC, b = s / (VR * TC);
        if (matrix + b >= batches || column >= columns) continue;
        char* to = static_cast<char*>(out) + (offset(matrix + b, o1, o2, o3) + (c0 + column) * oc + r0) * SIZE;
        const int head = OUT ? 0 : min(rows, static_cast<int>((V - beyond(to, V)) % V / SIZE));
        if (m >= (rows - head) / N) continue;
        Vec<V> v = Vec<V>::load(slot(b, column, m));
        if (!OUT && head > 0) v = amid(v, Vec<V>::load(slot(b, column, m + 1)), head * SIZE);
        v.store(to + (head + m * N) * SIZE);
    }
    if (OUT) return;
    // single elements: fewer than N before the first vector of a column, and after the last
    for (int s = tid; s < VB * TC * 2 * N; s += THREADS) {
        const int e = s % (2 * N), column = s / (2 * N) % TC, b = s / (2 * N * TC);
        if (matrix + b >= batches || column >= columns) continue;
        char* to = static_cast<char*>(out) + (offset(matrix + b, o1, o2, o3) + (c0 + column) * oc + r0) * SIZE;
        const int head = min(rows, static_cast<int>((V - beyond(to, V)) % V / SIZE)),
            row = e < N ? e : head + (rows - head) / N * N + e - N;
        if (e < N ? e >= head : row >= rows) continue;
        reinterpret_cast<raw<SIZE>*>(to)[row] = *reinterpret_cast<raw<SIZE>*>(slot(b, column, row / N) + row % N * SIZE);
    }
}

/// Runs of C contiguous elements, which stay contiguous: `out` is written from start to end, n elements, in vectors of 16 bytes. TOGETHER:
/// runs start and end on vectors. I: the type of element counts.
template <int SIZE, bool TOGETHER, typename I>
__global__ void __launch_bounds__(256, 4)
    runs(long long n, long long C, long long R, long long B2, long long B3, const void* x, void* out, long long span, long long x1,
        long long x2,
         long long x3, long long xr) {
    constexpr int V = 16, N = V / SIZE, EACH = 4;
    const char* begin = static_cast<const char*>(x);
    const char* end = begin + span * SIZE;
    const auto run = [&](I at) {
        const I r = at % static_cast<I>(R), b = at / static_cast<I>(R), b3 = b % static_cast<I>(B3), rest = b / static_cast<I>(B3);
        return begin + (static_cast<long long>(r) * xr + b3 * x3 + rest % static_cast<I>(B2) * x2 + rest / static_cast<I>(B2) * x1) * SIZE;
    };
    const auto inside = [&](const char* p) { return p - beyond(p, V) >= begin && p - beyond(p, V) + 2 * V <= end; };
    const auto amid_at = [&](const char* p) { return amid(Vec<V>::load(p - beyond(p, V)), Vec<V>::load(p - beyond(p, V) + V),
        beyond(p, V)); };
    gdc_wait();
    Vec<V> v[EACH];
#pragma unroll
    for (int u = 0; u < EACH; ++u) {
        const I e = ((static_cast<I>(blockIdx.x) * EACH + u) * 256 + threadIdx.x) * N;
        if (e >= static_cast<I>(n)) continue;
        const I at = e / static_cast<I>(C);
        const long long within = e - at * static_cast<I>(C);
        const char* from = run(at) + within * SIZE;
        if (TOGETHER) {
            v[u] = Vec<V>::load(from);
        } else if (within + N <= C) {
            v[u] = load_anywhere<SIZE, V>(from, begin, end, N);
        } else if (C >= N && e + N <= static_cast<I>(n) && inside(from) && inside(run(at + 1) - (C - within) * SIZE)) {
            const int bytes = static_cast<int>(C - within) * SIZE;  // bytes of this run; the others belong to the next one
            const Vec<V> a = amid_at(from), b = amid_at(run(at + 1) - bytes);
#pragma unroll
            for (int i = 0; i < V / 4; ++i) {
                const unsigned mask = bytes >= 4 * i + 4 ? ~0u : bytes <= 4 * i ? 0u : (1u << (bytes - 4 * i) * 8) - 1;
                v[u].w[i] = (a.w[i] & mask) | (b.w[i] & ~mask);
            }
        } else {
#pragma unroll
            for (int i = 0; i < N; ++i) {
                if (e + i >= static_cast<I>(n)) break;
                const I k = (e + i) / static_cast<I>(C);
                reinterpret_cast<raw<SIZE>*>(&v[u])[i] = reinterpret_cast<const raw<SIZE>*>(run(k))[e + i - k * static_cast<I>(C)];
            }
        }
    }
#pragma unroll
    for (int u = 0; u < EACH; ++u) {
        const I e = ((static_cast<I>(blockIdx.x) * EACH + u) * 256 + threadIdx.x) * N;
        char* to = static_cast<char*>(out) + static_cast<long long>(e) * SIZE;
        if (e + N <= static_cast<I>(n)) {
            v[u].store(to);
        } else {
            for (int i = 0; i < N && e + i < static_cast<I>(n); ++i) reinterpret_cast<raw<SIZE>*>(to)[i] =
                reinterpret_cast<raw<SIZE>*>(&v[u])[i];
        }
    }
}
