// Elements as unsigned keys in the order of their values: the element that is first in order has the largest key. docs/formats.md, "Floats in order, by their
// bits"
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
__device__ inline unsigned long long last_value<long long>(unsigned sense) { return sense & SMALLEST_FIRST ? 0x7fffffffffffffffull : 0x8000000000000000ull; }

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

/// Where results are written. Of an ordered row, places `first` to `first + count`, as values and indices [rows, count]; or (`mask` present) a mark in [rows,
/// n] at each selected element.
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
