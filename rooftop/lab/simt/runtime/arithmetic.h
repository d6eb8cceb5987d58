// Arithmetic that CUDA has and C++ has not: conversions, bit operations, fast mathematics, cache hints.
#pragma once

namespace simt {
template <class To, class From>
SIMT_INLINE To bits(From v) {
    static_assert(sizeof(To) == sizeof(From), "the same number of bytes");
    To r;
    std::memcpy(&r, &v, sizeof r);
    return r;
}
/// Functions that take more than one instruction of the CPU's and are one operation: by that name they are known (counts.py). In
/// convert.cpp.
namespace maths {
#define SIMT_MATHS(T, ...) SIMT_API T __VA_ARGS__ __attribute__((const));
SIMT_MATHS(float, rsqrt(float x))
SIMT_MATHS(double, rsqrt(double x))
SIMT_MATHS(float, rsqrt_rn(float x))
SIMT_MATHS(float, rcbrt(float x))
SIMT_MATHS(float, sinpi(float x))
SIMT_MATHS(float, cospi(float x))
SIMT_MATHS(double, sinpi(double x))
SIMT_MATHS(double, cospi(double x))
SIMT_MATHS(float, normcdf(float x))
SIMT_MATHS(double, normcdf(double x))
SIMT_MATHS(float, norm3d(float a, float b, float c))
SIMT_MATHS(float, rnorm3d(float a, float b, float c))
SIMT_MATHS(float, greater(float a, float b))        // a number before NaN, 0 before -0
SIMT_MATHS(float, lesser(float a, float b))
// op: + - * / f (fused) r (reciprocal) q (root); mode: z towards zero, p up, m down
SIMT_MATHS(float, rounded(char op, char mode, float a, float b, float c))
SIMT_MATHS(double, rounded(char op, char mode, double a, double b, double c))
#undef SIMT_MATHS
}  // namespace maths
}  // namespace simt

#define SIMT_MINMAX(A, B, R)                                                         \
    SIMT_INLINE constexpr R min(A a, B b) { return static_cast<R>(b) < static_cast<R>(a) ? static_cast<R>(b) : static_cast<R>(a); } \
    SIMT_INLINE constexpr R max(A a, B b) { return static_cast<R>(a) < static_cast<R>(b) ? static_cast<R>(b) : static_cast<R>(a); }
SIMT_MINMAX(int, int, int)
SIMT_MINMAX(unsigned, unsigned, unsigned)
SIMT_MINMAX(int, unsigned, unsigned)
SIMT_MINMAX(unsigned, int, unsigned)
SIMT_MINMAX(long, long, long)
SIMT_MINMAX(unsigned long, unsigned long, unsigned long)
SIMT_MINMAX(long, unsigned long, unsigned long)
SIMT_MINMAX(unsigned long, long, unsigned long)
SIMT_MINMAX(long long, long long, long long)
SIMT_MINMAX(unsigned long long, unsigned long long, unsigned long long)
SIMT_MINMAX(long long, unsigned long long, unsigned long long)
SIMT_MINMAX(unsigned long long, long long, unsigned long long)
#undef SIMT_MINMAX
SIMT_INLINE float min(float a, float b) { return fminf(a, b); }
SIMT_INLINE float max(float a, float b) { return fmaxf(a, b); }
SIMT_INLINE double min(double a, double b) { return fmin(a, b); }
SIMT_INLINE double max(double a, double b) { return fmax(a, b); }
SIMT_INLINE double min(float a, double b) { return fmin(a, b); }
SIMT_INLINE double max(float a, double b) { return fmax(a, b); }
SIMT_INLINE double min(double a, float b) { return fmin(a, b); }
SIMT_INLINE double max(double a, float b) { return fmax(a, b); }
SIMT_INLINE unsigned umin(unsigned a, unsigned b) { return a < b ? a : b; }
SIMT_INLINE unsigned umax(unsigned a, unsigned b) { return a < b ? b : a; }
using std::abs, std::isfinite, std::isinf, std::isnan, std::signbit;

