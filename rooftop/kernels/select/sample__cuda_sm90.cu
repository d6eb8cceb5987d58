/* rooftop
idea    = "One cluster per row. With many rows, greedy draws, draws with a top_k of at most 1024 and, from four rows a multiprocessor on, plain draws are made by _draw_rows.cuh, one block a row, in a launch before this one: the kind of draw is known only at run time, so of the two launches the one that has nothing to draw returns at once. Each block copies its part of the logits to shared memory by cp.async, all of it in flight at once, so the row is read from memory once. Plain and min_p draws: one more pass over shared memory adds up weights computed by the hardware's 2^x, in float32 within 16 bytes and in exact integers beyond. top_k up to 1024: each thread takes the maxima of two sets of its elements; the k-th of all maxima is a bound that at least k elements reach; these are sorted in one block. top_p: a histogram of the weights, whose bins are the first bits of a float32, eight between two powers of two, with a copy of each bin for each lane, so that additions never conflict. The next pass adds up the weights above the bin of the boundary and lists the elements of that bin; a second histogram with 256 bins leaves a few of them to sort. A larger top_k, +infinity, and a bin with too many elements need a search digit by digit of the keys."
limit   = "On an H200: 256x128256 bfloat16 51 us plain, 53 with min_p, 76 with top_k 50, 184 with top_p 0.9 (the read alone: 15); 1024x128256 float32 295 us plain; one row of 128256 float32 8.5 us plain, 14 with top_k and top_p, 22 with top_p alone. Half as fast as predicted (25 us plain, 24 top_k, 40 top_p): 256 rows are 5.2 waves of the 396 resident blocks, and a wave takes 10 us, hardly more than one row alone (8.5). So within a wave the copy (3 us), the arithmetic (3 us) and the cluster barriers follow each other, and three blocks a multiprocessor overlap them little: persistent clusters that copy the next row while they draw from this one are the next step. A block a row (sample__cuda_sm80) is faster with 256 rows drawn from greedily (21 us against 35) or with top_k 50 (55 against 76), and 11 times slower with top_p alone; so from as many rows on as there are multiprocessors these draws are made by that kernel, in a launch of its own before this one. Plain: a 2^x and 7 more instructions an element. top_p: 10 instructions and an atomic addition to shared memory an element in the first pass, 12 in the second, and seven cluster barriers a row."
dtypes  = ["f32", "f16", "bf16"]
args    = ["logits: T[R, N]"]
demands = { has = ["LDG", "MUFU"], spills = 0 }
python  = ["supports", "choose", "launches"]
*/
#include <cooperative_groups.h>
#include <cuda_pipeline.h>
#include <math_constants.h>

#include "pdl.cuh"
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
        unsigned lanes[(STEPS + 1) * 32];  // sums of weights by bin, the lightest first, one copy a lane: no two lanes of a warp add in the same bank
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

/// The bin in which the cumulated sum reaches `need`, 1 <= need <= the sum of all; `before`: the sum of the bins before it. Thread t has the sums `own` of bins
/// t EACH, t EACH + 1, ...
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
__device__ inline Sum bar_of(int seed, unsigned row, Sum whole) {
    return __umul64hi(static_cast<Sum>(random_bits(seed, 2ll * row)) << 32 | random_bits(seed, 2ll * row + 1), whole);
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
    const unsigned w = static_cast<unsigned>(weight), old = atomicAdd(&s.low[bin], w), carry = static_cast<unsigned>(weight >> 32) + (old + w < old);
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
        for (unsigned o = 0; o < CLUSTER; ++o) *cluster.map_shared_rank(&s.masses[b], o) = mass, *cluster.map_shared_rank(&s.totals[b], o) = count;
    }
    cluster.sync();
}

