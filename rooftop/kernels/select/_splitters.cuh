// Selects the k-th element of a row, for any k, with one read of the row. A random sample of the row gives a bracket: two keys between
// which the k-th element almost certainly lies (four standard deviations). While the row is read, elements above the bracket and elements
// equal to one of its ends are only counted; the few strictly inside are kept in shared memory. So equal elements need no memory: a value
// that occurs more often than the error of the sample is an end of the bracket.
#pragma once
#include "_sort_keys.cuh"
#include "words.cuh"
#include "_top_k.cuh"

constexpr unsigned RUN = 8;  // consecutive elements in a sample

/// Shared memory of a block, besides its entries.
struct Bracketing {
    Selecting selecting;
    unsigned long long keys[32];
    unsigned indices[32], warps[32], sums[4], over, found;
};

/// Entries strictly inside a bracket, kept without atomic additions: thread t has slots t, THREADS + t, ... of the first `slots` * THREADS.
/// Entries that do not fit a thread's slots are stored behind all slots.
template <typename K>
struct Entries {
    K* keys;
    unsigned* at;
    unsigned slots, capacity;
};

/// Adds four counts over all threads; the sums are in s.sums.
template <int THREADS>
__device__ void add_up(unsigned a, unsigned b, unsigned c, unsigned d, Bracketing& s) {
    unsigned v[4] = {a, b, c, d};
    __syncthreads();
    if (threadIdx.x < 4) s.sums[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int step = 16; step > 0; step /= 2) v[j] += __shfl_xor_sync(~0u, v[j], step);
        if (threadIdx.x % 32 == 0 && v[j] != 0) atomicAdd(&s.sums[j], v[j]);
    }
    __syncthreads();
}

/// The last entry in order among those of the threads, in all threads.
template <typename K, int THREADS>
__device__ void last_of(K& key, unsigned& index, Bracketing& s) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const K k = __shfl_xor_sync(~0u, key, step);
        const unsigned i = __shfl_xor_sync(~0u, index, step);
        if (before(key, index, k, i)) key = k, index = i;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) s.keys[threadIdx.x / 32] = key, s.indices[threadIdx.x / 32] = index;
    __syncthreads();
#pragma unroll 4
    for (int w = 0; w < THREADS / 32; ++w) {
        const K k = static_cast<K>(s.keys[w]);
        if (before(key, index, k, s.indices[w])) key = k, index = s.indices[w];
    }
    __syncthreads();
}

/// The k-th of the entries that `each` enumerates, 1 <= k <= their number. Exact: kth_of may return an entry between the k-th and the next
/// one.
template <typename K, int BITS, int THREADS, typename Each>
__device__ void exact_kth(Each each, unsigned k, int index_bits, Bracketing& s, K& key, unsigned& index) {
    kth_of<K, BITS, THREADS>(each, k, index_bits, s.selecting, key, index);
    K last = ~K(0);
    unsigned last_index = 0;
    each([&](K v, auto at) {
        if (v < key) return;
        const unsigned i = at();
        if (!before(key, index, v, i) && before(last, last_index, v, i)) last = v, last_index = i;
    });
    last_of<K, THREADS>(last, last_index, s);
    key = last, index = last_index;
}

/// The bracket of the k-th of `count` >= m elements; `sample(i)` is the key of element i, and `keys` has room for m. Its ends are keys of
/// the sample, four standard deviations above and below the expected place; or 0 and ~0, which exclude nothing.
template <typename K, int BITS, int THREADS, typename Sample>
__device__ void bracket_of(Sample sample, unsigned count, unsigned k, unsigned m, K* keys, Bracketing& s, K& low, K& high) {
    const unsigned apart = count / (m / RUN);
#pragma unroll 8
    for (unsigned i = threadIdx.x; i < m; i += THREADS) {
        // one run in each section of the row, at a random place, so that no period in the data can bias the sample
        const unsigned run = i / RUN;
        keys[i] = sample(run * apart + __umulhi(random_mix(run + 1), apart - RUN + 1) + i % RUN);
    }
    __syncthreads();
    const float part = min(1.0f, static_cast<float>(k) / static_cast<float>(count)), mean = part * static_cast<float>(m);
    const float spread = 4.0f * sqrtf(mean * (1.0f - part)) + 4.0f;
    const int first = static_cast<int>(mean - spread), last = static_cast<int>(mean + spread) + 1;
    const auto each = [&](auto look) {
        for (unsigned i = threadIdx.x; i < m; i += THREADS) look(keys[i], [&] { return i; });
    };
    unsigned index;
    low = 0, high = ~K(0);
    if (first >= 1) exact_kth<K, BITS, THREADS>(each, first, 16, s, high, index);
    if (last <= static_cast<int>(m)) exact_kth<K, BITS, THREADS>(each, last, 16, s, low, index);
    __syncthreads();
}

