// wgmma of 8-bit floats, both operands along K in shared memory: PTX ISA, "wgmma.mma_async". Instructions of 32 k by N columns.
#pragma once
#include <cuda_fp8.h>

#include "_multicast.cuh"

#define HELD_8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define HELD_32(i) HELD_8(i), HELD_8(i + 8), HELD_8(i + 16), HELD_8(i + 24)
#define PRODUCT_64(TYPES) \
    asm volatile( \
        "{ .reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k32.f32." TYPES " {" \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63" \
        "}, %64, %65, p, 1, 1; }" \
        : HELD_32(0), HELD_32(32) \
        : "l"(a), "l"(b), "r"(more))
#define PRODUCT_96(TYPES) \
    asm volatile( \
        "{ .reg .pred p; setp.ne.b32 p, %98, 0; wgmma.mma_async.sync.aligned.m64n192k32.f32." TYPES " {" \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95" \
        "}, %96, %97, p, 1, 1; }" \
        : HELD_32(0), HELD_32(32), HELD_32(64) \
        : "l"(a), "l"(b), "r"(more))
#define PRODUCT_128(TYPES) \
    asm volatile( \
        "{ .reg .pred p; setp.ne.b32 p, %130, 0; wgmma.mma_async.sync.aligned.m64n256k32.f32." TYPES " {" \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127" \
        "}, %128, %129, p, 1, 1; }" \
        : HELD_32(0), HELD_32(32), HELD_32(64), HELD_32(96) \
        : "l"(a), "l"(b), "r"(more))

/// d = a b, or d += a b with `more`: 64 rows by 2 REGS columns. E: whether the operand is e5m2.
template <bool EA, bool EB, int REGS>
__device__ __forceinline__ void product_8(float (&d)[REGS], unsigned long long a, unsigned long long b, int more) {
    if constexpr (REGS == 64 && !EA && !EB) PRODUCT_64("e4m3.e4m3");
    if constexpr (REGS == 64 && !EA && EB) PRODUCT_64("e4m3.e5m2");
    if constexpr (REGS == 64 && EA && !EB) PRODUCT_64("e5m2.e4m3");
    if constexpr (REGS == 64 && EA && EB) PRODUCT_64("e5m2.e5m2");
    if constexpr (REGS == 96 && !EA && !EB) PRODUCT_96("e4m3.e4m3");
    if constexpr (REGS == 96 && !EA && EB) PRODUCT_96("e4m3.e5m2");
    if constexpr (REGS == 96 && EA && !EB) PRODUCT_96("e5m2.e4m3");
    if constexpr (REGS == 96 && EA && EB) PRODUCT_96("e5m2.e5m2");
    if constexpr (REGS == 128 && !EA && !EB) PRODUCT_128("e4m3.e4m3");
    if constexpr (REGS == 128 && !EA && EB) PRODUCT_128("e4m3.e5m2");
    if constexpr (REGS == 128 && EA && !EB) PRODUCT_128("e5m2.e4m3");
    if constexpr (REGS == 128 && EA && EB) PRODUCT_128("e5m2.e5m2");
}
#undef HELD_8
#undef HELD_32
#undef PRODUCT_64
#undef PRODUCT_96
#undef PRODUCT_128
