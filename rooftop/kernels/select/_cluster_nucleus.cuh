// A draw from each row by a cluster of blocks: the list of the largest elements, and the last element of the nucleus.
#pragma once
#include "_cluster_draws.cuh"

/// Appends an entry to the list in the cluster's first block; its length also counts entries that do not fit. Returns false for such an
/// entry.
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
__device__ void draw_from_list(unsigned listed, unsigned limit, const Weigh<T>& weigh, float top_p, int seed, const int* seeds, unsigned row, long long* out,
    Sampling<THREADS>& s) {
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
    const Sum bar = bar_of(seed, seeds, row, whole);
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        if (upto <= bar && bar < upto + own[j]) out[row] = ~s.keys[threadIdx.x * EACH + j];
        upto += own[j];
    }
}

/// A logit that at least `k` elements of the row reach. Each thread of the cluster has the largest of two sets of its elements; the k-th of
/// these 2 · CLUSTER · THREADS maxima is found by the first 16 bits of their keys. -infinity if k is larger than their number.
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

/// The bin in which the nucleus ends. `need`: the weight that the nucleus lacks before this bin, of the bin's `mass`. Returns false if the
/// bin has more elements than a block can list.
template <typename T, unsigned CLUSTER, int THREADS>
__device__ bool bin_of_boundary(const Part<T, THREADS>& part, unsigned n, const Shares& shares, float top_p, unsigned& bin, Sum& need,
    Sampling<THREADS>& s,
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

/// The last element in order of the nucleus, among the candidates of all blocks. Returns false if too many of them have nearly the same
/// weight.
template <typename T, unsigned CLUSTER, int THREADS>
__device__ bool last_of_nucleus(const Part<T, THREADS>& part, const Shares& shares, const Weigh<T>& weigh, unsigned bin, Sum need,
    unsigned& last_key,
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