/// What one thread counts and keeps while it reads elements.
template <typename K, int THREADS>
struct Taking {
    K low, high;
    Entries<K> to;
    unsigned above = 0, at_high = 0, at_low = 0, inside = 0;

    __device__ Taking(K low, K high, const Entries<K>& to)
        : low(low), high(high), to(to) { }
    __device__ void operator()(K key, unsigned index, Bracketing& s) {
        if (key > high) ++above;
        else if (key == high) ++at_high;
        else if (key == low) ++at_low;
        else if (key > low) {
            const unsigned at = inside < to.slots ? inside * THREADS + threadIdx.x : to.slots * THREADS + atomicAdd(&s.over, 1u);
            if (at < to.capacity) to.keys[at] = key, to.at[at] = index;
            ++inside;
        }
    }
    /// Calls `look(key, index())` for this thread's share of the entries that the block keeps.
    template <typename Look>
    __device__ void each(Look look, const Bracketing& s) const {
        for (unsigned i = 0; i < min(inside, to.slots); ++i) look(to.keys[i * THREADS + threadIdx.x],
            [&] { return to.at[i * THREADS + threadIdx.x]; });
        for (unsigned i = to.slots * THREADS + threadIdx.x; i < to.slots * THREADS + s.over; i += THREADS) look(to.keys[i],
            [&] { return to.at[i]; });
    }
};

