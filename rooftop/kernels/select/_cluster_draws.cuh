// A draw from each row by a cluster of blocks: the row's parts in shared memory, bins of weights, and the path for rows with any number of
// equal elements.
#pragma once
#include <cooperative_groups.h>
#include <cuda_pipeline.h>
#include <math_constants.h>

#include "_sort_keys.cuh"
#include "words.cuh"
#include "_draw_rows.cuh"

namespace cg = cooperative_groups;

constexpr int MOST = 8;                                // blocks of a cluster
constexpr int STEPS = 256;                             // bins of weights, eight between two powers of two, from 1 down to 2^-32
constexpr unsigned LIST = 2048, DRAWN = 1024;          // capacity of a row's list; the most of its entries that may be drawn
constexpr unsigned CANDIDATES = 4096;                  // elements of the bin of the boundary that a block can hold
constexpr int BINS = 512;                              // of the slow path
constexpr float FINE = BINS / 22.4f;                   // bins for a difference of 1; weights are 0 from exp(-22.2) on

template <int THREADS>
struct Sampling {
    union {
        // sums of weights by bin, the lightest first, one copy a lane: no two lanes of a warp add in the same bank
        unsigned lanes[(STEPS + 1) * 32];
        struct {
            alignas(16) unsigned keys[LIST], indices[LIST];
            union {
                unsigned candidates[CANDIDATES];
                Sum weights[DRAWN];
                unsigned maxima[THREADS];
                struct {
                    unsigned counts[BINS], low[BINS], high[BINS];  // of this block's elements: counts, and weights in 64 bits
                    Sum masses[BINS], totals[BINS];                // of the whole row: weights and counts
                };
            };
        };
    };
    Sum warps[THREADS / 32], stretches[THREADS / 32], sums[MOST], found[3];
    unsigned digits[256];
    unsigned listed, candidate_count, at, last[2];
    float most;
};

template <int BYTES>
struct Four { using Type = uint4; };
template <>
struct Four<2> { using Type = uint2; };

/// The elements of a row that a block holds, in shared memory.
template <typename T, int THREADS>
struct Part {
    static constexpr unsigned N = 16 / sizeof(T);
    const uint4* packs;  // elements outside the row are masked
    unsigned count;
    int begin;  // index in the row of the first element of the first pack

    __device__ bits_of<T> bits(unsigned i) const { return reinterpret_cast<const bits_of<T>*>(packs)[i]; }
    /// The index in the row of element i of this part.
    __device__ unsigned index(unsigned i) const { return static_cast<unsigned>(begin + static_cast<int>(i)); }
    /// Calls `look(logit, key, index)` for each element that is not masked.
    template <typename Look>
    __device__ void each(Look look) const {
        using V = typename Four<sizeof(T)>::Type;
#pragma unroll 1
        for (unsigned p = threadIdx.x; p < count * (N / 4); p += THREADS) {
            const V v = reinterpret_cast<const V*>(packs)[p];
#pragma unroll
            for (unsigned j = 0; j < 4; ++j) {
                const bits_of<T> bits = reinterpret_cast<const bits_of<T>*>(&v)[j];
                const float x = number<T>(bits);
                if (x > -CUDART_INF_F) look(x, to_key<T>(bits, NAN_SMALLEST), index(4 * p + j));
            }
        }
    }
};

/// Element j of a pack.
template <typename T>
__device__ float element(const uint4& v, unsigned j) {
    if constexpr (sizeof(T) == 4) {
        return __uint_as_float(reinterpret_cast<const unsigned*>(&v)[j]);
    } else {
        float f[2];
        Word<T>::widen(reinterpret_cast<const unsigned*>(&v)[j / 2], f);
        return f[j % 2];
    }
}
template <>
__device__ float element<__nv_bfloat16>(const uint4& v, unsigned j) {
    const unsigned word = reinterpret_cast<const unsigned*>(&v)[j / 2];
    return __uint_as_float(j % 2 == 0 ? word << 16 : word & 0xffff0000u);
}

/// The weights of the elements of a row whose largest logit is finite, by the hardware's power of two.
struct Shares {
    float most, scale;  // the largest logit; log2(e) / temperature