// -- bits ------------------------------------------------------------------------------------------------------------
SIMT_INLINE int __float_as_int(float v) { return simt::bits<int>(v); }
SIMT_INLINE unsigned __float_as_uint(float v) { return simt::bits<unsigned>(v); }
SIMT_INLINE float __int_as_float(int v) { return simt::bits<float>(v); }
SIMT_INLINE float __uint_as_float(unsigned v) { return simt::bits<float>(v); }
SIMT_INLINE long long __double_as_longlong(double v) { return simt::bits<long long>(v); }
SIMT_INLINE double __longlong_as_double(long long v) { return simt::bits<double>(v); }
SIMT_INLINE int __double2hiint(double v) { return static_cast<int>(simt::bits<uint64_t>(v) >> 32); }
SIMT_INLINE int __double2loint(double v) { return static_cast<int>(simt::bits<uint64_t>(v)); }
SIMT_INLINE double __hiloint2double(int h, int l) {
    return simt::bits<double>(static_cast<uint64_t>(static_cast<unsigned>(h)) << 32 | static_cast<unsigned>(l)); }
SIMT_INLINE int __popc(unsigned v) { return __builtin_popcount(v); }
SIMT_INLINE int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
SIMT_INLINE int __clz(int v) { return v ? __builtin_clz(static_cast<unsigned>(v)) : 32; }
SIMT_INLINE int __clzll(long long v) { return v ? __builtin_clzll(static_cast<unsigned long long>(v)) : 64; }
SIMT_INLINE int __ffs(int v) { return __builtin_ffs(v); }
SIMT_INLINE int __ffsll(long long v) { return __builtin_ffsll(v); }
SIMT_INLINE unsigned __brev(unsigned v) {
    v = __builtin_bswap32(v);
    v = (v >> 4 & 0x0f0f0f0fu) | (v & 0x0f0f0f0fu) << 4;
    v = (v >> 2 & 0x33333333u) | (v & 0x33333333u) << 2;
    return (v >> 1 & 0x55555555u) | (v & 0x55555555u) << 1;
}
SIMT_INLINE unsigned long long __brevll(unsigned long long v) {
    return static_cast<unsigned long long>(__brev(static_cast<unsigned>(v))) << 32 | __brev(static_cast<unsigned>(v >> 32));
}
SIMT_INLINE unsigned __byte_perm(unsigned a, unsigned b, unsigned select) {
    const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned s = select >> 4 * i & 15;
        unsigned byte = static_cast<unsigned>(both >> 8 * (s & 7)) & 255;
        if (s & 8) byte = byte & 128 ? 255 : 0;
        r |= byte << 8 * i;
    }
    return r;
}
SIMT_INLINE unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned s) {
    return static_cast<unsigned>(((static_cast<uint64_t>(hi) << 32 | lo) << (s & 31)) >> 32); }
SIMT_INLINE unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned s) {
    return static_cast<unsigned>((static_cast<uint64_t>(hi) << 32 | lo) >> (s & 31)); }
SIMT_INLINE unsigned __funnelshift_lc(unsigned lo, unsigned hi, unsigned s) {
    return static_cast<unsigned>(((static_cast<uint64_t>(hi) << 32 | lo) << (s > 32 ? 32 : s)) >> 32); }
SIMT_INLINE unsigned __funnelshift_rc(unsigned lo, unsigned hi, unsigned s) {
    return static_cast<unsigned>((static_cast<uint64_t>(hi) << 32 | lo) >> (s > 32 ? 32 : s)); }
SIMT_INLINE int __mul24(int a, int b) { return static_cast<int>(static_cast<unsigned>((a << 8) >> 8) * static_cast<unsigned>((b
    << 8) >> 8)); }
