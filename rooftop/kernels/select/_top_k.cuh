// The first k elements of each row in order, exactly. A row is read once; elements that are not after the k-th of those read so far are
// kept in shared memory.
#pragma once
#include "pdl.cuh"
#include "_sort_keys.cuh"

constexpr unsigned PLACED = 192;  // at most so many entries are sorted by counting
constexpr int SELECT_ITEMS = 8;  // entries of a list that a thread loads in an iteration

/// Shared memory of a block, besides its entries.
struct Selecting {
    unsigned histogram[256], found[3], kept, added[3];
};

/// Radix select: the k-th of the entries that `each` enumerates, 1 <= k <= their number, by digits of 8 bits; or an entry behind it with no
/// entry between. `each(look)` calls `look(key, index)` for every entry of this thread, where index() gives its index of `index_bits` bits.
/// All threads of the block get the result.
template <typename K, int BITS, int THREADS, typename Each>
__device__ void kth_of(Each each, unsigned k, int index_bits, Selecting& s, K& key, unsigned& index) {
    key = 0, index = 0;
    int shift = BITS;
    bool by_key = true;
    const int index_top = (index_bits + 7) / 8 * 8;
    for (;;) {
        shift -= 8;
        for (unsigned i = threadIdx.x; i < 256; i += THREADS) s.histogram[i] = 0;
        __syncthreads();
        each([&](K v, auto at) {
            if (by_key) {
                if (shift + 8 == BITS || (v ^ key) >> (shift + 8 == BITS ? 0 : shift + 8) == 0) atomicAdd(&s.histogram[v >> shift & 255],
                    1u);
            } else if (v == key) {
                const unsigned i = at();
                if (shift + 8 >= index_top || (i ^ index) >> (shift + 8) == 0) atomicAdd(&s.histogram[255 - (i >> shift & 255)], 1u);
            }
        });
        __syncthreads();
        if (threadIdx.x < 32) {  // lane l has digits 255 - 8 l and the seven below
            unsigned own[8], sum = 0;
#pragma unroll
            for (int j = 0; j < 8; ++j) own[j] = s.histogram[255 - 8 * threadIdx.x - j], sum += own[j];
            unsigned upto = sum;
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                const unsigned v = __shfl_up_sync(~0u, upto, step);
                if (threadIdx.x >= step) upto += v;
            }
            unsigned above = upto - sum;
            if (above < k && k <= upto) {
                bool open = true;
#pragma unroll
                for (int j = 0; j < 8; ++j) {
                    if (open && k <= above + own[j]) s.found[0] = 255 - 8 * threadIdx.x - j, s.found[1] = above, s.found[2] = own[j],
                        open = false;
                    above += own[j];
                }
            }
        }
        __syncthreads();
        const unsigned digit = s.found[0], in_digit = s.found[2];
        k -= s.found[1];
        if (by_key) key |= static_cast<K>(digit) << shift;
        else index |= (255 - digit) << shift;
        if (k == in_digit) {  // all entries with these digits are among the first k
            if (by_key) index = NOBODY;
            else index |= shift == 0 ? 0 : (1u << shift) - 1;
            return;
        }
        if (shift == 0) {
            if (!by_key) return;
            by_key = false, shift = index_top;
        }
    }
}

/// Like kth_of, for n entries in shared memory.
template <typename K, int BITS, int THREADS>
__device__ void kth_entry(const K* keys, const unsigned* indices, unsigned n, unsigned k, int index_bits, Selecting& s, K& key,
    unsigned& index) {
    const auto each = [&](auto look) {
        for (unsigned i = threadIdx.x; i < n; i += THREADS) look(keys[i], [&] { return indices[i]; });
    };
    kth_of<K, BITS, THREADS>(each, k, index_bits, s, key, index);
}

