// Hopper's asynchronous matrix multiply (wgmma) in CUDA C++, 16-bit operands in shared memory. PTX ISA, "Asynchronous warpgroup level
// matrix instructions".
#pragma once
#include "sparse_wgmma.cuh"

/// The matrix descriptor of an operand whose rows run along K, BYTES each, swizzled by BYTES: 32, 64 or 128.
template <int BYTES>
__device__ inline unsigned long long rows_along_k(unsigned address) {
    constexpr unsigned long long MODE = BYTES == 128 ? 1 : BYTES == 64 ? 2 : 3;
    return (address & 0x3ffffu) >> 4 | 1ull << 16 | static_cast<unsigned long long>(8 * BYTES >> 4) << 32 | MODE << 62;
}

#define HELD_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define HELD_8(i) HELD_4(i), HELD_4(i + 4)
#define HELD_16(i) HELD_8(i), HELD_8(i + 8)
#define HELD_32(i) HELD_16(i), HELD_16(i + 16)
#define HELD_64(i) HELD_32(i), HELD_32(i + 32)
#define NAMES_4 "%0, %1, %2, %3"
#define NAMES_8 NAMES_4 ", %4, %5, %6, %7"
#define NAMES_12 NAMES_8 ", %8, %9, %10, %11"
#define NAMES_16 NAMES_12 ", %12, %13, %14, %15"
#define NAMES_20 NAMES_16 ", %16, %17, %18, %19"
#define NAMES_24 NAMES_20 ", %20, %21, %22, %23"
#define NAMES_28 NAMES_24 ", %24, %25, %26, %27"
#define NAMES_32 NAMES_28 ", %28, %29, %30, %31"
#define NAMES_40 NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define NAMES_48 NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_56 NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define NAMES_64 NAMES_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_80 NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define NAMES_96 NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87" \
    ", %88, %89, %90, %91, %92, %93, %94, %95"
#define NAMES_128 NAMES_96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119" \
    ", %120, %121, %122, %123, %124, %125, %126, %127"
#define WIDTH(REGS, COLUMNS, A, B, C, D, ...) \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32." TYPES " {" NAMES_##REGS "}, " A ", " B ", 1, 1, 1, " C ", " D ";" \
                 : __VA_ARGS__ : "l"(a), "l"(b), "n"(A_TURNED), "n"(B_TURNED))
#define WIDTHS \
    if constexpr (REGS == 4) WIDTH(4, "8", "%4", "%5", "%6", "%7", HELD_4(0)); \
    if constexpr (REGS == 8) WIDTH(8, "16", "%8", "%9", "%10", "%11", HELD_8(0)); \
    if constexpr (REGS == 12) WIDTH(12, "24", "%12", "%13", "%14", "%15", HELD_8(0), HELD_4(8)); \
    if constexpr (REGS == 16) WIDTH(16, "32", "%16", "%17", "%18", "%19", HELD_16(0)); \
    if constexpr (REGS == 20) WIDTH(20, "40", "%20", "%21", "%22", "%23", HELD_16(0), HELD_4(16)); \
    if constexpr (REGS == 24) WIDTH(24, "48", "%24", "%25", "%26", "%27", HELD_16(0), HELD_8(16)); \
    if constexpr (REGS == 28) WIDTH(28, "56", "%28", "%29", "%30", "%31", HELD_16(0), HELD_8(16), HELD_4(24)); \
    if constexpr (REGS == 32) WIDTH(32, "64", "%32", "%33", "%34", "%35", HELD_32(0)); \
    if constexpr (REGS == 40) WIDTH(40, "80", "%40", "%41", "%42", "%43", HELD_32(0), HELD_8(32)); \
    if constexpr (REGS == 48) WIDTH(48, "96", "%48", "%49", "%50", "%51", HELD_32(0), HELD_16(32)); \
    if constexpr (REGS == 56) WIDTH(56, "112", "%56", "%57", "%58", "%59", HELD_32(0), HELD_16(32), HELD_8(48)); \
    if constexpr (REGS == 64) WIDTH(64, "128", "%64", "%65", "%66", "%67", HELD_64(0)); \
    if constexpr (REGS == 80) WIDTH(80, "160", "%80", "%81", "%82", "%83", HELD_64(0), HELD_16(64)); \
    if constexpr (REGS == 96) WIDTH(96, "192", "%96", "%97", "%98", "%99", HELD_64(0), HELD_32(64)); \
    if constexpr (REGS == 128) WIDTH(128, "256", "%128", "%129", "%130", "%131", HELD_64(0), HELD_64(64));

/// d += a b: 64 rows, 16 columns of a, 2 REGS columns of b: any multiple of 8 up to 64, of 16 up to 128, then 160, 192 and 256. TURNED: the operand's
/// rows in shared memory run along M or N, not K.
template <typename T, int A_TURNED, int B_TURNED, int REGS>
__device__ __forceinline__ void product(float (&d)[REGS], unsigned long long a, unsigned long long b) {
    if constexpr (IS_HALF<T>) {
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
#undef HELD_64
#undef NAMES_4
#undef NAMES_8
#undef NAMES_12
#undef NAMES_16
#undef NAMES_20
#undef NAMES_24
#undef NAMES_28
#undef NAMES_32
#undef NAMES_40
#undef NAMES_48
#undef NAMES_56
#undef NAMES_64
#undef NAMES_80
#undef NAMES_96
#undef NAMES_128
#undef WIDTH
#undef WIDTHS
