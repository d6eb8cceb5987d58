/* rooftop
idea    = "Each thread keeps four to six 16-byte loads in flight. For argmax it keeps the pack with the largest element, and looks for the place in it once, at the end. Long rows are divided into pieces of 32 KiB and more, so that all multiprocessors finish at the same time. Rows of a few bytes are read as one contiguous span and reduced from shared memory. For reductions over columns each thread reads a strip 16 bytes wide."
limit   = "the read of the input; unaligned columns of 16-bit elements are read one element per thread and are bound by the number of load instructions"
dtypes  = ["f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8"]
args    = ["x: T[A, B, C, D, E]"]
demands = { has = ["LDG"], spills = 0 }
python  = ["supports", "choose", "launches", "scratch"]
*/
#include "pdl.cuh"
#include "packs.cuh"

enum Op { SUM, MEAN, VAR, MAX, ARGMAX };

template <typename T>
struct Is { static constexpr bool REAL = false, HALF = false; using Value = long long; };
template <>
struct Is<float> { static constexpr bool REAL = true, HALF = false; using Value = float; };
template <>
struct Is<__half> { static constexpr bool REAL = true, HALF = true; using Value = float; };
template <>
struct Is<__nv_bfloat16> { static constexpr bool REAL = true, HALF = true; using Value = float; };
template <typename T>
using value_of = typename Is<T>::Value;

__device__ inline float lowest(float) { return __int_as_float(0xff800000); }
__device__ inline long long lowest(long long) { return -0x7fffffffffffffffll - 1; }
/// Whether v is larger than the maximum m; NaN is the largest.
template <typename A>
__device__ bool beats(A v, A m) { return m == m && !(v <= m); }

/// The partial result of some elements. Merged in an order that depends on shapes only.
template <int OP, typename A>
struct State {  // SUM, MEAN, MAX
    A value;
    __device__ static State none() { return {OP == MAX ? lowest(A()) : A(0)}; }
    __device__ void merge(const State& o) {
        if (OP == MAX) value = beats(o.value, value) ? o.value : value;
        else value += o.value;
    }
};
template <typename A>
struct alignas(16) State<VAR, A> {  // count; the mean relative to a pivot, which is an element; sum of squares about the mean (Chan, Golub & LeVeque 1979)
    float n, pivot, off, squares;
    __device__ static State none() { return {0, 0, 0, 0}; }
    __device__ void merge(const State& o) {  // no branches: warps merge several times one after the other
        const float total = n + o.n, d = (o.pivot - pivot) + (o.off - off), share = over(o.n, fmaxf(total, 1.0f));  // equal elements: no digits are lost
        const bool first = n == 0, none = o.n == 0;
        const float sum = squares + (o.squares + d * d * n * share);
        off = first ? o.off : none ? off : off + d * share;
        squares = first ? o.squares : none ? squares : sum;
        pivot = first ? o.pivot : pivot, n = total;
    }
};
template <typename A>
struct alignas(16) State<ARGMAX, A> {  // place: -1 if there are no elements
    long long place;
    A value;
    __device__ static State none() { return {-1, lowest(A())}; }
    __device__ void merge(const State& o) {
        const bool equal = (o.value == value) | ((o.value != o.value) & (value != value)), larger = (value == value) & !(o.value <= value);
        const bool better = (o.place >= 0) & ((place < 0) | larger | (equal & (o.place < place)));
        place = better ? o.place : place, value = better ? o.value : value;
    }
};

/// The state of the lane `step` higher in the warp.
template <typename S>
__device__ S from_lane(const S& mine, int step) {
    S other = mine;
    unsigned* w = reinterpret_cast<unsigned*>(&other);
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(S) / 4); ++i) w[i] = __shfl_down_sync(~0u, w[i], step);
    return other;
}

/// Reduces LANES neighbouring lanes; the first of them gets the result.
template <int LANES, typename S>
__device__ void fold_lanes(S& s) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) s.merge(from_lane(s, step));
}

__device__ inline float not_below_zero(float v) { return v < 0 ? 0 : v; }  // keeps NaN

template <typename T>
__device__ value_of<T> wide(T v) { return static_cast<value_of<T>>(v); }

/// The elements of a pack.
template <typename T>
__device__ void widen(const uint4& p, value_of<T> (&f)[16 / sizeof(T)]) {
    if constexpr (Is<T>::REAL) {
        Pack<T>::widen(p, f);
    } else {
#pragma unroll
        for (int i = 0; i < static_cast<int>(16 / sizeof(T)); ++i) f[i] = reinterpret_cast<const T*>(&p)[i];
    }
}

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
    // The pack with the largest element is kept, and searched at the end. In nearly every iteration some lane of a warp finds a new maximum, so a search at
    // that point would run each time.
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

/// a / b of non-negative numbers: in 32 bits if they fit, a tenth of the instructions.
__device__ inline long long quotient(long long a, long long b) {
    return ((a | b) >> 32) == 0 ? static_cast<long long>(static_cast<unsigned>(a) / static_cast<unsigned>(b)) : a / b;
}

