// wgmma of widths that wgmma.cuh has not.
#pragma once
#include "wgmma.cuh"

#define HELD_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define HELD_8(i) HELD_4(i), HELD_4(i + 4)
#define HELD_16(i) HELD_8(i), HELD_8(i + 8)
#define HELD_32(i) HELD_16(i), HELD_16(i + 16)
#define NAMES_12 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11"
#define NAMES_20 NAMES_12 ", %12, %13, %14, %15, %16, %17, %18, %19"
#define NAMES_24 NAMES_20 ", %20, %21, %22, %23"
#define NAMES_28 NAMES_24 ", %24, %25, %26, %27"
#define NAMES_40 NAMES_28 ", %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39"
#define NAMES_48 NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_56 NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define NAMES_96 NAMES_56 ", %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, " \
    "%76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define WIDTH(REGS, COLUMNS, A, B, C, D, ...) \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32." TYPES " {" NAMES_##REGS "}, " A ", " B ", 1, 1, 1, " C ", " D ";" \
                 : __VA_ARGS__ : "l"(a), "l"(b), "n"(A_TURNED), "n"(B_TURNED))
#define WIDTHS \
    if constexpr (REGS == 12) WIDTH(12, "24", "%12", "%13", "%14", "%15", HELD_8(0), HELD_4(8)); \
    if constexpr (REGS == 20) WIDTH(20, "40", "%20", "%21", "%22", "%23", HELD_16(0), HELD_4(16)); \
    if constexpr (REGS == 24) WIDTH(24, "48", "%24", "%25", "%26", "%27", HELD_16(0), HELD_8(16)); \
    if constexpr (REGS == 28) WIDTH(28, "56", "%28", "%29", "%30", "%31", HELD_16(0), HELD_8(16), HELD_4(24)); \
    if constexpr (REGS == 40) WIDTH(40, "80", "%40", "%41", "%42", "%43", HELD_32(0), HELD_8(32)); \
    if constexpr (REGS == 48) WIDTH(48, "96", "%48", "%49", "%50", "%51", HELD_32(0), HELD_16(32)); \
    if constexpr (REGS == 56) WIDTH(56, "112", "%56", "%57", "%58", "%59", HELD_32(0), HELD_16(32), HELD_8(48)); \
    if constexpr (REGS == 96) WIDTH(96, "192", "%96", "%97", "%98", "%99", HELD_32(0), HELD_32(32), HELD_32(64));

/// d += a b, as `product` does, for every width that is a multiple of 8 up to 64, of 16 up to 128, or of 64.
template <typename T, int A_TURNED, int B_TURNED, int REGS>
__device__ __forceinline__ void product_of_width(float (&d)[REGS], unsigned long long a, unsigned long long b) {
    if constexpr ((REGS & (REGS - 1)) == 0) {
        product<T, A_TURNED, B_TURNED>(d, a, b);
    } else if constexpr (IS_HALF<T>) {
#define TYPES "f16.f16"
        WIDTHS
#undef TYPES
    } else {
#define TYPES "bf16.bf16"
        WIDTHS
#undef TYPES
    }
}
#undef HELD_4
#undef HELD_8
#undef HELD_16
#undef HELD_32
#undef NAMES_12
#undef NAMES_20
#undef NAMES_24
#undef NAMES_28
#undef NAMES_40
#undef NAMES_48
#undef NAMES_56
#undef NAMES_96
#undef WIDTH
#undef WIDTHS
