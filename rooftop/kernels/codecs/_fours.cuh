// Four values of a lane as whole words, for the kernels of `planes`: one access of memory for the four, and of types of 2 bytes (bfloat16,
// float16) two values at a time.
#pragma once
#include "_planes.cuh"

/// BYTES words hold four values of BYTES bytes.
template <int BYTES>
struct Four {
    unsigned w[BYTES];
};

/// Values `at` to `at` + 3 of x, which is aligned so that they are one access (two of 16 bytes for types of 8).
template <int BYTES>
__device__ Four<BYTES> load_whole(const typename Unsigned<BYTES>::type* x, int at) {
    Four<BYTES> f;
    if constexpr (BYTES == 1) {
        f.w[0] = *reinterpret_cast<const unsigned*>(x + at);
    } else if constexpr (BYTES == 2) {
        const uint2 v = *reinterpret_cast<const uint2*>(x + at);
        f.w[0] = v.x, f.w[1] = v.y;
    } else {
#pragma unroll
        for (int i = 0; i < BYTES / 4; ++i) {
            const uint4 v = reinterpret_cast<const uint4*>(x + at)[i];
            f.w[4 * i] = v.x, f.w[4 * i + 1] = v.y, f.w[4 * i + 2] = v.z, f.w[4 * i + 3] = v.w;
        }
    }
    return f;
}
template <int BYTES>
__device__ void store_whole(typename Unsigned<BYTES>::type* x, int at, const Four<BYTES>& f) {
    if constexpr (BYTES == 1) {
        __stcs(reinterpret_cast<unsigned*>(x + at), f.w[0]);
    } else if constexpr (BYTES == 2) {
        __stcs(reinterpret_cast<uint2*>(x + at), make_uint2(f.w[0], f.w[1]));
    } else {
#pragma unroll
        for (int i = 0; i < BYTES / 4; ++i)
            __stcs(reinterpret_cast<uint4*>(x + at) + i, make_uint4(f.w[4 * i], f.w[4 * i + 1], f.w[4 * i + 2], f.w[4 * i + 3]));
    }
}
/// The same of values that end at `values`, or are not aligned: 0 past the end.
template <int BYTES>
__device__ Four<BYTES> load_part(const typename Unsigned<BYTES>::type* x, int at, int values) {
    Four<BYTES> f{};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        if (at + j >= values) continue;
        if constexpr (BYTES == 8) f.w[2 * j] = static_cast<unsigned>(x[at + j]), f.w[2 * j + 1] = static_cast<unsigned>(x[at + j] >> 32);
        else f.w[j * BYTES / 4] |= static_cast<unsigned>(x[at + j]) << 8 * (j * BYTES % 4);
    }
    return f;
}
template <int BYTES>
__device__ void store_part(typename Unsigned<BYTES>::type* x, int at, int values, const Four<BYTES>& f) {
    using Bits = typename Unsigned<BYTES>::type;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        if (at + j >= values) continue;
        if constexpr (BYTES == 8) x[at + j] = f.w[2 * j] | static_cast<Bits>(f.w[2 * j + 1]) << 32;
        else x[at + j] = static_cast<Bits>(f.w[j * BYTES / 4] >> 8 * (j * BYTES % 4));
    }
}

/// The coded 8 bits of value j.
template <int F>
__device__ unsigned symbol_of(const Four<Split<F>::BYTES>& f, int j) {
    constexpr int BYTES = Split<F>::BYTES, SHIFT = Split<F>::SHIFT;
    if constexpr (BYTES == 8) return f.w[2 * j + 1] >> (SHIFT - 32) & 255;
    else return f.w[j * BYTES / 4] >> (SHIFT + 8 * (j * BYTES % 4)) & 255;
}

/// Plane K of the kept bits of the four values, as words.
template <int F, int K, int SIZE>
__device__ void kept_of(const Four<Split<F>::BYTES>& f, unsigned (&w)[SIZE]) {
    using S = Split<F>;
    if constexpr (S::BYTES == 2) {
        unsigned r[2];
#pragma unroll
        for (int i = 0; i < 2; ++i)  // bytes 0 and 2: the low 7 bits, and the sign above them
            r[i] = S::TOP ? f.w[i] : (f.w[i] & 0x007F007Fu) | (f.w[i] >> 8 & ~0x007F007Fu);
        w[0] = __byte_perm(r[0], r[1], 0x6420);
    } else {
        Pack<S::BYTES> p;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if constexpr (S::BYTES == 8)
                p.v[j] = S::rest(f.w[2 * j] | static_cast<typename S::Bits>(f.w[2 * j + 1]) << 32);
            else p.v[j] = S::rest(static_cast<typename S::Bits>(f.w[j]));
        }
        packed<SIZE, plane_low(S::BYTES, K)>(p, w);
    }
}

/// Four values of their coded bits, each the highest byte of one of `tops`, and their kept bits. `kept`: the words of all planes, one plane
/// after the other.
template <int F>
__device__ Four<Split<F>::BYTES> put_together(const unsigned (&tops)[4], const unsigned (&kept)[8]) {
    using S = Split<F>;
    Four<S::BYTES> f;
    if constexpr (S::BYTES == 1) {
        const unsigned low = __byte_perm(tops[0], tops[1], 0x0073), high = __byte_perm(tops[2], tops[3], 0x0073);
        f.w[0] = __byte_perm(low, high, 0x5410);
    } else if constexpr (S::BYTES == 2) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {  // each byte twice: of one copy the bits below the symbol are used, of the other the sign above it
            const unsigned both = __byte_perm(tops[2 * i], tops[2 * i + 1], 0x7733), rest = __byte_perm(kept[0], 0, i ? 0x3322 : 0x1100);
            const unsigned mask = 0x00FF00FFu << S::SHIFT;
            f.w[i] = (both << S::SHIFT & mask) | (rest & ~mask);
        }
    } else {
        Pack<S::BYTES> p{};
        const auto take = [&](auto number, int from) {
            constexpr int K = decltype(number)::value, SIZE = plane_bytes(S::BYTES, K);
            unsigned w[SIZE];
#pragma unroll
            for (int i = 0; i < SIZE; ++i) w[i] = kept[from + i];
            unpacked<SIZE, plane_low(S::BYTES, K)>(p, w);
        };
        take(Number<0>(), 0), take(Number<1>(), plane_bytes(S::BYTES, 0));
        if constexpr (S::BYTES == 8) take(Number<2>(), 6);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const typename S::Bits v = S::whole(tops[j] >> 24, p.v[j]);
            if constexpr (S::BYTES == 8) f.w[2 * j] = static_cast<unsigned>(v), f.w[2 * j + 1] = static_cast<unsigned>(v >> 32);
            else f.w[j] = v;
        }
    }
    return f;
}
