// 16-bit floating types, one and two at a time, and what CUDA does with them. A pair is one aligned word: one access.
// Arguments are references: a copy that the compiler makes for a parameter has no line of its own.
#pragma once

namespace simt {

// Conversions are no arithmetic: they are done by instructions that nobody takes for it, or by functions of the engine (convert.cpp).
#ifdef __F16C__
typedef short Words __attribute__((vector_size(16)));
typedef int Wide __attribute__((vector_size(16)));
typedef float Floats __attribute__((vector_size(16)));
SIMT_INLINE float half_to_float(uint16_t h) {
    const Wide v = {h};
    return static_cast<Floats>(__builtin_ia32_vcvtph2ps(reinterpret_cast<const Words&>(v)))[0];
}
SIMT_INLINE uint16_t float_to_half(float v) {   // to the nearest, ties to even; one NaN, without a branch
    const Floats f = {v};
    const unsigned h = static_cast<uint16_t>(static_cast<Words>(__builtin_ia32_vcvtps2ph(f, 0))[0]);
    const unsigned none = 0 - static_cast<unsigned>((h & 0x7fff) > 0x7c00);
    return static_cast<uint16_t>((h & ~none) | (none & 0x7fff));
}
#else
SIMT_API float half_to_float(uint16_t h) __attribute__((const));
SIMT_API uint16_t float_to_half(float v) __attribute__((const));
#endif
SIMT_INLINE float bfloat_to_float(uint16_t h) { return bits<float>(static_cast<uint32_t>(h) << 16); }
SIMT_INLINE uint16_t float_to_bfloat(float v) {
    const uint32_t u = bits<uint32_t>(v);
    if ((u & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
/// A float from which rounding to fewer bits gives what rounding `v` once would: towards odd where `v` is none.
SIMT_API float to_odd(double v) __attribute__((const));
/// The neighbour of a 16-bit number in the direction that rounding towards zero, up or down asks for.
template <class T>
SIMT_INLINE T directed(float v, T nearest, int direction) {   // -1 down, 1 up, 0 towards zero
    const float n = static_cast<float>(nearest);
    const bool high = n > v, low = n < v;
    const bool lower = high && (direction < 0 || (direction == 0 && v > 0)), raise = low && (direction > 0 || (direction == 0 && v < 0));
    if (!lower && !raise) return nearest;
    uint16_t u = bits<uint16_t>(nearest);
    if ((u & 0x7fff) == 0) u = lower ? 0x8001 : 0x0001;
    else u = static_cast<uint16_t>(u + (((u & 0x8000) != 0) == lower ? 1 : -1));
    return bits<T>(u);
}
}  // namespace simt

#define SIMT_HALF(T, T2, RAW, to_float, from_float) \
    struct RAW { unsigned short x; }; \
    struct RAW##2 { unsigned short x, y; }; \
    struct alignas(2) T { \
        unsigned short __x; \
        T() = default; \
        SIMT_MEMBER T(float v) : __x(simt::from_float(v)) {} \
        SIMT_MEMBER T(double v) : __x(simt::from_float(simt::to_odd(v))) {} \
        SIMT_MEMBER T(int v) : T(static_cast<double>(v)) {} \
        SIMT_MEMBER T(unsigned v) : T(static_cast<double>(v)) {} \
        SIMT_MEMBER T(long v) : T(static_cast<float>(v)) {} \
        SIMT_MEMBER T(unsigned long v) : T(static_cast<float>(v)) {} \
        SIMT_MEMBER T(long long v) : T(static_cast<float>(v)) {} \
        SIMT_MEMBER T(unsigned long long v) : T(static_cast<float>(v)) {} \
        SIMT_MEMBER T(short v) : T(static_cast<float>(v)) {} \
        SIMT_MEMBER T(unsigned short v) : T(static_cast<float>(v)) {} \
        template <class V, class = std::enable_if_t<std::is_same_v<V, T>>> \
        SIMT_MEMBER T(const volatile V& v) : __x(v.__x) {} \
        template <class V, class = std::enable_if_t<std::is_same_v<V, T>>> \
        SIMT_MEMBER T& operator=(const volatile V& v) { __x = v.__x; return *this; } \
        SIMT_MEMBER T(RAW r) : __x(r.x) {} \
        SIMT_MEMBER operator float() const { return simt::to_float(__x); } \
        SIMT_MEMBER operator RAW() const { return {__x}; } \
        SIMT_MEMBER T& operator=(float v) { __x = simt::from_float(v); return *this; } \
        template <class N, std::enable_if_t<std::is_arithmetic_v<N> && !std::is_same_v<N, float>, int> = 0> SIMT_MEMBER T& operator=(N v) { return *this = T(v); } \
    }; \
    struct alignas(4) T2 { \
        T x, y; \
        T2() = default; \
        SIMT_MEMBER T2(const T& a, const T& b) : x(a), y(b) {} \
        SIMT_MEMBER explicit T2(const T& a) : x(a), y(a) {} \
        SIMT_MEMBER unsigned word() const { return *reinterpret_cast<const unsigned*>(this); } \
        SIMT_MEMBER T low() const { T r; r.__x = static_cast<unsigned short>(word()); return r; } \
        SIMT_MEMBER T high() const { T r; r.__x = static_cast<unsigned short>(word() >> 16); return r; } \
    }; \
    SIMT_INLINE T operator+(const T& a, const T& b) { return T(float(a) + float(b)); } \
    SIMT_INLINE T operator-(const T& a, const T& b) { return T(float(a) - float(b)); } \
    SIMT_INLINE T operator*(const T& a, const T& b) { return T(float(a) * float(b)); } \
    SIMT_INLINE T operator/(const T& a, const T& b) { return T(float(a) / float(b)); } \
    SIMT_INLINE T& operator+=(T& a, const T& b) { return a = a + b; } \
    SIMT_INLINE T& operator-=(T& a, const T& b) { return a = a - b; } \
    SIMT_INLINE T& operator*=(T& a, const T& b) { return a = a * b; } \
    SIMT_INLINE T& operator/=(T& a, const T& b) { return a = a / b; } \
    SIMT_INLINE T operator-(const T& a) { T r; r.__x = a.__x ^ 0x8000; return r; } \
    SIMT_INLINE T operator+(const T& a) { return a; } \
    SIMT_INLINE bool operator==(const T& a, const T& b) { return float(a) == float(b); } \
    SIMT_INLINE bool operator!=(const T& a, const T& b) { return float(a) != float(b); } \
    SIMT_INLINE bool operator<(const T& a, const T& b) { return float(a) < float(b); } \
    SIMT_INLINE bool operator>(const T& a, const T& b) { return float(a) > float(b); } \
    SIMT_INLINE bool operator<=(const T& a, const T& b) { return float(a) <= float(b); } \
    SIMT_INLINE bool operator>=(const T& a, const T& b) { return float(a) >= float(b); } \
    SIMT_INLINE T __hfma(const T& a, const T& b, const T& c) { return T(__builtin_fma(float(a), float(b), float(c))); } \
    SIMT_INLINE T __hfma_relu(const T& a, const T& b, const T& c) { const T r = __hfma(a, b, c); return float(r) < 0 ? T(0.0f) : r; } \
    SIMT_INLINE T __hneg(const T& a) { return -a; } \
    SIMT_INLINE T __habs(const T& a) { T r; r.__x = a.__x & 0x7fff; return r; } \
    SIMT_INLINE T __hmax(const T& a, const T& b) { return T(simt::maths::greater(a, b)); } \
    SIMT_INLINE T __hmin(const T& a, const T& b) { return T(simt::maths::lesser(a, b)); } \
    SIMT_INLINE T __hmax_nan(const T& a, const T& b) { return float(a) != float(a) ? a : float(b) != float(b) ? b : __hmax(a, b); } \
    SIMT_INLINE T __hmin_nan(const T& a, const T& b) { return float(a) != float(a) ? a : float(b) != float(b) ? b : __hmin(a, b); } \
    SIMT_INLINE bool __hisnan(const T& a) { return float(a) != float(a); } \
    SIMT_INLINE int __hisinf(const T& a) { return std::isinf(float(a)) ? float(a) > 0 ? 1 : -1 : 0; } \
    SIMT_INLINE T hexp(const T& a) { return T(expf(a)); } \
    SIMT_INLINE T hexp2(const T& a) { return T(exp2f(a)); } \
    SIMT_INLINE T hexp10(const T& a) { return T(powf(10, a)); } \
    SIMT_INLINE T hlog(const T& a) { return T(logf(a)); } \
    SIMT_INLINE T hlog2(const T& a) { return T(log2f(a)); } \
    SIMT_INLINE T hlog10(const T& a) { return T(log10f(a)); } \
    SIMT_INLINE T hsqrt(const T& a) { return T(sqrtf(a)); } \
    SIMT_INLINE T hrsqrt(const T& a) { return T(simt::maths::rsqrt(float(a))); } \
    SIMT_INLINE T hrcp(const T& a) { return T(1 / float(a)); } \
    SIMT_INLINE T hsin(const T& a) { return T(sinf(a)); } \
    SIMT_INLINE T hcos(const T& a) { return T(cosf(a)); } \
    SIMT_INLINE T htanh(const T& a) { return T(tanhf(a)); } \
    SIMT_INLINE T htanh_approx(const T& a) { return T(tanhf(a)); } \
    SIMT_INLINE T hceil(const T& a) { return T(ceilf(a)); } \
    SIMT_INLINE T hfloor(const T& a) { return T(floorf(a)); } \
    SIMT_INLINE T hrint(const T& a) { return T(nearbyintf(a)); } \
    SIMT_INLINE T htrunc(const T& a) { return T(truncf(a)); } \
    SIMT_INLINE float __low2float(const T2& a) { return a.low(); } \
    SIMT_INLINE float __high2float(const T2& a) { return a.high(); } \
    SIMT_INLINE T2 __lowhigh2highlow(const T2& a) { return T2(a.high(), a.low()); } \
    SIMT_INLINE T2 __lows2##T2(const T2& a, const T2& b) { return T2(a.low(), b.low()); } \
    SIMT_INLINE T2 __highs2##T2(const T2& a, const T2& b) { return T2(a.high(), b.high()); } \
    SIMT_HALF_OP(T, T2, add, a + b) \
    SIMT_HALF_OP(T, T2, sub, a - b) \
    SIMT_HALF_OP(T, T2, mul, a * b) \
    SIMT_INLINE T __hdiv(const T& a, const T& b) { return a / b; } \
    SIMT_INLINE T2 __h2div(const T2& a, const T2& b) { return T2(a.low() / b.low(), a.high() / b.high()); } \
    SIMT_INLINE T2 operator+(const T2& a, const T2& b) { return __hadd2(a, b); } \
    SIMT_INLINE T2 operator-(const T2& a, const T2& b) { return __hsub2(a, b); } \
    SIMT_INLINE T2 operator*(const T2& a, const T2& b) { return __hmul2(a, b); } \
    SIMT_INLINE T2 operator/(const T2& a, const T2& b) { return __h2div(a, b); } \
    SIMT_INLINE T2& operator+=(T2& a, const T2& b) { return a = a + b; } \
    SIMT_INLINE T2& operator-=(T2& a, const T2& b) { return a = a - b; } \
    SIMT_INLINE T2& operator*=(T2& a, const T2& b) { return a = a * b; } \
    SIMT_INLINE T2 operator-(const T2& a) { return T2(-a.low(), -a.high()); } \
    SIMT_INLINE T2 __hfma2(const T2& a, const T2& b, const T2& c) { return T2(__hfma(a.low(), b.low(), c.low()), __hfma(a.high(), b.high(), c.high())); } \
    SIMT_INLINE T2 __hfma2_relu(const T2& a, const T2& b, const T2& c) { return T2(__hfma_relu(a.low(), b.low(), c.low()), __hfma_relu(a.high(), b.high(), c.high())); } \
    SIMT_INLINE T2 __hmax2(const T2& a, const T2& b) { return T2(__hmax(a.low(), b.low()), __hmax(a.high(), b.high())); } \
    SIMT_INLINE T2 __hmin2(const T2& a, const T2& b) { return T2(__hmin(a.low(), b.low()), __hmin(a.high(), b.high())); } \
    SIMT_INLINE T2 __hmax2_nan(const T2& a, const T2& b) { return T2(__hmax_nan(a.low(), b.low()), __hmax_nan(a.high(), b.high())); } \
    SIMT_INLINE T2 __hmin2_nan(const T2& a, const T2& b) { return T2(__hmin_nan(a.low(), b.low()), __hmin_nan(a.high(), b.high())); } \
    SIMT_INLINE T2 __hneg2(const T2& a) { return -a; } \
    SIMT_INLINE T2 __habs2(const T2& a) { return T2(__habs(a.low()), __habs(a.high())); } \
    SIMT_HALF_COMPARE(T, T2, eq, ==) SIMT_HALF_COMPARE(T, T2, ne, !=) SIMT_HALF_COMPARE(T, T2, lt, <) SIMT_HALF_COMPARE(T, T2, le, <=) \
    SIMT_HALF_COMPARE(T, T2, gt, >) SIMT_HALF_COMPARE(T, T2, ge, >=) \
    SIMT_HALF_TWO(T2, exp) SIMT_HALF_TWO(T2, exp2) SIMT_HALF_TWO(T2, exp10) SIMT_HALF_TWO(T2, log) SIMT_HALF_TWO(T2, log2) \
    SIMT_HALF_TWO(T2, sqrt) SIMT_HALF_TWO(T2, rsqrt) SIMT_HALF_TWO(T2, rcp) SIMT_HALF_TWO(T2, sin) SIMT_HALF_TWO(T2, cos) \
    SIMT_HALF_TWO(T2, tanh) SIMT_HALF_TWO(T2, ceil) SIMT_HALF_TWO(T2, floor) SIMT_HALF_TWO(T2, rint) SIMT_HALF_TWO(T2, trunc)
#define SIMT_HALF_OP(T, T2, name, expression) \
    SIMT_INLINE T __h##name(const T& a, const T& b) { return expression; } \
    SIMT_INLINE T __h##name##_rn(const T& a, const T& b) { return expression; } \
    SIMT_INLINE T __h##name##_sat(const T& a, const T& b) { return T(__saturatef(float(expression))); } \
    SIMT_INLINE T2 __h##name##2(const T2& a, const T2& b) { return T2(__h##name(a.low(), b.low()), __h##name(a.high(), b.high())); } \
    SIMT_INLINE T2 __h##name##2_rn(const T2& a, const T2& b) { return __h##name##2(a, b); } \
    SIMT_INLINE T2 __h##name##2_sat(const T2& a, const T2& b) { return T2(__h##name##_sat(a.low(), b.low()), __h##name##_sat(a.high(), b.high())); }
#define SIMT_HALF_COMPARE(T, T2, name, sign) \
    SIMT_INLINE bool __h##name(const T& a, const T& b) { return float(a) sign float(b); } \
    SIMT_INLINE bool __h##name##u(const T& a, const T& b) { return float(a) != float(a) || float(b) != float(b) || float(a) sign float(b); } \
    SIMT_INLINE T2 __h##name##2(const T2& a, const T2& b) { return T2(T(__h##name(a.low(), b.low()) ? 1.0f : 0.0f), T(__h##name(a.high(), b.high()) ? 1.0f : 0.0f)); } \
    SIMT_INLINE bool __hb##name##2(const T2& a, const T2& b) { return __h##name(a.low(), b.low()) && __h##name(a.high(), b.high()); } \
    SIMT_INLINE unsigned __h##name##2_mask(const T2& a, const T2& b) { return (__h##name(a.low(), b.low()) ? 0xffffu : 0) | (__h##name(a.high(), b.high()) ? 0xffff0000u : 0); }
#define SIMT_HALF_TWO(T2, name) SIMT_INLINE T2 h2##name(const T2& a) { return T2(h##name(a.low()), h##name(a.high())); }

SIMT_HALF(__half, __half2, __half_raw, half_to_float, float_to_half)
SIMT_HALF(__nv_bfloat16, __nv_bfloat162, __nv_bfloat16_raw, bfloat_to_float, float_to_bfloat)

// -- names that differ between the two -----------------------------------------------------------------------------------
#define SIMT_HALF_NAMES(T, T2, h, h2, word) \
    SIMT_INLINE float __##h##2float(const T& a) { return a; } \
    SIMT_INLINE T __float2##h(float a) { return T(a); } \
    SIMT_INLINE T __float2##h##_rn(float a) { return T(a); } \
    SIMT_INLINE T __float2##h##_rz(float a) { return simt::directed(a, T(a), 0); } \
    SIMT_INLINE T __float2##h##_ru(float a) { return simt::directed(a, T(a), 1); } \
    SIMT_INLINE T __float2##h##_rd(float a) { return simt::directed(a, T(a), -1); } \
    SIMT_INLINE T __double2##h(double a) { return T(a); } \
    SIMT_INLINE T __int2##h##_rn(int a) { return T(a); } \
    SIMT_INLINE T __uint2##h##_rn(unsigned a) { return T(a); } \
    SIMT_INLINE int __##h##2int_rn(const T& a) { return __float2int_rn(a); } \
    SIMT_INLINE int __##h##2int_rz(const T& a) { return __float2int_rz(a); } \
    SIMT_INLINE int __##h##2int_ru(const T& a) { return __float2int_ru(a); } \
    SIMT_INLINE int __##h##2int_rd(const T& a) { return __float2int_rd(a); } \
    SIMT_INLINE unsigned __##h##2uint_rz(const T& a) { return __float2uint_rz(a); } \
    SIMT_INLINE unsigned short __##word##_as_ushort(const T& a) { return a.__x; } \
    SIMT_INLINE short __##word##_as_short(const T& a) { return static_cast<short>(a.__x); } \
    SIMT_INLINE T __ushort_as_##word(unsigned short a) { T r; r.__x = a; return r; } \
    SIMT_INLINE T __short_as_##word(short a) { T r; r.__x = static_cast<unsigned short>(a); return r; } \
    SIMT_INLINE T2 __floats2##h2##_rn(float a, float b) { return T2(T(a), T(b)); } \
    SIMT_INLINE T2 __float2##h2##_rn(float a) { return T2(T(a), T(a)); } \
    SIMT_INLINE T2 __float22##h2##_rn(float2 a) { return T2(T(a.x), T(a.y)); } \
    SIMT_INLINE float2 __##h2##2float2(const T2& a) { return make_float2(a.low(), a.high()); } \
    SIMT_INLINE T2 __##h##2##h2(const T& a) { return T2(a, a); } \
    SIMT_INLINE T2 __halves2##h2(const T& a, const T& b) { return T2(a, b); } \
    SIMT_INLINE T __low2##h(const T2& a) { return a.low(); } \
    SIMT_INLINE T __high2##h(const T2& a) { return a.high(); } \
    SIMT_INLINE T2 __low2##h2(const T2& a) { return T2(a.low(), a.low()); } \
    SIMT_INLINE T2 __high2##h2(const T2& a) { return T2(a.high(), a.high()); } \
    SIMT_INLINE T2 make_##h2(const T& a, const T& b) { return T2(a, b); }
SIMT_HALF_NAMES(__half, __half2, half, half2, half)
SIMT_HALF_NAMES(__nv_bfloat16, __nv_bfloat162, bfloat16, bfloat162, bfloat16)

#define CUDART_INF_FP16 __ushort_as_half(0x7c00)
#define CUDART_ZERO_FP16 __ushort_as_half(0)
#define CUDART_ONE_FP16 __ushort_as_half(0x3c00)
#define CUDART_MAX_NORMAL_FP16 __ushort_as_half(0x7bff)
#define CUDART_INF_BF16 __ushort_as_bfloat16(0x7f80)
#define CUDART_ZERO_BF16 __ushort_as_bfloat16(0)
#define CUDART_ONE_BF16 __ushort_as_bfloat16(0x3f80)
#define CUDART_MAX_NORMAL_BF16 __ushort_as_bfloat16(0x7f7f)
