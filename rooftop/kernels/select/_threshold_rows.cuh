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

/// One block a row. `m`: size of the sample. If fewer than k elements reach the pivot, or too many (many equal elements, an unusual
/// distribution), the row is read again as in select_rows.
template <typename T, int THREADS>
__global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    pivot_rows(const bits_of<T>* __restrict__ x, long long xs, unsigned n, const void* __restrict__ lengths, int wide, unsigned k,
        unsigned m, unsigned capacity,
               int index_bits, unsigned sense, unsigned tie, unsigned first, unsigned count, bits_of<T>* __restrict__ values,
               long long* __restrict__ indices,
               unsigned char* __restrict__ mask, int marks) {
    using K = key_of<T>;
    __shared__ Selecting s;
    K* keys = reinterpret_cast<K*>(selecting_memory);
    unsigned* at = reinterpret_cast<unsigned*>(keys + capacity);
    const unsigned row = blockIdx.x;
    gdc_wait();
    const bits_of<T>* r = x + row * xs;
    const unsigned length = length_of(lengths, wide, row, n), wanted = min(k, length);
    unsigned held = EVERYTHING;
    if (length >= m) {
        take_sample<T, THREADS>(r, length, m, sense, keys);
        const K low = pivot_of<K, key_bits<T>, THREADS>(keys, m, pivot_place(wanted, length, m), s);
        held = gather<T, THREADS>(r, 0, length, low, sense, tie, capacity, keys, at, s);
    }
    if (held > capacity || held < wanted) {
        const FromRow<T, THREADS, 1> from{r, 0, length, sense, tie};
        held = select<T, THREADS, true>(from, from.rounds(), k, capacity, index_bits, keys, at, s);
    }
    const Results<T> results{r, values, indices, mask, row, n, first, count, sense, tie, marks != 0};
    finish_row<T, THREADS>(results, keys, at, held, wanted, k, index_bits, s);
}

/// `splits` blocks a row, `per` elements each, all with the pivot of the whole row. They write lists [rows, splits, k] and the length of
/// each.
template <typename T, int THREADS>
__global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    pivot_parts(const bits_of<T>* __restrict__ x, long long xs, unsigned n, const void* __restrict__ lengths, int wide, unsigned k,
        unsigned m, unsigned splits,
                unsigned per, unsigned capacity, int index_bits, unsigned sense, unsigned tie, key_of<T>* __restrict__ list_keys,
                unsigned* __restrict__ list_indices, unsigned* __restrict__ counts) {
    using K = key_of<T>;
    __shared__ Selecting s;
    K* keys = reinterpret_cast<K*>(selecting_memory);
    unsigned* at = reinterpret_cast<unsigned*>(keys + capacity);
    const unsigned row = blockIdx.x / splits, split = blockIdx.x % splits;
    gdc_wait();
    const bits_of<T>* r = x + row * xs;
    const unsigned length = length_of(lengths, wide, row, n);
    const unsigned begin = min(length, split * per), end = split + 1 == splits ? length : min(length, begin + per);
    unsigned held = EVERYTHING;
    if (length >= m) {
        take_sample<T, THREADS>(r, length, m, sense, keys);
        const K low = pivot_of<K, key_bits<T>, THREADS>(keys, m, pivot_place(min(k, length), length, m), s);
        held = gather<T, THREADS>(r, begin, end - begin, low, sense, tie, capacity, keys, at, s);
    }
    if (held > capacity) {
        const FromRow<T, THREADS, 1> from{r + begin, begin, end - begin, sense, tie};
        held = select<T, THREADS, false>(from, from.rounds(), k, capacity, index_bits, keys, at, s);
    } else if (held > k) {
        K key;
        unsigned index;
        keep_first<K, key_bits<T>, THREADS>(keys, at, held, k, index_bits, s, key, index);
        held = k;
    }
    const long long to = static_cast<long long>(blockIdx.x) * k;
    for (unsigned i = threadIdx.x; i < held; i += THREADS) list_keys[to + i] = keys[i], list_indices[to + i] = at[i];
    if (threadIdx.x == 0) counts[blockIdx.x] = held;
}

