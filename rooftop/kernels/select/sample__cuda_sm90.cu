/* rooftop
idea    = "One cluster per row: each block reads its part of the logits once into shared memory, and every later pass reads shared memory. The blocks exchange the maximum, a histogram of counts and weights by (maximum - logit) / temperature, and their sums. For top_k or top_p, only the elements of the histogram bin that contains the boundary are sorted; a top_p bin of more than 256 elements is subdivided once more. If there are still too many, the boundary is found by counts or weights per digit of the keys. If there are many rows, greedy draws, draws with a top_k of at most 1024 and draws from whole rows are made beforehand by sample_rows.cuh, one block per row."
limit   = "On an H200: one row of 128256 float32 12 us plain, 22 with top_k 50 and top_p 0.9; 256x128256 bfloat16 with top_p 0.9 326 us, 21 times its read: the passes over shared memory with their exponentials and atomic additions, and the cluster barriers between them; a top_k above 1024 needs up to eight of each."
dtypes  = ["f32", "f16", "bf16"]
args    = ["logits: T[R, N]"]
demands = { has = ["LDG", "MUFU"], spills = 0 }
prefer  = "R > 0"
python  = ["supports", "choose", "launches"]
*/
#include <cooperative_groups.h>
#include "chain.cuh"
#include "entries.cuh"
#include "random.cuh"
#include "sample_rows.cuh"
#include "sampling.cuh"

namespace cg = cooperative_groups;

constexpr int THREADS = 512, WARPS = THREADS / 32, BINS = 1024, LIST = 1024, MOST = 8;  // MOST: blocks of a cluster
constexpr unsigned FEW = 256;  // a bin with at most so many elements is sorted
constexpr float FINE = BINS / 22.4f;  // bins for a factor of e; from exp(-22.2) on weights are 0

struct Sampling {
    alignas(16) unsigned keys[LIST], indices[LIST];
    unsigned counts[BINS], low[BINS], high[BINS];  // histograms of this block's elements: their number, and 64 bits of their weights
    Sum masses[BINS], totals[BINS];  // histograms of the row: weights and counts
    Sum warps[WARPS], first[MOST], sums[MOST], found[3];
    unsigned listed, last[2];
};

template <int BYTES>
struct Four { using Type = uint4; };
template <>
struct Four<2> { using Type = uint2; };

template <typename T>
struct Part {
    static constexpr unsigned N = 16 / sizeof(T);
    const uint4* packs;  // in shared memory; padding is masked
    unsigned count;
    int begin;  // index in the row of the first element of the first pack

    __device__ unsigned key(const uint4& v, unsigned j) const { return to_key<T>(reinterpret_cast<const bits_of<T>*>(&v)[j], NAN_SMALLEST); }
    __device__ unsigned index(unsigned p, unsigned j) const { return static_cast<unsigned>(begin + static_cast<int>(p * N + j)); }
    /// Element j of the p-th four.
    __device__ unsigned four(unsigned p, unsigned j) const { return static_cast<unsigned>(begin + static_cast<int>(4 * p + j)); }
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
                if (x > __int_as_float(0xff800000)) look(x, to_key<T>(bits, NAN_SMALLEST), four(p, j));
            }
        }
    }
};

__device__ void clear(Sampling& s) {
    __syncthreads();
    for (unsigned b = threadIdx.x; b < BINS; b += THREADS) s.counts[b] = 0, s.low[b] = 0, s.high[b] = 0;
    __syncthreads();
}

/// Adds an element to a bin.
__device__ void add(Sampling& s, unsigned bin, Sum weight) {
    atomicAdd(&s.counts[bin], 1u);
    const unsigned w = static_cast<unsigned>(weight), old = atomicAdd(&s.low[bin], w), carry = static_cast<unsigned>(weight >> 32) + (old + w < old);
    if (carry) atomicAdd(&s.high[bin], carry);
}

