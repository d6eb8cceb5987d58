// What the GPU does without arithmetic or a branch of the kernel's and the CPU does not: conversions between floating types, lanes of a
// group; and functions of mathematics, which are one operation there.
#include "simt.h"

#include <cfenv>

namespace simt {

#ifndef __F16C__
float half_to_float(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, rest = h & 0x7fff;
    if (rest >= 0x7c00) return bits<float>(sign | 0x7f800000u | (rest & 0x3ff) << 13);
    return bits<float>(sign | bits<uint32_t>(bits<float>(rest << 13) * 0x1p112f));
}
uint16_t float_to_half(float v) {   // to the nearest, ties to even
    const uint32_t u = bits<uint32_t>(v), sign = u >> 16 & 0x8000, size = u & 0x7fffffff;
    if (size > 0x7f800000) return static_cast<uint16_t>(0x7fff);
    if (size >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
    if (size < 0x38800000) return static_cast<uint16_t>(sign | (bits<uint32_t>(bits<float>(size) + 0.5f) - 0x3f000000u));
    return static_cast<uint16_t>(sign | (size - 0x38000000u + 0xfff + (size >> 13 & 1)) >> 13);
}
#endif
float to_odd(double v) {
    const float f = static_cast<float>(v);
    if (static_cast<double>(f) == v || v != v || std::isinf(f)) return f;
    if (bits<uint32_t>(f) & 1) return f;
    return std::nextafter(f, static_cast<double>(f) < v ? INFINITY : -INFINITY);
}
float fp8_to_float(unsigned v, int e5m2) {
    if (e5m2) return half_to_float(static_cast<uint16_t>(v << 8));
    const unsigned sign = v & 0x80, exponent = v >> 3 & 15, mantissa = v & 7;
    const float size = exponent == 15 && mantissa == 7 ? __builtin_nanf("") : exponent
        ? std::ldexp(1.0f + static_cast<float>(mantissa) / 8, static_cast<int>(exponent) - 7)
        : std::ldexp(static_cast<float>(mantissa), -9);
    return sign ? -size : size;
}
unsigned fp8_of(float v, int e5m2, bool saturate) {
    const unsigned sign = std::signbit(v) ? 0x80 : 0;
    const float size = std::fabs(v), most = e5m2 ? 57344.0f : 448.0f;
    const int bits_ = e5m2 ? 2 : 3, least = e5m2 ? -14 : -6;
    if (v != v) return sign | 0x7f;
    if (size == 0) return sign;
    if (size > most) {
        if (saturate) return sign | (e5m2 ? 0x7b : 0x7e);
        const float edge = e5m2 ? 61440.0f : 464.0f;
        if (size >= edge) return sign | (e5m2 ? 0x7c : 0x7f);
        return sign | (e5m2 ? 0x7b : 0x7e);
    }
    int exponent;
    std::frexp(size, &exponent);
    exponent = exponent - 1 < least ? least : exponent - 1;
    const float step = std::ldexp(1.0f, exponent - bits_);
    const unsigned units = static_cast<unsigned>(std::nearbyint(size / step));   // at least 1 << bits_ where normal
    const unsigned code = static_cast<unsigned>(exponent - least) * (1u << bits_) + units;       // a carry goes into the exponent
    return sign | code;
}

int nth_lane(unsigned mask, int rank) {
    if (rank < 0) return -1;
    for (; rank && mask; --rank) mask &= mask - 1;
    return mask ? __builtin_ctz(mask) : -1;
}
unsigned gather_bits(unsigned mask, unsigned bits) {
    unsigned r = 0, i = 0;
    for (; mask; mask &= mask - 1, ++i) r |= (bits >> __builtin_ctz(mask) & 1) << i;
    return r;
}

namespace maths {
float rsqrt(float x) { return 1 / std::sqrt(x); }
double rsqrt(double x) { return 1 / std::sqrt(x); }
float rsqrt_rn(float x) { return static_cast<float>(1 / std::sqrt(static_cast<double>(x))); }
float rcbrt(float x) { return 1 / std::cbrt(x); }
float sinpi(float x) { return std::sin(3.14159265358979f * x); }
float cospi(float x) { return std::cos(3.14159265358979f * x); }
double sinpi(double x) { return std::sin(3.14159265358979323846 * x); }
double cospi(double x) { return std::cos(3.14159265358979323846 * x); }
float normcdf(float x) { return 0.5f * std::erfc(-0.70710678118654752f * x); }
double normcdf(double x) { return 0.5 * std::erfc(-0.70710678118654752440 * x); }
float norm3d(float a, float b, float c) { return std::sqrt(a * a + b * b + c * c); }
float rnorm3d(float a, float b, float c) { return 1 / norm3d(a, b, c); }
float greater(float a, float b) { return a != a ? b : b != b ? a : a > b || (a == b && !std::signbit(a)) ? a : b; }
float lesser(float a, float b) { return a != a ? b : b != b ? a : a < b || (a == b && std::signbit(a)) ? a : b; }
template <class T>
static T directed_result(char op, char mode, T a, T b, T c) {
    const int before = std::fegetround();
    std::fesetround(mode == 'z' ? FE_TOWARDZERO : mode == 'p' ? FE_UPWARD : FE_DOWNWARD);
    volatile T x = a, y = b, z = c, r;              // volatile: done here, in this mode
    switch (op) {
        case '+': r = x + y; break;
        case '-': r = x - y; break;
        case '*': r = x * y; break;
        case '/': r = x / y; break;
        case 'r': r = 1 / x; break;
        case 'q': r = std::sqrt(x); break;
        default: r = std::fma(x, y, z);
    }
    std::fesetround(before);
    return r;
}
float rounded(char op, char mode, float a, float b, float c) { return directed_result(op, mode, a, b, c); }
double rounded(char op, char mode, double a, double b, double c) { return directed_result(op, mode, a, b, c); }
}  // namespace maths
}  // namespace simt
