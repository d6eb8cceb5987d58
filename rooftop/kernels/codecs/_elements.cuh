// Elements of the codecs: values to whole numbers and back, as rooftop/formats/error_bounded.py defines them to the bit. Every product and
// sum is a single IEEE operation (__fmul_rn, ...), so that no compiler fuses two of them.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

enum { F64 = 1, F32, F16, BF16, E4M3, E5M2, I64, I32, I16, I8, U64, U32, U16, U8, BOOL };  // the codes of the container

template <int BYTES> struct Unsigned;
template <> struct Unsigned<1> { using type = unsigned char; };
template <> struct Unsigned<2> { using type = unsigned short; };
template <> struct Unsigned<4> { using type = unsigned; };
template <> struct Unsigned<8> { using type = unsigned long long; };

template <int F>
struct Element {
    static constexpr int BYTES = F == F64 || F == I64 || F == U64 ? 8 : F == F32 || F == I32 || F == U32 ? 4 : F == F16 || F == BF16
        || F == I16 || F == U16 ? 2 : 1;
    static constexpr bool FLOATING = F <= E5M2, SIGNED = F >= I64 && F <= I8, WIDE = BYTES == 8;
    static constexpr int MANTISSA = F == F64 ? 52 : F == F32 ? 23 : F == F16 ? 10 : F == BF16 ? 7 : F == E4M3 ? 3 : 2;
    using Bits = typename Unsigned<BYTES>::type;
    using Code = typename Unsigned<WIDE ? 8 : 4>::type;  // the integer type of the differences, which are taken modulo 2^32 or 2^64
    static constexpr Bits TOP = static_cast<Bits>(static_cast<Bits>(1) << (8 * BYTES - 1));
};

// -- one rounding each -------------------------------------------------------------------------------------------

__device__ inline float times(float a, float b) { return __fmul_rn(a, b); }
__device__ inline double times(double a, double b) { return __dmul_rn(a, b); }
__device__ inline float plus(float a, float b) { return __fadd_rn(a, b); }
__device__ inline double plus(double a, double b) { return __dadd_rn(a, b); }
__device__ inline float size_of(float a) { return fabsf(a); }
__device__ inline double size_of(double a) { return fabs(a); }
__device__ inline float whole(float a) { return rintf(a); }
__device__ inline double whole(double a) { return rint(a); }

/// The constants that follow from an error bound. Floats: E, step and 1 / step; integers: E and step.
template <int F, bool FLOATING = Element<F>::FLOATING, bool WIDE = Element<F>::WIDE>
struct Step;

template <int F>
struct Step<F, true, false> {
    float e, step, inverse;
    __device__ explicit Step(double bound)
        : e(__double2float_rd(fmin(bound, 0x1p126))) { step = times(e, 2.0f), inverse = __fdiv_rn(1.0f, step); }
    static constexpr float LIMIT = 0x1p30f;
    using Number = float;
};
template <int F>
struct Step<F, true, true> {
    double e, step, inverse;
    __device__ explicit Step(double bound) : e(fmin(bound, 0x1p1022)) { step = times(e, 2.0), inverse = 1.0 / step; }
    static constexpr double LIMIT = 0x1p62;
    using Number = double;
};
template <int F, bool WIDE>
struct Step<F, false, WIDE> {
    long long e, step;
    __device__ explicit Step(double bound) {
        constexpr long long MOST = (1ll << (8 * Element<F>::BYTES - 2)) - 1;
        e = bound >= static_cast<double>(MOST) ? MOST : bound > 0 ? static_cast<long long>(bound) : 0, step = 2 * e + 1;
    }
};

template <int F>
__device__ typename Step<F>::Number number(typename Element<F>::Bits b) {
    if constexpr (F == F64) return __longlong_as_double(static_cast<long long>(b));
    else if constexpr (F == F32) return __uint_as_float(b);
    else if constexpr (F == F16) return __half2float(__ushort_as_half(b));
    else if constexpr (F == BF16) return __uint_as_float(static_cast<unsigned>(b) << 16);
    else return __half2float(__half(__nv_cvt_fp8_to_halfraw(b, F == E4M3 ? __NV_E4M3 : __NV_E5M2)));
}

template <int F>
__device__ typename Element<F>::Bits rounded(typename Step<F>::Number v) {
    if constexpr (F == F64) return static_cast<unsigned long long>(__double_as_longlong(v));
    else if constexpr (F == F32) return __float_as_uint(v);
    else if constexpr (F == F16) return __half_as_ushort(__float2half_rn(v));
    else if constexpr (F == BF16) return __bfloat16_as_ushort(__float2bfloat16_rn(v));
    else return __nv_cvt_float_to_fp8(v, __NV_NOSAT, F == E4M3 ? __NV_E4M3 : __NV_E5M2);
}

