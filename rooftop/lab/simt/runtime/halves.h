// 16-bit floating types, one and two at a time, and what CUDA does with them. A pair is one aligned word: one access.
#pragma once

namespace simt {

SIMT_INLINE float half_to_float(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, rest = h & 0x7fff;
    if (rest >= 0x7c00) return bits<float>(sign | 0x7f800000u | (rest & 0x3ff) << 13);
    return bits<float>(sign | bits<uint32_t>(bits<float>(rest << 13) * 0x1p112f));
}
SIMT_INLINE uint16_t float_to_half(float v) {   // to the nearest, ties to even
    const uint32_t u = bits<uint32_t>(v), sign = u >> 16 & 0x8000, size = u & 0x7fffffff;
    if (size > 0x7f800000) return static_cast<uint16_t>(0x7fff);
    if (size >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
    if (size < 0x38800000) return static_cast<uint16_t>(sign | (bits<uint32_t>(bits<float>(size) + 0.5f) - 0x3f000000u));
    return static_cast<uint16_t>(sign | (size - 0x38000000u + 0xfff + (size >> 13 & 1)) >> 13);
}
SIMT_INLINE float bfloat_to_float(uint16_t h) { return bits<float>(static_cast<uint32_t>(h) << 16); }
SIMT_INLINE uint16_t float_to_bfloat(float v) {
    const uint32_t u = bits<uint32_t>(v);
    if ((u & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
/// A float from which rounding to fewer bits gives what rounding `v` once would: towards odd where `v` is none.
SIMT_INLINE float to_odd(double v) {
    const float f = static_cast<float>(v);
    if (static_cast<double>(f) == v || v != v || std::isinf(f)) return f;
    if (bits<uint32_t>(f) & 1) return f;
    return std::nextafter(f, static_cast<double>(f) < v ? INFINITY : -INFINITY);
}
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
SIMT_INLINE float greater(float a, float b) { return a != a ? b : b != b ? a : a > b || (a == b && !std::signbit(a)) ? a : b; }
SIMT_INLINE float lesser(float a, float b) { return a != a ? b : b != b ? a : a < b || (a == b && std::signbit(a)) ? a : b; }
}  // namespace simt

#define SIMT_HALF(T, T2, RAW, to_float, from_float)                                                                                         \
    struct RAW { unsigned short x; };                                                                                                       \
    struct RAW##2 { unsigned short x, y; };                                                                                                 \
    struct alignas(2) T {                                                                                                                   \
        unsigned short __x;                                                                                                                 \
        T() = default;                                                                                                                      \
        SIMT_MEMBER T(float v) : __x(simt::from_float(v)) {}                                                                                \
        SIMT_MEMBER T(double v) : __x(simt::from_float(simt::to_odd(v))) {}                                                                 \
        SIMT_MEMBER T(int v) : T(static_cast<double>(v)) {}                                                                                 \
        SIMT_MEMBER T(unsigned v) : T(static_cast<double>(v)) {}                                                                            \
        SIMT_MEMBER T(long v) : T(static_cast<float>(v)) {}                                                                                 \
        SIMT_MEMBER T(unsigned long v) : T(static_cast<float>(v)) {}                                                                        \
        SIMT_MEMBER T(long long v) : T(static_cast<float>(v)) {}                                                                            \
        SIMT_MEMBER T(unsigned long long v) : T(static_cast<float>(v)) {}                                                                   \
        SIMT_MEMBER T(short v) : T(static_cast<float>(v)) {}                                                                                \
        SIMT_MEMBER T(unsigned short v) : T(static_cast<float>(v)) {}                                                                       \
        template <class V, class = std::enable_if_t<std::is_same_v<V, T>>>                                                                  \
        SIMT_MEMBER T(const volatile V& v) : __x(v.__x) {}                                                                                  \
        template <class V, class = std::enable_if_t<std::is_same_v<V, T>>>                                                                  \
        SIMT_MEMBER T& operator=(const volatile V& v) { __x = v.__x; return *this; }                                                        \
        SIMT_MEMBER T(RAW r) : __x(r.x) {}                                                                                                  \
        SIMT_MEMBER operator float() const { return simt::to_float(__x); }                                                                  \
        SIMT_MEMBER operator RAW() const { return {__x}; }                                                                                  \
        SIMT_MEMBER T& operator=(float v) { __x = simt::from_float(v); return *this; }                                                      \
        SIMT_MEMBER T& operator=(double v) { return *this = T(v); }                                                                         \
    };                                                                                                                                      \
    struct alignas(4) T2 {                                                                                                                  \
        T x, y;                                                                                                                             \
        T2() = default;                                                                                                                     \
        SIMT_MEMBER T2(const T& a, const T& b) : x(a), y(b) {}                                                                              \
        SIMT_MEMBER explicit T2(const T& a) : x(a), y(a) {}                                                                                 \
    };                                                                                                                                      \
    SIMT_INLINE T operator+(const T& a, const T& b) { return T(float(a) + float(b)); }                                                      \
    SIMT_INLINE T operator-(const T& a, const T& b) { return T(float(a) - float(b)); }                                                      \
    SIMT_INLINE T operator*(const T& a, const T& b) { return T(float(a) * float(b)); }                                                      \
    SIMT_INLINE T operator/(const T& a, const T& b) { return T(float(a) / float(b)); }                                                      \
    SIMT_INLINE T& operator+=(T& a, const T& b) { return a = a + b; }                                                                       \
    SIMT_INLINE T& operator-=(T& a, const T& b) { return a = a - b; }                                                                       \
    SIMT_INLINE T& operator*=(T& a, const T& b) { return a = a * b; }                                                                       \
    SIMT_INLINE T& operator/=(T& a, const T& b) { return a = a / b; }                                                                       \
    SIMT_INLINE T operator-(const T& a) { T r; r.__x = a.__x ^ 0x8000; return r; }                                                          \
    SIMT_INLINE T operator+(const T& a) { return a; }                                                                                       \
    SIMT_INLINE bool operator==(const T& a, const T& b) { return float(a) == float(b); }                                                    \
    SIMT_INLINE bool operator!=(const T& a, const T& b) { return float(a) != float(b); }                                                    \
    SIMT_INLINE bool operator<(const T& a, const T& b) { return float(a) < float(b); }                                                      \
    SIMT_INLINE bool operator>(const T& a, const T& b) { return float(a) > float(b); }                                                      \
    SIMT_INLINE bool operator<=(const T& a, const T& b) { return float(a) <= float(b); }                                                    \
    SIMT_INLINE bool operator>=(const T& a, const T& b) { return float(a) >= float(b); }                                                    \
    SIMT_INLINE T __hfma(T a, T b, T c) { return T(__builtin_fma(float(a), float(b), float(c))); }                                          \
    SIMT_INLINE T __hfma_relu(T a, T b, T c) { const T r = __hfma(a, b, c); return float(r) < 0 ? T(0.0f) : r; }                            \
    SIMT_INLINE T __hneg(T a) { return -a; }                                                                                                \
    SIMT_INLINE T __habs(T a) { a.__x &= 0x7fff; return a; }                                                                                \
    SIMT_INLINE T __hmax(T a, T b) { return T(simt::greater(a, b)); }                                                                       \
    SIMT_INLINE T __hmin(T a, T b) { return T(simt::lesser(a, b)); }                                                                        \
    SIMT_INLINE T __hmax_nan(T a, T b) { return float(a) != float(a) ? a : float(b) != float(b) ? b : __hmax(a, b); }                       \
    SIMT_INLINE T __hmin_nan(T a, T b) { return float(a) != float(a) ? a : float(b) != float(b) ? b : __hmin(a, b); }                       \
    SIMT_INLINE bool __hisnan(T a) { return float(a) != float(a); }                                                                         \
    SIMT_INLINE int __hisinf(T a) { return std::isinf(float(a)) ? float(a) > 0 ? 1 : -1 : 0; }                                              \
    SIMT_INLINE T hexp(T a) { return T(expf(a)); }                                                                                          \
    SIMT_INLINE T hexp2(T a) { return T(exp2f(a)); }                                                                                        \
    SIMT_INLINE T hexp10(T a) { return T(powf(10, a)); }                                                                                    \
    SIMT_INLINE T hlog(T a) { return T(logf(a)); }                                                                                          \
    SIMT_INLINE T hlog2(T a) { return T(log2f(a)); }                                                                                        \
    SIMT_INLINE T hlog10(T a) { return T(log10f(a)); }                                                                                      \
    SIMT_INLINE T hsqrt(T a) { return T(sqrtf(a)); }                                                                                        \
    SIMT_INLINE T hrsqrt(T a) { return T(1 / sqrtf(a)); }                                                                                   \
    SIMT_INLINE T hrcp(T a) { return T(1 / float(a)); }                                                                                     \
    SIMT_INLINE T hsin(T a) { return T(sinf(a)); }                                                                                          \
    SIMT_INLINE T hcos(T a) { return T(cosf(a)); }                                                                                          \
    SIMT_INLINE T htanh(T a) { return T(tanhf(a)); }                                                                                        \
    SIMT_INLINE T htanh_approx(T a) { return T(tanhf(a)); }                                                                                 \
    SIMT_INLINE T hceil(T a) { return T(ceilf(a)); }                                                                                        \
    SIMT_INLINE T hfloor(T a) { return T(floorf(a)); }                                                                                      \
    SIMT_INLINE T hrint(T a) { return T(nearbyintf(a)); }                                                                                   \
    SIMT_INLINE T htrunc(T a) { return T(truncf(a)); }                                                                                      \
    SIMT_INLINE T2 make_##T2##_simt(T a, T b) { return T2(a, b); }                                                                          \
    SIMT_INLINE float __low2float(T2 a) { return a.x; }                                                                                     \
    SIMT_INLINE float __high2float(T2 a) { return a.y; }                                                                                    \
    SIMT_INLINE T2 __lowhigh2highlow(T2 a) { return T2(a.y, a.x); }                                                                         \
    SIMT_INLINE T2 __lows2##T2(T2 a, T2 b) { return T2(a.x, b.x); }                                                                         \
    SIMT_INLINE T2 __highs2##T2(T2 a, T2 b) { return T2(a.y, b.y); }                                                                        \
    SIMT_HALF_OP(T, T2, add, a + b)                                                                                                         \
    SIMT_HALF_OP(T, T2, sub, a - b)                                                                                                         \
    SIMT_HALF_OP(T, T2, mul, a * b)                                                                                                         \
    SIMT_INLINE T __hdiv(T a, T b) { return a / b; }                                                                                        \
    SIMT_INLINE T2 __h2div(T2 a, T2 b) { return T2(a.x / b.x, a.y / b.y); }                                                                 \
    SIMT_INLINE T2 operator+(T2 a, T2 b) { return __hadd2(a, b); }                                                                          \
    SIMT_INLINE T2 operator-(T2 a, T2 b) { return __hsub2(a, b); }                                                                          \
    SIMT_INLINE T2 operator*(T2 a, T2 b) { return __hmul2(a, b); }                                                                          \
    SIMT_INLINE T2 operator/(T2 a, T2 b) { return __h2div(a, b); }                                                                          \
    SIMT_INLINE T2& operator+=(T2& a, T2 b) { return a = a + b; }                                                                           \
    SIMT_INLINE T2& operator-=(T2& a, T2 b) { return a = a - b; }                                                                           \
    SIMT_INLINE T2& operator*=(T2& a, T2 b) { return a = a * b; }                                                                           \
    SIMT_INLINE T2 operator-(T2 a) { return T2(-a.x, -a.y); }                                                                               \
    SIMT_INLINE T2 __hfma2(T2 a, T2 b, T2 c) { return T2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)); }                                   \
    SIMT_INLINE T2 __hfma2_relu(T2 a, T2 b, T2 c) { return T2(__hfma_relu(a.x, b.x, c.x), __hfma_relu(a.y, b.y, c.y)); }                    \
    SIMT_INLINE T2 __hmax2(T2 a, T2 b) { return T2(__hmax(a.x, b.x), __hmax(a.y, b.y)); }                                                   \
    SIMT_INLINE T2 __hmin2(T2 a, T2 b) { return T2(__hmin(a.x, b.x), __hmin(a.y, b.y)); }                                                   \
    SIMT_INLINE T2 __hmax2_nan(T2 a, T2 b) { return T2(__hmax_nan(a.x, b.x), __hmax_nan(a.y, b.y)); }                                       \
    SIMT_INLINE T2 __hmin2_nan(T2 a, T2 b) { return T2(__hmin_nan(a.x, b.x), __hmin_nan(a.y, b.y)); }                                       \
    SIMT_INLINE T2 __hneg2(T2 a) { return -a; }                                                                                             \
    SIMT_INLINE T2 __habs2(T2 a) { return T2(__habs(a.x), __habs(a.y)); }                                                                   \
    SIMT_HALF_COMPARE(T, T2, eq, ==) SIMT_HALF_COMPARE(T, T2, ne, !=) SIMT_HALF_COMPARE(T, T2, lt, <) SIMT_HALF_COMPARE(T, T2, le, <=)       \
    SIMT_HALF_COMPARE(T, T2, gt, >) SIMT_HALF_COMPARE(T, T2, ge, >=)                                                                        \
    SIMT_HALF_TWO(T2, exp) SIMT_HALF_TWO(T2, exp2) SIMT_HALF_TWO(T2, exp10) SIMT_HALF_TWO(T2, log) SIMT_HALF_TWO(T2, log2)                  \
    SIMT_HALF_TWO(T2, sqrt) SIMT_HALF_TWO(T2, rsqrt) SIMT_HALF_TWO(T2, rcp) SIMT_HALF_TWO(T2, sin) SIMT_HALF_TWO(T2, cos)                   \
    SIMT_HALF_TWO(T2, tanh) SIMT_HALF_TWO(T2, ceil) SIMT_HALF_TWO(T2, floor) SIMT_HALF_TWO(T2, rint) SIMT_HALF_TWO(T2, trunc)
#define SIMT_HALF_OP(T, T2, name, expression)                                                                             \
    SIMT_INLINE T __h##name(T a, T b) { return expression; }                                                              \
    SIMT_INLINE T __h##name##_rn(T a, T b) { return expression; }                                                         \
    SIMT_INLINE T __h##name##_sat(T a, T b) { return T(__saturatef(float(expression))); }                                 \
    SIMT_INLINE T2 __h##name##2(T2 a, T2 b) { return T2(__h##name(a.x, b.x), __h##name(a.y, b.y)); }                      \
    SIMT_INLINE T2 __h##name##2_rn(T2 a, T2 b) { return __h##name##2(a, b); }                                             \
    SIMT_INLINE T2 __h##name##2_sat(T2 a, T2 b) { return T2(__h##name##_sat(a.x, b.x), __h##name##_sat(a.y, b.y)); }
#define SIMT_HALF_COMPARE(T, T2, name, sign)                                                                              \
    SIMT_INLINE bool __h##name(T a, T b) { return float(a) sign float(b); }                                               \
    SIMT_INLINE bool __h##name##u(T a, T b) { return float(a) != float(a) || float(b) != float(b) || float(a) sign float(b); } \
    SIMT_INLINE T2 __h##name##2(T2 a, T2 b) { return T2(T(__h##name(a.x, b.x) ? 1.0f : 0.0f), T(__h##name(a.y, b.y) ? 1.0f : 0.0f)); } \
    SIMT_INLINE bool __hb##name##2(T2 a, T2 b) { return __h##name(a.x, b.x) && __h##name(a.y, b.y); }                     \
    SIMT_INLINE unsigned __h##name##2_mask(T2 a, T2 b) { return (__h##name(a.x, b.x) ? 0xffffu : 0) | (__h##name(a.y, b.y) ? 0xffff0000u : 0); }
#define SIMT_HALF_TWO(T2, name) SIMT_INLINE T2 h2##name(T2 a) { return T2(h##name(a.x), h##name(a.y)); }

SIMT_HALF(__half, __half2, __half_raw, half_to_float, float_to_half)
SIMT_HALF(__nv_bfloat16, __nv_bfloat162, __nv_bfloat16_raw, bfloat_to_float, float_to_bfloat)

// -- names that differ between the two -----------------------------------------------------------------------------------
#define SIMT_HALF_NAMES(T, T2, h, h2, word)                                                                 \
    SIMT_INLINE float __##h##2float(T a) { return a; }                                                       \
    SIMT_INLINE T __float2##h(float a) { return T(a); }                                                      \
    SIMT_INLINE T __float2##h##_rn(float a) { return T(a); }                                                 \
    SIMT_INLINE T __float2##h##_rz(float a) { return simt::directed(a, T(a), 0); }                           \
    SIMT_INLINE T __float2##h##_ru(float a) { return simt::directed(a, T(a), 1); }                           \
    SIMT_INLINE T __float2##h##_rd(float a) { return simt::directed(a, T(a), -1); }                          \
    SIMT_INLINE T __double2##h(double a) { return T(a); }                                                    \
    SIMT_INLINE T __int2##h##_rn(int a) { return T(a); }                                                     \
    SIMT_INLINE T __uint2##h##_rn(unsigned a) { return T(a); }                                               \
    SIMT_INLINE int __##h##2int_rn(T a) { return __float2int_rn(a); }                                        \
    SIMT_INLINE int __##h##2int_rz(T a) { return __float2int_rz(a); }                                        \
    SIMT_INLINE int __##h##2int_ru(T a) { return __float2int_ru(a); }                                        \
    SIMT_INLINE int __##h##2int_rd(T a) { return __float2int_rd(a); }                                        \
    SIMT_INLINE unsigned __##h##2uint_rz(T a) { return __float2uint_rz(a); }                                 \
    SIMT_INLINE unsigned short __##word##_as_ushort(T a) { return a.__x; }                                   \
    SIMT_INLINE short __##word##_as_short(T a) { return static_cast<short>(a.__x); }                         \
    SIMT_INLINE T __ushort_as_##word(unsigned short a) { T r; r.__x = a; return r; }                         \
    SIMT_INLINE T __short_as_##word(short a) { T r; r.__x = static_cast<unsigned short>(a); return r; }      \
    SIMT_INLINE T2 __floats2##h2##_rn(float a, float b) { return T2(T(a), T(b)); }                           \
    SIMT_INLINE T2 __float2##h2##_rn(float a) { return T2(T(a), T(a)); }                                     \
    SIMT_INLINE T2 __float22##h2##_rn(float2 a) { return T2(T(a.x), T(a.y)); }                               \
    SIMT_INLINE float2 __##h2##2float2(T2 a) { return make_float2(a.x, a.y); }                               \
    SIMT_INLINE T2 __##h##2##h2(T a) { return T2(a, a); }                                                    \
    SIMT_INLINE T2 __halves2##h2(T a, T b) { return T2(a, b); }                                              \
    SIMT_INLINE T __low2##h(T2 a) { return a.x; }                                                            \
    SIMT_INLINE T __high2##h(T2 a) { return a.y; }                                                           \
    SIMT_INLINE T2 __low2##h2(T2 a) { return T2(a.x, a.x); }                                                 \
    SIMT_INLINE T2 __high2##h2(T2 a) { return T2(a.y, a.y); }                                                \
    SIMT_INLINE T2 make_##h2(T a, T b) { return T2(a, b); }
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