/// Adds the histograms of all blocks, in every block: each block adds a share of the bins.
template <unsigned CLUSTER>
__device__ void gather(Sampling& s, cg::cluster_group cluster) {
    constexpr unsigned blocks = CLUSTER;
    const unsigned share = BINS / blocks, from = cluster.block_rank() * share;
    cluster.sync();
#pragma unroll 1
    for (unsigned b = from + threadIdx.x; b < from + share; b += THREADS) {
        Sum mass = 0, count = 0;
        for (unsigned o = 0; o < blocks; ++o) {
            mass += static_cast<Sum>(*cluster.map_shared_rank(&s.high[b], o)) << 32;
            mass += *cluster.map_shared_rank(&s.low[b], o);
            count += *cluster.map_shared_rank(&s.counts[b], o);
        }
        for (unsigned o = 0; o < blocks; ++o) *cluster.map_shared_rank(&s.masses[b], o) = mass, *cluster.map_shared_rank(&s.totals[b], o) = count;
    }
    cluster.sync();
}

/// The bin in which the cumulated sum of v reaches `need`, 1 <= need <= the total; `before`: the sum of the bins before it.
__device__ unsigned crossing(const Sum* v, Sum need, Sum& before, Sampling& s) {
    constexpr int EACH = BINS / THREADS;
    Sum own[EACH], sum = 0, all;
#pragma unroll
    for (int j = 0; j < EACH; ++j) own[j] = v[threadIdx.x * EACH + j], sum += own[j];
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

__device__ Sum sum_of(const Sum* v, Sampling& s) {
    Sum own = 0, all;
    for (unsigned b = threadIdx.x; b < BINS; b += THREADS) own += v[b];
    sum_upto<THREADS>(own, s.warps, all);
    return all;
}

__device__ Sum share_of(Sum whole, float top_p) {
    const Sum share = static_cast<Sum>(ceil(static_cast<double>(whole) * top_p));
    return share == 0 ? 1 : share < whole ? share : whole;
}

/// The bound that the inclusive prefix sum of the drawn element exceeds: the row's random fraction of `whole`.
__device__ Sum bar_of(int seed, unsigned row, Sum whole) {
    return __umul64hi(static_cast<Sum>(random_bits(seed, 2ll * row)) << 32 | random_bits(seed, 2ll * row + 1), whole);
}

/// The entry, not after (key, index), at which the cumulated number of elements reaches `need` or, if need is 0, their cumulated weight reaches top_p: digit
/// by digit of 8 bits of the key, then of the index.
template <unsigned CLUSTER, typename T>
__device__ void bound(const Part<T>& part, const Weigh<T>& weigh, Sum need, float top_p, unsigned& key, unsigned& index, Sampling& s, cg::cluster_group cluster) {
    const unsigned after_key = key, after_index = index;
    const Sum* measure = need == 0 ? s.masses : s.totals;
    key = 0, index = 0;
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
        const unsigned digit = crossing(measure, need, before_it, s);
        need -= before_it;
        if (by_key) key |= (255 - digit) << shift;
        else index |= digit << shift;
        if (need == measure[digit]) {  // all elements with these digits are included
            index = by_key ? NOBODY : index | ((1u << shift) - 1);
            return;
        }
    }
}

/// The bin of an element at distance d = (logit - largest) / temperature <= 0 from the largest.
__device__ unsigned bin_of(float d) { return min(BINS - 1u, static_cast<unsigned>(-d * FINE)); }
/// The subdivision of that bin, one of BINS.
__device__ unsigned part_of(float d, unsigned bin) { return min(BINS - 1u, static_cast<unsigned>(fmaxf(-d * FINE - static_cast<float>(bin), 0.0f) * BINS)); }

/// Appends the elements of bins `from` to `to`, or of one subdivision of the bin `to`, to the list of the cluster's first block.
template <typename T>
__device__ void collect(const Part<T>& part, const Weigh<T>& weigh, unsigned from, unsigned to, unsigned one_part, Sampling& s, cg::cluster_group cluster) {
    unsigned* listed = cluster.map_shared_rank(&s.listed, 0);
    unsigned* keys = cluster.map_shared_rank(s.keys, 0);
    unsigned* indices = cluster.map_shared_rank(s.indices, 0);
    part.each([&](float x, unsigned key, unsigned index) {
        const float d = weigh.scaled(x);
        const unsigned bin = bin_of(d);
        if (bin < from || bin > to || (one_part != NOBODY && part_of(d, bin) != one_part) || Weigh<T>::units(expf(d)) == 0) return;
        const unsigned at = atomicAdd(listed, 1u);
        keys[at] = key, indices[at] = index;
    });
    cluster.sync();
}

