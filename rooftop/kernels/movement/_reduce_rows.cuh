// Reductions of runs of contiguous elements: long ones by warps or blocks, short ones by some lanes each, from registers or staged in
// shared memory.
#pragma once
#include "pdl.cuh"
#include "_reduce_states.cuh"

/// A thread's accumulator over packs and single elements. EACH: packs in flight.
template <int OP, typename T>
struct Gather {  // SUM, MEAN
    static constexpr int N = 16 / sizeof(T), ACCS = Is<T>::REAL ? N : 1, EACH = 4;
    using A = value_of<T>;
    A s[ACCS] = {};
    __device__ void one(T v, long long) { s[0] += wide(v); }
    __device__ void pack(const uint4& p, long long) {
        if constexpr (sizeof(T) < 4 && !Is<T>::REAL) {
            int sum = 0;
#pragma unroll
            for (int i = 0; i < N; ++i) sum += reinterpret_cast<const T*>(&p)[i];
            s[0] += sum;
        } else {
            A f[N];
            widen<T>(p, f);
#pragma unroll
            for (int i = 0; i < N; ++i) s[i % ACCS] += f[i];
        }
    }
    __device__ State<OP, A> done() {
#pragma unroll
        for (int half = ACCS / 2; half > 0; half /= 2) {
#pragma unroll
            for (int i = 0; i < half; ++i) s[i] += s[i + half];
        }
        return {s[0]};
    }
};

/// A sum of squares; in float32 with the rounding errors summed too (Kahan 1965).
template <typename T>
struct Squares {
    float sum = 0, lost = 0;
    __device__ void add(float d) {
        if constexpr (sizeof(T) == 4) {
            const float square = fmaf(d, d, lost), next = sum + square;
            lost = square - (next - sum), sum = next;
        } else {
            sum = fmaf(d, d, sum);
        }
    }
};

template <typename T>
struct Gather<VAR, T> {  // sums of distances from a pivot, a median of the first elements, and of their squares
    static constexpr int N = 16 / sizeof(T), ACCS = sizeof(T) == 4 ? 2 : 4, EACH = sizeof(T) == 4 ? 4 : 6;
    using A = value_of<T>;
    float pivot = 0, p[ACCS] = {};
    Squares<T> q[ACCS];
    int n = 0;
    State<VAR, A> singles = State<VAR, A>::none();
    __device__ void around(float f) { pivot = f; }
    __device__ void more(T v) {
        const float d = wide(v) - pivot;
        p[0] += d, q[0].add(d), n += 1;
    }
    __device__ void one(T v, long long) {
        singles.merge({1, wide(v), 0, 0});
    }
    __device__ void pack(const uint4& v, long long) {
        A f[N];
        widen<T>(v, f);
        if (n == 0) pivot = (f[0] + f[1] + (f[N - 2] + f[N - 1])) * 0.25f;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const float d = f[i] - pivot;
            p[i % ACCS] += d, q[i % ACCS].add(d);
        }
        n += N;
    }
    __device__ State<VAR, A> done() {
#pragma unroll
        for (int half = ACCS / 2; half > 0; half /= 2) {
#pragma unroll
            for (int i = 0; i < half; ++i) p[i] += p[i + half], q[i].sum += q[i + half].sum + q[i + half].lost;
        }
        const float mean = p[0] / fmaxf(n, 1);
        State<VAR, A> s{static_cast<float>(n), pivot, mean, not_below_zero(fmaf(-mean, p[0], q[0].sum) + q[0].lost)};
        s.merge(singles);
        return s;
    }
};

/// The largest element of a pack; NaN if there is one.
template <typename T>
__device__ value_of<T> largest(const uint4& p) {
    using A = value_of<T>;
    if constexpr (Is<T>::HALF) {
        using Two = decltype(Word<T>::both(0u));
        const Two m = __hmax2_nan(__hmax2_nan(Word<T>::both(p.x), Word<T>::both(p.y)), __hmax2_nan(Word<T>::both(p.z), Word<T>::both(p.w)));
        float f[2];
        Word<T>::widen(Word<T>::word(m), f);
        return beats(f[1], f[0]) ? f[1] : f[0];
    } else {
        A f[16 / sizeof(T)];
        widen<T>(p, f);
        A m = f[0];
#pragma unroll
        for (int i = 1; i < static_cast<int>(16 / sizeof(T)); ++i) m = beats(f[i], m) ? f[i] : m;
        return m;
    }
}

