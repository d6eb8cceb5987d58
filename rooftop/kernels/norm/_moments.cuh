// Mean and sum of squares of parts of a row: of a thread's elements, of a warp's, and many parts combined into one after Chan, Golub &
// LeVeque 1979 (as Welford's update, for sets of elements), so that one exchange between the warps is enough. Without CENTRE (rms_norm):
// sums of squares alone.
#pragma once

#include "packs.cuh"

/// A pivot: v, or 0 if v is so large that a distance from it might overflow (the squares are infinite then, whatever the pivot).
__device__ inline float finite_or_zero(float v) { return fabsf(v) < 1e36f ? v : 0; }

/// Squares about a pivot minus `more`, the part that comes from the pivot's distance to the mean: the squares about the mean. Never below
/// 0; infinite squares stay infinite.
__device__ inline float squares_less(float squares, float more) { return fmaxf(squares - fminf(more, 3.4e38f), 0); }

/// Four sums over LANES neighbouring lanes, in all of them. After the first step half the lanes continue with two of the sums, then a
/// quarter with one: 10 shuffles for 32 lanes instead of 20.
template <int LANES>
__device__ void four_sums(float (&v)[4]) {
    if (LANES < 4) return lanes_sums<LANES>(v);
    const int lane = threadIdx.x % LANES;
    const bool half = lane & LANES / 2, quarter = lane & LANES / 4;
    const float a = (half ? v[2] : v[0]) + __shfl_xor_sync(~0u, half ? v[0] : v[2], LANES / 2);
    const float b = (half ? v[3] : v[1]) + __shfl_xor_sync(~0u, half ? v[1] : v[3], LANES / 2);
    float sum = (quarter ? b : a) + __shfl_xor_sync(~0u, quarter ? a : b, LANES / 4);
#pragma unroll
    for (int step = LANES / 8; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = __shfl_sync(~0u, sum, i / 2 * (LANES / 2) + i % 2 * (LANES / 4), LANES);
}

/// A part of a row (its number of elements is known elsewhere): the mean, and the sum of squares about it. Without CENTRE all means are 0.
struct alignas(8) Moments {
    float mean, squares;
};

/// The moments of a thread's elements in one pass about a pivot: its first element, or the mean of its first four (norms__cuda_sm90.cu).
/// Cancellation is bounded by the spread of the elements about it.
template <bool CENTRE>
struct Pass {
    float pivot, total = 0, squares = 0;

    __device__ explicit Pass(float first) : pivot(CENTRE ? finite_or_zero(first) : 0) {}
    __device__ void add(float v, float about) {
        const float off = v - about;
        squares += off * off;
        if (CENTRE) total += off;
    }
    __device__ void add(float v) { add(v, pivot); }
    /// Adds a pack. If the thread does not have it (`has` is false), it holds zeros and adds nothing.
    template <int N>
    __device__ void add(const float (&f)[N], bool has) {
        const float about = has ? pivot : 0;
#pragma unroll
        for (int j = 0; j < N; ++j) add(f[j], about);
    }
    /// n: the number of elements; inverse: 1 / n, or 0 if n is 0.
    __device__ Moments moments(float n, float inverse) const {
        if (!CENTRE) return {0, squares};
        const float d = total * inverse;  // the mean of the thread's elements less the pivot
        return {pivot + d, squares_less(squares, d * (2 * total - n * d))};
    }
};

/// Combines the parts that LANES lanes hold, n elements each, into one, for K rows at once; all lanes get the result (Chan, Golub & LeVeque
/// 1979). `total`: the number of all elements. Means are summed as distances from `base`, the mean of one of the parts: exact if all means
/// are equal. EXACT (float32): two rounds of shuffles, first the mean, then the squares about it. Otherwise one round with both sums: the
/// squares about `base` are at most (parts + 1) times those about the mean, so the relative error grows by that factor, which a 16-bit
/// result does not show. n is the first factor of n * off * off: a part without elements gives 0 even if off * off overflows.
template <bool CENTRE, bool EXACT, int LANES, int K>
__device__ void fold(Moments (&p)[K], const float (&base)[K], float n, const Divisor& total) {
    float first[K], second[K], both[2 * K];
    if (!CENTRE || EXACT) {
#pragma unroll
        for (int k = 0; k < K; ++k) first[k] = n * (p[k].mean - base[k]);
        if (CENTRE) lanes_sums<LANES>(first);
#pragma unroll
        for (int k = 0; k < K; ++k) {
            const float mean = CENTRE ? base[k] + over(first[k], total) : 0, off = p[k].mean - mean;
            second[k] = p[k].squares + (CENTRE ? n * off * off : 0);
            p[k].mean = mean;
        }
        lanes_sums<LANES>(second);
#pragma unroll
        for (int k = 0; k < K; ++k) p[k].squares = second[k];
        return;
    }
    const float share = n * total.part;  // each distance is weighted by n / total before the sum: no overflow
#pragma unroll
    for (int k = 0; k < K; ++k) {
        const float from = finite_or_zero(base[k]), off = p[k].mean - from;
        both[2 * k] = share * off;
        both[2 * k + 1] = p[k].squares + n * off * off;
    }
    lanes_sums<LANES>(both);
#pragma unroll
    for (int k = 0; k < K; ++k) {
        const float d = both[2 * k];
        p[k] = {finite_or_zero(base[k]) + d, squares_less(both[2 * k + 1], total.n * d * d)};
    }
}

/// The same, with the mean of lane 0 as `base`.
template <bool CENTRE, bool EXACT, int LANES, int K>
__device__ void fold(Moments (&p)[K], float n, const Divisor& total) {
    float base[K];
#pragma unroll
    for (int k = 0; k < K; ++k) base[k] = CENTRE ? __shfl_sync(~0u, p[k].mean, 0) : 0;
    fold<CENTRE, EXACT, LANES>(p, base, n, total);
}