template <typename T, unsigned CLUSTER>
__global__ void __launch_bounds__(THREADS, 2)
    sample_clusters(const bits_of<T>* __restrict__ logits, long long xs, unsigned n, unsigned packs, float temperature, int top_k, float top_p, float min_p, int seed,
                    int apart, long long* __restrict__ out) {
    extern __shared__ __align__(16) uint4 held[];
    __shared__ Sampling s;
    constexpr unsigned N = Part<T>::N, U = sizeof(T) == 2 ? 2 : 4;  // U: packs of a thread in flight
    constexpr int EACH = LIST / THREADS;
    const cg::cluster_group cluster = cg::this_cluster();
    constexpr unsigned blocks = CLUSTER;
    const unsigned rank = blockIdx.x % CLUSTER, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned row = blockIdx.x / blocks;
    if (threadIdx.x == 0) s.listed = 0;
    wait_for_before();
    const bool all_of_row = top_k <= 0 || top_k >= n;
    if (apart != 0 && (temperature == 0.0f || (apart & 1 && !all_of_row && top_k <= LIST) || (apart & 2 && all_of_row && !(top_p < 1.0f)))) return;  // sample_rows has drawn
    const bits_of<T>* r = logits + row * xs;
    const unsigned off = reinterpret_cast<unsigned long long>(r) % 16 / sizeof(T), all_packs = (off + n + N - 1) / N;
    const unsigned first_pack = min(all_packs, rank * packs), count = min(all_packs, first_pack + packs) - first_pack;
    const Part<T> part{held, count, static_cast<int>(first_pack * N) - static_cast<int>(off)};
    unsigned best = 0, best_at = 0;
    for (unsigned from = threadIdx.x; from < count; from += U * THREADS) {
        uint4 v[U];
#pragma unroll
        for (unsigned u = 0; u < U; ++u) {
            const unsigned p = from + u * THREADS;
            if (p >= count) continue;
            const int i = static_cast<int>(part.index(p, 0));
            if (i >= 0 && static_cast<unsigned>(i) + N <= n) {
                v[u] = *reinterpret_cast<const uint4*>(r + i);
            } else {
                unsigned words[4] = {0, 0, 0, 0};
#pragma unroll
                for (unsigned j = 0; j < N; ++j) {
                    const unsigned bits = i + static_cast<int>(j) >= 0 && i + j < n ? r[i + static_cast<int>(j)] : last_value<T>(0);
                    words[j * 4 / N] |= bits << j % (N / 4) * 16;
                }
                v[u] = make_uint4(words[0], words[1], words[2], words[3]);
            }
        }
#pragma unroll
        for (unsigned u = 0; u < U; ++u) {
            const unsigned p = from + u * THREADS;
            if (p >= count) continue;
            held[p] = v[u];
#pragma unroll
            for (unsigned j = 0; j < N; ++j) {
                const unsigned key = part.key(v[u], j);
                if (key > best) best = key, best_at = part.index(p, j);
            }
        }
    }
    Sum top = static_cast<Sum>(best) << 32 | ~best_at;  // of equals the lowest index
#pragma unroll
    for (int step = 16; step > 0; step /= 2) top = max(top, __shfl_xor_sync(~0u, top, step));
    if (lane == 0) s.warps[warp] = top;
    cluster.sync();
    if (threadIdx.x < blocks) {
        for (int w = 0; w < WARPS; ++w) top = max(top, s.warps[w]);
        *cluster.map_shared_rank(&s.first[rank], threadIdx.x) = top;
    }
    cluster.sync();
    for (unsigned b = 0; b < blocks; ++b) top = b == 0 ? s.first[0] : max(top, s.first[b]);
    const bool greedy = temperature == 0.0f;
    const Weigh<T> weigh(static_cast<unsigned>(top >> 32), greedy ? 1.0f : temperature, min_p);
    if (static_cast<unsigned>(top >> 32) <= weigh.masked || greedy) {
        if (rank == 0 && threadIdx.x == 0) out[row] = static_cast<unsigned>(top >> 32) <= weigh.masked ? -1 : static_cast<long long>(~static_cast<unsigned>(top));
        return;
    }
    const unsigned limit = top_k > 0 ? min(static_cast<unsigned>(top_k), n) : n;
    const bool nucleus = top_p < 1.0f;
    unsigned last_key = 0, last_index = NOBODY;  // the last entry in order that may be drawn
    if (limit < n || nucleus) {
        clear(s);
        part.each([&](float x, unsigned, unsigned) {
            const float d = weigh.scaled(x);
            const Sum w = Weigh<T>::units(expf(d));
            if (w != 0) add(s, bin_of(d), w);
        });
        gather<CLUSTER>(s, cluster);
        const bool limited = sum_of(s.totals, s) > limit;  // elements of weight 0 come last
        Sum earlier;
        if (limited) {
            const unsigned bin = crossing(s.totals, limit, earlier, s);
            if (earlier + s.totals[bin] <= LIST) {  // the list has all elements that may be drawn
                const unsigned listed = static_cast<unsigned>(earlier + s.totals[bin]);
                collect(part, weigh, 0, bin, NOBODY, s, cluster);
                if (rank != 0) return;
                sort_stretches<unsigned, 4, THREADS>(s.keys, s.indices, listed);
                unsigned index[EACH];
                Sum own[EACH], sum = 0, whole;
#pragma unroll
                for (int j = 0; j < EACH; ++j) {
                    const unsigned i = threadIdx.x * EACH + j;
                    own[j] = i < limit ? weigh.all(s.keys[i]) : 0, index[j] = i < limit ? s.indices[i] : NOBODY, sum += own[j];
                }
                Sum upto = sum_upto<THREADS>(sum, s.warps, whole) - sum;
                const Sum need = nucleus ? share_of(whole, top_p) : whole;
#pragma unroll
                for (int j = 0; j < EACH; ++j) {
                    const unsigned i = threadIdx.x * EACH + j;
                    s.masses[i] = i < limit && upto < need ? weigh(s.keys[i]) : 0;
                    upto += own[j];
                }
                __syncthreads();
#pragma unroll
                for (int j = 0; j < EACH; ++j) s.keys[threadIdx.x * EACH + j] = ~index[j], s.indices[threadIdx.x * EACH + j] = threadIdx.x * EACH + j;
                sort_stretches<unsigned, 4, THREADS>(s.keys, s.indices, limit);  // sorted by index, with the position of each weight
                sum = 0;
#pragma unroll
                for (int j = 0; j < EACH; ++j) {
                    const unsigned i = threadIdx.x * EACH + j;
                    own[j] = i < limit ? s.masses[s.indices[i]] : 0, sum += own[j];
                }
                upto = sum_upto<THREADS>(sum, s.warps, whole) - sum;
                const Sum bar = bar_of(seed, row, whole);
#pragma unroll
                for (int j = 0; j < EACH; ++j) {
                    if (upto <= bar && bar < upto + own[j]) out[row] = ~s.keys[threadIdx.x * EACH + j];
                    upto += own[j];
                }
                return;
            }
        }
        bool slow = limited;
        if (nucleus && !slow) {
            const Sum need = share_of(sum_of(s.masses, s), top_p);
            const unsigned bin = crossing(s.masses, need, earlier, s);
            Sum there = s.totals[bin];
            unsigned one_part = NOBODY;
            if (there > FEW) {  // subdivide the bin
                clear(s);
                part.each([&](float x, unsigned, unsigned) {
                    const float d = weigh.scaled(x);
                    const Sum w = bin_of(d) == bin ? Weigh<T>::units(expf(d)) : 0;
                    if (w != 0) add(s, part_of(d, bin), w);
                });
                gather<CLUSTER>(s, cluster);
                Sum more;
                one_part = crossing(s.masses, need - earlier, more, s);
                earlier += more, there = s.totals[one_part];
            }
            slow = there > LIST;
            if (!slow) {
                const unsigned listed = static_cast<unsigned>(there);
                collect(part, weigh, bin, bin, one_part, s, cluster);
                if (rank == 0) {
                    sort_stretches<unsigned, 4, THREADS>(s.keys, s.indices, listed);
                    Sum own[EACH], sum = 0, all;
#pragma unroll
                    for (int j = 0; j < EACH; ++j) own[j] = threadIdx.x * EACH + j < listed ? weigh.all(s.keys[threadIdx.x * EACH + j]) : 0, sum += own[j];
                    Sum upto = earlier + sum_upto<THREADS>(sum, s.warps, all) - sum;
#pragma unroll
                    for (int j = 0; j < EACH; ++j) {
                        if (upto < need && need <= upto + own[j]) s.found[0] = threadIdx.x * EACH + j;
                        upto += own[j];
                    }
                    __syncthreads();
                    if (threadIdx.x < blocks) {
                        unsigned* last = cluster.map_shared_rank(s.last, threadIdx.x);
                        last[0] = s.keys[s.found[0]], last[1] = s.indices[s.found[0]];
                    }
                }
                cluster.sync();
                last_key = s.last[0], last_index = s.last[1];
            }
        }
#pragma unroll 1
        for (int turn = limited ? 0 : 1; slow && turn < (nucleus ? 2 : 1); ++turn) bound<CLUSTER>(part, weigh, turn == 0 ? limit : 0, top_p, last_key, last_index, s, cluster);
    }
    using V = typename Four<sizeof(T)>::Type;  // four elements
    const V* fours = reinterpret_cast<const V*>(held);
    const unsigned all = count * (N / 4), stretch = (all + WARPS - 1) / WARPS, begin = min(all, warp * stretch), end = min(all, begin + stretch);  // of a warp
    const auto weight = [&](const V& v, unsigned p, unsigned j) {
        const bits_of<T> bits = reinterpret_cast<const bits_of<T>*>(&v)[j];
        const float x = number<T>(bits);
        if (!(x > __int_as_float(0xff800000))) return Sum(0);
        const float w = weigh.share(x);
        return w < weigh.least || (last_key != 0 && before(last_key, last_index, to_key<T>(bits, NAN_SMALLEST), part.four(p, j))) ? Sum(0) : Weigh<T>::units(w);
    };
    Sum own = 0;
#pragma unroll 2
    for (unsigned p = begin + lane; p < end; p += 32) {
        const V v = fours[p];
#pragma unroll
        for (unsigned j = 0; j < 4; ++j) own += weight(v, p, j);
    }
    Sum sum = own;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    __syncthreads();
    if (lane == 0) s.warps[warp] = sum;
    __syncthreads();
    if (threadIdx.x < blocks) {
        Sum block = 0;
        for (int w = 0; w < WARPS; ++w) block += s.warps[w];
        *cluster.map_shared_rank(&s.sums[rank], threadIdx.x) = block;
    }
    cluster.sync();
    Sum whole = 0, upto = 0;
    for (unsigned b = 0; b < blocks; ++b) upto += b < rank ? s.sums[b] : 0, whole += s.sums[b];
    for (unsigned w = 0; w < warp; ++w) upto += s.warps[w];
    const Sum bar = bar_of(seed, row, whole);
    if (bar < upto || bar >= upto + sum) return;
#pragma unroll 1
    for (unsigned from = begin; from < end; from += 32) {  // one warp of the cluster
        const unsigned p = from + lane;
        const V v = fours[min(p, end - 1)];
        Sum mine = 0;
        if (p < end) {
#pragma unroll
            for (unsigned j = 0; j < 4; ++j) mine += weight(v, p, j);
        }
        Sum run = mine;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const Sum o = __shfl_up_sync(~0u, run, step);
            if (lane >= step) run += o;
        }
        Sum at = upto + run - mine;
        if (at <= bar && bar < at + mine) {
#pragma unroll
            for (unsigned j = 0; j < 4; ++j) {
                const Sum w = weight(v, p, j);
                if (at <= bar && bar < at + w) out[row] = part.four(p, j);
                at += w;
            }
        }
        upto += __shfl_sync(~0u, run, 31);
        if (bar < upto) return;
    }
}
