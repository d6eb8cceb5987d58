// Codes of finite values, four at a time: each code in the low bits of a byte, then the bytes are packed. Gives the same bits as the general `encode` of
// _quantized.cuh, in a third of its instructions.
#pragma once
#include "_quantized.cuh"
#include "_registers.cuh"

/// The stored scale and its value, as by scale_of and effective; for e4m3 with the hardware's conversion instructions.
template <int F, int S>
__device__ inline float scale_and_value(float largest, const float* over, typename ScaleType<S>::Stored& stored) {
#if __CUDA_ARCH__ >= 890
    if constexpr (S == SCALE_E4M3) {
        const float of_all = over ? *over : 1.f, part = __fdiv_rn(largest, Format<F>::MAX), s = over ? __fdiv_rn(part, of_all) : part;
        stored = __nv_cvt_float_to_fp8(fminf(fmaxf(s, 0x1p-6f), 448.f), __NV_SATFINITE, __NV_E4M3);
        const float value = __half2float(__half(__nv_cvt_fp8_to_halfraw(stored, __NV_E4M3)));
        return over ? fminf(fmaxf(__fmul_rn(value, of_all), 0x1p-126f), 0x1p125f) : value;
    }
#endif
    stored = scale_of<F, S>(largest, over);
    return effective<S>(stored, over);
}

/// Byte 0, byte 2 or byte 3 of four words, packed into one word.
template <int BYTE>
__device__ inline unsigned four_bytes(const unsigned (&w)[4]) {
    constexpr unsigned PAIR = BYTE | (4 + BYTE) << 4;
    return __byte_perm(__byte_perm(w[0], w[1], PAIR), __byte_perm(w[2], w[3], PAIR), 0x5410);
}

/// Bits of `b` where `mask` is set, of `a` elsewhere.
__device__ inline unsigned chosen(unsigned a, unsigned b, unsigned mask) { return (a & ~mask) | (b & mask); }

/// The signs of elements i to i + 3 as the highest bits of four bytes.
template <typename T, int V>
__device__ inline unsigned four_signs(const Held<T, V>& held, int i) {
    if constexpr (Held<T, V>::PER == 2) return __byte_perm(held.w[i / 2], held.w[i / 2 + 1], 0x7531);
    else {
        const unsigned w[4] = {held.w[i], held.w[i + 1], held.w[i + 2], held.w[i + 3]};
        return four_bytes<3>(w);
    }
}

/// Packs four bytes, each with a code in its low bits, into a string of codes. Other bits must be zero for 8 and 6 bits, and may be anything for 4.
template <int BITS, int V>
__device__ inline void squeeze(unsigned (&out)[(V * BITS + 31) / 32], const unsigned (&bytes)[V / 4]) {
    if constexpr (BITS == 8) {
#pragma unroll
        for (int i = 0; i < V / 4; ++i) out[i] = bytes[i];
    } else if constexpr (BITS == 4) {
#pragma unroll
        for (int i = 0; i < V / 4; i += 2) {
            const unsigned next = i + 1 < V / 4 ? bytes[i + 1] : 0;
            out[i / 2] = chosen(__byte_perm(bytes[i], next, 0x6420), __byte_perm(bytes[i], next, 0x7531) << 4, 0xf0f0f0f0u);
        }
        if (V == 4) out[0] &= 0xffff;
    } else {
        unsigned z[V / 4];
#pragma unroll
        for (int i = 0; i < V / 4; ++i) {
            const unsigned y = (bytes[i] & 0x003f003fu) | (bytes[i] >> 2 & 0x0fc00fc0u);
            z[i] = (y & 0xfff) | (y >> 4 & 0xfff000);
        }
        if constexpr (V == 4) out[0] = z[0];
        else {
#pragma unroll
            for (int i = 0; i < V / 16; ++i) {
                out[3 * i] = z[4 * i] | z[4 * i + 1] << 24;
                out[3 * i + 1] = z[4 * i + 1] >> 8 | z[4 * i + 2] << 16;
                out[3 * i + 2] = z[4 * i + 2] >> 16 | z[4 * i + 3] << 8;
            }
        }
    }
}

constexpr float WHOLE = 12582912.f;  // 1.5 * 2^23: added to a number, it leaves the nearest integer in the sum's low bits

/// The codes of e2m1 lie on three straight lines; the code is the minimum of the three. Their sums with WHOLE are ordered as bits in the same way as the
/// numbers. BEYOND: clamp to 7.
template <bool BEYOND>
__device__ inline unsigned least_line(float a, float b, float c) {
    const unsigned least = min(min(__float_as_uint(a), __float_as_uint(b)), __float_as_uint(c));
    return BEYOND ? min(least, 0x4b400007u) : least;
}

