// Codes of 4, 6 and 8 bits and their scales. What they mean: rooftop/formats/number_formats.py; the arithmetic, bit for bit:
// rooftop/ops/quantize.py.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

constexpr int INT8 = 0, UINT8 = 1, INT4 = 2, UINT4 = 3, E4M3 = 4, E5M2 = 5, E3M2 = 6, E2M3 = 7, E2M1 = 8;
constexpr int SCALE_F32 = 0, SCALE_F16 = 1, SCALE_BF16 = 2, SCALE_E8M0 = 3, SCALE_E4M3 = 4;
constexpr int NEAREST = 0, STOCHASTIC = 1, TOWARD_ZERO = 2, DITHER = 3;

template <int F>
struct Format {
    static constexpr bool INT = F <= UINT4, SIGNED = F != UINT8 && F != UINT4;
    static constexpr int BITS = F <= UINT8 || F == E4M3 || F == E5M2 ? 8 : F == E3M2 || F == E2M3 ? 6 : 4;
    static constexpr int MANTISSA = F == E4M3 || F == E2M3 ? 3 : F == E2M1 ? 1 : 2;
    static constexpr int BIAS = F == E4M3 ? 7 : F == E5M2 ? 15 : F == E3M2 ? 3 : 1;
    static constexpr int TOP = F == E4M3 ? 8 : F == E5M2 ? 15 : F == E3M2 ? 4 : 2;  // exponent of the largest number
    static constexpr float MAX = F <= UINT8 ? 127 : F <= UINT4 ? 7 : F == E4M3 ? 448 : F == E5M2 ? 57344 : F == E3M2 ? 28 : F == E2M3
        ? 7.5f : 6;
    static constexpr bool NANS = F == E4M3 || F == E5M2, INFINITE = F == E5M2;
    static constexpr int STEPS = (1 << BITS) - 1;  // of the whole range of an int
    static constexpr int LOW = SIGNED ? -(1 << (BITS - 1)) : 0;  // its smallest code
    static constexpr int MIDDLE = SIGNED ? 0 : 1 << (BITS - 1);  // the zero point if the format is symmetric
    static constexpr unsigned MASK = (1u << BITS) - 1;
};

// -- scales

template <int S>
struct ScaleType {
    using Stored = unsigned char;
};
template <>
struct ScaleType<SCALE_F32> {
    using Stored = float;
};
template <>
struct ScaleType<SCALE_F16> {
    using Stored = __half;
};
template <>
struct ScaleType<SCALE_BF16> {
    using Stored = __nv_bfloat16;
};

template <int F>
__device__ unsigned float_code(float v, unsigned random, int rounding);

template <int S>
__device__ inline float load_scale(typename ScaleType<S>::Stored stored) {
    if constexpr (S == SCALE_E8M0) return __uint_as_float(stored == 0 ? 1u << 22 : static_cast<unsigned>(stored) << 23);
    else if constexpr (S == SCALE_E4M3) {
        const unsigned size = stored & 0x7f;
        const float value = size < 8 ? size * 0x1p-9f : size == 0x7f ? __uint_as_float(0x7fffffffu)
            : __uint_as_float((size << 20) + (120u << 23));
        return stored & 0x80 ? -value : value;
    } else return static_cast<float>(stored);
}

/// A scale as it is stored: rounded to its type, never zero or infinite. Float16's subnormal numbers have few bits: rounded up, so that no
/// value saturates.
template <int S>
__device__ inline typename ScaleType<S>::Stored store_scale(float s) {
    if constexpr (S == SCALE_F32) return fminf(fmaxf(s, 0x1p-126f), 3.4028234663852886e38f);
    else if constexpr (S == SCALE_F16) {
        const float held = fminf(fmaxf(s, 0x1p-24f), 65504.f);
        return held < 0x1p-14f ? __float2half_ru(held) : __float2half_rn(held);
    }
    else if constexpr (S == SCALE_BF16) return __float2bfloat16_rn(fminf(fmaxf(s, 0x1p-126f), 3.3895313892515355e38f));
    else if constexpr (S == SCALE_E8M0) return static_cast<unsigned char>((__float_as_uint(fminf(fmaxf(s, 0x1p-127f), 0x1p127f))
        + 0x7fffffu) >> 23);
    else return static_cast<unsigned char>(float_code<E4M3>(fminf(fmaxf(s, 0x1p-6f), 448.f), 0, NEAREST));
}

