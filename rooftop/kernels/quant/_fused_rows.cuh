// Quantises rows whose values are in registers: for kernels that fuse a computation with quantisation.
#pragma once
#include "_group_scales.cuh"

/// Sum over LANES neighbouring threads (lanes of a warp, or the whole block); all of them get it. `shared` has 32 words.
template <int LANES, int THREADS>
__device__ float sum_over_lanes(float v, float* shared) {
#pragma unroll
    for (int step = (LANES < 32 ? LANES : 32) / 2; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
    if constexpr (LANES > 32) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (lane == 0) shared[warp] = v;
        __syncthreads();
        v = lane < THREADS / 32 ? shared[lane] : 0;
#pragma unroll
        for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
        __syncthreads();
    }
    return v;
}

/// Sum and largest magnitude over LANES neighbouring threads, with one barrier. `shared` has 64 words.
template <int LANES, int THREADS>
__device__ inline void sum_and_largest(float& sum, unsigned& most, unsigned* shared) {
#pragma unroll
    for (int step = (LANES < 32 ? LANES : 32) / 2; step > 0; step /= 2) {
        sum += __shfl_xor_sync(~0u, sum, step);
        if (LANES < 32) most = max(most, __shfl_xor_sync(~0u, most, step));
    }
    if (LANES >= 32) most = __reduce_max_sync(~0u, most);
    if constexpr (LANES > 32) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (lane == 0) shared[warp] = __float_as_uint(sum), shared[32 + warp] = most;
        __syncthreads();
        sum = lane < THREADS / 32 ? __uint_as_float(shared[lane]) : 0;
        most = __reduce_max_sync(~0u, lane < THREADS / 32 ? shared[32 + lane] : 0);
#pragma unroll
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    }
}

/// The maximum over LANES neighbouring threads, NaN above all; all of them get it. `shared` has 32 words.
template <int LANES, int THREADS>
__device__ float largest_over_lanes(float v, unsigned* shared) {
    const unsigned bits = __float_as_uint(v);
    const unsigned key = v != v ? 0xffffffffu : bits & 0x80000000u ? ~bits : bits | 0x80000000u;  // monotonic in the number
    const unsigned most = over_lanes<LANES, THREADS>(key, shared);
    return __uint_as_float(most == 0xffffffffu ? 0x7fffffffu : most & 0x80000000u ? most & 0x7fffffffu : ~most);
}

/// SIZE neighbours, V in this thread, times the Hadamard matrix in Sylvester's order over sqrt(SIZE): sums and differences at distances 1,
/// 2, 4, ...
template <int SIZE, int V>
__device__ inline void rotate_pack(Held<float, V>& y) {
#pragma unroll
    for (int step = 1; step < V; step *= 2) {
#pragma unroll
        for (int i = 0; i < V; ++i) {
            if (i & step) continue;
            const float a = y[i], b = y[i + step];
            y.w[i] = __float_as_uint(__fadd_rn(a, b)), y.w[i + step] = __float_as_uint(__fsub_rn(a, b));
        }
    }
#pragma unroll
    for (int step = V; step < SIZE; step *= 2) {
        const bool upper = threadIdx.x & (step / V);
#pragma unroll
        for (int i = 0; i < V; ++i) {
            const float mine = y[i], other = __shfl_xor_sync(~0u, mine, step / V);
            y.w[i] = __float_as_uint(upper ? __fsub_rn(other, mine) : __fadd_rn(mine, other));
        }
    }
    constexpr float PART = SIZE == 16 ? 0.25f : SIZE == 32 ? 0.17677669529663687f : SIZE == 64 ? 0.125f : SIZE == 128
        ? 0.08838834764831843f : 0.0625f;
#pragma unroll
    for (int i = 0; i < V; ++i) y.w[i] = __float_as_uint(__fmul_rn(y[i], PART));
}

