// Lists of entries (a key and an index) in shared memory: sorting by a bitonic network whose short steps work in registers, and the last entry of a list.
#pragma once
#include "_sort_keys.cuh"

/// 32 E neighbouring entries of a list, held by a warp: lane l has places E l to E l + E - 1, counted from the start of the list.
template <typename K, int E>
struct Stretch {
    static constexpr unsigned WIDE = 32 * E;
    K key[E];
    unsigned index[E];

    template <typename V>
    __device__ static void copy(V* to, const V* from) {  // E values, in packs of 16 bytes if possible
        if constexpr (E * sizeof(V) % 16 == 0) {
#pragma unroll
            for (int j = 0; j < E * static_cast<int>(sizeof(V)) / 16; ++j) reinterpret_cast<uint4*>(to)[j] = reinterpret_cast<const uint4*>(from)[j];
        } else {
#pragma unroll
            for (int j = 0; j < E; ++j) to[j] = from[j];
        }
    }
    __device__ void load(const K* keys, const unsigned* indices, unsigned place, unsigned n) {
        if (place + E <= n) {
            alignas(16) K k[E];
            alignas(16) unsigned i[E];
            copy(k, keys + place), copy(i, indices + place);
#pragma unroll
            for (int j = 0; j < E; ++j) key[j] = k[j], index[j] = i[j];
            return;
        }
#pragma unroll
        for (int j = 0; j < E; ++j) key[j] = place + j < n ? keys[place + j] : 0, index[j] = place + j < n ? indices[place + j] : NOBODY;
    }
    __device__ void store(K* keys, unsigned* indices, unsigned place) const {
        alignas(16) K k[E];
        alignas(16) unsigned i[E];
#pragma unroll
        for (int j = 0; j < E; ++j) k[j] = key[j], i[j] = index[j];
        copy(keys + place, k), copy(indices + place, i);
    }
    /// The steps of one stage of the bitonic network whose partners are within 32 E neighbours.
    __device__ void merge(unsigned place, unsigned size) {
#pragma unroll
        for (unsigned step = WIDE / 2; step > 0; step /= 2) {
            if (step >= size) continue;
            if (step >= E) {
                const bool mine_first = ((place & size) == 0) == ((place & step) == 0);  // whether this place takes the entry that is first in order
#pragma unroll
                for (int j = 0; j < E; ++j) {
                    const K other = __shfl_xor_sync(~0u, key[j], step / E);
                    const unsigned at = __shfl_xor_sync(~0u, index[j], step / E);
                    if (before(other, at, key[j], index[j]) == mine_first) key[j] = other, index[j] = at;
                }
            } else {
#pragma unroll
                for (int j = 0; j < E; ++j) {
                    if (j & step) continue;
                    const int o = j + static_cast<int>(step);
                    const bool falling = ((place + j) & size) == 0, swap = before(key[o], index[o], key[j], index[j]) == falling;
                    const K k = key[j];
                    const unsigned i = index[j];
                    key[j] = swap ? key[o] : k, index[j] = swap ? index[o] : i;
                    key[o] = swap ? k : key[o], index[o] = swap ? i : index[o];
                }
            }
        }
    }
};

/// Sorts n entries by counting: each thread counts the entries before its own and calls `put(place, key, index)`. n comparisons an entry, for lists no longer
/// than a block has threads. The arrays start on 16 bytes and have room for the next multiple of 4 of n.
template <typename K, int THREADS, typename Put>
__device__ void place_entries(K* keys, unsigned* indices, unsigned n, Put put) {
    constexpr int PACK = 16 / sizeof(K);
    struct alignas(16) Keys { K v[PACK]; };
    struct alignas(4 * PACK) Indices { unsigned v[PACK]; };
    if (threadIdx.x < -n % 4) keys[n + threadIdx.x] = 0, indices[n + threadIdx.x] = NOBODY;
    __syncthreads();
    for (unsigned i = threadIdx.x; i < n; i += THREADS) {
        const K key = keys[i];
        const unsigned index = indices[i];
        unsigned place = 0;
#pragma unroll 4
        for (unsigned t = 0; t < n; t += PACK) {
            const Keys k = *reinterpret_cast<const Keys*>(keys + t);
            const Indices at = *reinterpret_cast<const Indices*>(indices + t);
#pragma unroll
            for (int j = 0; j < PACK; ++j) place += before(k.v[j], at.v[j], key, index);
        }
        put(place, key, index);
    }
}

/// Sorts the entries in place by a bitonic network: each warp sorts 32 E neighbours in registers, longer steps work in shared memory. The arrays have room
/// for the next power of two of n, at least 32 E.
template <typename K, int E, int THREADS>
__device__ void sort_stretches(K* keys, unsigned* indices, unsigned n) {
    using S = Stretch<K, E>;
    unsigned wide = S::WIDE;
    while (wide < n) wide *= 2;
    const unsigned mine = threadIdx.x / 32 * S::WIDE + threadIdx.x % 32 * E, all = THREADS / 32 * S::WIDE;
    S s;
    __syncthreads();
    for (unsigned place = mine; place < wide; place += all) {
        s.load(keys, indices, place, n);
#pragma unroll 1
        for (unsigned size = 2; size <= S::WIDE; size *= 2) s.merge(place, size);
        s.store(keys, indices, place);
    }
    __syncthreads();
#pragma unroll 1
    for (unsigned size = 2 * S::WIDE; size <= wide; size *= 2) {
#pragma unroll 1
        for (unsigned step = size / 2; step >= S::WIDE; step /= 2) {
            for (unsigned t = threadIdx.x; t < wide / 2; t += THREADS) {
                const unsigned a = 2 * step * (t / step) + t % step, b = a + step;
                const K ka = keys[a], kb = keys[b];
                const unsigned ia = indices[a], ib = indices[b];
                if (before(kb, ib, ka, ia) == ((a & size) == 0)) keys[a] = kb, indices[a] = ib, keys[b] = ka, indices[b] = ia;
            }
            __syncthreads();
        }
        for (unsigned place = mine; place < wide; place += all) {
            s.load(keys, indices, place, wide);
            s.merge(place, size);
            s.store(keys, indices, place);
        }
        __syncthreads();
    }
}

/// Sorts the entries in place. The arrays start on 16 bytes and have room for the next power of two of n, at least 64 entries, and 256 if n > 64.
template <typename K, int THREADS>
__device__ void sort_entries(K* keys, unsigned* indices, unsigned n) {
    if (n <= 64) sort_stretches<K, 2, THREADS>(keys, indices, n);
    else sort_stretches<K, 8, THREADS>(keys, indices, n);
}

/// Moves the entry that is last in order, of n >= 1, to the front.
template <typename K, int THREADS>
__device__ void last_entry(K* keys, unsigned* indices, unsigned n) {
    K key = ~K(0);
    unsigned index = 0;
    for (unsigned i = threadIdx.x; i < n; i += THREADS) {
        if (before(key, index, keys[i], indices[i])) key = keys[i], index = indices[i];
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const K k = __shfl_xor_sync(~0u, key, step);
        const unsigned i = __shfl_xor_sync(~0u, index, step);
        if (before(key, index, k, i)) key = k, index = i;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) keys[threadIdx.x / 32] = key, indices[threadIdx.x / 32] = index;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < THREADS / 32; ++w) {
            if (before(key, index, keys[w], indices[w])) key = keys[w], index = indices[w];
        }
        keys[0] = key, indices[0] = index;
    }
    __syncthreads();
}
