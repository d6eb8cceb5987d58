// CUDA's vector types. A whole one is copied by one access, as on the GPU: they are plain aggregates with the GPU's alignment.
#pragma once
#define SIMT_VECTOR(name, T, align1, align2, align3, align4)                                                             \
    struct name##1 { T x; };                                                                                             \
    struct alignas(align2) name##2 { T x, y; };                                                                          \
    struct name##3 { T x, y, z; };                                                                                       \
    struct alignas(align4) name##4 { T x, y, z, w; };                                                                    \
    static inline constexpr name##1 make_##name##1(T x) { return {x}; }                                                  \
    static inline constexpr name##2 make_##name##2(T x, T y) { return {x, y}; }                                          \
    static inline constexpr name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                                  \
    static inline constexpr name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
SIMT_VECTOR(char, signed char, 1, 2, 1, 4)
SIMT_VECTOR(uchar, unsigned char, 1, 2, 1, 4)
SIMT_VECTOR(short, short, 2, 4, 2, 8)
SIMT_VECTOR(ushort, unsigned short, 2, 4, 2, 8)
SIMT_VECTOR(int, int, 4, 8, 4, 16)
SIMT_VECTOR(uint, unsigned, 4, 8, 4, 16)
SIMT_VECTOR(long, long, 8, 16, 8, 16)
SIMT_VECTOR(ulong, unsigned long, 8, 16, 8, 16)
SIMT_VECTOR(longlong, long long, 8, 16, 8, 16)
SIMT_VECTOR(ulonglong, unsigned long long, 8, 16, 8, 16)
SIMT_VECTOR(float, float, 4, 8, 4, 16)
SIMT_VECTOR(double, double, 8, 16, 8, 16)
#undef SIMT_VECTOR
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return {x, y, z}; }
};
typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned char uchar;
typedef unsigned long ulong;