SIMT_INLINE unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffff) * (b & 0xffffff); }
SIMT_INLINE int __mulhi(int a, int b) { return static_cast<int>(static_cast<int64_t>(a) * b >> 32); }
SIMT_INLINE unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32); }
SIMT_INLINE long long __mul64hi(long long a, long long b) { return static_cast<long long>(static_cast<__int128>(a) * b >> 64); }
SIMT_INLINE unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64); }
SIMT_INLINE int __hadd(int a, int b) { return static_cast<int>((static_cast<int64_t>(a) + b) >> 1); }
SIMT_INLINE unsigned __uhadd(unsigned a, unsigned b) { return static_cast<unsigned>((static_cast<uint64_t>(a) + b) >> 1); }
SIMT_INLINE unsigned __sad(int a, int b, unsigned c) { return static_cast<unsigned>(a > b ? a - b : b - a) + c; }
SIMT_INLINE int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; ++i) c += static_cast<int8_t>(a >> 8 * i) * static_cast<int8_t>(b >> 8 * i);
    return c;
}
SIMT_INLINE unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 4; ++i) c += (a >> 8 * i & 255) * (b >> 8 * i & 255);
    return c;
}

// -- conversions: rn to the nearest even, rz towards zero, ru up, rd down ---------------------------------------------------
namespace simt {
template <class I, class F>
SIMT_INLINE I to_integer(F v) {   // saturating, as the GPU converts; NaN to 0, or to the highest bit where either has 64
    if (v != v) return sizeof(I) == 8 || sizeof(F) == 8 ? static_cast<I>(std::make_unsigned_t<I>(1) << (8 * sizeof(I) - 1)) : 0;
    if (v <= static_cast<F>(std::numeric_limits<I>::min())) return std::numeric_limits<I>::min();
    if (v >= static_cast<F>(std::numeric_limits<I>::max())) return std::numeric_limits<I>::max();
    return static_cast<I>(v);
}
template <class To, class From>
SIMT_INLINE To clamp_to(From v) {      // integers
    const __int128 low = std::numeric_limits<To>::min(), high = std::numeric_limits<To>::max(), w = v;
    return static_cast<To>(w < low ? low : w > high ? high : w);
}
template <class To, class From>
SIMT_INLINE To down(From v) {     // the nearest To that is not above v
    To r = static_cast<To>(v);
    return static_cast<long double>(r) > static_cast<long double>(v) ? std::nextafter(r, -std::numeric_limits<To>::infinity()) : r;
}
template <class To, class From>
SIMT_INLINE To up(From v) {
    To r = static_cast<To>(v);
    return static_cast<long double>(r) < static_cast<long double>(v) ? std::nextafter(r, std::numeric_limits<To>::infinity()) : r;
}
template <class To, class From>
SIMT_INLINE To chop(From v) { return v < 0 ? up<To>(v) : down<To>(v); }
}  // namespace simt
#define SIMT_TO(F, f, I, i)                                                                       \
    SIMT_INLINE I __##f##2##i##_rn(F v) { return simt::to_integer<I>(std::nearbyint(v)); }         \
    SIMT_INLINE I __##f##2##i##_rz(F v) { return simt::to_integer<I>(std::trunc(v)); }             \
    SIMT_INLINE I __##f##2##i##_ru(F v) { return simt::to_integer<I>(std::ceil(v)); }              \
    SIMT_INLINE I __##f##2##i##_rd(F v) { return simt::to_integer<I>(std::floor(v)); }