/// The stored scale of a symmetric group, given its largest finite magnitude; `over`: the scale of the tensor, 1 if there is none.
template <int F, int S>
__device__ inline typename ScaleType<S>::Stored scale_of(float largest, const float* over) {
    if constexpr (S == SCALE_E8M0 && !Format<F>::INT) {
        const int e = static_cast<int>(__float_as_uint(largest) >> 23) - Format<F>::TOP;
        return static_cast<unsigned char>(min(max(e, 0), 254));
    } else {
        const float s = __fdiv_rn(largest, Format<F>::MAX);
        return store_scale<S>(over ? __fdiv_rn(s, *over) : s);
    }
}

template <int S>
__device__ inline float effective(typename ScaleType<S>::Stored stored, const float* over) {
    const float s = load_scale<S>(stored);
    return over ? fminf(fmaxf(__fmul_rn(s, *over), 0x1p-126f), 0x1p125f) : s;
}

/// A power of two that values are multiplied by in addition to the division, so that the following rounding takes fewer instructions;
/// exact.
template <int F, int ROUND>
__device__ constexpr float unit_of() {
    using X = Format<F>;
    if (X::INT) return ROUND == STOCHASTIC ? 65536.f : 1.f;
    if (ROUND != NEAREST) return 1.f;
    if (F == E2M1) return 2.f;
#if __CUDA_ARCH__ >= 890
    if (F == E2M3) return 0x1p-6f;   // its subnormal numbers then are e4m3's
    if (F == E3M2) return 0x1p-12f;  // and these e5m2's
#endif
    return 1.f;
}

/// Division by a scale, rounded to nearest as in IEEE: by the correctly rounded reciprocal and one correction step with the remainder
/// (Markstein 1990). Scales near the ends of the range, and their dividends, are first multiplied by a power of two, so that nothing
/// underflows or overflows: `careful`.
template <int F, int S, int ROUND>
struct DividedBy {
    static constexpr bool POWER = S == SCALE_E8M0;
    static constexpr float UNIT = unit_of<F, ROUND>();
    float s, part, lift;
    bool careful;
    DividedBy() = default;
    /// `most`: the largest magnitude of a dividend. `unclean`: there are infinities or NaN.
    __device__ DividedBy(float scale, float most, bool unclean) {
        lift = scale < 0x1p-60f ? 0x1p64f : scale > 0x1p100f ? 0x1p-32f : 1.f;
        careful = unclean || lift != 1.f || (S == SCALE_E4M3 && most > scale * 0x1p20f);
        s = scale * lift;
        part = POWER ? __uint_as_float((254u << 23) - __float_as_uint(s)) * UNIT : __frcp_rn(s) * UNIT;
        s *= 1.f / UNIT;
    }
    /// UNIT times the quotient.
    __device__ float operator()(float x) const {
        const float q = __fmul_rn(x, part);
        return POWER ? q : __fmaf_rn(__fmaf_rn(q, s, -x), -part, q);  // in this order -0 stays -0
    }
    /// The quotient of any dividend (also infinite or NaN) by any scale.
    __device__ float carefully(float x) const {
        const float y = x * lift, q = __fmul_rn(y, part);
        return (fabsf(q) < 0x1p100f ? (*this)(y) : q) * (1.f / UNIT);
    }
};

/// The zero point if the smallest value is -down and the scale is s.
template <int F>
__device__ inline int zero_point(float down, float s) {
    using X = Format<F>;
    const float t = fminf(fmaxf(__fdiv_rn(-down, s), -X::STEPS - 1.f), X::STEPS + 1.f);
    return min(max(X::LOW - __float2int_rn(t), X::LOW), X::LOW + X::STEPS);
}

// -- codes

/// Stochastic rounding. A magnitude, at most the format's largest, becomes an integer in units of 2^-24 of its code; random bits are added;
/// the code is the highest byte. With its exponent lowered so that the subnormal numbers of both formats start at the same place, a float32
/// counts in these units through all exponents.
template <int F>
__device__ inline unsigned raised(float size, unsigned random) {
    using X = Format<F>;
    return (__float_as_uint(__fmul_rn(size, __uint_as_float(static_cast<unsigned>(X::BIAS) << 23))) << (1 + X::MANTISSA)) + random;
}

