// 8-bit floating types: e4m3 (no infinity, largest 448) and e5m2 (largest 57344); conversions saturate, as CUDA's types do.
#pragma once
namespace simt {
SIMT_INLINE float fp8_to_float(unsigned v, int e5m2) {
    if (e5m2) return half_to_float(static_cast<uint16_t>(v << 8));
    const unsigned sign = v & 0x80, exponent = v >> 3 & 15, mantissa = v & 7;
    const float size = exponent == 15 && mantissa == 7 ? __builtin_nanf("") : exponent ? std::ldexp(1.0f + static_cast<float>(mantissa) / 8, static_cast<int>(exponent) - 7) : std::ldexp(static_cast<float>(mantissa), -9);
    return sign ? -size : size;
}
SIMT_INLINE unsigned fp8_of(float v, int e5m2, bool saturate = true) {   // to the nearest, ties to even
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
}  // namespace simt
