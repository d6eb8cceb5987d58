/* rooftop
ops     = ["add", "gelu", "gelu_bwd", "silu", "silu_bwd", "square", "square_bwd", "swiglu", "swiglu_bwd", "geglu", "geglu_bwd"]
idea    = """Rows that start at any address. A thread computes a pack of 16 bytes of the output where the output is aligned, and takes each input \
  from the two aligned packs around it, shifted in registers: every access but those at the ends of rows is one of 16 bytes. The second pack is \
  the first one of the next lane: it comes from the L1. An output that starts elsewhere is computed by itself, on packs of its own."""
predict = { speedup = 1.3 }
limit   = "Short rows: the elements at both ends of a row are accessed one by one."
dtypes  = ["f32", "f16", "bf16"]
args    = []  # the launches list them, by the tensors of each op
python  = ["supports", "choose", "launches"]
demands = { has = ["LDG.E.128", "STG.E.128"], spills = 0 }

[config]
threads = 256
*/
#include "pdl.cuh"
#include "packs.cuh"
#include "_formulas.cuh"

// The ops: how many tensors they read and write, and output O of the elements v.

struct Add {
    static constexpr int IN = 2, OUT = 1;
    template <int O, bool FAST>
    __device__ static float of(const float (&v)[IN]) { return v[0] + v[1]; }
};
struct Square {
    static constexpr int IN = 1, OUT = 1;
    template <int O, bool FAST>
    __device__ static float of(const float (&v)[IN]) { return v[0] * v[0]; }
};
struct SquareBwd {  // of dy and x, as in all that follow
    static constexpr int IN = 2, OUT = 1;
    template <int O, bool FAST>
    __device__ static float of(const float (&v)[IN]) { return 2 * v[1] * v[0]; }
};
struct Silu {
    static constexpr int IN = 1, OUT = 1;
    template <int O, bool FAST>
    __device__ static float of(const float (&v)[IN]) { return silu<FAST>(v[0]); }
};
struct SiluBwd {
    static constexpr int IN = 2, OUT = 1;
    template <int O, bool FAST>
    __device__ static float of(const float (&v)[IN]) { return v[0] * silu_slope<FAST>(v[1]); }
};
template <bool TANH>
struct Gelu {
    static constexpr int IN = 1, OUT = 1;
    template <int O, bool FAST>
    __device__ static float of(const float (&v)[IN]) { return gelu<TANH, FAST>(v[0]); }
};
template <bool TANH>
struct GeluBwd {
    static constexpr int IN = 2, OUT = 1;
    template <int O, bool FAST>
    __device__ static float of(const float (&v)[IN]) {
        const float x = v[1];
        if (TANH) return v[0] * gelu_tanh_slope<FAST, false>(x);
        return v[0] * ((FAST ? normal_fine(x) : normal(x)) + x * density<FAST>(x));
    }
};
struct Swiglu {  // of a and b
    static constexpr int IN = 2, OUT = 1;
    template <int O, bool FAST>
    __device__ static float of(const float (&v)[IN]) { return silu<FAST>(v[0]) * v[1]; }
};
struct SwigluBwd {  // da and db of dy, a and b
    static constexpr int IN = 3, OUT = 2;
    template <int O, bool FAST>
    __device__ static float of(const float (&v)[IN]) { return O == 0 ? v[0] * v[2] * silu_slope<FAST>(v[1]) : v[0] * silu<FAST>(v[1]); }
};
template <bool TANH>
struct Geglu {
    static constexpr int IN = 2, OUT = 1;
    template <int O, bool FAST>
    __device__ static float of(const float (&v)[IN]) { return (TANH ? gelu_tanh_or_zero<FAST>(v[0]) : v[0] * normal(v[0])) * v[1]; }
};
template <bool TANH>
struct GegluBwd {
    static constexpr int IN = 3, OUT = 2;
    template <int O, bool FAST>
    __device__ static float of(const float (&v)[IN]) {
        const float x = v[1];
        if (O == 1) return v[0] * (TANH ? gelu_tanh_or_zero<FAST>(x) : x * normal(x));
        return v[0] * v[2] * (TANH ? gelu_tanh_slope<FAST, true>(x) : normal(x) + x * density<FAST>(x));
    }
};

