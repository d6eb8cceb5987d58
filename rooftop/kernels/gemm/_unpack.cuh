// Unpacks codes of a low-bit weight (rooftop/formats/packed.py) into the registers of operand A of mma.m16n8k16 in bf16 or f16, exactly.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int INT8 = 0, INT4 = 1, INT2 = 2, E4M3 = 3, E5M2 = 4, E3M2 = 5, E2M3 = 6, E2M1 = 7;  // the order of FORMATS in _lowbit_formats.py

template <int F>
struct Code {
    static constexpr bool INT = F <= INT2;
    static constexpr int BITS = F == INT8 || F == E4M3 || F == E5M2 ? 8 : F == E3M2 || F == E2M3 ? 6 : F == INT2 ? 2 : 4;
    static constexpr int MANTISSA = F == E4M3 || F == E2M3 ? 3 : F == E2M1 ? 1 : 2;
    static constexpr int BIAS = F == E4M3 ? 7 : F == E5M2 ? 15 : F == E3M2 ? 3 : 1;
    static constexpr int MIDDLE = 1 << (BITS - 1);  // of int formats: the zero point if none is given
    static constexpr int LOADS = BITS == 6 ? 3 : BITS / 2;  // 16-byte loads a lane for a block of 128 columns
};

template <typename T>
struct Pair;
template <>
struct Pair<__half> {
    using Two = __half2;
    static constexpr int MANTISSA = 10, BIAS = 15;
};
template <>
struct Pair<__nv_bfloat16> {
    using Two = __nv_bfloat162;
    static constexpr int MANTISSA = 7, BIAS = 127;
};

template <typename Two>
__device__ inline Two as_two(unsigned bits) { return *reinterpret_cast<Two*>(&bits); }
template <typename Two>
__device__ inline unsigned as_bits(Two two) { return *reinterpret_cast<unsigned*>(&two); }

/// Two 16-bit numbers in a register: a - b and a * b, rounded to nearest. With the operands used below both are exact.
template <typename T>
__device__ inline unsigned less(unsigned a, unsigned b) {
    using Two = typename Pair<T>::Two;
    return as_bits(__hsub2(as_two<Two>(a), as_two<Two>(b)));
}
template <typename T>
__device__ inline unsigned times(unsigned a, unsigned b) {
    using Two = typename Pair<T>::Two;
    return as_bits(__hmul2(as_two<Two>(a), as_two<Two>(b)));
}

/// (a & mask) | or_ in one lop3 instruction: the compiler makes two if both are constants.
__device__ inline unsigned masked(unsigned a, unsigned mask, unsigned or_) {
    unsigned d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(mask), "r"(or_));
    return d;
}

/// Field q of B bits in both halves of a plane's words; higher bits are not cleared.
template <int B>
__device__ inline unsigned field(const unsigned* words, int q) { return words[q / (16 / B)] >> (B * (q % (16 / B))); }

/// Pair q = 4 step + r of a lane's share of a block of 128 columns. Int formats: u - MIDDLE; float formats: the value. `words`: the lane's
/// words, plane by plane.
template <typename T, int F>
__device__ inline unsigned pair_of(const unsigned* words, int q) {
    using C = Code<F>;
    constexpr bool HALF = Pair<T>::MANTISSA == 10;
    if constexpr (F == INT8) {
        const unsigned u = field<8>(words, q);
        if constexpr (HALF) return less<T>(masked(u, 0x00ff00ffu, 0x64006400u), 0x64806480u);     // 1024 + u - 1152
        // 128 + the low seven bits, less 128 or 256
        else return less<T>(masked(u, 0x007f007fu, 0x43004300u), masked(~u, 0x00800080u, 0x43004300u));
    } else if constexpr (C::INT) {
        const unsigned u = field<C::BITS>(words, q), mask = ((1u << C::BITS) - 1) * 0x10001u;
        if constexpr (HALF) return less<T>(masked(u, mask, 0x64006400u), 0x64006400u + C::MIDDLE * 0x10001u);
        else return less<T>(masked(u, mask, 0x43004300u), 0x43004300u + C::MIDDLE * 0x10001u);
    } else {
        unsigned u;
        if constexpr (C::BITS == 6) u = (field<4>(words, q) & 0x000f000fu) | (field<2>(words + 8, q) & 0x00030003u) << 4;
        else u = field<C::BITS>(words, q);
        // Sign and magnitude bits are moved to their positions in T; a multiplication by a power of two then corrects the exponent's bias.
        // Subnormal numbers become right too.
        constexpr unsigned SIGN = (1u << (C::BITS - 1)) * 0x10001u, SIZE = ((1u << (C::BITS - 1)) - 1) * 0x10001u;
        constexpr int UP = Pair<T>::MANTISSA - C::MANTISSA, BY = Pair<T>::BIAS - C::BIAS;
        const unsigned placed = (u & SIGN) << (16 - C::BITS) | (u & SIZE) << UP;
        if constexpr (BY == 0) return placed;
        else return times<T>(placed, (static_cast<unsigned>(BY + Pair<T>::BIAS) << Pair<T>::MANTISSA) * 0x10001u);
    }
}

__device__ inline float scale_value(float s) { return s; }
__device__ inline float scale_value(__half s) { return __half2float(s); }
__device__ inline float scale_value(__nv_bfloat16 s) { return __bfloat162float(s); }
// e8m0
__device__ inline float scale_value(unsigned char e) { return __uint_as_float(e == 0 ? 1u << 22 : static_cast<unsigned>(e) << 23); }
__device__ inline float zero_value(unsigned char z) { return static_cast<float>(z); }
template <typename Z>
__device__ inline float zero_value(Z z) { return scale_value(z); }

/// c += a b of m16n8k16, sums in float32.
__device__ inline void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, const __half*) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, const __nv_bfloat16*) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