/// Moves the first k of n > k entries, unordered, to the front. Later entries are kept if they are not behind (key, index).
template <typename K, int BITS, int THREADS>
__device__ void keep_first(K* keys, unsigned* indices, unsigned n, unsigned k, int index_bits, Selecting& s, K& key, unsigned& index) {
    constexpr int EACH = 4;
    kth_entry<K, BITS, THREADS>(keys, indices, n, k, index_bits, s, key, index);
    if (threadIdx.x == 0) s.kept = 0;
    for (unsigned from = 0; from < n; from += EACH * THREADS) {  // writes are at lower places than the reads still to come
        K v[EACH];
        unsigned at[EACH], kept = 0;
#pragma unroll
        for (int j = 0; j < EACH; ++j) {
            const unsigned i = from + j * THREADS + threadIdx.x;
            v[j] = i < n ? keys[i] : 0, at[j] = i < n ? indices[i] : NOBODY;
            kept |= static_cast<unsigned>(i < n && !before(key, index, v[j], at[j])) << j;
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < EACH; ++j) {
            const unsigned mine = __ballot_sync(~0u, kept >> j & 1), lane = threadIdx.x % 32;
            unsigned to = 0;
            if (mine == 0) continue;
            if (lane == 0) to = atomicAdd(&s.kept, __popc(mine));
            to = __shfl_sync(~0u, to, 0) + __popc(mine & ((1u << lane) - 1));
            if (kept >> j & 1) keys[to] = v[j], indices[to] = at[j];
        }
    }
    __syncthreads();
}

template <int ITEMS, typename V>
__device__ V picked(const V* of, int i) {  // v[i] of registers, by a tree of selections
    V v[ITEMS];
#pragma unroll
    for (int j = 0; j < ITEMS; ++j) v[j] = of[j];
#pragma unroll
    for (int half = ITEMS / 2; half > 0; half /= 2) {
#pragma unroll
        for (int j = 0; j < half; ++j) v[j] = i & half ? v[j + half] : v[j];
    }
    return v[0];
}

/// `count` elements of a row from `begin` on, at any alignment, in packs of 16 bytes; U packs a thread in an iteration.
template <typename T, int THREADS, int PACKS = sizeof(T) == 2 ? 2 : 4>
struct FromRow {
    static constexpr int N = 16 / sizeof(T), U = PACKS, ITEMS = N * U, ROUND = THREADS * ITEMS;
    using K = key_of<T>;
    const bits_of<T>* x;  // the first element
    unsigned begin, count, sense, tie, first;

    /// Elements of the first pack that lie before the range.
    __device__ unsigned off() const { return reinterpret_cast<unsigned long long>(x) % 16 / sizeof(T); }
    __device__ unsigned rounds() const { return count == 0 ? 0 : (count + off() + ROUND - 1) / ROUND; }
    uint4 v[U];

    __device__ void fetch(unsigned round) {
        first = round * ROUND - off() + threadIdx.x * N;  // wraps around before the first element
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const unsigned p = first + u * THREADS * N;
            if (p < count && p + N <= count) {
                v[u] = *reinterpret_cast<const uint4*>(x + p);
            } else {
#pragma unroll
                for (int j = 0; j < N; ++j) reinterpret_cast<bits_of<T>*>(&v[u])[j] = p + j < count ? x[p + j] : last_value<T>(sense);
            }
        }
    }
    __device__ bits_of<T> bits(int i) const { return reinterpret_cast<const bits_of<T>*>(&v[i / N])[i % N]; }
    /// A bit mask of elements that may reach `key`: all that do, and for floats NaN too, which saves instructions.
    __device__ unsigned near(K key) const {
        unsigned found = 0;
        if constexpr (Order<T>::FLOAT) {
            const float turn = sense & SMALLEST_FIRST ? -1.0f : 1.0f,
                bar = turn * number<T>(Order<T>::down(sense & SMALLEST_FIRST ? key ^ Order<T>::ONES : key));
#pragma unroll
            for (int i = 0; i < ITEMS; ++i) found |= static_cast<unsigned>(!(turn * number<T>(bits(i)) < bar)) << i;
        } else {
#pragma unroll
            for (int i = 0; i < ITEMS; ++i) found |= static_cast<unsigned>(this->key(i) >= key) << i;
        }
        return found;
    }
    /// Key and index of an element whose register is not known at compile time.
    __device__ void one(int i, K& key, unsigned& at) const {
        at = index(i);  // read again, normally from the L1: registers cannot be indexed
        key = at == NOBODY ? 0 : to_key<T>(x[(at ^ tie) - begin], sense);
    }
    /// Makes the compiler recompute keys and indices where they are used, which takes fewer registers than keeping them.
    __device__ void forget() {
        asm volatile("" : "+r"(first));
#pragma unroll
        for (int u = 0; u < U; ++u) asm volatile("" : "+r"(v[u].x), "+r"(v[u].y), "+r"(v[u].z), "+r"(v[u].w));
    }
    __device__ K key(int i) const { return to_key<T>(bits(i), sense); }
    /// The index in the row; NOBODY for padding.
    __device__ unsigned index(int i) const {
        const unsigned p = first + i / N * THREADS * N + i % N;
        return p < count ? (p + begin) ^ tie : NOBODY;
    }
};

