// mma.sp of 16-bit operands, and how they come to shared memory and from there to registers.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ inline unsigned address_of(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

template <int SELECTOR>
__device__ inline void multiply(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[4], unsigned meta, const __half*) {
    asm("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, %13;"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(meta), "n"(SELECTOR));
}
template <int SELECTOR>
__device__ inline void multiply(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[4], unsigned meta, const __nv_bfloat16*) {
    asm("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, %13;"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(meta), "n"(SELECTOR));
}

__device__ inline void four(unsigned (&r)[4], unsigned from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]),
        "=r"(r[3]) : "r"(from));
}
__device__ inline void four_turned(unsigned (&r)[4], unsigned from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]),
        "=r"(r[3]) : "r"(from));
}

/// Copies 8 elements from row `row`, column `column` of a matrix [rows, columns] to shared memory; zeros past its end. WHOLE: by one
/// asynchronous copy.
template <typename T, bool WHOLE>
__device__ inline void bring(T* to, const T* __restrict__ x, long long pitch, int row, int column, int rows, int columns) {
    const int left = row < rows ? columns - column : 0;
    if (WHOLE) {
        const T* from = left > 0 ? x + row * pitch + column : x;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address_of(to)), "l"(from), "r"(left > 0 ? 16 : 0) : "memory");
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) to[i] = i < left ? x[row * pitch + column + i] : T(0.f);
    }
}
