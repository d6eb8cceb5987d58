// The codec `planes`: 8 bits of each value are coded by rANS (rooftop/formats/rans.py), the rest is kept as planes of bytes. A warp has a
// chunk of 8192 values; in group g lane l has values 128 g + 4 l to 128 g + 4 l + 3, of which number j is coded in step 4 g + j.
#pragma once
#include "_elements.cuh"

// STREAM: the largest number of 16-bit words of a chunk that is stored compressed
constexpr int CHUNK = 8192, GROUPS = CHUNK / 128, STREAM = 4096;
constexpr unsigned LOWEST = 1u << 16;  // the smallest rANS state

template <int F>
struct Split {
    using Bits = typename Element<F>::Bits;
    static constexpr int BYTES = Element<F>::BYTES, SHIFT = F == F64 ? 52 : F == F32 ? 23 : F == F16 || F == BF16 ? 7 : 8 * (BYTES - 1);
    static constexpr bool TOP = SHIFT + 8 == 8 * BYTES;  // there are no bits above the 8 coded ones
    static constexpr Bits BELOW = static_cast<Bits>((static_cast<Bits>(1) << SHIFT) - 1);

    __device__ static unsigned symbol(Bits b) { return static_cast<unsigned>(b >> SHIFT) & 255; }
    __device__ static Bits rest(Bits b) { return TOP ? b & BELOW
        : (b & BELOW) | static_cast<Bits>(static_cast<Bits>(b >> (TOP ? 0 : SHIFT + 8)) << SHIFT); }
    __device__ static Bits whole(unsigned symbol, Bits rest) {
        Bits b = (rest & BELOW) | static_cast<Bits>(static_cast<Bits>(symbol) << SHIFT);
        if (!TOP) b |= static_cast<Bits>(static_cast<Bits>(rest >> SHIFT) << (TOP ? 0 : SHIFT + 8));
        return b;
    }
};

/// Bytes of a value in plane k of the kept bits, and the lowest bit of the plane. 3 kept bytes are planes of 2 + 1, 7 are 4 + 2 + 1.
constexpr int plane_bytes(int bytes, int k) { return bytes == 2 ? 1 : bytes == 4 ? 2 - k : 4 >> k; }
constexpr int plane_low(int bytes, int k) { return bytes == 2 || k == 0 ? 0 : bytes == 4 ? 16 : k == 1 ? 32 : 48; }
constexpr int plane_count(int bytes) { return bytes == 1 ? 0 : bytes == 2 ? 1 : bytes == 4 ? 2 : 3; }
__device__ inline int words_for(int values, int bytes) { return (values * bytes + 3) / 4; }
__device__ inline int kept_words(int values, int bytes) {
    int words = 0;
    for (int k = 0; k < plane_count(bytes); ++k) words += words_for(values, plane_bytes(bytes, k));
    return words;
}

template <int BYTES>
struct __align__(BYTES == 8 ? 16 : 4 * BYTES) Pack {
    typename Unsigned<BYTES>::type v[4];
};

/// Values `at` to `at` + 3 of `values`, 0 past its end. `vectors`: four values are one aligned access.
template <int BYTES>
__device__ Pack<BYTES> load_four(const typename Unsigned<BYTES>::type* x, int at, int values, bool vectors) {
    Pack<BYTES> p;
    if (vectors && at + 4 <= values) return *reinterpret_cast<const Pack<BYTES>*>(x + at);
#pragma unroll
    for (int j = 0; j < 4; ++j) p.v[j] = at + j < values ? x[at + j] : 0;
    return p;
}

/// SIZE bytes from bit LOW on of each of four values, as SIZE words.
template <int SIZE, int LOW, int BYTES>
__device__ void packed(const Pack<BYTES>& p, unsigned (&w)[SIZE]) {
#pragma unroll
    for (int j = 0; j < SIZE; ++j) {
        w[j] = 0;
#pragma unroll
        for (int q = 0; q < 4 / SIZE; ++q) {
            const unsigned part = static_cast<unsigned>(p.v[j * 4 / SIZE + q] >> LOW);
            w[j] |= SIZE == 4 ? part : (part & ((1u << 8 * (SIZE % 4)) - 1)) << 8 * SIZE * q;
        }
    }
}
/// The inverse: inserts them into four values.
template <int SIZE, int LOW, int BYTES>
__device__ void unpacked(Pack<BYTES>& p, const unsigned (&w)[SIZE]) {
    using Bits = typename Unsigned<BYTES>::type;
#pragma unroll
    for (int j = 0; j < SIZE; ++j)
#pragma unroll
        for (int q = 0; q < 4 / SIZE; ++q)
            p.v[j * 4 / SIZE + q] |= static_cast<Bits>(static_cast<Bits>(SIZE == 4 ? w[j]
                : w[j] >> 8 * SIZE * q & ((1u << 8 * (SIZE % 4)) - 1)) << LOW);
}

template <int K>
struct Number {
    static constexpr int value = K;
};