/// Entries written by another launch.
template <typename T, int THREADS>
struct FromLists {
    static constexpr int ITEMS = SELECT_ITEMS;
    using K = key_of<T>;
    const K* keys;
    const unsigned* indices;
    unsigned begin, end;
    K v[ITEMS];
    unsigned at[ITEMS];

    __device__ void fetch(unsigned round) {
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const unsigned p = begin + (round * ITEMS + i) * THREADS + threadIdx.x;
            v[i] = p < end ? keys[p] : 0, at[i] = p < end ? indices[p] : NOBODY;
        }
    }
    __device__ void forget() { }
    __device__ K key(int i) const { return v[i]; }
    __device__ unsigned index(int i) const { return at[i]; }
    __device__ unsigned near(K key) const {
        unsigned found = 0;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) found |= static_cast<unsigned>(v[i] >= key) << i;
        return found;
    }
    __device__ void one(int i, K& key, unsigned& index) const { key = picked<ITEMS>(v, i), index = picked<ITEMS>(at, i); }
};

extern __shared__ __align__(16) unsigned char selecting_memory[];

/// A threshold that at least k elements of an iteration reach, k <= THREADS: the k-th largest of the threads' maxima. `shared` has room for
/// THREADS.
template <typename K, int THREADS, typename From>
__device__ K first_bar(const From& now, unsigned k, K* shared) {
    constexpr int PACK = 16 / sizeof(K);
    struct alignas(16) Pack { K v[PACK]; };
    K most = 0;
#pragma unroll
    for (int i = 0; i < From::ITEMS; ++i) most = now.index(i) != NOBODY && now.key(i) > most ? now.key(i) : most;
    shared[threadIdx.x] = most;
    __syncthreads();
    unsigned rank = 0;  // threads whose maximum is larger, or equal and of a lower thread
#pragma unroll 2
    for (unsigned t = 0; t < THREADS; t += PACK) {
        const Pack p = *reinterpret_cast<const Pack*>(shared + t);
#pragma unroll
        for (int j = 0; j < PACK; ++j) rank += before(p.v[j], t + j, most, threadIdx.x);
    }
    __syncthreads();
    if (rank == k - 1) shared[0] = most;
    __syncthreads();
    const K bar = shared[0];
    __syncthreads();
    return bar;
}

