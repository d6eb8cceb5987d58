// The first k of rows that fit the registers of one block, for small k: a threshold from the maxima of groups of elements, then a sort of
// the elements that reach it.
#pragma once
#include "_top_k.cuh"

constexpr int SHORT_LIST = 512;  // the most entries that may reach the threshold

/// The k-th largest of the maxima of GROUPS groups of neighbouring threads: at least k elements reach it. `largest` has room for GROUPS.
template <typename K, int THREADS, int GROUPS>
__device__ K group_bar(K most, unsigned k, K* largest, K* bar) {
    constexpr int WIDE = THREADS / GROUPS, PACK = 16 / sizeof(K);  // lanes of a group
    struct alignas(16) Pack { K v[PACK]; };
#pragma unroll
    for (int step = WIDE / 2; step > 0; step /= 2) {
        const K o = __shfl_xor_sync(~0u, most, step);
        most = o > most ? o : most;
    }
    const unsigned group = threadIdx.x / WIDE, part = threadIdx.x % WIDE;
    if (part == 0) largest[group] = most;
    __syncthreads();
    unsigned rank = 0;  // groups whose maximum is larger, or equal and of a lower group; a lane of the group reads every WIDE-th pack
#pragma unroll 4
    for (unsigned t = part * PACK; t < GROUPS; t += WIDE * PACK) {
        const Pack p = *reinterpret_cast<const Pack*>(largest + t);
#pragma unroll
        for (int j = 0; j < PACK; ++j) rank += before(p.v[j], t + j, most, group);
    }
#pragma unroll
    for (int step = WIDE / 2; step > 0; step /= 2) rank += __shfl_xor_sync(~0u, rank, step);
    if (part == 0 && rank == k - 1) *bar = most;
    __syncthreads();
    return *bar;
}

/// One block for a row of at most THREADS * U packs of 16 bytes, 1 <= k <= GROUPS.
template <typename T, int THREADS, int U, int GROUPS>
__global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    short_rows(const bits_of<T>* __restrict__ x, long long xs, unsigned n, const void* __restrict__ lengths, int wide, unsigned k,
        int index_bits, unsigned sense,
               unsigned tie, unsigned first, unsigned count, bits_of<T>* __restrict__ values, long long* __restrict__ indices,
               unsigned char* __restrict__ mask, int marks) {
    using K = key_of<T>;
    using From = FromRow<T, THREADS, U>;
    constexpr int ITEMS = From::ITEMS;
    __shared__ Selecting s;
    __shared__ alignas(16) K keys[SHORT_LIST];
    __shared__ alignas(16) unsigned at[SHORT_LIST];
    __shared__ K bar;
    const unsigned row = blockIdx.x;
    if (threadIdx.x == 0) s.kept = 0;
    gdc_wait();
    const bits_of<T>* r = x + row * xs;
    const unsigned length = length_of(lengths, wide, row, n), wanted = min(k, length);
    From from{r, 0, length, sense, tie};
    from.fetch(0);
    K key[ITEMS], most = 0;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) key[i] = from.key(i), most = key[i] > most ? key[i] : most;
    const K least = group_bar<K, THREADS, GROUPS>(most, k, keys, &bar);
    unsigned near = 0;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) near |= static_cast<unsigned>(key[i] >= least) << i;
    while (near != 0) {
        const int i = __ffs(near) - 1;
        near &= near - 1;
        const unsigned index = from.index(i);
        if (index == NOBODY) continue;
        const unsigned to = atomicAdd(&s.kept, 1u);
        if (to < SHORT_LIST) keys[to] = to_key<T>(from.x[index ^ tie], sense), at[to] = index;  // from the L1: registers cannot be indexed
    }
    __syncthreads();
    unsigned held = s.kept;
    if (held > SHORT_LIST || held < wanted) {  // many equal elements, or padding among the largest: select the k-th by its digits
        K last;
        unsigned last_index;
        const auto each = [&](auto look) {  // reads the row again
            for (unsigned i = threadIdx.x; i < length; i += THREADS) look(to_key<T>(r[i], sense), [&] { return i ^ tie; });
        };
        __syncthreads();
        if (threadIdx.x == 0) s.kept = 0;
        kth_of<K, key_bits<T>, THREADS>(each, wanted, index_bits, s, last, last_index);
        each([&](K v, auto index) {
            if (before(last, last_index, v, index())) return;
            const unsigned to = atomicAdd(&s.kept, 1u);
            keys[to] = v, at[to] = index();
        });
        __syncthreads();
        held = wanted;
    }
    const Results<T> results{r, values, indices, mask, row, n, first, count, sense, tie, marks != 0};
    if (held <= 2 * THREADS) {
        place_entries<K, THREADS>(keys, at, held, [&](unsigned place, K v, unsigned index) {
            if (place < k) results.put(place, v, index);
        });
    } else {
        sort_stretches<K, 8, THREADS>(keys, at, held);
        for (unsigned i = threadIdx.x; i < k; i += THREADS) results.put(i, keys[i], at[i]);
    }
    for (unsigned i = held + threadIdx.x; i < k; i += THREADS) results.none(i);
}
