// The first k elements of long rows. A sample of the row gives a pivot: a threshold that slightly more than k elements reach. So one read
// of the row leaves a short list of candidates.
#pragma once
#include "_top_k.cuh"

constexpr unsigned RUN = 32;  // consecutive elements in a sample: one access of a warp
constexpr unsigned COUNTED = 512;  // at most so many entries are sorted by counting
constexpr unsigned LISTS = 512;  // the most lists of a row
constexpr unsigned EVERYTHING = ~0u;

/// The place in a sorted sample of m elements that is almost never before the k-th of all n elements: four standard deviations past the
/// expected place.
__device__ inline unsigned pivot_place(unsigned k, unsigned n, unsigned m) {
    const float mean = static_cast<float>(k) * static_cast<float>(m) / static_cast<float>(n);
    return min(m, static_cast<unsigned>(mean + 4.0f * sqrtf(mean)) + 4);
}

/// The key at `place` of the sorted sample; the sample is in `keys`.
template <typename K, int BITS, int THREADS>
__device__ K pivot_of(const K* keys, unsigned m, unsigned place, Selecting& s) {
    K key;
    unsigned index;
    const auto each = [&](auto look) {
        for (unsigned i = threadIdx.x; i < m; i += THREADS) look(keys[i], [&] { return i; });
    };
    kth_of<K, BITS, THREADS>(each, place, 16, s, key, index);
    return key;
}

/// Reads a sample of m >= RUN elements, in runs spread over a row of at least m elements, into `keys`.
template <typename T, int THREADS>
__device__ void take_sample(const bits_of<T>* r, unsigned length, unsigned m, unsigned sense, key_of<T>* keys) {
    const unsigned apart = length / (m / RUN);
#pragma unroll 8
    for (unsigned i = threadIdx.x; i < m; i += THREADS) keys[i] = to_key<T>(r[i / RUN * apart + i % RUN], sense);
    __syncthreads();
}

/// Calls `look(bits, place)` for those of the first `count` elements of `r` that reach `low`, and possibly for a few that do not.
template <typename T, int THREADS, typename Look>
__device__ void read_reaching(const bits_of<T>* r, unsigned count, key_of<T> low, unsigned sense, Look look) {
    constexpr unsigned N = 16 / sizeof(T), U = 4;
    const unsigned off = reinterpret_cast<unsigned long long>(r) % 16 / sizeof(T), head = min(count, (N - off) % N);
    const unsigned packs = (count - head) / N, tail = head + packs * N;
    const uint4* from = reinterpret_cast<const uint4*>(r + head);
    if (threadIdx.x < head) look(r[threadIdx.x], threadIdx.x);
    if (threadIdx.x < count - tail) look(r[tail + threadIdx.x], tail + threadIdx.x);
    const float turn = sense & SMALLEST_FIRST ? -1.0f : 1.0f;
    float bar = 0;
    if constexpr (Order<T>::FLOAT) bar = turn * number<T>(Order<T>::down(sense & SMALLEST_FIRST ? low ^ Order<T>::ONES : low));
    const auto reaches = [&](bits_of<T> b) {
        if constexpr (Order<T>::FLOAT) return !(turn * number<T>(b) < bar);  // true for NaN too
        else return to_key<T>(b, sense) >= low;
    };
    const auto one = [&](const uint4& v, unsigned p) {
        bool some = false;
#pragma unroll
        for (unsigned j = 0; j < N; ++j) some |= reaches(reinterpret_cast<const bits_of<T>*>(&v)[j]);
        if (!some) return;
#pragma unroll
        for (unsigned j = 0; j < N; ++j) {
            const bits_of<T> b = reinterpret_cast<const bits_of<T>*>(&v)[j];
            if (reaches(b)) look(b, head + p * N + j);
        }
    };
    unsigned p = threadIdx.x;
#pragma unroll 1
    for (; p + (U - 1) * THREADS < packs; p += U * THREADS) {
        uint4 v[U];
#pragma unroll
        for (unsigned u = 0; u < U; ++u) v[u] = from[p + u * THREADS];
#pragma unroll
        for (unsigned u = 0; u < U; ++u) one(v[u], p + u * THREADS);
    }
#pragma unroll 1
    for (; p < packs; p += THREADS) one(from[p], p);
}

/// Appends entries of those of the `count` elements from `begin` on that reach `low`, at most `capacity`. Returns how many reach it.
template <typename T, int THREADS>
__device__ unsigned gather(const bits_of<T>* r, unsigned begin, unsigned count, key_of<T> low, unsigned sense, unsigned tie,
    unsigned capacity, key_of<T>* keys,
                           unsigned* at, Selecting& s) {
    if (threadIdx.x == 0) s.kept = 0;
    __syncthreads();
    read_reaching<T, THREADS>(r + begin, count, low, sense, [&](bits_of<T> b, unsigned i) {
        const key_of<T> v = to_key<T>(b, sense);
        if (v < low) return;
        const unsigned to = atomicAdd(&s.kept, 1u);
        if (to < capacity) keys[to] = v, at[to] = (begin + i) ^ tie;
    });
    __syncthreads();
    const unsigned reached = s.kept;
    __syncthreads();
    return reached;
}

/// Writes the first `wanted` of `held` entries as results, of the k that were requested.
template <typename T, int THREADS>
__device__ void finish_row(const Results<T>& results, key_of<T>* keys, unsigned* at, unsigned held, unsigned wanted, unsigned k,
    int index_bits, Selecting& s) {
    using K = key_of<T>;
    if (held > COUNTED && held > wanted) {
        K key;
        unsigned index;
        keep_first<K, key_bits<T>, THREADS>(keys, at, held, wanted, index_bits, s, key, index);
        held = wanted;
    }
    if (held > COUNTED && results.mask == nullptr && results.count > 1) {
        sort_stretches<K, 2048 / THREADS, THREADS>(keys, at, held);  // all warps have a part of 2048
        for (unsigned i = threadIdx.x; i < k; i += THREADS) {
            if (i < held) results.put(i, keys[i], at[i]);
            else results.none(i);
        }
        return;
    }
    if (held > COUNTED) {
        write_results<T, THREADS>(results, keys, at, held, k);
        return;
    }
    place_entries<K, THREADS>(keys, at, held, [&](unsigned place, K key, unsigned index) {
        if (place < k) results.put(place, key, index);
    });
    for (unsigned i = held + threadIdx.x; i < k; i += THREADS) results.none(i);
}