    __device__ Shares(float most, float temperature)
        : most(most), scale(fminf(1.4426950408889634f / temperature, 3e37f)) { }
    /// At most 1; NaN for NaN. Relative error below 2^-21.
    __device__ float operator()(float x) const {
        float w;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(w) : "f"(__fmul_rn(__fsub_rn(x, most), scale)));
        return w;
    }
};

/// Bins of weights: the exponent and the first three mantissa bits of a float32. Bin 0 has weight 1, and bin STEPS has weights of 0.
struct Bins {
    static constexpr unsigned ONE = 0x3f800000u >> 20;
    /// The bits of a weight; those of 2^-32 for smaller weights and NaN.
    __device__ static unsigned bits(float w) { return __float_as_uint(fmaxf(w, 2.3283064365386963e-10f)); }
    /// The least weight of a bin.
    __device__ static float least(unsigned bin) { return __uint_as_float((ONE - bin) << 20); }
    /// The first 20 bits of a weight, to be summed within bins. `hidden`: 2^23, the implicit leading bit of a float.
    __device__ static unsigned mantissa(unsigned bits, unsigned hidden = 1u << 23) { return ((bits & (1u << 23) - 1) | hidden) >> 4; }
    /// A sum of these in units of 2^-32, rounded down.
    __device__ static Sum units(Sum mantissas, unsigned bin) { return mantissas << 13 >> (bin + 7) / 8; }
    /// The most elements that such a sum can have.
    __device__ static unsigned most(Sum mantissas, unsigned bin) { return static_cast<unsigned>(mantissas >> 16) / (8 + (ONE - bin) % 8); }
    /// The sub-bin within the bin, of 256, the heaviest first.
    __device__ static unsigned part(unsigned bits) { return 255 - (bits >> 12 & 255); }
};

__device__ inline Sum units(float w) { return __float2ull_rz(w * 4294967296.0f); }

/// The bin in which the cumulated sum reaches `need`, 1 <= need <= the sum of all; `before`: the sum of the bins before it. Thread t has
/// the sums `own` of bins t EACH, t EACH + 1, ...
template <int THREADS, int EACH>
__device__ unsigned crossing(const Sum (&own)[EACH], Sum need, Sum& before, Sampling<THREADS>& s) {
    Sum sum = 0, all;
#pragma unroll
    for (int j = 0; j < EACH; ++j) sum += own[j];
    Sum upto = sum_upto<THREADS>(sum, s.warps, all) - sum;
    if (upto < need && need <= upto + sum) {
        bool open = true;
#pragma unroll
        for (int j = 0; j < EACH; ++j) {
            if (open && need <= upto + own[j]) s.found[0] = threadIdx.x * EACH + j, s.found[1] = upto, open = false;
            upto += own[j];
        }
    }
    __syncthreads();
    before = s.found[1];
    const unsigned bin = static_cast<unsigned>(s.found[0]);
    __syncthreads();
    return bin;
}

template <int THREADS>
__device__ unsigned crossing_bin(const Sum* v, Sum need, Sum& before, Sampling<THREADS>& s) {
    constexpr int EACH = BINS / THREADS;
    Sum own[EACH];
#pragma unroll
    for (int j = 0; j < EACH; ++j) own[j] = v[threadIdx.x * EACH + j];
    return crossing<THREADS, EACH>(own, need, before, s);
}

template <int THREADS>
__device__ Sum sum_of(Sum own, Sampling<THREADS>& s) {
    Sum all;
    sum_upto<THREADS>(own, s.warps, all);
    return all;
}

template <int THREADS>
__device__ Sum sum_of(const Sum* v, Sampling<THREADS>& s) {
    Sum own = 0;
    for (unsigned b = threadIdx.x; b < BINS; b += THREADS) own += v[b];
    return sum_of<THREADS>(own, s);
}

__device__ inline Sum share_of(Sum whole, float top_p) {
    const Sum share = static_cast<Sum>(ceil(static_cast<double>(whole) * top_p));
    return share == 0 ? 1 : share < whole ? share : whole;
}