/// The entry at which the cumulated count of entries in order, none of them after (key, index), reaches `need` or, if need is 0, their cumulated weight reaches
/// top_p: digit by digit, 8 bits at a time, of the key and then of the index.
template <unsigned CLUSTER, typename T, int THREADS>
__device__ void bound(const Part<T, THREADS>& part, const Weigh<T>& weigh, Sum need, float top_p, unsigned& key, unsigned& index, Sampling<THREADS>& s,
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
            const bool there = by_key ? level == 0 || k >> (shift + 8) == key >> (shift + 8) : k == key && (shift == 24 || i >> (shift + 8) == index >> (shift + 8));
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

// ---- lists ----

/// Appends an entry to the list in the cluster's first block; its length also counts entries that do not fit. Returns false for such an entry.
template <int THREADS>
__device__ bool list(unsigned key, unsigned index, unsigned room, Sampling<THREADS>& s, cg::cluster_group cluster) {
    const unsigned at = atomicAdd(cluster.map_shared_rank(&s.listed, 0), 1u);
    if (at < room) *cluster.map_shared_rank(&s.keys[at], 0) = key, *cluster.map_shared_rank(&s.indices[at], 0) = index;
    return at < room;
}

/// The length of that list, in all blocks. After that the other blocks may exit.
template <int THREADS>
__device__ unsigned length_of_list(Sampling<THREADS>& s, cg::cluster_group cluster) {
    cluster.sync();
    const unsigned length = *cluster.map_shared_rank(&s.listed, 0);
    cluster.sync();
    return length;
}

/// Draws from the first `limit` entries in order of the list, limit <= DRAWN; the list must contain all of them. One block.
template <typename T, int THREADS>
__device__ void draw_from_list(unsigned listed, unsigned limit, const Weigh<T>& weigh, float top_p, int seed, unsigned row, long long* out, Sampling<THREADS>& s) {
    constexpr int EACH = DRAWN / THREADS;
    sort_entries<unsigned, THREADS>(s.keys, s.indices, listed);
    limit = min(limit, listed);
    unsigned index[EACH];
    Sum own[EACH], sum = 0, whole;
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        const unsigned i = threadIdx.x * EACH + j;
        own[j] = i < limit ? weigh.all(s.keys[i]) : 0, index[j] = i < limit ? s.indices[i] : NOBODY, sum += own[j];
    }
    Sum upto = sum_upto<THREADS>(sum, s.warps, whole) - sum;
    const Sum need = top_p < 1.0f ? share_of(whole, top_p) : whole;
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        const unsigned i = threadIdx.x * EACH + j;
        s.weights[i] = i < limit && upto < need ? weigh(s.keys[i]) : 0;
        upto += own[j];
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        const unsigned i = threadIdx.x * EACH + j;
        if (i < limit) s.keys[i] = ~index[j], s.indices[i] = i;  // sorted by index now, with the position of each weight
    }
    sort_entries<unsigned, THREADS>(s.keys, s.indices, limit);
    sum = 0;
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        const unsigned i = threadIdx.x * EACH + j;
        own[j] = i < limit ? s.weights[s.indices[i]] : 0, sum += own[j];
    }
    upto = sum_upto<THREADS>(sum, s.warps, whole) - sum;
    const Sum bar = bar_of(seed, row, whole);
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        if (upto <= bar && bar < upto + own[j]) out[row] = ~s.keys[threadIdx.x * EACH + j];
        upto += own[j];
    }
}

/// A logit that at least `k` elements of the row reach. Each thread of the cluster has the largest of two sets of its elements; the k-th of these 2 · CLUSTER ·
/// THREADS maxima is found by the first 16 bits of their keys. -infinity if k is larger than their number.
template <typename T, unsigned CLUSTER, int THREADS>
__device__ float reached_by(unsigned k, unsigned pair, Sampling<THREADS>& s, cg::cluster_group cluster) {
    if (k > 2 * CLUSTER * THREADS) return -CUDART_INF_F;
    s.maxima[threadIdx.x] = pair;
    cluster.sync();
    unsigned all[CLUSTER];
#pragma unroll
    for (unsigned o = 0; o < CLUSTER; ++o) all[o] = *cluster.map_shared_rank(&s.maxima[threadIdx.x], o);
    unsigned key = 0;
#pragma unroll
    for (int shift = 8; shift >= 0; shift -= 8) {
        __syncthreads();
        for (unsigned b = threadIdx.x; b < 256; b += THREADS) s.digits[b] = 0;
        __syncthreads();
#pragma unroll
        for (unsigned o = 0; o < 2 * CLUSTER; ++o) {
            const unsigned v = o % 2 == 0 ? all[o / 2] & 0xffff : all[o / 2] >> 16;
            if (shift == 8 || v >> 8 == key >> 8) atomicAdd(&s.digits[255 - (v >> shift & 255)], 1u);
        }
        __syncthreads();
        const Sum own[1] = {threadIdx.x < 256 ? s.digits[threadIdx.x] : 0};
        Sum before;
        key |= (255 - crossing<THREADS, 1>(own, k, before, s)) << shift;
        k -= static_cast<unsigned>(before);
    }
    key <<= key_bits<T> - 16;
    return key <= to_key<T>(last_value<T>(0), NAN_SMALLEST) ? -CUDART_INF_F : number<T>(Order<T>::down(key));
}