template <int F>
__device__ inline unsigned float_code(float v, unsigned random, int rounding) {
    using X = Format<F>;
    constexpr unsigned LEAST = static_cast<unsigned>(128 - X::BIAS) << 23;
    const unsigned bits = __float_as_uint(v);
    const float size = fminf(fabsf(v), X::MAX);
    const unsigned e = max(__float_as_uint(size) & 0x7f800000u, LEAST);
    unsigned k;  // in units of the gap: what remains of an addition of the number whose last bit is that gap
    const unsigned at = e + (static_cast<unsigned>(23 - X::MANTISSA) << 23);
    const float sum = __fadd_rn(size, __uint_as_float(at));
    k = __float_as_uint(sum) - at;
    if (rounding == TOWARD_ZERO && __fsub_rn(sum, __uint_as_float(at)) > size) --k;
    k += (e - LEAST) >> (23 - X::MANTISSA);
    if (rounding == STOCHASTIC) k = raised<F>(size, random << 8 | 0x80) >> 24;
    unsigned code = k | (bits >> 31 << (X::BITS - 1));
    if (X::INFINITE && fabsf(v) == __uint_as_float(0x7f800000u)) code = 0x7c | bits >> 31 << 7;
    return v != v ? (X::NANS ? 0x7f : 0) : code;
}

/// The code of a value that is divided by its scale. zero: the zero point of an int; its codes are [least, most].
template <int F, int ROUND, bool SYMMETRIC>
__device__ inline unsigned code_of(float v, unsigned random, int zero) {
    using X = Format<F>;
    if constexpr (!X::INT) return float_code<F>(v, random, ROUND);
    else {
        const int least = SYMMETRIC ? -static_cast<int>(X::MAX) : X::LOW - zero,
            most = SYMMETRIC ? static_cast<int>(X::MAX) : X::LOW + X::STEPS - zero;
        int k;
        if (ROUND == STOCHASTIC) {
            const int t = __float2int_rn(__fmul_rn(v, 65536.f));
            k = (min(max(t, least * 65536), most * 65536) + static_cast<int>(random)) >> 16;
        } else {
            k = ROUND == TOWARD_ZERO ? __float2int_rz(v)
                : ROUND == DITHER    ? __float2int_rn(__fadd_rn(v, (static_cast<float>(random) + 0.5f) * 0x1p-16f - 0.5f))
                                     : __float2int_rn(v);
            k = min(max(k, least), most);
        }
        return static_cast<unsigned>(k + (SYMMETRIC ? X::MIDDLE : zero)) & X::MASK;
    }
}

/// The codes of V elements as words, lowest bits first, for every rounding, NaN, infinities and every scale. element(i) and random(i) give
/// two elements from
/// i on; by(i): the divisor of element i.
template <int F, int ROUND, bool SYMMETRIC, int V, typename Element, typename Random, typename Divided, typename Zero>
__device__ inline void encode(unsigned (&out)[(V * Format<F>::BITS + 31) / 32], Element element, Random random, Divided by, Zero zero) {
    constexpr int BITS = Format<F>::BITS;
#pragma unroll
    for (int i = 0; i < (V * BITS + 31) / 32; ++i) out[i] = 0;
#pragma unroll
    for (int i = 0; i < V; i += 2) {
        const float a = by(i).carefully(element(i)), b = by(i + 1).carefully(element(i + 1));
        const unsigned bits = ROUND == STOCHASTIC || ROUND == DITHER ? random(i) : 0;
        const unsigned pair = code_of<F, ROUND, SYMMETRIC>(a, bits & 0xffff, zero(i)) | code_of<F, ROUND, SYMMETRIC>(b, bits >> 16,
            zero(i + 1)) << BITS;
        const int bit = i * BITS;
        out[bit / 32] |= pair << (bit % 32);
        if (bit % 32 + 2 * BITS > 32) out[bit / 32 + 1] |= pair >> (32 - bit % 32);
    }
}

/// Stores the first `left` of V codes. `whole`: all of them, at an address that is a multiple of their bytes (of 4 for 12 bytes).
template <int BITS, int V, bool WHOLE>
__device__ inline void store_codes(unsigned char* place, unsigned (&out)[(V * BITS + 31) / 32], int left) {
    constexpr int BYTES = V * BITS / 8;
    if constexpr (WHOLE && BYTES == 16) __stcs(reinterpret_cast<uint4*>(place), make_uint4(out[0], out[1], out[2], out[3]));
    else if constexpr (WHOLE && BYTES == 8) __stcs(reinterpret_cast<uint2*>(place), make_uint2(out[0], out[1]));
    else if constexpr (WHOLE) {
#pragma unroll
        for (int i = 0; i < BYTES / 4; ++i) __stcs(reinterpret_cast<unsigned*>(place) + i, out[i]);
    } else {
        const int bytes = left >= V ? BYTES : (left * BITS + 7) / 8;
        if (left < V) {  // a last byte that is not full is padded with zeros
#pragma unroll
            for (int i = 0; i < (V * BITS + 31) / 32; ++i) {
                const int kept = left * BITS - 32 * i;
                out[i] = kept >= 32 ? out[i] : kept <= 0 ? 0 : out[i] & ((1u << kept) - 1);
            }
        }
#pragma unroll
        for (int i = 0; i < BYTES; ++i) {
            if (i < bytes) place[i] = static_cast<unsigned char>(out[i / 4] >> (i % 4 * 8));
        }
    }
}

