// Partial results of reductions, how they are merged, and where results are written.
#pragma once
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
// count; the mean relative to a pivot, which is an element; sum of squares about the mean (Chan, Golub & LeVeque 1979)
struct alignas(16) State<VAR, A> {
    float n, pivot, off, squares;
    __device__ static State none() { return {0, 0, 0, 0}; }
    __device__ void merge(const State& o) {  // no branches: warps merge several times one after the other
        // equal elements: no digits are lost
        const float total = n + o.n, d = (o.pivot - pivot) + (o.off - off), share = over(o.n, fmaxf(total, 1.0f));
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
