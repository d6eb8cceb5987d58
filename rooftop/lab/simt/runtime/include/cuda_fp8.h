#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;
typedef unsigned int __nv_fp8x4_storage_t;
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };
SIMT_INLINE __nv_fp8_storage_t __nv_cvt_float_to_fp8(float v, __nv_saturation_t s, __nv_fp8_interpretation_t k) {
    return static_cast<unsigned char>(simt::fp8_of(v, k, s)); }
SIMT_INLINE __nv_fp8_storage_t __nv_cvt_double_to_fp8(double v, __nv_saturation_t s, __nv_fp8_interpretation_t k) {
    return __nv_cvt_float_to_fp8(simt::to_odd(v), s, k); }
SIMT_INLINE __nv_fp8_storage_t __nv_cvt_halfraw_to_fp8(__half_raw v, __nv_saturation_t s, __nv_fp8_interpretation_t k) {
    return __nv_cvt_float_to_fp8(simt::half_to_float(v.x), s, k); }
SIMT_INLINE __nv_fp8_storage_t __nv_cvt_bfloat16raw_to_fp8(__nv_bfloat16_raw v, __nv_saturation_t s, __nv_fp8_interpretation_t k) {
    return __nv_cvt_float_to_fp8(simt::bfloat_to_float(v.x), s, k); }
SIMT_INLINE __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 v, __nv_saturation_t s, __nv_fp8_interpretation_t k) {
    return static_cast<unsigned short>(__nv_cvt_float_to_fp8(v.y, s, k) << 8 | __nv_cvt_float_to_fp8(v.x, s, k));
}
SIMT_INLINE __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t v, __nv_fp8_interpretation_t k) {
    return {simt::float_to_half(simt::fp8_to_float(v, k))}; }
SIMT_INLINE __half_raw2 __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t v, __nv_fp8_interpretation_t k) {
    return {simt::float_to_half(simt::fp8_to_float(v & 255, k)), simt::float_to_half(simt::fp8_to_float(v >> 8, k))};
}
#define SIMT_FP8(T, k)                                                                                                  \
    struct T {                                                                                                          \
        __nv_fp8_storage_t __x;                                                                                         \
        T() = default;                                                                                                  \
        SIMT_MEMBER explicit T(float v) : __x(__nv_cvt_float_to_fp8(v, __NV_SATFINITE, k)) {}                           \
        SIMT_MEMBER explicit T(double v) : __x(__nv_cvt_double_to_fp8(v, __NV_SATFINITE, k)) {}                         \
        SIMT_MEMBER explicit T(int v) : T(static_cast<float>(v)) {}                                                     \
        SIMT_MEMBER explicit T(__half v) : T(static_cast<float>(v)) {}                                                  \
        SIMT_MEMBER explicit T(__nv_bfloat16 v) : T(static_cast<float>(v)) {}                                           \
        SIMT_MEMBER explicit operator float() const { return simt::fp8_to_float(__x, k); }                              \
        SIMT_MEMBER explicit operator double() const { return simt::fp8_to_float(__x, k); }                             \
        SIMT_MEMBER explicit operator __half() const { return __half(simt::fp8_to_float(__x, k)); }                     \
        SIMT_MEMBER explicit operator __nv_bfloat16() const { return __nv_bfloat16(simt::fp8_to_float(__x, k)); }       \
        SIMT_MEMBER explicit operator bool() const { return (__x & 0x7f) != 0; }                                        \
    };
SIMT_FP8(__nv_fp8_e4m3, __NV_E4M3)
SIMT_FP8(__nv_fp8_e5m2, __NV_E5M2)
#define SIMT_FP8_MANY(kind, k)                                                                                          \
    struct alignas(2) __nv_fp8x2_##kind {                                                                               \
        __nv_fp8x2_storage_t __x;                                                                                       \
        __nv_fp8x2_##kind() = default;                                                                                  \
        SIMT_MEMBER explicit __nv_fp8x2_##kind(float2 v) : __x(__nv_cvt_float2_to_fp8x2(v, __NV_SATFINITE, k)) {}       \
        SIMT_MEMBER explicit operator float2() const { return {simt::fp8_to_float(__x & 255, k), simt::fp8_to_float(__x >> 8, k)}; } \
    };                                                                                                                  \
    struct alignas(4) __nv_fp8x4_##kind {                                                                               \
        __nv_fp8x4_storage_t __x;                                                                                       \
        __nv_fp8x4_##kind() = default;                                                                                  \
        SIMT_MEMBER explicit __nv_fp8x4_##kind(float4 v)                                                                \
            : __x(__nv_cvt_float2_to_fp8x2({v.x, v.y}, __NV_SATFINITE, k) | static_cast<unsigned>(__nv_cvt_float2_to_fp8x2({v.z, v.w}, __NV_SATFINITE, k)) << 16) {} \
        SIMT_MEMBER explicit operator float4() const {                                                                  \
            return {simt::fp8_to_float(__x & 255, k), simt::fp8_to_float(__x >> 8 & 255, k), simt::fp8_to_float(__x >> 16 & 255, k), simt::fp8_to_float(__x >> 24, k)}; \
        }                                                                                                               \
    };
SIMT_FP8_MANY(e4m3, __NV_E4M3)
SIMT_FP8_MANY(e5m2, __NV_E5M2)