/// The two halves of a word of maxima, as keys of 16 bits.
template <typename T>
__device__ unsigned short_key(float x) {
    if constexpr (sizeof(T) == 4) {
        return to_key<T>(__float_as_uint(x), NAN_SMALLEST) >> 16;
    } else {
        const T v = static_cast<T>(x);
        return to_key<T>(*reinterpret_cast<const bits_of<T>*>(&v), NAN_SMALLEST);
    }
}

// ---- the nucleus ----

/// The bin in which the nucleus ends. `need`: the weight that the nucleus lacks before this bin, of the bin's `mass`. Returns false if the bin has more
/// elements than a block can list.
template <typename T, unsigned CLUSTER, int THREADS>
__device__ bool bin_of_boundary(const Part<T, THREADS>& part, unsigned n, const Shares& shares, float top_p, unsigned& bin, Sum& need, Sampling<THREADS>& s,
                                cg::cluster_group cluster) {
    for (unsigned i = threadIdx.x; i < (STEPS + 1) * 8; i += THREADS) reinterpret_cast<uint4*>(s.lanes)[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    const unsigned lane = threadIdx.x % 32;
    char* bins = reinterpret_cast<char*>(s.lanes + lane) - (Bins::ONE - STEPS) * 128;
    // Two constants hidden from the compiler, so that they stay in registers: as immediate operands they cost one more instruction each.
    const unsigned hidden = 1u << 23 | (n & 1u << 31), stride = hidden >> 16;
#pragma unroll 1
    for (unsigned p = threadIdx.x; p < part.count; p += THREADS) {
        const uint4 v = part.packs[p];
#pragma unroll
        for (unsigned j = 0; j < part.N; ++j) {
            const unsigned w = Bins::bits(shares(element<T>(v, j)));
            atomicAdd(reinterpret_cast<unsigned*>(bins + (w >> 20) * stride), Bins::mantissa(w, hidden));
        }
    }
    __syncthreads();
    Sum mine = 0;
    if (threadIdx.x < STEPS) {
#pragma unroll 8
        for (unsigned j = 0; j < 32; ++j) mine += s.lanes[(STEPS - threadIdx.x) * 32 + (lane + j) % 32];
    }
    __syncthreads();
    Sum* blocks = reinterpret_cast<Sum*>(s.keys + DRAWN);  // behind the entries that this path uses
    if (threadIdx.x < STEPS) blocks[threadIdx.x] = mine, s.indices[DRAWN + threadIdx.x] = 0;
    cluster.sync();
    Sum all = 0, longest = 0;
    if (threadIdx.x < STEPS) {
#pragma unroll
        for (unsigned o = 0; o < CLUSTER; ++o) {
            const Sum v = *cluster.map_shared_rank(&blocks[threadIdx.x], o);
            all += v, longest = max(longest, v);
        }
    }
    const Sum own[1] = {threadIdx.x < STEPS ? Bins::units(all, threadIdx.x) : 0};
    need = share_of(sum_of<THREADS>(own[0], s), top_p);
    Sum before;
    bin = crossing<THREADS, 1>(own, need, before, s);
    need -= before;
    if (threadIdx.x == bin) s.found[2] = Bins::most(longest, bin);
    __syncthreads();
    return s.found[2] <= CANDIDATES;
}

/// The last element in order of the nucleus, among the candidates of all blocks. Returns false if too many of them have nearly the same weight.
template <typename T, unsigned CLUSTER, int THREADS>
__device__ bool last_of_nucleus(const Part<T, THREADS>& part, const Shares& shares, const Weigh<T>& weigh, unsigned bin, Sum need, unsigned& last_key,
                                unsigned& last_index, Sampling<THREADS>& s, cg::cluster_group cluster) {
    unsigned* parts = s.indices + DRAWN;
    for (unsigned i = threadIdx.x; i < s.candidate_count; i += THREADS) {
        const unsigned w = Bins::bits(shares(number<T>(part.bits(s.candidates[i]))));
        atomicAdd(&parts[Bins::part(w)], Bins::mantissa(w));
    }
    cluster.sync();
    Sum all = 0;
    if (threadIdx.x < 256) {
#pragma unroll
        for (unsigned o = 0; o < CLUSTER; ++o) all += *cluster.map_shared_rank(&parts[threadIdx.x], o);
    }
    const Sum own[1] = {Bins::units(all, bin) + (all != 0)};  // rounded up: their sum is not below the bin's
    Sum before;
    const unsigned one = crossing<THREADS, 1>(own, need, before, s);
    need -= before;
    for (unsigned i = threadIdx.x; i < s.candidate_count; i += THREADS) {
        const unsigned e = s.candidates[i];
        const bits_of<T> bits = part.bits(e);
        if (Bins::part(Bins::bits(shares(number<T>(bits)))) == one) list(to_key<T>(bits, NAN_SMALLEST), part.index(e), DRAWN, s, cluster);
    }
    const unsigned listed = length_of_list(s, cluster);
    if (listed > DRAWN) return false;
    if (cluster.block_rank() == 0) {
        constexpr int EACH = DRAWN / THREADS;
        sort_entries<unsigned, THREADS>(s.keys, s.indices, listed);
        Sum w[EACH], sum = 0, whole;
#pragma unroll
        for (int j = 0; j < EACH; ++j) w[j] = threadIdx.x * EACH + j < listed ? weigh.all(s.keys[threadIdx.x * EACH + j]) : 0, sum += w[j];
        if (threadIdx.x == 0) s.found[0] = listed - 1;  // if rounding makes the sum of the list smaller than `need`
        Sum upto = sum_upto<THREADS>(sum, s.warps, whole) - sum;
#pragma unroll
        for (int j = 0; j < EACH; ++j) {
            if (upto < need && need <= upto + w[j]) s.found[0] = threadIdx.x * EACH + j;
            upto += w[j];
        }
        __syncthreads();
        if (threadIdx.x < CLUSTER) {
            unsigned* last = cluster.map_shared_rank(s.last, threadIdx.x);
            last[0] = s.keys[s.found[0]], last[1] = s.indices[s.found[0]];
        }
    }
    cluster.sync();
    last_key = s.last[0], last_index = s.last[1];
    return true;
}

template <typename T, unsigned CLUSTER, int THREADS>
__global__ void __launch_bounds__(THREADS, THREADS == 256 ? 3 : 1)
    sample_clusters(const bits_of<T>* __restrict__ logits, long long xs, unsigned n, unsigned packs, float temperature, int top_k, float top_p, float min_p, int seed,
                    int apart, long long* __restrict__ out) {
    extern __shared__ __align__(16) uint4 held[];
    __shared__ Sampling<THREADS> s;
    using W = Word<T>;
    constexpr unsigned N = 16 / sizeof(T), WARPS = THREADS / 32;
    const cg::cluster_group cluster = cg::this_cluster();
    const unsigned rank = blockIdx.x % CLUSTER, lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.x / CLUSTER;
    if (threadIdx.x == 0) s.listed = 0, s.candidate_count = 0, s.at = NOBODY;
    gdc_wait();
    const bool all_of_row = top_k <= 0 || static_cast<unsigned>(top_k) >= n;
    if (apart != 0 && (temperature == 0.0f || (all_of_row ? apart & 2 && !(top_p < 1.0f) : apart & 1 && top_k <= draws::LIST))) return;  // drawn by sample_rows
    const bits_of<T>* r = logits + row * xs;
    const unsigned off = reinterpret_cast<unsigned long long>(r) % 16 / sizeof(T), all_packs = (off + n + N - 1) / N;
    const unsigned first_pack = min(all_packs, rank * packs), count = min(all_packs, first_pack + packs) - first_pack;
    const Part<T, THREADS> part{held, count, static_cast<int>(first_pack * N) - static_cast<int>(off)};

    // Copies the row to shared memory, all of it in flight at once. A thread reads only the packs that it copied.
    for (unsigned p = threadIdx.x; p < count; p += THREADS) {
        const int i = static_cast<int>(part.index(p * N));
        if (i >= 0 && static_cast<unsigned>(i) + N <= n) {
            __pipeline_memcpy_async(&held[p], r + i, 16);
        } else {
            unsigned words[4] = {0, 0, 0, 0};
#pragma unroll
            for (unsigned j = 0; j < N; ++j) {
                const unsigned bits = i + static_cast<int>(j) >= 0 && i + j < n ? r[i + static_cast<int>(j)] : last_value<T>(0);
                words[j * 4 / N] |= bits << j % (N / 4) * 16;
            }
            held[p] = make_uint4(words[0], words[1], words[2], words[3]);
        }
    }
    __pipeline_commit();
    __pipeline_wait_prior(0);
    unsigned lowest;
    {
        float f[W::N];
        for (int j = 0; j < W::N; ++j) f[j] = -CUDART_INF_F;
        lowest = W::narrow(f);
    }
    unsigned even = lowest, odd = lowest;
#pragma unroll 2
    for (unsigned p = threadIdx.x; p < count; p += THREADS) {
        const uint4 v = held[p];
        even = W::larger(even, W::larger(v.x, v.z)), odd = W::larger(odd, W::larger(v.y, v.w));
    }
    float first, second;  // the largest of two sets of this thread's elements
    if constexpr (W::N == 2) {
        float f[W::N];
        W::widen(W::larger(even, odd), f);
        first = f[0], second = f[1];
    } else {
        first = __uint_as_float(even), second = __uint_as_float(odd);
    }
    const float own_most = fmaxf(first, second), warp_most = warp_max(own_most);
    if (lane == 0) reinterpret_cast<float*>(s.warps)[warp] = warp_most;
    __syncthreads();
    if (warp == 0) {
        const float block_most = warp_max(lane < WARPS ? reinterpret_cast<float*>(s.warps)[lane] : -CUDART_INF_F);
        if (lane == 0) s.most = block_most;
    }
    cluster.sync();
    const float most = warp_max(*cluster.map_shared_rank(&s.most, lane % CLUSTER));
    if (!(most > -CUDART_INF_F) || temperature == 0.0f) {
        if (most > -CUDART_INF_F && own_most == most) {  // the lowest index among equal elements
            bool open = true;
#pragma unroll 1
            for (unsigned p = threadIdx.x; open && p < count; p += THREADS) {
#pragma unroll 1
                for (unsigned j = 0; open && j < N; ++j) {
                    if (number<T>(part.bits(p * N + j)) == most) atomicMin(cluster.map_shared_rank(&s.at, 0), part.index(p * N + j)), open = false;
                }
            }
        }
        cluster.sync();
        if (rank == 0 && threadIdx.x == 0) out[row] = s.at == NOBODY ? -1 : static_cast<long long>(s.at);
        return;
    }

    const unsigned limit = top_k > 0 ? min(static_cast<unsigned>(top_k), n) : n;
    const bool nucleus = top_p < 1.0f;
    const Shares shares(most, temperature);
    unsigned top_key;
    if constexpr (sizeof(T) == 4) {
        top_key = to_key<T>(__float_as_uint(most), NAN_SMALLEST);
    } else {
        top_key = short_key<T>(most);
    }
    const Weigh<T> weigh(top_key, temperature, min_p);
    unsigned last_key = 0, last_index = NOBODY;  // the last element in order that may be drawn
    bool slow = most == CUDART_INF_F;                // weights by Weigh, which supports infinities
    if (limit < n) {
        if (limit <= DRAWN && (limit <= 2 * CLUSTER * THREADS || n <= LIST)) {
            bool room = true;
            const float least = reached_by<T, CLUSTER>(limit, short_key<T>(second) << 16 | short_key<T>(first), s, cluster);
#pragma unroll 2
            for (unsigned p = threadIdx.x; room && p < count; p += THREADS) {
                const uint4 v = held[p];
                float f[W::N];
                W::widen(W::larger(W::larger(v.x, v.y), W::larger(v.z, v.w)), f);
                if (!(fmaxf(f[0], f[W::N - 1]) >= least)) continue;
#pragma unroll 1
                for (unsigned j = 0; j < N; ++j) {
                    const bits_of<T> bits = part.bits(p * N + j);
                    const float x = number<T>(bits);
                    if (x >= least && x > -CUDART_INF_F) room = list(to_key<T>(bits, NAN_SMALLEST), part.index(p * N + j), LIST, s, cluster);
                }
            }
            const unsigned listed = length_of_list(s, cluster);
            if (listed <= LIST) {
                if (rank == 0) draw_from_list<T>(listed, limit, weigh, top_p, seed, row, out, s);
                return;
            }
            if (threadIdx.x == 0) s.listed = 0;
        }
        clear(s);
        part.each([&](float x, unsigned, unsigned) {
            const float d = weigh.scaled(x);
            const Sum w = Weigh<T>::units(expf(d));
            if (w != 0) add(s, bin_of(d), w);
        });
        gather<CLUSTER>(s, cluster);
        if (sum_of(s.totals, s) > limit) {  // elements of weight 0 come last
            Sum earlier;
            const unsigned bin = crossing_bin(s.totals, limit, earlier, s);
            if (limit <= DRAWN && earlier + s.totals[bin] <= LIST) {
                part.each([&](float x, unsigned key, unsigned index) {
                    const float d = weigh.scaled(x);
                    if (bin_of(d) <= bin && Weigh<T>::units(expf(d)) != 0) list(key, index, LIST, s, cluster);
                });
                const unsigned listed = length_of_list(s, cluster);
                if (rank == 0) draw_from_list<T>(listed, limit, weigh, top_p, seed, row, out, s);
                return;
            }
            slow = true;
            bound<CLUSTER>(part, weigh, limit, 0.0f, last_key, last_index, s, cluster);
        }
        cluster.sync();  // no block reads these bins any more
    }

    // The sum of each warp's section of the part, exact beyond packs. If a nucleus ends within a bin, the elements of that bin are kept for later.
    const unsigned stretch = (count + WARPS - 1) / WARPS, begin = min(count, warp * stretch), end = min(count, begin + stretch);
    float sure = min_p, low = min_p;  // elements of at least `sure` can be drawn; lighter ones of at least `low` are examined one by one
    Sum own = 0;
    if (!slow && nucleus) {
        unsigned bin;
        Sum need;
        slow = !bin_of_boundary<T, CLUSTER>(part, n, shares, top_p, bin, need, s, cluster);
        if (!slow) {
            const float high = Bins::least(bin - 1);
            const bool by_min_p = min_p >= high;  // min_p excludes the whole bin
            if (!by_min_p) sure = high, low = Bins::least(bin);
#pragma unroll 1
            for (unsigned p = begin + lane; p < end; p += 64) {
                unsigned candidates = 0;
#pragma unroll
                for (unsigned u = 0; u < 2; ++u) {
                    if (u == 1 && p + 32 >= end) break;
                    const uint4 v = held[p + 32 * u];
                    float sum = 0.0f;
#pragma unroll
                    for (unsigned j = 0; j < N; ++j) {
                        const float w = shares(element<T>(v, j));
                        if (w >= sure) sum += w;
                        else if (w >= low) candidates |= 1u << (u * N + j);
                    }
                    own += units(sum);
                }
                if (candidates != 0) {
                    unsigned at = atomicAdd(&s.candidate_count, __popc(candidates));
                    for (; candidates != 0; candidates &= candidates - 1) {
                        const unsigned j = __ffs(candidates) - 1;
                        s.candidates[at++] = (p + j / N * 32) * N + j % N;
                    }
                }
            }
            __syncthreads();
            slow = !by_min_p && !last_of_nucleus<T, CLUSTER>(part, shares, weigh, bin, need, last_key, last_index, s, cluster);
        }
        if (slow) last_key = 0, last_index = NOBODY;
    }
    if (slow && nucleus) bound<CLUSTER>(part, weigh, 0, top_p, last_key, last_index, s, cluster);

    const auto kept = [&](unsigned e) {  // the weight of an element in the slow path
        const bits_of<T> bits = part.bits(e);
        const float x = number<T>(bits);
        if (!(x > -CUDART_INF_F)) return Sum(0);
        const float w = weigh.share(x);
        return w < weigh.least || (last_key != 0 && before(last_key, last_index, to_key<T>(bits, NAN_SMALLEST), part.index(e))) ? Sum(0) : Weigh<T>::units(w);
    };
    const auto candidate = [&](unsigned e) {  // an element of the bin of the boundary
        const bits_of<T> bits = part.bits(e);
        const float w = shares(number<T>(bits));
        return w >= min_p && !before(last_key, last_index, to_key<T>(bits, NAN_SMALLEST), part.index(e)) ? units(w) : Sum(0);
    };
    if (slow) {
        own = 0;
#pragma unroll 1
        for (unsigned p = begin + lane; p < end; p += 32) {
#pragma unroll 1
            for (unsigned j = 0; j < N; ++j) own += kept(p * N + j);
        }
    } else if (!nucleus) {
#pragma unroll 2
        for (unsigned p = begin + lane; p < end; p += 32) {
            const uint4 v = held[p];
            float sum = 0.0f;
#pragma unroll
            for (unsigned j = 0; j < N; ++j) {
                const float w = shares(element<T>(v, j));
                if (w >= min_p) sum += w;
            }
            own += units(sum);
        }
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) own += __shfl_xor_sync(~0u, own, step);
    __syncthreads();
    if (lane == 0) s.stretches[warp] = own;
    __syncthreads();
    if (!slow && nucleus) {
        for (unsigned i = threadIdx.x; i < s.candidate_count; i += THREADS) {
            const Sum w = candidate(s.candidates[i]);
            if (w != 0) atomicAdd(&s.stretches[s.candidates[i] / N / stretch], w);
        }
        __syncthreads();
    }
    if (threadIdx.x < CLUSTER) {
        Sum block = 0;
        for (int w = 0; w < WARPS; ++w) block += s.stretches[w];
        *cluster.map_shared_rank(&s.sums[rank], threadIdx.x) = block;
    }
    cluster.sync();
    Sum whole = 0, upto = 0;
#pragma unroll
    for (unsigned b = 0; b < CLUSTER; ++b) upto += b < rank ? s.sums[b] : 0, whole += s.sums[b];
    for (unsigned w = 0; w < warp; ++w) upto += s.stretches[w];
    const Sum bar = bar_of(seed, row, whole);
    if (bar < upto || bar >= upto + s.stretches[warp]) return;

    // One warp of the cluster finds the pack, with the same sums, then the element.
#pragma unroll 1
    for (unsigned from = begin; from < end; from += 32) {
        const unsigned p = from + lane;
        const auto alone = [&](unsigned e, float& quick) {  // of one element: its weight, or (`quick`) its contribution to the pack's sum
            quick = 0.0f;
            if (slow) return kept(e);
            const float w = shares(number<T>(part.bits(e)));
            if (w >= sure) quick = w;
            else if (w >= low) return candidate(e);
            return Sum(0);
        };
        Sum mine = 0;
        if (p < end) {
            float sum = 0.0f, quick;
#pragma unroll 1
            for (unsigned j = 0; j < N; ++j) {
                mine += alone(p * N + j, quick);
                sum += quick;
            }
            mine += units(sum);
        }
        Sum run = mine;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const Sum o = __shfl_up_sync(~0u, run, step);
            if (lane >= step) run += o;
        }
        Sum at = upto + run - mine;
        if (at <= bar && bar < at + mine) {
            unsigned found = NOBODY;  // if the rounded weights of the elements add up to less than the pack's, the last element with a weight
            bool open = true;
#pragma unroll 1
            for (unsigned j = 0; open && j < N; ++j) {
                float quick;
                const Sum w = alone(p * N + j, quick) + units(quick);
                if (w != 0) found = part.index(p * N + j);
                at += w;
                open = at <= bar;
            }
            out[row] = found;
        }
        upto += __shfl_sync(~0u, run, 31);
        if (bar < upto) return;
    }
}