/// Whether `encode_clean` supports it.
template <int F, int ROUND, bool SYMMETRIC>
__device__ constexpr bool has_clean() {
#if __CUDA_ARCH__ < 890
    if (ROUND == NEAREST && !Format<F>::INT && F != E2M1) return false;
#endif
    return ROUND == NEAREST || (ROUND == STOCHASTIC && SYMMETRIC);
}

/// Like `encode`, for finite elements and a scale that is not `careful`.
template <int F, int S, int ROUND, bool SYMMETRIC, typename T, int V, typename Random, typename Divided, typename Zero>
__device__ inline void encode_clean(unsigned (&out)[(V * Format<F>::BITS + 31) / 32], const Held<T, V>& held, Random random, Divided by, Zero zero) {
    using X = Format<F>;
    constexpr float UNIT = unit_of<F, ROUND>(), MAX = X::MAX * UNIT;
    constexpr bool BEYOND = S != SCALE_F32;  // a rounded scale may leave values beyond the largest code
    if constexpr (!has_clean<F, ROUND, SYMMETRIC>()) {
        encode<F, ROUND, SYMMETRIC, V>(out, [&](int i) { return held[i]; }, random, by, zero);
    } else {
        unsigned bytes[V / 4];
#pragma unroll
        for (int i = 0; i < V; i += 4) {
            unsigned w[4];
            unsigned& all = bytes[i / 4];
            if constexpr (X::INT && ROUND == NEAREST) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    float v = by(i + j)(held[i + j]);
                    if (SYMMETRIC && BEYOND) v = fminf(fmaxf(v, -MAX), MAX);
                    if (!SYMMETRIC && BEYOND) v = fminf(fmaxf(v, -2.f * X::STEPS), 2.f * X::STEPS);
                    float sum = __fadd_rn(v, WHOLE);
                    if (!SYMMETRIC) {
                        const float z = static_cast<float>(zero(i + j));
                        sum = __fadd_rn(fminf(fmaxf(sum, WHOLE + X::LOW - z), WHOLE + X::LOW + X::STEPS - z), z);
                    }
                    w[j] = __float_as_uint(sum);
                }
                all = four_bytes<0>(w);
                if (SYMMETRIC && !X::SIGNED) all ^= X::BITS == 8 ? 0x80808080u : 0x08080808u;
            } else if constexpr (X::INT) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    float v = by(i + j)(held[i + j]);
                    if (BEYOND) v = fminf(fmaxf(v, -MAX), MAX);
                    const unsigned bits = random(i + j / 2 * 2);
                    w[j] = static_cast<unsigned>(__float2int_rn(v)) + (j % 2 ? bits >> 16 : bits & 0xffff);
                }
                all = four_bytes<2>(w);
                if (!X::SIGNED) all ^= X::BITS == 8 ? 0x80808080u : 0x08080808u;
            } else if constexpr (ROUND == STOCHASTIC) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    float v = fabsf(by(i + j)(held[i + j]));
                    if (BEYOND) v = fminf(v, MAX);
                    w[j] = raised<F>(v, __byte_perm(random(i + j / 2 * 2), 0x80, j % 2 ? 0x5324 : 0x5104));
                }
                constexpr int DOWN = 8 - X::BITS;
                all = chosen(four_bytes<3>(w), four_signs(held, i) >> DOWN, 0x80808080u >> DOWN);
            } else if constexpr (F == E2M1) {  // h is twice the magnitude; the minimum of three lines, rounded: for codes 0 to 4, 4 to 6 and from 6 on
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const float h = by(i + j)(held.size(i + j));
                    w[j] = least_line<BEYOND>(__fadd_rn(h, WHOLE), __fmaf_rn(h, 0.5f, WHOLE + 2), __fmaf_rn(h, 0.25f, WHOLE + 4));
                }
                all = chosen(four_bytes<0>(w), four_signs(held, i) >> 4, 0x08080808u);
            } else {
                constexpr bool THREE = F == E4M3 || F == E2M3;  // mantissa bits: three, else two
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    float v = by(i + j)(held[i + j]);
                    if (BEYOND && X::BITS == 6) v = fminf(fmaxf(v, -MAX), MAX);
                    w[j] = __float_as_uint(v);
                }
                const auto pair = [&](int j) -> unsigned {
                    return __nv_cvt_float2_to_fp8x2(make_float2(__uint_as_float(w[j]), __uint_as_float(w[j + 1])), __NV_SATFINITE, THREE ? __NV_E4M3 : __NV_E5M2);
                };
                all = pair(0) | pair(2) << 16;
                if (X::BITS == 6) all = (all & 0x1f1f1f1fu) | (all >> 2 & 0x20202020u);
            }
        }
        squeeze<X::BITS, V>(out, bytes);
    }
}