template <typename T>
struct Gather<MAX, T> {
    static constexpr int EACH = 4;
    using A = value_of<T>;
    A m = lowest(A());
    __device__ void one(T v, long long) { m = beats(wide(v), m) ? wide(v) : m; }
    __device__ void pack(const uint4& p, long long) {
        const A v = largest<T>(p);
        m = beats(v, m) ? v : m;
    }
    __device__ State<MAX, A> done() { return {m}; }
};

template <typename T>
struct Gather<ARGMAX, T> {  // elements come in the order of their places
    static constexpr int EACH = 6;
    // The pack with the largest element is kept, and searched at the end. In nearly every iteration some lane of a warp finds a new
    // maximum, so a search at that point would run each time.
    using A = value_of<T>;
    A m = lowest(A());
    long long mark = -2;  // twice the place of the maximum; or of the first element of its pack, and 1 more
    uint4 kept = {};
    __device__ void one(T v, long long at) {
        if (mark < 0 || beats(wide(v), m)) m = wide(v), mark = 2 * at;
    }
    __device__ void pack(const uint4& p, long long at) {
        const A v = largest<T>(p);
        if (mark < 0 || beats(v, m)) m = v, mark = 2 * at + 1, kept = p;
    }
    __device__ State<ARGMAX, A> done() const {
        long long place = mark >> 1;
        if (mark & 1) {
            A f[16 / sizeof(T)];
            widen<T>(kept, f);
            int first = 0;
#pragma unroll
            for (int i = 16 / sizeof(T) - 1; i >= 0; --i) {
                if (f[i] == m || (m != m && f[i] != f[i])) first = i;
            }
            place += first;
        }
        return {place, m};
    }
};

/// n contiguous elements at any alignment, processed by TEAM threads; `at`: the place of the first.
template <int TEAM, typename T, typename G>
__device__ void gather_span(G& g, const T* p, long long n, long long at, int lane) {
    constexpr int N = 16 / sizeof(T), EACH = G::EACH;
    const int head = static_cast<int>(min(n, static_cast<long long>(-reinterpret_cast<unsigned long long>(p) % 16 / sizeof(T))));
    const long long packs = (n - head) / N;
    const int tail = static_cast<int>(n - head - packs * N);
    if (lane < head) g.one(p[lane], at + lane);
    const T* from = p + head;
#pragma unroll 1
    for (long long k = lane; k < packs; k += EACH * TEAM) {
        uint4 v[EACH];
#pragma unroll
        for (int u = 0; u < EACH; ++u) {
            if (k + u * TEAM < packs) v[u] = *reinterpret_cast<const uint4*>(from + (k + u * TEAM) * N);
        }
#pragma unroll
        for (int u = 0; u < EACH; ++u) {
            if (k + u * TEAM < packs) g.pack(v[u], at + head + (k + u * TEAM) * N);
        }
    }
    if (lane < tail) g.one(p[n - tail + lane], at + n - tail + lane);
}

/// Results of B runs of D contiguous elements. A run is `pieces` pieces of `each` elements; a team of TEAM threads (a warp, or the block of
/// 256) takes `per` consecutive pieces, so `splits` teams share a result.
template <typename T, int OP, int TEAM>
__global__ void __launch_bounds__(256, OP == VAR || OP == ARGMAX ? 3 : 4)
    rows(const T* __restrict__ x, void* parts, long long M, long long B, long long D, long long each, long long pieces, long long per,
        unsigned splits,
         long long xa, long long xb, long long xc, void* out, long long C, long long E, long long oa, long long oc, long long oe,
         float count, float freedom) {
    const Results results{out, C, E, oa, oc, oe, count, freedom};
    gdc_wait();
    const int lane = threadIdx.x % TEAM;
    const unsigned team = blockIdx.x * (256 / TEAM) + threadIdx.x / TEAM, part = team % splits;
    const long long m = team / splits;
    Gather<OP, T> g;
    if (m < M) {
        const long long a = quotient(m, C);
        const T* row = x + a * xa + (m - a * C) * xc;
        const long long last = min(B * pieces, (part + 1) * per);
#pragma unroll 1
        for (long long piece = part * per; piece < last; ++piece) {
            const long long b = quotient(piece, pieces), d = (piece - b * pieces) * each;
            gather_span<TEAM>(g, row + b * xb + d, min(each, D - d), b * D + d, lane);
        }
    }
    auto s = g.done();
    if (TEAM == 32) fold_lanes<32>(s);
    else fold_block(s);
    if (lane == 0 && m < M) results.put<OP, T>(m, s, parts, part, M);
}