/// The bound that the cumulated weights of the drawn element exceed: the draw's fraction of `whole`.
__device__ inline Sum bar_of(int seed, const int* seeds, unsigned row, Sum whole) {
    return __umul64hi(draws::bits_of_row(seed, seeds, row), whole);
}

// ---- the slow path: any number of equal elements, +infinity, any top_k ----

template <int THREADS>
__device__ void clear(Sampling<THREADS>& s) {
    __syncthreads();
    for (unsigned b = threadIdx.x; b < BINS; b += THREADS) s.counts[b] = 0, s.low[b] = 0, s.high[b] = 0;
    __syncthreads();
}

/// Adds one element to a bin.
template <int THREADS>
__device__ void add(Sampling<THREADS>& s, unsigned bin, Sum weight) {
    atomicAdd(&s.counts[bin], 1u);
    const unsigned w = static_cast<unsigned>(weight), old = atomicAdd(&s.low[bin], w),
        carry = static_cast<unsigned>(weight >> 32) + (old + w < old);
    if (carry) atomicAdd(&s.high[bin], carry);
}

/// Adds up the bins of all blocks; every block gets the sums. Each block computes a part of the bins.
template <unsigned CLUSTER, int THREADS>
__device__ void gather(Sampling<THREADS>& s, cg::cluster_group cluster) {
    const unsigned share = BINS / CLUSTER, from = cluster.block_rank() * share;
    cluster.sync();
#pragma unroll 1
    for (unsigned b = from + threadIdx.x; b < from + share; b += THREADS) {
        Sum mass = 0, count = 0;
        for (unsigned o = 0; o < CLUSTER; ++o) {
            mass += static_cast<Sum>(*cluster.map_shared_rank(&s.high[b], o)) << 32;
            mass += *cluster.map_shared_rank(&s.low[b], o);
            count += *cluster.map_shared_rank(&s.counts[b], o);
        }
        for (unsigned o = 0; o < CLUSTER; ++o) *cluster.map_shared_rank(&s.masses[b], o) = mass,
            *cluster.map_shared_rank(&s.totals[b], o) = count;
    }
    cluster.sync();
}

/// The entry at which the cumulated count of entries in order, none of them after (key, index), reaches `need` or, if need is 0, their
/// cumulated weight reaches
/// top_p: digit by digit, 8 bits at a time, of the key and then of the index.
template <unsigned CLUSTER, typename T, int THREADS>
__device__ void bound(const Part<T, THREADS>& part, const Weigh<T>& weigh, Sum need, float top_p, unsigned& key, unsigned& index,
    Sampling<THREADS>& s,
                      cg::cluster_group cluster) {
    const unsigned after_key = key, after_index = index;
    const Sum* measure = need == 0 ? s.masses : s.totals;
    key = 0, index = 0;
#pragma unroll 1
    for (int level = 0; level < key_bits<T> / 8 + 4; ++level) {
        const bool by_key = level < key_bits<T> / 8;
        const int shift = by_key ? key_bits<T> - 8 - 8 * level : 24 - 8 * (level - key_bits<T> / 8);
        clear(s);
        part.each([&](float x, unsigned k, unsigned i) {
            if (before(after_key, after_index, k, i)) return;
            const bool there = by_key ? level == 0 || k >> (shift + 8) == key >> (shift + 8) : k == key
                && (shift == 24 || i >> (shift + 8) == index >> (shift + 8));
            const Sum w = there ? Weigh<T>::units(weigh.share(x)) : 0;
            if (w != 0) add(s, by_key ? 255 - (k >> shift & 255) : i >> shift & 255, w);
        });
        gather<CLUSTER>(s, cluster);
        Sum before_it;
        if (need == 0) need = share_of(sum_of(s.masses, s), top_p);
        const unsigned digit = crossing_bin(measure, need, before_it, s);
        need -= before_it;
        if (by_key) key |= (255 - digit) << shift;
        else index |= digit << shift;
        if (need == measure[digit]) {  // all elements with these digits are included
            index = by_key ? NOBODY : index | ((1u << shift) - 1);
            return;
        }
    }
}

/// The bin of an element that is d = (logit - largest) / temperature, at most 0, below the largest.
__device__ inline unsigned bin_of(float d) { return min(BINS - 1u, static_cast<unsigned>(-d * FINE)); }