/// The addresses of results: result m is (a, c, e) of [A, C, E].
struct Results {
    void* out;
    long long C, E, oa, oc, oe;
    float count, freedom;  // the number of elements of a result; that number less the correction

    template <int OP, typename T>
    __device__ void put(long long m, const State<OP, value_of<T>>& s) const {
        const long long row = E == 1 ? m : quotient(m, E), a = C == 1 ? row : quotient(row, C);
        const long long at = a * oa + (row - a * C) * oc + (m - row * E) * oe;
        if constexpr (OP == ARGMAX) static_cast<long long*>(out)[at] = s.place;
        else if constexpr (OP == VAR) static_cast<T*>(out)[at] = static_cast<T>(s.squares / freedom);
        else if constexpr (OP == MEAN) static_cast<T*>(out)[at] = static_cast<T>(s.value / count);
        else if constexpr (OP == SUM && !Is<T>::REAL) static_cast<long long*>(out)[at] = s.value;
        else static_cast<T*>(out)[at] = static_cast<T>(s.value);
    }
    /// Writes a result, or (parts present) one of its `splits` parts; parts are [splits, M].
    template <int OP, typename T>
    __device__ void put(long long m, const State<OP, value_of<T>>& s, void* parts, long long part, long long M) const {
        if (parts == nullptr) put<OP, T>(m, s);
        else static_cast<State<OP, value_of<T>>*>(parts)[part * M + m] = s;
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

/// Reduces the 256 threads of a block; the first gets the result.
template <typename S>
__device__ void fold_block(S& s) {
    __shared__ S warps[8];
    fold_lanes<32>(s);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = s;
    __syncthreads();
    if (threadIdx.x < 32) {
        s = threadIdx.x < 8 ? warps[threadIdx.x] : S::none();
        fold_lanes<8>(s);
    }
}

/// Results of B runs of D contiguous elements. A run is `pieces` pieces of `each` elements; a team of TEAM threads (a warp, or the block of 256) takes `per`
/// consecutive pieces, so `splits` teams share a result.
template <typename T, int OP, int TEAM>
__global__ void __launch_bounds__(256, OP == VAR || OP == ARGMAX ? 3 : 4)
    rows(const T* __restrict__ x, void* parts, long long M, long long B, long long D, long long each, long long pieces, long long per, unsigned splits,
         long long xa, long long xb, long long xc, void* out, long long C, long long E, long long oa, long long oc, long long oe, float count, float freedom) {
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
    packed_rows(const T* __restrict__ x, long long M, int packs, long long xa, long long xc, void* out, long long C, long long E, long long oa, long long oc, long long oe, float count, float freedom) {
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

/// Consecutive rows of D elements at any alignment: a block copies `tile` rows as one contiguous range to shared memory, and LANES threads reduce each row
/// from there.
template <typename T, int OP, int LANES>
__global__ void __launch_bounds__(256)
    spanned_rows(const T* __restrict__ x, long long M, int D, int tile, void* out, long long C, long long E, long long oa, long long oc, long long oe, float count, float freedom) {
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

/// A thread's accumulator over one column, whose first element is `pivot`, in row `first`.
template <int OP, typename T>
struct Column {  // SUM, MEAN, MAX
    using A = value_of<T>;
    A s;
    __device__ void begin(T, long long) { s = OP == MAX ? lowest(A()) : A(0); }
    __device__ void one(T v, long long) {
        if (OP == MAX) s = beats(wide(v), s) ? wide(v) : s;
        else s += wide(v);
    }
    __device__ State<OP, A> done(long long) const { return {s}; }
};
template <typename T>
struct Column<VAR, T> {
    float pivot, p;
    Squares<T> q;
    __device__ void begin(T v, long long) { pivot = wide(v), p = 0; }
    __device__ void one(T v, long long) {
        const float d = wide(v) - pivot;
        p += d, q.add(d);
    }
    __device__ void settle(int n) { pivot += p / static_cast<float>(n), p = 0, q = Squares<T>(); }  // the mean of the first n elements is a better pivot
    __device__ State<VAR, value_of<T>> done(long long n) const {
        const float mean = p / static_cast<float>(n);
        return {static_cast<float>(n), pivot, mean, not_below_zero(fmaf(-mean, p, q.sum) + q.lost)};
    }
};
template <typename T>
struct Column<ARGMAX, T> {
    using A = value_of<T>;
    A m;
    long long place;
    __device__ void begin(T v, long long first) { m = wide(v), place = first; }
    __device__ void one(T v, long long at) {
        if (beats(wide(v), m)) m = wide(v), place = at;
    }
    __device__ State<ARGMAX, A> done(long long) const { return {place, m}; }
};

template <typename T, int V>
struct __align__(sizeof(T) * V) Some {
    T e[V];
};

/// Columns: results of R = B · D rows, V columns a thread. A block is `tx` threads along the columns and `ty` along the rows, and takes `per` rows of a
/// result, the part blockIdx.y. MIDDLE: rows are counted over B and D, else B is 1.
template <typename T, int OP, int V, bool MIDDLE>
__global__ void __launch_bounds__(256, 4)
    columns(const T* __restrict__ x, void* parts, long long M, unsigned D, long long R, long long per, int tx, int ty, unsigned tiles, long long xa,
            long long xb, long long xc, long long xd, void* out, long long C, long long E, long long oa, long long oc, long long oe, float count, float freedom) {
    gdc_wait();
    const Results results{out, C, E, oa, oc, oe, count, freedom};
    constexpr int EACH = V * sizeof(T) >= 16 ? 4 : V * sizeof(T) >= 8 ? 8 : 16 / (OP == VAR || OP == ARGMAX ? 2 : 1);
    using S = State<OP, value_of<T>>;
    __shared__ S held_states[256];
    const long long outer = blockIdx.x / tiles;
    const int along = threadIdx.x % tx, down = threadIdx.x / tx;
    const long long e = (static_cast<long long>(blockIdx.x % tiles) * tx + along) * V;
    const long long first = blockIdx.y * per + down, last = min(R, (blockIdx.y + 1) * per);
    const bool some = down < ty && e < E && first < last;
    const T* from = x + quotient(outer, C) * (xa - C * xc) + outer * xc + e;
    const auto row = [&](long long r) {
        if (!MIDDLE) return from + r * xd;
        const unsigned b = static_cast<unsigned>(r) / D, d = static_cast<unsigned>(r) % D;
        return from + b * xb + d * xd;
    };
    Column<OP, T> g[V];
    if (some) {
        const Some<T, V> v = *reinterpret_cast<const Some<T, V>*>(row(first));
#pragma unroll
        for (int i = 0; i < V; ++i) g[i].begin(v.e[i], first);
        if constexpr (OP == VAR) {
            int n = 0;
            for (long long r = first; r < last && n < 8; r += ty, ++n) {
                const Some<T, V> v = *reinterpret_cast<const Some<T, V>*>(row(r));
#pragma unroll
                for (int i = 0; i < V; ++i) g[i].one(v.e[i], r);
            }
#pragma unroll
            for (int i = 0; i < V; ++i) g[i].settle(n);
        }
#pragma unroll 1
        for (long long r = first; r < last; r += EACH * ty) {
            Some<T, V> v[EACH];
#pragma unroll
            for (int u = 0; u < EACH; ++u) {
                if (r + u * ty < last) v[u] = *reinterpret_cast<const Some<T, V>*>(row(r + u * ty));
            }
#pragma unroll
            for (int u = 0; u < EACH; ++u) {
                if (r + u * ty >= last) break;
#pragma unroll
                for (int i = 0; i < V; ++i) g[i].one(v[u].e[i], r + u * ty);
            }
        }
    }
    const long long n = some ? (last - first + ty - 1) / ty : 0;
#pragma unroll
    for (int i = 0; i < V; ++i) {
        S s = S::none();
        if (some) s = g[i].done(n);
        if (ty > 1) {
            __syncthreads();
            held_states[threadIdx.x] = s;
            for (int half = 128; half > 0; half /= 2) {
                if (half >= ty) continue;
                __syncthreads();
                if (down < half && down + half < ty) {
                    s.merge(held_states[threadIdx.x + half * tx]);
                    held_states[threadIdx.x] = s;
                }
            }
        }
        if (some && down == 0) results.put<OP, T>(outer * E + e + i, s, parts, blockIdx.y, M);
    }
}

/// Combines the `splits` parts of each result: `tx` results a block, 256 / tx threads for each.
template <typename T, int OP>
__global__ void __launch_bounds__(256)
    fold_parts(const void* parts, long long M, int splits, int tx, void* out, long long C, long long E, long long oa, long long oc, long long oe, float count, float freedom) {
    gdc_wait();
    const Results results{out, C, E, oa, oc, oe, count, freedom};
    using S = State<OP, value_of<T>>;
    __shared__ S held_states[256];
    const int along = threadIdx.x % tx, down = threadIdx.x / tx, ty = 256 / tx;
    const long long m = static_cast<long long>(blockIdx.x) * tx + along;
    S s = S::none();
    if (m < M) {
        constexpr int EACH = 8;
#pragma unroll 1
        for (int part = down; part < splits; part += EACH * ty) {
            S some[EACH];
#pragma unroll
            for (int u = 0; u < EACH; ++u) some[u] = part + u * ty < splits ? static_cast<const S*>(parts)[(part + u * ty) * M + m] : S::none();
#pragma unroll
            for (int u = 0; u < EACH; ++u) s.merge(some[u]);
        }
    }
    held_states[threadIdx.x] = s;
    for (int half = ty / 2; half > 0; half /= 2) {
        __syncthreads();
        if (down < half) held_states[threadIdx.x].merge(held_states[threadIdx.x + half * tx]);
    }
    if (down == 0 && m < M) results.put<OP, T>(m, held_states[threadIdx.x]);
}