/// Rows of at most LANES packs, aligned to 16 bytes: a pack a lane, four rows of each team in flight.
template <typename T, int OP, int LANES>
__global__ void __launch_bounds__(256)
    packed_rows(const T* __restrict__ x, long long M, int packs, long long xa, long long xc, void* out, long long C, long long E,
        long long oa, long long oc, long long oe, float count, float freedom) {
    gdc_wait();
    const Results results{out, C, E, oa, oc, oe, count, freedom};
    constexpr int EACH = 4, TEAMS = 256 / LANES, N = 16 / sizeof(T);
    const int lane = threadIdx.x % LANES;
    const long long first = static_cast<long long>(blockIdx.x) * (TEAMS * EACH) + threadIdx.x / LANES;
    uint4 v[EACH];
#pragma unroll
    for (int u = 0; u < EACH; ++u) {
        const long long m = first + u * TEAMS;
        if (m < M && lane < packs) v[u] = *reinterpret_cast<const uint4*>(x + quotient(m, C) * (xa - C * xc) + m * xc + lane * N);
    }
#pragma unroll
    for (int u = 0; u < EACH; ++u) {
        const long long m = first + u * TEAMS;
        Gather<OP, T> g;
        if (m < M && lane < packs) g.pack(v[u], lane * N);
        auto s = g.done();
        fold_lanes<LANES>(s);
        if (lane == 0 && m < M) results.put<OP, T>(m, s);
    }
}

extern __shared__ __align__(128) uint4 held[];

/// Consecutive rows of D elements at any alignment: a block copies `tile` rows as one contiguous range to shared memory, and LANES threads
/// reduce each row from there.
template <typename T, int OP, int LANES>
__global__ void __launch_bounds__(256)
    spanned_rows(const T* __restrict__ x, long long M, int D, int tile, void* out, long long C, long long E, long long oa, long long oc,
        long long oe, float count, float freedom) {
    gdc_wait();
    const Results results{out, C, E, oa, oc, oe, count, freedom};
    constexpr int N = 16 / sizeof(T), EACH = 4;
    const long long first = static_cast<long long>(blockIdx.x) * tile;
    const int mine = static_cast<int>(min(static_cast<long long>(tile), M - first)), n = mine * D;
    const T* from = x + first * D;
    const int off = static_cast<int>(reinterpret_cast<unsigned long long>(from) % 16 / sizeof(T));
    const T* begin = from - off;  // aligned to 16 bytes
    const int packs = (off + n + N - 1) / N;
    T* elements = reinterpret_cast<T*>(held);
    for (int k = threadIdx.x; k < packs; k += EACH * 256) {
        uint4 v[EACH];
#pragma unroll
        for (int u = 0; u < EACH; ++u) {
            const int pack = k + u * 256;
            if (pack * N >= off && (pack + 1) * N <= off + n) v[u] = *reinterpret_cast<const uint4*>(begin + pack * N);
        }
#pragma unroll
        for (int u = 0; u < EACH; ++u) {
            const int pack = k + u * 256;
            if (pack * N >= off && (pack + 1) * N <= off + n) {
                held[pack] = v[u];
            } else if (pack < packs) {  // the first and the last pack extend past the range
                for (int e = max(off, pack * N); e < min(off + n, (pack + 1) * N); ++e) elements[e] = begin[e];
            }
        }
    }
    __syncthreads();
    const int lane = threadIdx.x % LANES;
    for (int base = 0; base < mine; base += 256 / LANES) {
        const int row = base + threadIdx.x / LANES;
        Gather<OP, T> g;
        {
            const T* p = elements + off + min(row, mine - 1) * D;  // past the last row: that one again
            if constexpr (OP == VAR) {  // two passes, the mean first: the row is in shared memory
                const float start = wide(p[0]);
                float sum = 0;
#pragma unroll 8
                for (int d = lane; d < D; d += LANES) sum += wide(p[d]) - start;
                g.around(start + lanes_sum<LANES>(sum) / static_cast<float>(D));
#pragma unroll 8
                for (int d = lane; d < D; d += LANES) g.more(p[d]);
            } else {
#pragma unroll 8
                for (int d = lane; d < D; d += LANES) g.one(p[d], d);
            }
        }
        auto s = g.done();
        fold_lanes<LANES>(s);
        if (lane == 0 && row < mine) results.put<OP, T>(first + row, s);
    }
}