/// The 16 bytes that start `off` bytes (below 16, whole elements) after the start of a, of two packs that are neighbours.
__device__ inline uint4 amid(const uint4& a, const uint4& b, unsigned off) {
    unsigned w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 6; ++i) w[i] = off & 8 ? w[i + 2] : w[i];
#pragma unroll
    for (int i = 0; i < 5; ++i) w[i] = off & 4 ? w[i + 1] : w[i];
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = __funnelshift_r(w[i], w[i + 1], off % 4 * 8);
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/// A tensor that is read: its first element, how far its rows are apart, and the bounds of the memory that its elements, or those of the other half of its
/// rows, are in.
template <typename T>
struct Source {
    const T *first, *begin, *end;
    long long stride;
};

/// Output O of a row: pack `pack` of those that the row touches.
template <typename F, int O, typename T>
__device__ void one(const Source<T> (&from)[F::IN], T* to, unsigned row, int pack, int columns) {
    using P = Pack<T>;
    constexpr int N = P::N, IN = F::IN;
    constexpr bool FAST = sizeof(T) == 2;
    const int column = pack * N - static_cast<int>(reinterpret_cast<unsigned long long>(to) % 16 / sizeof(T));
    if (column >= columns) return;
    bool whole = column >= 0 && column + N <= columns;
    const T* q[IN];
    unsigned off[IN];
#pragma unroll
    for (int i = 0; i < IN; ++i) {
        const T* at = from[i].first + row * from[i].stride + column;
        off[i] = reinterpret_cast<unsigned long long>(at) % 16;
        q[i] = at - off[i] / sizeof(T);
        whole &= off[i] == 0 || (q[i] >= from[i].begin && q[i] + 2 * N <= from[i].end);
    }
    if (whole) {
        uint4 a[IN], b[IN];
#pragma unroll
        for (int i = 0; i < IN; ++i) {
            a[i] = b[i] = *reinterpret_cast<const uint4*>(q[i]);
            if (off[i]) b[i] = *reinterpret_cast<const uint4*>(q[i] + N);
        }
        float f[IN][N], result[N];
#pragma unroll
        for (int i = 0; i < IN; ++i) P::widen(amid(a[i], b[i], off[i]), f[i]);
#pragma unroll
        for (int j = 0; j < N; ++j) {
            float v[IN];
#pragma unroll
            for (int i = 0; i < IN; ++i) v[i] = f[i][j];
            result[j] = F::template of<O, FAST>(v);
        }
        P::store(to + column, true, P::narrow(result));
    } else {
#pragma unroll 1
        for (int j = max(column, 0); j < min(column + N, columns); ++j) {
            float v[IN];
#pragma unroll
            for (int i = 0; i < IN; ++i) v[i] = static_cast<float>(from[i].first[row * from[i].stride + j]);
            to[j] = T(F::template of<O, FAST>(v));
        }
    }
}

/// u (and v) of p, q and r. `packs`: how many of them a row touches, at most.
template <typename F, typename T, int THREADS>
__global__ void __launch_bounds__(THREADS)
    rows_of(unsigned rows, int columns, unsigned packs, const T* __restrict__ p, const T* __restrict__ q, const T* __restrict__ r, T* __restrict__ u,
        T* __restrict__ v, long long po, long long qo, long long ro, long long vo, long long ps, long long qs, long long rs, long long us, long long vs,
        long long pn, long long qn, long long rn) {
    gdc_wait();
    const unsigned at = blockIdx.x * THREADS + threadIdx.x, row = at / packs;
    const int pack = static_cast<int>(at - row * packs);
    if (row >= rows) return;
    const T* first[3] = {p, q, r};
    const long long offset[3] = {po, qo, ro}, stride[3] = {ps, qs, rs}, span[3] = {pn, qn, rn};
    Source<T> from[F::IN];
#pragma unroll
    for (int i = 0; i < F::IN; ++i) from[i] = {first[i] + offset[i], first[i], first[i] + span[i], stride[i]};
    one<F, 0>(from, u + row * us, row, pack, columns);
    if constexpr (F::OUT == 2) one<F, 1>(from, v + vo + row * vs, row, pack, columns);
}