/// The first k of `from`, unordered, at the front of `keys` and `indices`; returns their number. LOOSE: a few more than k, at most PLACED.
template <typename T, int THREADS, bool LOOSE, typename From>
__device__ unsigned select(From from, unsigned rounds, unsigned k, unsigned capacity, int index_bits, key_of<T>* keys, unsigned* indices,
    Selecting& s) {
    using K = key_of<T>;
    constexpr unsigned ROUND = THREADS * From::ITEMS;
    constexpr int BITS = key_bits<T>;
    K key = 0;
    unsigned index = NOBODY, held = 0;  // the entry that an element must precede to be kept; the number of entries so far
    if (threadIdx.x < 3) s.added[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll 1
    for (unsigned next = 0; next <= rounds; ++next) {
        From now = from;
        if (next < rounds) from.fetch(next);  // in flight while this iteration is processed
        if (next == 0) continue;
        const unsigned round = next - 1;
        if (round == 0 && k <= THREADS) key = first_bar<K, THREADS>(now, k, keys), index = NOBODY;
        unsigned near = now.near(key);
        if (!__any_sync(~0u, __popc(near) > 2)) {  // most iterations: few elements are kept
            while (near != 0) {
                K v;
                unsigned at;
                now.one(__ffs(near) - 1, v, at);
                near &= near - 1;
                if (at == NOBODY || !before(v, at, key, index)) continue;
                const unsigned to = held + atomicAdd(&s.added[round % 3], 1u);
                keys[to] = v, indices[to] = at;
            }
        } else {
            now.forget();
            unsigned kept = 0;
#pragma unroll
            for (int i = 0; i < From::ITEMS; ++i) {
                const unsigned at = now.index(i);
                kept |= static_cast<unsigned>(at != NOBODY && before(now.key(i), at, key, index)) << i;
            }
            const unsigned lane = threadIdx.x % 32, mine = __popc(kept);
            unsigned upto = mine;
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                const unsigned v = __shfl_up_sync(~0u, upto, step);
                if (lane >= step) upto += v;
            }
            unsigned to = 0;
            if (lane == 31 && upto != 0) to = atomicAdd(&s.added[round % 3], upto);
            to = held + __shfl_sync(~0u, to, 31) + upto - mine;
            now.forget();
#pragma unroll
            for (int i = 0; i < From::ITEMS; ++i) {
                if (kept >> i & 1) keys[to] = now.key(i), indices[to] = now.index(i), ++to;
            }
        }
        __syncthreads();
        held += s.added[round % 3];
        if (threadIdx.x == 0) s.added[(round + 2) % 3] = 0;  // read by all before this barrier, added to after the next
        if (LOOSE && next == rounds && held <= PLACED) break;
        if (held > k && (held + ROUND > capacity || next == rounds || (held > 2 * k && (next == 4 || next == 32 || next == 256)))) {
            keep_first<K, BITS, THREADS>(keys, indices, held, k, index_bits, s, key, index);
            held = k;
        }
    }
    return held;
}

/// Writes the first `held` of a row, of k requested, as results.
template <typename T, int THREADS>
__device__ void write_results(const Results<T>& results, key_of<T>* keys, unsigned* at, unsigned held, unsigned k) {
    if (held <= PLACED) {
        place_entries<key_of<T>, THREADS>(keys, at, held, [&](unsigned place, key_of<T> key, unsigned index) {
            if (place < k) results.put(place, key, index);
        });
        for (unsigned i = held + threadIdx.x; i < k; i += THREADS) results.none(i);
        return;
    }
    if (results.mask == nullptr && results.count == 1 && k > 1) {  // only the k-th is wanted: the last of them
        if (held == k && results.first == k - 1) {
            last_entry<key_of<T>, THREADS>(keys, at, held);
            if (threadIdx.x == 0) results.put(k - 1, keys[0], at[0]);
        } else if (threadIdx.x == 0) {
            results.none(k - 1);
        }
        return;
    }
    if (results.mask == nullptr && k > 1) sort_entries<key_of<T>, THREADS>(keys, at, held);
    for (unsigned i = threadIdx.x; i < k; i += THREADS) {
        if (i < held) results.put(i, keys[i], at[i]);
        else results.none(i);
    }
}

/// Like write_results, to a list of k entries for another launch.
template <typename K, int THREADS>
__device__ void write_list(K* keys, unsigned* at, unsigned held, unsigned k, K* __restrict__ list_keys,
    unsigned* __restrict__ list_indices) {
    if (held > k) {
        place_entries<K, THREADS>(keys, at, held, [&](unsigned place, K key, unsigned index) {
            if (place < k) list_keys[place] = key, list_indices[place] = index;
        });
        return;
    }
    for (unsigned i = threadIdx.x; i < k; i += THREADS) list_keys[i] = i < held ? keys[i] : 0, list_indices[i] = i < held ? at[i] : NOBODY;
}

// Threads resident on a multiprocessor. Before sm_90 the compiler uses more registers: with the 96 that 640 threads leave, it spills.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int RESIDENT = 512;
#else
constexpr int RESIDENT = 640;
#endif
