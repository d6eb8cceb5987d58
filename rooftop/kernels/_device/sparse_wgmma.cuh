// Hopper's asynchronous copies (TMA, mbarriers), the barrier of a cluster, and sparse wgmma in CUDA C++. PTX ISA, "Asynchronous warpgroup
// level matrix instructions" and "Data movement and conversion instructions: tensor copy".
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "tensor_map.cuh"

__device__ inline unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

__device__ inline void barrier_init(unsigned bar,
    unsigned count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory"); }
__device__ inline void barrier_expect(unsigned bar, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ inline void barrier_arrive(unsigned bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory"); }
__device__ inline void barrier_wait(unsigned bar, unsigned parity) {
    unsigned done;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" : "=r"(done)
            : "r"(bar), "r"(parity) : "memory");
    } while (!done);
}

/// A barrier of all threads of a cluster, in two parts and in one; memory written before it is visible after it.
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ inline void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// Copies one box by TMA; its bytes are counted by the mbarrier at `bar`. x: the innermost coordinate.
__device__ inline void copy_box(unsigned to, const CUtensorMap& map, unsigned bar, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
                 ::"r"(to), "l"(reinterpret_cast<unsigned long long>(&map)), "r"(bar), "r"(x), "r"(y) : "memory");
}

/// The matrix descriptor of an operand in rows of 128 bytes, 128-byte swizzle. `group`: bytes from 8 rows to the next 8; `lead`: if the
/// rows run along M or N, bytes from 64 elements to the next 64.
__device__ inline unsigned long long operand(unsigned address, unsigned lead, unsigned group) {
    return (address & 0x3ffffu) >> 4 | static_cast<unsigned long long>(lead >> 4) << 16 | static_cast<unsigned long long>(group >> 4) << 32 | 1ull << 62;
}

__device__ inline void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT>
__device__ inline void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }

#define HELD_8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define HELD_32(i) HELD_8(i), HELD_8(i + 8), HELD_8(i + 16), HELD_8(i + 24)
#define SPARSE_PRODUCT_32(TYPES) \
    asm volatile( \
        "wgmma.mma_async.sp.sync.aligned.m64n64k32.f32." TYPES " {" \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31" \
        "}, %32, %33, %34, %35, 1, 1, 1, 0, %36;" \
        : HELD_32(0) \
        : "l"(a), "l"(b), "r"(word), "n"(SELECTOR), "n"(COLUMNS))

#define SPARSE_PRODUCT_64(TYPES)                                                                                          \
    asm volatile(                                                                                                          \
        "wgmma.mma_async.sp.sync.aligned.m64n128k32.f32." TYPES " {"                                                           \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                      \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                            \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                            \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"                              \
        "}, %64, %65, %66, %67, 1, 1, 1, 0, %68;"                                                                     \
        : HELD_32(0), HELD_32(32)                                                                                                \
        : "l"(a), "l"(b), "r"(word), "n"(SELECTOR), "n"(COLUMNS))

#define SPARSE_PRODUCT_128(TYPES)                                                                                          \
    asm volatile(                                                                                                          \
        "wgmma.mma_async.sp.sync.aligned.m64n256k32.f32." TYPES " {"                                                           \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                      \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                            \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                            \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "                            \
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                            \
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                            \
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "                \
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"              \
        "}, %128, %129, %130, %131, 1, 1, 1, 0, %132;"                                                                     \
        : HELD_32(0), HELD_32(32), HELD_32(64), HELD_32(96)                                                                                                \
        : "l"(a), "l"(b), "r"(word), "n"(SELECTOR), "n"(COLUMNS))

template <typename T>
constexpr bool IS_HALF = false;
template <>
constexpr bool IS_HALF<__half> = true;

/// d += S b: 64 rows of a 2:4 sparse matrix, 32 of its columns, by 2 REGS columns of b. COLUMNS: the rows of b in shared memory run along
/// N. word: this lane's metadata; the instruction reads lanes 2 SELECTOR and 2 SELECTOR + 1 of each four.
template <typename T, int SELECTOR, int COLUMNS, int REGS>
__device__ __forceinline__ void sparse_product(float (&d)[REGS], unsigned long long a, unsigned long long b, unsigned word) {
    constexpr bool HALF = IS_HALF<T>;
    if constexpr (REGS == 32 && HALF) SPARSE_PRODUCT_32("f16.f16");
    if constexpr (REGS == 32 && !HALF) SPARSE_PRODUCT_32("bf16.bf16");
    if constexpr (REGS == 64 && HALF) SPARSE_PRODUCT_64("f16.f16");
    if constexpr (REGS == 64 && !HALF) SPARSE_PRODUCT_64("bf16.bf16");
    if constexpr (REGS == 128 && HALF) SPARSE_PRODUCT_128("f16.f16");
    if constexpr (REGS == 128 && !HALF) SPARSE_PRODUCT_128("bf16.bf16");
}
#undef HELD_8
#undef HELD_32
#undef SPARSE_PRODUCT_32
#undef SPARSE_PRODUCT_64
#undef SPARSE_PRODUCT_128
