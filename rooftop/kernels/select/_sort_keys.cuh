// Elements as unsigned keys in the order of their values: the element that is first in order has the largest key. docs/formats.md, "Floats
// in order, by their bits"
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

/// The flags of an order: bits of the argument `sense` of all kernels that sort or select.
enum Sense : unsigned { SMALLEST_FIRST = 1, NAN_SMALLEST = 2 };

template <typename B, B SIGN, B INFINITE>
struct FloatOrder {  // INFINITE: the bits of +infinity
    using Bits = B;
    static constexpr B ONES = static_cast<B>(SIGN | (SIGN - 1));
    static constexpr bool FLOAT = true;
    /// Monotonic: larger for larger numbers; -0 equals +0; every NaN is above all numbers or (`low`) below them.
    template <typename K>
    __device__ static K up(B b, bool low) {
        const K size = b & (SIGN - 1), turned = b & SIGN ? ONES : SIGN;  // selections, not branches: this is in the inner loops
        K key = static_cast<K>(b) ^ turned;
        key = size == 0 ? static_cast<K>(SIGN) : key;
        return size > INFINITE ? (low ? K(0) : static_cast<K>(ONES)) : key;
    }
    template <typename K>
    __device__ static B down(K key) { return key & SIGN ? static_cast<B>(key ^ SIGN) : static_cast<B>(~key); }
    /// Whether several bit patterns share this key, so that the key does not determine the element: zeros and NaN.
    template <typename K>
    __device__ static bool shared(K key) { return key == SIGN || key == 0 || key == ONES; }
};

template <typename B, B SIGN>
struct WholeOrder {
    using Bits = B;
    static constexpr B ONES = static_cast<B>(SIGN | (SIGN - 1));
    static constexpr bool FLOAT = false;
    template <typename K>
    __device__ static K up(B b, bool) { return b ^ SIGN; }
    template <typename K>
    __device__ static B down(K key) { return key ^ SIGN; }
    template <typename K>
    __device__ static bool shared(K) { return false; }
};

template <typename T>
struct Order;
template <>
struct Order<float> : FloatOrder<unsigned, 0x80000000u, 0x7f800000u> { using Key = unsigned; };
template <>
struct Order<__half> : FloatOrder<unsigned short, 0x8000, 0x7c00> { using Key = unsigned; };
template <>
struct Order<__nv_bfloat16> : FloatOrder<unsigned short, 0x8000, 0x7f80> { using Key = unsigned; };
template <>
struct Order<int> : WholeOrder<unsigned, 0x80000000u> { using Key = unsigned; };
template <>
struct Order<long long> : WholeOrder<unsigned long long, 0x8000000000000000ull> { using Key = unsigned long long; };

template <typename T>
using key_of = typename Order<T>::Key;
template <typename T>
using bits_of = typename Order<T>::Bits;

template <typename T>
__device__ float number(bits_of<T> b) {
    if constexpr (sizeof(T) == 4) return __uint_as_float(b);
    else return static_cast<float>(*reinterpret_cast<const T*>(&b));
}

template <typename T>
constexpr int key_bits = 8 * sizeof(bits_of<T>);

template <typename T>
__device__ key_of<T> to_key(bits_of<T> b, unsigned sense) {
    return Order<T>::template up<key_of<T>>(b, sense & NAN_SMALLEST) ^ (sense & SMALLEST_FIRST ? Order<T>::ONES : 0);
}

/// The element of a key; `at` is its address, read only if the key does not determine the element.
template <typename T>
__device__ bits_of<T> from_key(key_of<T> key, unsigned sense, const bits_of<T>* at) {
    if (sense & SMALLEST_FIRST) key ^= Order<T>::ONES;
    return Order<T>::shared(key) ? *at : Order<T>::down(key);
}

/// The padding of a row with too few elements: the value that is last in order (infinities of floats).
template <typename T>
__device__ bits_of<T> last_value(unsigned sense);
template <>
__device__ inline unsigned last_value<float>(unsigned sense) { return sense & SMALLEST_FIRST ? 0x7f800000u : 0xff800000u; }
template <>
__device__ inline unsigned short last_value<__half>(unsigned sense) { return sense & SMALLEST_FIRST ? 0x7c00 : 0xfc00; }
template <>
__device__ inline unsigned short last_value<__nv_bfloat16>(unsigned sense) { return sense & SMALLEST_FIRST ? 0x7f80 : 0xff80; }
template <>
__device__ inline unsigned last_value<int>(unsigned sense) { return sense & SMALLEST_FIRST ? 0x7fffffffu : 0x80000000u; }
template <>
__device__ inline unsigned long long last_value<long long>(unsigned sense) { return sense & SMALLEST_FIRST ? 0x7fffffffffffffffull
    : 0x8000000000000000ull; }