/// Reads all `count` elements of `r`; `begin` is the index of the first.
template <typename T, int THREADS>
__device__ void pass_row(const bits_of<T>* r, unsigned begin, unsigned count, unsigned sense, Taking<key_of<T>, THREADS>& take,
    Bracketing& s) {
    using B = bits_of<T>;
    constexpr unsigned N = 16 / sizeof(T), U = 4;
    const unsigned off = reinterpret_cast<unsigned long long>(r) % 16 / sizeof(T), head = min(count, (N - off) % N);
    const unsigned packs = (count - head) / N, tail = head + packs * N;
    const uint4* from = reinterpret_cast<const uint4*>(r + head);
    if (threadIdx.x < head) take(to_key<T>(r[threadIdx.x], sense), begin + threadIdx.x, s);
    if (threadIdx.x < count - tail) take(to_key<T>(r[tail + threadIdx.x], sense), begin + tail + threadIdx.x, s);
    const float turn = sense & SMALLEST_FIRST ? -1.0f : 1.0f;
    float least = 0, most = 0;  // the bracket as numbers; an end that is NaN excludes nothing, and `take` compares keys
    if constexpr (Order<T>::FLOAT) {
        const auto bar = [&](key_of<T> key) { return turn * number<T>(Order<T>::down(sense & SMALLEST_FIRST ? key ^ Order<T>::ONES : key));
        };
        least = bar(take.low), most = bar(take.high);
    }
    const auto one = [&](const uint4& v, unsigned p) {
        unsigned inside = 0;
#pragma unroll
        for (unsigned j = 0; j < N; ++j) {
            const B b = reinterpret_cast<const B*>(&v)[j];
            bool above, below;
            if constexpr (Order<T>::FLOAT) {
                const float x = turn * number<T>(b);
                above = x > most, below = x < least;  // both false for NaN
            } else {
                const key_of<T> key = to_key<T>(b, sense);
                above = key > take.high, below = key < take.low;
            }
            if (above) ++take.above;
            else if (!below) inside |= 1u << j;
        }
        while (inside != 0) {
            const unsigned j = __ffs(inside) - 1;
            inside &= inside - 1;
            take(to_key<T>(picked_bits<B>(v, j), sense), begin + head + p * N + j, s);
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

/// The same for the entries of a list.
template <typename K, int THREADS>
__device__ void pass_list(const K* keys, const unsigned* at, unsigned begin, unsigned end, Taking<K, THREADS>& take, Bracketing& s) {
    constexpr unsigned U = 4;
#pragma unroll 1
    for (unsigned i = begin + threadIdx.x; i < end; i += U * THREADS) {
        K v[U];
        unsigned index[U];
#pragma unroll
        for (unsigned u = 0; u < U; ++u) {
            const unsigned p = i + u * THREADS;
            v[u] = p < end ? keys[p] : 0, index[u] = p < end ? at[p] : NOBODY;
        }
#pragma unroll
        for (unsigned u = 0; u < U; ++u) {
            if (index[u] != NOBODY) take(v[u], index[u], s);
        }
    }
}

/// Where the k-th element is, once all elements are read.
enum Lies { AMONG, EQUAL, LOST };  // among the entries; equal to an end of the bracket; neither: the sample was misleading

/// `counts`: above, equal to `high`, equal to `low`, inside. On return k is the place among the entries, or among the elements equal to
/// `key`.
template <typename K>
__device__ Lies where(const unsigned* counts, K low, K high, unsigned room, unsigned& k, K& key) {
    if (k <= counts[0] || counts[3] > room) return LOST;
    k -= counts[0];
    if (k <= counts[1]) {
        key = high;
        return EQUAL;
    }
    k -= counts[1];
    if (k <= counts[3]) return AMONG;
    k -= counts[3];
    key = low;
    return k <= counts[2] ? EQUAL : LOST;
}

/// The index of the k-th of the elements of a row that are equal to `key`, 1 <= k <= their number.
template <typename T, int THREADS>
__device__ unsigned nth_equal(const bits_of<T>* r, unsigned length, key_of<T> key, unsigned k, unsigned sense, Bracketing& s) {
    constexpr unsigned WARPS = THREADS / 32;
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, stretch = (length + 32 * WARPS - 1) / (32 * WARPS) * 32;
    const unsigned begin = min(length, warp * stretch), end = min(length, begin + stretch);
    unsigned mine = 0;
#pragma unroll 8
    for (unsigned i = begin + lane; i < end; i += 32) mine += to_key<T>(r[i], sense) == key;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) mine += __shfl_xor_sync(~0u, mine, step);
    __syncthreads();
    if (lane == 0) s.warps[warp] = mine;
    __syncthreads();
    unsigned upto = 0;
    for (unsigned w = 0; w < warp; ++w) upto += s.warps[w];
    if (upto < k && k <= upto + mine) {  // true in one warp
        for (unsigned from = begin; from < end; from += 32) {
            const bool same = from + lane < end && to_key<T>(r[from + lane], sense) == key;
            const unsigned all = __ballot_sync(~0u, same);
            if (same && upto + __popc(all & ((1u << lane) - 1)) + 1 == k) s.found = from + lane;
            upto += __popc(all);
            if (upto >= k) break;
        }
    }
    __syncthreads();
    return s.found;
}

/// Radix select in memory: the k-th element of a row, with one read of the row for each digit.
template <typename T, int THREADS>
__device__ void kth_by_digits(const bits_of<T>* r, unsigned length, unsigned k, int index_bits, unsigned sense, Bracketing& s,
    key_of<T>& key, unsigned& index) {
    const auto each = [&](auto look) {
#pragma unroll 8
        for (unsigned i = threadIdx.x; i < length; i += THREADS) look(to_key<T>(r[i], sense), [&] { return i; });
    };
    exact_kth<key_of<T>, key_bits<T>, THREADS>(each, k, index_bits, s, key, index);
}