/// Loads V elements of T at `from` as floats; if not WHOLE, the first `left` of them and zeros.
template <bool WHOLE, typename T, int V>
__device__ inline void load_floats(Held<float, V>& to, const T* from, int left) {
    Held<T, V> held;
    if (WHOLE) held.load(from);
    else held.load(from, left);
#pragma unroll
    for (int i = 0; i < V; ++i) to.w[i] = __float_as_uint(held[i]);
}

/// Like load_floats, for data that all rows read: it stays in the cache.
template <bool WHOLE, typename T, int V>
__device__ inline void load_shared_floats(float (&to)[V], const T* from, int left) {
    Held<T, V> held;
    if (WHOLE) held.load_kept(from);
    else held.load(from, left);
#pragma unroll
    for (int i = 0; i < V; ++i) to[i] = held[i];
}

/// Computed numbers are multiplied by this reciprocal, not divided: the contract allows their own error, which is far larger. Stochastic:
/// slightly less than the reciprocal, so that the largest number does not pass the largest code.
template <int F, int ROUND>
struct Times {
    float part;
    __device__ float operator()(float x) const { return x * part; }
};

/// The codes and scales of row `row` of length L, of which this thread has packs lane, lane + LANES, ... of V elements, zeros past L; the
/// numbers are y times `by_all`. GROUP: lanes whose packs share a scale, 1 to 32; 0: the whole row. All threads call it; `there`: whether
/// the row exists. KNOWN: `known` is the row's largest magnitude, as bits; if it is infinite or NaN it is computed again. EXACT: y is
/// exact (and by_all 1), so it is divided by the scale, not multiplied by its reciprocal.
template <int F, int S, int ROUND, int V, int PIECES, int LANES, int THREADS, int GROUP, bool WHOLE, bool KNOWN = false, bool EXACT = false>
__device__ inline void write_row(const Held<float, V> (&y)[PIECES], bool there, long long row, int L, const float* over,
    unsigned char* codes,
                                 typename ScaleType<S>::Stored* scale, int seed, unsigned* shared, float by_all = 1.f, unsigned known = 0) {
    using X = Format<F>;
    using By = DividedBy<F, S, ROUND>;
    constexpr int BYTES = V * X::BITS / 8, OF = GROUP ? GROUP : LANES, PARTS = GROUP ? PIECES : 1, EACH = GROUP ? 1 : PIECES;
    const int lane = threadIdx.x % LANES;
    const long long row_bytes = (static_cast<long long>(L) * X::BITS + 7) / 8;
    const int across = GROUP ? (L + GROUP * V - 1) / (GROUP * V) : 1;
    const auto zeros = [](int) { return X::MIDDLE; };
    constexpr float LESS = ROUND == STOCHASTIC ? 1.f - 0x1p-22f : 1.f;
    if constexpr (GROUP && (PIECES & (PIECES - 1)) == 0 && has_clean<F, ROUND, true>()) {  // each scale is computed by one lane
        using Shared = Exchange<GROUP, PIECES>;
        constexpr int KEPT = Shared::KEPT;
        unsigned largest[PIECES];
#pragma unroll
        for (int p = 0; p < PIECES; ++p) {
            Most<float> m;
#pragma unroll
            for (int i = 0; i < V; ++i) m.over_size(y[p].w[i]);
            largest[p] = m.w;
        }
        Shared::largest(largest, lane);
        Found<float, F, S, ROUND, true> found[KEPT];
        const float of_all = over ? *over : 1.f, part_of_all = over ? reciprocal(of_all) : 1.f;
        bool careful = false;
#pragma unroll
        for (int i = 0; i < KEPT; ++i) {
            const unsigned most = __float_as_uint(fabsf(__uint_as_float(largest[i]) * by_all));
            if (F == E2M1 && over) found[i].template find<true>(most, 0, of_all, part_of_all);
            else found[i].template find<false>(most, 0, 1.f, 1.f);
            careful |= found[i].careful;
        }
        if (!__any_sync(~0u, careful)) {
            const int group = lane % GROUP, first = Shared::mine(lane);
#pragma unroll
            for (int i = 0; i < KEPT; ++i) {
                const int pack = (first + i) * LANES + lane;
                if (there && group < Shared::SPLIT && pack / GROUP * GROUP * V < L) scale[row * across + pack / GROUP] = found[i].stored;
            }
#pragma unroll
            for (int p = 0; p < PIECES; ++p) {
                const float part = __shfl_sync(~0u, found[p % KEPT].part, Shared::place(p), GROUP);
                const Times<F, ROUND> times{part * (by_all * LESS)};
                By divided;
                if constexpr (EXACT) divided.s = By::POWER ? 0.f : __shfl_sync(~0u, found[p % KEPT].divisor, Shared::place(p), GROUP),
                    divided.part = part;
                const int at = (p * LANES + lane) * V;
                if (!there || at >= L) continue;
                const Drawn<V, WHOLE> random(seed, static_cast<unsigned long long>(row) * L + at);
                unsigned out[(V * X::BITS + 31) / 32];
                if constexpr (EXACT) encode_clean<F, S, ROUND, true>(out, y[p], random, [&](int) -> const By& { return divided; }, zeros);
                else encode_clean<F, S, ROUND, true>(out, y[p], random, [&](int) -> const Times<F, ROUND>& { return times; }, zeros);
                store_codes<X::BITS, V, WHOLE>(codes + row * row_bytes + static_cast<long long>(at / V) * BYTES, out, L - at);
            }
            return;
        }
    }
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        unsigned most = known;
        if constexpr (!KNOWN || GROUP) {
            Most<float> largest;
#pragma unroll
            for (int p = part; p < part + EACH; ++p) {
#pragma unroll
                for (int i = 0; i < V; ++i) largest.over_size(y[p].w[i]);
            }
            most = over_lanes<OF, THREADS>(largest.w, shared);
            most = __float_as_uint(fabsf(__uint_as_float(most) * by_all));
        }
        const bool unclean = most >= INFINITE_BITS;
        if (OF > 32 ? unclean : __any_sync(~0u, unclean)) {  // again, without infinities and NaN
            most = 0;
#pragma unroll
            for (int p = part; p < part + EACH; ++p) {
#pragma unroll
                for (int i = 0; i < V; ++i) {
                    const unsigned size = __float_as_uint(fabsf(y[p][i] * by_all));
                    if (size < INFINITE_BITS) most = max(most, size);
                }
            }
            most = over_lanes<OF, THREADS>(most, shared);
        }
        typename ScaleType<S>::Stored stored;
        const float s = scale_and_value<F, S>(__uint_as_float(most), over, stored);
        const By divided(s, __uint_as_float(most), unclean);
        const auto by = [&](int) -> const By& { return divided; };
        const Times<F, ROUND> times{divided.part * (by_all * LESS)};
        const auto product = [&](int) -> const Times<F, ROUND>& { return times; };
        if (!there) continue;
        if (GROUP ? lane % OF == 0 && (part * LANES + lane) * V < L : lane == 0) scale[row * across
            + (GROUP ? (part * LANES + lane) / OF : 0)] = stored;
#pragma unroll
        for (int p = part; p < part + EACH; ++p) {
            const int at = (p * LANES + lane) * V;
            if (at >= L) continue;
            const Drawn<V, WHOLE> random(seed, static_cast<unsigned long long>(row) * L + at);
            unsigned out[(V * X::BITS + 31) / 32];
            if (divided.careful) encode<F, ROUND, true, V>(out, [&](int i) { return y[p][i] * by_all; }, random, by, zeros);
            else if constexpr (EXACT) encode_clean<F, S, ROUND, true>(out, y[p], random, by, zeros);
            else if constexpr (has_clean<F, ROUND, true>()) encode_clean<F, S, ROUND, true>(out, y[p], random, product, zeros);
            else encode<F, ROUND, true, V>(out, [&](int i) { return y[p][i] * by_all; }, random, by, zeros);
            store_codes<X::BITS, V, WHOLE>(codes + row * row_bytes + static_cast<long long>(at / V) * BYTES, out, L - at);
        }
    }
}