template <int BITS, int V, bool WHOLE>
__device__ inline void load_codes(const unsigned char* place, unsigned (&in)[(V * BITS + 31) / 32], int left) {
    constexpr int BYTES = V * BITS / 8;
    if constexpr (WHOLE && BYTES == 16) {
        const uint4 v = __ldcs(reinterpret_cast<const uint4*>(place));
        in[0] = v.x, in[1] = v.y, in[2] = v.z, in[3] = v.w;
    } else if constexpr (WHOLE && BYTES == 8) {
        const uint2 v = __ldcs(reinterpret_cast<const uint2*>(place));
        in[0] = v.x, in[1] = v.y;
    } else if constexpr (WHOLE && BYTES == 2) in[0] = __ldcs(reinterpret_cast<const unsigned short*>(place));
    else if constexpr (WHOLE && BYTES == 3) in[0] = place[0] | place[1] << 8 | place[2] << 16;
    else if constexpr (WHOLE && BYTES == 6) {  // half of 12 aligned bytes
        const unsigned long long at = reinterpret_cast<unsigned long long>(place);
        const unsigned* words = reinterpret_cast<const unsigned*>(at & ~3ull);
        const unsigned low = __ldcs(words), high = __ldcs(words + 1), shift = (at & 2) * 8;
        in[0] = __funnelshift_r(low, high, shift), in[1] = high >> shift;
    } else if constexpr (WHOLE) {
#pragma unroll
        for (int i = 0; i < BYTES / 4; ++i) in[i] = __ldcs(reinterpret_cast<const unsigned*>(place) + i);
    } else {
        const int bytes = left >= V ? BYTES : (left * BITS + 7) / 8;
#pragma unroll
        for (int i = 0; i < (V * BITS + 31) / 32; ++i) in[i] = 0;
#pragma unroll
        for (int i = 0; i < BYTES; ++i) {
            if (i < bytes) in[i / 4] |= static_cast<unsigned>(place[i]) << (i % 4 * 8);
        }
    }
}

/// Code i of packed codes.
template <int BITS, int WORDS>
__device__ inline unsigned code_at(const unsigned (&in)[WORDS], int i) {
    const int bit = i * BITS;
    unsigned v = in[bit / 32] >> (bit % 32);
    if (bit % 32 + BITS > 32) v |= in[bit / 32 + 1] << (32 - bit % 32);
    return v & ((1u << BITS) - 1);
}

/// The value of a code, less its zero point.
template <int F>
__device__ inline float value_of(unsigned code, int zero) {
    using X = Format<F>;
    if constexpr (X::INT) {
        const int k = X::SIGNED ? static_cast<int>(code << (32 - X::BITS)) >> (32 - X::BITS) : static_cast<int>(code);
        return static_cast<float>(k - zero);
    } else {
        constexpr unsigned SIZE = (1u << (X::BITS - 1)) - 1;
        const unsigned size = code & SIZE;
        // exponent and mantissa in the positions of float32 are the number times 2^(bias - 127); multiplication by the inverse makes
        // subnormals right too
        float v = __uint_as_float(size << (23 - X::MANTISSA)) * __uint_as_float(static_cast<unsigned>(254 - X::BIAS) << 23);
        if (F == E4M3 && size == 0x7f) v = __uint_as_float(0x7fffffffu);
        if (F == E5M2 && size >= 0x7c) v = __uint_as_float(size == 0x7c ? 0x7f800000u : 0x7fffffffu);
        return __uint_as_float(__float_as_uint(v) | (code >> (X::BITS - 1)) << 31);
    }
}

/// Removes the noise that was added to a value before rounding: half a step up or down; of floats half the gap above the code, away from
/// zero.
template <int F>
__device__ inline float without_noise(float value, unsigned code, unsigned random) {
    using X = Format<F>;
    const float noise = (static_cast<float>(random) + 0.5f) * 0x1p-16f - 0.5f;
    if constexpr (X::INT) return __fsub_rn(value, noise);
    else {
        const unsigned e = max((code & ((1u << (X::BITS - 1)) - 1)) >> X::MANTISSA, 1u);
        const float gap = __uint_as_float((e + 127 - X::BIAS - X::MANTISSA) << 23 | (code >> (X::BITS - 1)) << 31);
        return __fsub_rn(value, __fmul_rn(noise, gap));
    }
}
