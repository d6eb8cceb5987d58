/* rooftop
idea    = """Each thread keeps four to six 16-byte loads in flight. For argmax it keeps the pack with the largest element, and looks for \
  the place in it once, at the end. Long rows are divided into pieces of 32 KiB and more, so that all multiprocessors finish at the same \
  time. Rows of a few bytes are read as one contiguous span and reduced from shared memory. For reductions over columns each thread reads a \
  strip 16 bytes wide."""
limit   = """the read of the input; unaligned columns of 16-bit elements are read one element per thread and are bound by the number of \
  load instructions"""
dtypes  = ["f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8"]
args    = ["x: T[A, B, C, D, E]"]
demands = { has = ["LDG"], spills = 0 }
python  = ["supports", "choose", "launches", "scratch"]
*/
#include "pdl.cuh"
#include "_reduce_rows.cuh"

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
    // the mean of the first n elements is a better pivot
    __device__ void settle(int n) { pivot += p / static_cast<float>(n), p = 0, q = Squares<T>(); }
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

/// Columns: results of R = B · D rows, V columns a thread. A block is `tx` threads along the columns and `ty` along the rows, and takes
/// `per` rows of a result, the part blockIdx.y. MIDDLE: rows are counted over B and D, else B is 1.
template <typename T, int OP, int V, bool MIDDLE>
__global__ void __launch_bounds__(256, 4)
    columns(const T* __restrict__ x, void* parts, long long M, unsigned D, long long R, long long per, int tx, int ty, unsigned tiles,
        long long xa,
            long long xb, long long xc, long long xd, void* out, long long C, long long E, long long oa, long long oc, long long oe,
            float count, float freedom) {
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
    fold_parts(const void* parts, long long M, int splits, int tx, void* out, long long C, long long E, long long oa, long long oc,
        long long oe, float count, float freedom) {
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
            for (int u = 0; u < EACH; ++u) some[u] = part + u * ty < splits ? static_cast<const S*>(parts)[(part + u * ty) * M + m]
                : S::none();
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