/// The lists of a row as an input of select().
template <typename T, int THREADS>
struct FromParts {
    static constexpr int ITEMS = 2;
    using K = key_of<T>;
    const K* keys;
    const unsigned *indices, *counts;
    unsigned k, end;
    K v[ITEMS];
    unsigned at[ITEMS];

    __device__ void fetch(unsigned round) {
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const unsigned p = (round * ITEMS + i) * THREADS + threadIdx.x;
            const bool there = p < end && p % k < counts[p / k];
            v[i] = there ? keys[p] : 0, at[i] = there ? indices[p] : NOBODY;
        }
    }
    __device__ void forget() { }
    __device__ K key(int i) const { return v[i]; }
    __device__ unsigned index(int i) const { return at[i]; }
    __device__ unsigned near(K key) const { return static_cast<unsigned>(v[0] >= key) | static_cast<unsigned>(v[1] >= key) << 1; }
    __device__ void one(int i, K& key, unsigned& index) const { key = i ? v[1] : v[0], index = i ? at[1] : at[0]; }
};

/// One block a row: merges its lists from pivot_parts. If they have fewer than k entries, the row is read again.
template <typename T, int THREADS>
__global__ void __launch_bounds__(THREADS, 1)
    pivot_lists(const key_of<T>* __restrict__ list_keys, const unsigned* __restrict__ list_indices, const unsigned* __restrict__ counts,
        unsigned splits,
                const bits_of<T>* __restrict__ x, long long xs, unsigned n, const void* __restrict__ lengths, int wide, unsigned k,
                unsigned capacity, int index_bits,
                unsigned sense, unsigned tie, unsigned first, unsigned count, bits_of<T>* __restrict__ values,
                long long* __restrict__ indices,
                unsigned char* __restrict__ mask, int marks) {
    using K = key_of<T>;
    __shared__ Selecting s;
    K* keys = reinterpret_cast<K*>(selecting_memory);
    unsigned* at = reinterpret_cast<unsigned*>(keys + capacity);
    const unsigned row = blockIdx.x;
    __shared__ unsigned ends[LISTS];
    gdc_wait();
    const bits_of<T>* r = x + row * xs;
    const unsigned length = length_of(lengths, wide, row, n), wanted = min(k, length);
    list_keys += static_cast<long long>(row) * splits * k, list_indices += static_cast<long long>(row) * splits * k, counts += row * splits;
    if (threadIdx.x < 32) {  // number of entries before each list
        unsigned upto = 0;
        for (unsigned from = 0; from < splits; from += 32) {
            unsigned mine = from + threadIdx.x < splits ? counts[from + threadIdx.x] : 0;
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                const unsigned v = __shfl_up_sync(~0u, mine, step);
                if (threadIdx.x >= step) mine += v;
            }
            if (from + threadIdx.x < splits) ends[from + threadIdx.x] = upto + mine;
            upto += __shfl_sync(~0u, mine, 31);
        }
    }
    __syncthreads();
    unsigned held = ends[splits - 1];
#pragma unroll 4
    for (unsigned i = threadIdx.x; i < min(held, capacity); i += THREADS) {
        unsigned list = 0;  // the first list that ends after entry i
#pragma unroll
        for (unsigned step = LISTS / 2; step > 0; step /= 2) list += list + step <= splits && ends[list + step - 1] <= i ? step : 0;
        const long long from = static_cast<long long>(list) * k + (i - (list == 0 ? 0 : ends[list - 1]));
        keys[i] = list_keys[from], at[i] = list_indices[from];
    }
    __syncthreads();
    if (held < wanted) {
        const FromRow<T, THREADS, 1> from{r, 0, length, sense, tie};
        held = select<T, THREADS, true>(from, from.rounds(), k, capacity, index_bits, keys, at, s);
    } else if (held > capacity) {
        const FromParts<T, THREADS> from{list_keys, list_indices, counts, k, splits * k};
        constexpr unsigned ROUND = THREADS * FromParts<T, THREADS>::ITEMS;
        held = select<T, THREADS, true>(from, (splits * k + ROUND - 1) / ROUND, k, capacity, index_bits, keys, at, s);
    }
    const Results<T> results{r, values, indices, mask, row, n, first, count, sense, tie, marks != 0};
    finish_row<T, THREADS>(results, keys, at, held, wanted, k, index_bits, s);
}