constexpr unsigned NOBODY = 0xffffffffu;  // the index of a padding entry; indices of elements are below 2^31

/// Entries are ordered by key, the largest first, then by index, the lowest first. Only padding entries can be equal.
template <typename K>
__device__ bool before(K a, unsigned ia, K b, unsigned ib) { return a > b || (a == b && ia < ib); }

/// The valid length of a row: `lengths` holds integers of 32 or (wide) 64 bits, clamped to 0 to n; null: n.
__device__ inline unsigned length_of(const void* lengths, bool wide, long long row, unsigned n) {
    if (lengths == nullptr) return n;
    const long long given = wide ? static_cast<const long long*>(lengths)[row] : static_cast<const int*>(lengths)[row];
    return static_cast<unsigned>(given < 0 ? 0 : given > n ? n : given);
}

/// Where results are written. Of an ordered row, places `first` to `first + count`, as values and indices [rows, count]; or (`mask`
/// present) a mark in [rows, n] at each selected element.
template <typename T>
struct Results {
    const bits_of<T>* x;  // the row
    bits_of<T>* values;
    long long* indices;
    unsigned char* mask;
    long long row;
    unsigned n, first, count, sense, tie;
    bool marks;

    __device__ void put(unsigned place, key_of<T> key, unsigned index) const {
        if (place - first >= count) return;
        index ^= tie;
        if (mask != nullptr) {
            mask[row * n + index] = marks;
            return;
        }
        const long long at = row * count + (place - first);
        if (values != nullptr) values[at] = from_key<T>(key, sense, x + index);
        indices[at] = index;
    }
    /// A place past the row's length.
    __device__ void none(unsigned place) const {
        if (mask != nullptr || place - first >= count) return;
        const long long at = row * count + (place - first);
        if (values != nullptr) values[at] = last_value<T>(sense);
        indices[at] = -1;
    }
    /// A place past the row's length whose present value stays.
    __device__ void rest(unsigned place) const {
        if (place - first >= count) return;
        const long long at = row * count + (place - first);
        if (values != nullptr) values[at] = x[place];
        indices[at] = place;
    }
};

// Lists of entries (a key and an index) in shared memory: sorting by a bitonic network whose short steps work in registers, and the last
// entry of a list.

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
            for (int j = 0; j < E * static_cast<int>(sizeof(V)) / 16; ++j) reinterpret_cast<uint4*>(to)[j] =
                reinterpret_cast<const uint4*>(from)[j];
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
                // whether this place takes the entry that is first in order
                const bool mine_first = ((place & size) == 0) == ((place & step) == 0);
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

/// Sorts n entries by counting: each thread counts the entries before its own and calls `put(place, key, index)`. n comparisons an entry,
/// for lists no longer than a block has threads. The arrays start on 16 bytes and have room for the next multiple of 4 of n.
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

/// Sorts the entries in place by a bitonic network: each warp sorts 32 E neighbours in registers, longer steps work in shared memory. The
/// arrays have room for the next power of two of n, at least 32 E.
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

/// Sorts the entries in place. The arrays start on 16 bytes and have room for the next power of two of n, at least 64 entries, and 256 if n
/// > 64.
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

// Element number i of a pack of 16 bytes, by selections: registers cannot be indexed.

template <typename B>
__device__ B picked_bits(const uint4& v, unsigned j) {
    if constexpr (sizeof(B) == 8) {
        const unsigned low = j ? v.z : v.x, high = j ? v.w : v.y;
        return static_cast<B>(high) << 32 | low;
    } else {
        const unsigned w = sizeof(B) == 4 ? j : j / 2, a = w & 1 ? v.y : v.x, b = w & 1 ? v.w : v.z, word = w & 2 ? b : a;
        return sizeof(B) == 4 ? static_cast<B>(word) : static_cast<B>(j & 1 ? word >> 16 : word);
    }
}