SIMT_TO(float, float, int, int)
SIMT_TO(float, float, unsigned, uint)
SIMT_TO(float, float, long long, ll)
SIMT_TO(float, float, unsigned long long, ull)
SIMT_TO(double, double, int, int)
SIMT_TO(double, double, unsigned, uint)
SIMT_TO(double, double, long long, ll)
SIMT_TO(double, double, unsigned long long, ull)
#undef SIMT_TO
#define SIMT_FROM(I, i, F, f)                                                    \
    SIMT_INLINE F __##i##2##f##_rn(I v) { return static_cast<F>(v); }             \
    SIMT_INLINE F __##i##2##f##_rz(I v) { return simt::chop<F>(v); }              \
    SIMT_INLINE F __##i##2##f##_ru(I v) { return simt::up<F>(v); }                \
    SIMT_INLINE F __##i##2##f##_rd(I v) { return simt::down<F>(v); }
SIMT_FROM(int, int, float, float)
SIMT_FROM(unsigned, uint, float, float)
SIMT_FROM(long long, ll, float, float)
SIMT_FROM(unsigned long long, ull, float, float)
SIMT_FROM(long long, ll, double, double)
SIMT_FROM(unsigned long long, ull, double, double)
SIMT_FROM(double, double, float, float)
#undef SIMT_FROM
SIMT_INLINE double __int2double_rn(int v) { return v; }
SIMT_INLINE double __uint2double_rn(unsigned v) { return v; }

// -- floats ------------------------------------------------------------------------------------------------------------
SIMT_INLINE float __fadd_rn(float a, float b) { volatile float r = a + b; return r; }   // volatile: never contracted to an FMA
SIMT_INLINE float __fsub_rn(float a, float b) { volatile float r = a - b; return r; }
SIMT_INLINE float __fmul_rn(float a, float b) { volatile float r = a * b; return r; }
SIMT_INLINE float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
SIMT_INLINE float __fdiv_rn(float a, float b) { return a / b; }
SIMT_INLINE float __frcp_rn(float a) { return 1 / a; }
SIMT_INLINE float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
SIMT_INLINE float __frsqrt_rn(float a) { return simt::maths::rsqrt_rn(a); }
SIMT_INLINE double __dadd_rn(double a, double b) { volatile double r = a + b; return r; }
SIMT_INLINE double __dmul_rn(double a, double b) { volatile double r = a * b; return r; }
SIMT_INLINE double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
#define SIMT_ROUNDED(T, t, n, p, m)                                                                       \
    SIMT_INLINE T __##t##add_##n(T a, T b) { return simt::maths::rounded('+', m, a, b, T(0)); }             \
    SIMT_INLINE T __##t##sub_##n(T a, T b) { return simt::maths::rounded('-', m, a, b, T(0)); }             \
    SIMT_INLINE T __##t##mul_##n(T a, T b) { return simt::maths::rounded('*', m, a, b, T(0)); }             \
    SIMT_INLINE T __##t##div_##n(T a, T b) { return simt::maths::rounded('/', m, a, b, T(0)); }             \
    SIMT_INLINE T __##t##rcp_##n(T a) { return simt::maths::rounded('r', m, a, T(0), T(0)); }               \
    SIMT_INLINE T __##t##sqrt_##n(T a) { return simt::maths::rounded('q', m, a, T(0), T(0)); }              \
    SIMT_INLINE T p##_##n(T a, T b, T c) { return simt::maths::rounded('f', m, a, b, c); }
