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

#define HELD_8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define HELD_32(i) HELD_8(i), HELD_8(i + 8), HELD_8(i + 16), HELD_8(i + 24)
#define PRODUCT_4(TYPES) \
    asm volatile( \
        "wgmma.mma_async.sync.aligned.m64n8k16.f32." TYPES " {" \
        "%0, %1, %2, %3" \
        "}, %4, %5, 1, 1, 1, %6, %7;" \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \
        : "l"(a), "l"(b), "n"(A_TURNED), "n"(B_TURNED))
#define PRODUCT_8(TYPES) \
    asm volatile( \
        "wgmma.mma_async.sync.aligned.m64n16k16.f32." TYPES " {" \
        "%0, %1, %2, %3, %4, %5, %6, %7" \
        "}, %8, %9, 1, 1, 1, %10, %11;" \
        : HELD_8(0) \
        : "l"(a), "l"(b), "n"(A_TURNED), "n"(B_TURNED))
#define PRODUCT_16(TYPES) \
    asm volatile( \
        "wgmma.mma_async.sync.aligned.m64n32k16.f32." TYPES " {" \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
        "}, %16, %17, 1, 1, 1, %18, %19;" \
        : HELD_8(0), HELD_8(8) \
        : "l"(a), "l"(b), "n"(A_TURNED), "n"(B_TURNED))
#define PRODUCT_32(TYPES) \
    asm volatile( \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPES " {" \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31" \
        "}, %32, %33, 1, 1, 1, %34, %35;" \
        : HELD_32(0) \
        : "l"(a), "l"(b), "n"(A_TURNED), "n"(B_TURNED))
#define PRODUCT_64(TYPES) \
    asm volatile( \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPES " {" \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63" \
        "}, %64, %65, 1, 1, 1, %66, %67;" \
        : HELD_32(0), HELD_32(32) \
        : "l"(a), "l"(b), "n"(A_TURNED), "n"(B_TURNED))
#define PRODUCT_128(TYPES) \
    asm volatile( \
        "wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPES " {" \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127" \
        "}, %128, %129, 1, 1, 1, %130, %131;" \
        : HELD_32(0), HELD_32(32), HELD_32(64), HELD_32(96) \
        : "l"(a), "l"(b), "n"(A_TURNED), "n"(B_TURNED))

/// d += a b: 64 rows, 16 columns of a, 2 REGS columns of b. TURNED: the operand's rows in shared memory run along M or N, not K.
template <typename T, int A_TURNED, int B_TURNED, int REGS>
__device__ __forceinline__ void product(float (&d)[REGS], unsigned long long a, unsigned long long b) {
    if constexpr (REGS == 4 && IS_HALF<T>) PRODUCT_4("f16.f16");
    if constexpr (REGS == 4 && !IS_HALF<T>) PRODUCT_4("bf16.bf16");
    if constexpr (REGS == 8 && IS_HALF<T>) PRODUCT_8("f16.f16");
    if constexpr (REGS == 8 && !IS_HALF<T>) PRODUCT_8("bf16.bf16");
    if constexpr (REGS == 16 && IS_HALF<T>) PRODUCT_16("f16.f16");
    if constexpr (REGS == 16 && !IS_HALF<T>) PRODUCT_16("bf16.bf16");
    if constexpr (REGS == 32 && IS_HALF<T>) PRODUCT_32("f16.f16");
    if constexpr (REGS == 32 && !IS_HALF<T>) PRODUCT_32("bf16.bf16");
    if constexpr (REGS == 64 && IS_HALF<T>) PRODUCT_64("f16.f16");
    if constexpr (REGS == 64 && !IS_HALF<T>) PRODUCT_64("bf16.bf16");
    if constexpr (REGS == 128 && IS_HALF<T>) PRODUCT_128("f16.f16");
    if constexpr (REGS == 128 && !IS_HALF<T>) PRODUCT_128("bf16.bf16");
}

#undef HELD_8
#undef HELD_32
#undef PRODUCT_4
#undef PRODUCT_8
#undef PRODUCT_16
#undef PRODUCT_32
#undef PRODUCT_64
#undef PRODUCT_128