/// Integers in an order-preserving signed form: u64 is shifted by 2^63.
template <int F>
__device__ long long integer(typename Element<F>::Bits b) {
    using E = Element<F>;
    if constexpr (F == U64) return static_cast<long long>(b ^ E::TOP);
    else if constexpr (E::SIGNED) return static_cast<long long>(static_cast<unsigned long long>(b) << (64 - 8 * E::BYTES)) >> (64 - 8 * E::BYTES);
    else return static_cast<long long>(b);
}

/// The code of a value. Returns true if the value has none: it is an exception, and its code is 0.
template <int F>
__device__ bool quantised(typename Element<F>::Bits bits, const Step<F>& s, typename Element<F>::Code& code) {
    using E = Element<F>;
    if constexpr (E::FLOATING) {
        using A = typename Step<F>::Number;
        const A x = number<F>(bits);
        A k = whole(times(x, s.inverse));
        A d = plus(x, -number<F>(rounded<F>(times(k, s.step))));
        if (size_of(d) > s.e) {
            k = plus(k, d < 0 ? A(-1) : A(1));
            d = plus(x, -number<F>(rounded<F>(times(k, s.step))));
        }
        const A size = size_of(d), steps = size_of(k);
        const typename E::Bits unsigned_bits = bits & static_cast<typename E::Bits>(~E::TOP);
        const bool good = (size < s.e || (size == s.e && steps != 1)) && steps < Step<F>::LIMIT
            && (unsigned_bits >> E::MANTISSA || bits == 0);
        if constexpr (E::WIDE) code = good ? static_cast<unsigned long long>(static_cast<long long>(k)) : 0;
        else code = good ? static_cast<unsigned>(static_cast<int>(k)) : 0;
        return !good;
    } else {
        const long long x = integer<F>(bits);
        long long k = x / s.step, rest = x % s.step;
        if (rest < 0) rest += s.step, --k;
        code = static_cast<typename E::Code>(k + (rest > s.e));
        return false;
    }
}

/// The bits of the value that a code stands for.
template <int F>
__device__ typename Element<F>::Bits dequantised(typename Element<F>::Code code, const Step<F>& s) {
    using E = Element<F>;
    if constexpr (E::FLOATING) {
        if constexpr (E::WIDE) return rounded<F>(times(static_cast<double>(static_cast<long long>(code)), s.step));
        else return rounded<F>(times(static_cast<float>(static_cast<int>(code)), s.step));
    } else {
        constexpr bool LOW = E::SIGNED || F == U64;
        constexpr long long MOST = LOW ? (1ull << (8 * E::BYTES - 1)) - 1 : (1ull << (8 * E::BYTES % 64)) - 1, LEAST = LOW ? -MOST - 1 : 0;
        const long long k = E::WIDE ? static_cast<long long>(code) : F == U32 ? static_cast<long long>(code)
            : static_cast<long long>(static_cast<int>(code));
        const long long x = k > MOST / s.step ? MOST : k < LEAST / s.step ? LEAST : k * s.step;
        return static_cast<typename E::Bits>(static_cast<unsigned long long>(x) ^ (F == U64 ? static_cast<unsigned long long>(E::TOP) : 0));
    }
}

/// A float's bits as an integer that is ordered as the floats are; integers unchanged.
template <int F>
__device__ typename Element<F>::Code ordered(typename Element<F>::Bits b) {
    using E = Element<F>;
    if constexpr (E::FLOATING) return static_cast<typename E::Bits>(b & E::TOP ? ~b : b | E::TOP);
    else if constexpr (E::SIGNED) return static_cast<typename E::Code>(integer<F>(b));
    else return b;
}
template <int F>
__device__ typename Element<F>::Bits unordered(typename Element<F>::Code code) {
    using E = Element<F>;
    const typename E::Bits b = static_cast<typename E::Bits>(code);
    if constexpr (E::FLOATING) return b & E::TOP ? b ^ E::TOP : static_cast<typename E::Bits>(~b);
    else return b;
}

// -- words -------------------------------------------------------------------------------------------------------

/// The contribution of a word to its chunk's checksum; `index` counts from 0 in the chunk.
__device__ inline unsigned mixed(unsigned word, unsigned index) {
    unsigned h = word + (index + 1) * 0x9E3779B9u;
    h ^= h >> 16, h *= 0x7FEB352Du;
    h ^= h >> 15, h *= 0x846CA68Bu;
    return h ^ h >> 16;
}

/// Transposes a 32 x 32 bit matrix. Lane i holds row i; afterwards lane p holds bit p of all rows, row i's in bit i.
__device__ inline unsigned transposed(unsigned v) {
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 16; j > 0; j /= 2) {
        // of the low halves
        const unsigned mask = j == 16 ? 0x0000FFFFu : j == 8 ? 0x00FF00FFu : j == 4 ? 0x0F0F0F0Fu : j == 2 ? 0x33333333u : 0x55555555u;
        const unsigned other = __shfl_xor_sync(~0u, v, j);
        v = lane & j ? (v & ~mask) | ((other >> j) & mask) : (v & mask) | ((other << j) & ~mask);
    }
    return v;
}