SIMT_ROUNDED(float, f, rz, __fmaf, 'z') SIMT_ROUNDED(float, f, ru, __fmaf, 'p') SIMT_ROUNDED(float, f, rd, __fmaf, 'm')
SIMT_ROUNDED(double, d, rz, __fma, 'z') SIMT_ROUNDED(double, d, ru, __fma, 'p') SIMT_ROUNDED(double, d, rd, __fma, 'm')
#undef SIMT_ROUNDED
SIMT_INLINE double __dsub_rn(double a, double b) { volatile double r = a - b; return r; }
SIMT_INLINE double __ddiv_rn(double a, double b) { return a / b; }
SIMT_INLINE double __drcp_rn(double a) { return 1 / a; }
SIMT_INLINE double __dsqrt_rn(double a) { return __builtin_sqrt(a); }
SIMT_INLINE float rsqrtf(float x) { return simt::maths::rsqrt(x); }
SIMT_INLINE double rsqrt(double x) { return simt::maths::rsqrt(x); }
SIMT_INLINE float rsqrt(float x) { return rsqrtf(x); }
SIMT_INLINE float rcbrtf(float x) { return simt::maths::rcbrt(x); }
// The C library has functions of these names that no header shows: ours go by others.
#define __expf simt_expf
#define __exp2f simt_exp2f
#define __exp10f simt_exp10f
#define __logf simt_logf
#define __log2f simt_log2f
#define __log10f simt_log10f
#define __sinf simt_sinf
#define __cosf simt_cosf
#define __tanf simt_tanf
#define __tanhf simt_tanhf
#define __powf simt_powf
#define __sincosf simt_sincosf
SIMT_INLINE float __expf(float x) { return expf(x); }
SIMT_INLINE float __exp2f(float x) { return exp2f(x); }
SIMT_INLINE float __exp10f(float x) { return exp10f(x); }
SIMT_INLINE float __logf(float x) { return logf(x); }
SIMT_INLINE float __log2f(float x) { return log2f(x); }
SIMT_INLINE float __log10f(float x) { return log10f(x); }
SIMT_INLINE float __sinf(float x) { return sinf(x); }
SIMT_INLINE float __cosf(float x) { return cosf(x); }
SIMT_INLINE float __tanf(float x) { return tanf(x); }
SIMT_INLINE float __tanhf(float x) { return tanhf(x); }
SIMT_INLINE void __sincosf(float x, float* s, float* c) { *s = sinf(x), *c = cosf(x); }
SIMT_INLINE float __powf(float a, float b) { return powf(a, b); }
SIMT_INLINE float __fdividef(float a, float b) { return a / b; }
SIMT_INLINE float fdividef(float a, float b) { return a / b; }
SIMT_INLINE float __saturatef(float x) {   // by its bits: the GPU does it on the way
    const int u = simt::bits<int>(x);
    return simt::bits<float>(u <= 0 || u > 0x7f800000 ? 0 : u > 0x3f800000 ? 0x3f800000 : u);
}
SIMT_INLINE float sinpif(float x) { return simt::maths::sinpi(x); }
SIMT_INLINE float cospif(float x) { return simt::maths::cospi(x); }
SIMT_INLINE double sinpi(double x) { return simt::maths::sinpi(x); }
SIMT_INLINE double cospi(double x) { return simt::maths::cospi(x); }
SIMT_INLINE float normcdff(float x) { return simt::maths::normcdf(x); }
SIMT_INLINE double normcdf(double x) { return simt::maths::normcdf(x); }
SIMT_INLINE float norm3df(float a, float b, float c) { return simt::maths::norm3d(a, b, c); }
SIMT_INLINE float rnorm3df(float a, float b, float c) { return simt::maths::rnorm3d(a, b, c); }

// -- cache hints: the access itself, by its one instruction ------------------------------------------------------------------
#define SIMT_HINT(name) template <class T> SIMT_INLINE T __ld##name(const T* p) { return *p; }
SIMT_HINT(g) SIMT_HINT(cg) SIMT_HINT(ca) SIMT_HINT(cs) SIMT_HINT(lu) SIMT_HINT(cv)
#undef SIMT_HINT
#define SIMT_HINT(name) template <class T> SIMT_INLINE void __st##name(T* p, const simt::same<T>& v) { *p = v; }
SIMT_HINT(wb) SIMT_HINT(cg) SIMT_HINT(cs) SIMT_HINT(wt)
#undef SIMT_HINT
SIMT_INLINE void __prefetch_global_l1(const void*) {}
SIMT_INLINE void __prefetch_global_l2(const void*) {}
#define __builtin_assume(x) ((x) ? void(0) : __builtin_unreachable())
#define __assume(x) __builtin_assume(x)
