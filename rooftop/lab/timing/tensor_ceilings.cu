/* Calibration kernels of the tensor cores: matrix multiply-adds on random data that never leaves the multiprocessor. They fulfil no op;
rooftop/lab/timing/tensor_cores.py times them.

mma<T>    mma.sync from registers, sm_80 on. Each warp owns a tile of 64 x 64 of the result,
    as a matrix product's would: 4 fragments of A times
          8 of B, and two such sets in turn, so that the operands change from one instruction to the next.
wgmma<T>  wgmma.mma_async.m64n256 from shared memory, sm_90a. Two warp groups,
    each with 64 rows of A of its own and both with the same 256 columns
          of B, go round and round through STAGES tiles of 128 bytes of the inner dimension.

The data is normally distributed (i8: 32 standard deviations, rounded),
    as what a matrix product is measured on: with zeros the card draws less power and
keeps a higher clock. Sums are float32, of i8 int32,
    which may overflow. Nothing is said about the values: every thread adds up its results and writes
one number, so that none of the work can be left out. Layouts: PTX ISA,
    "Warp-level matrix instructions" and "Asynchronous warpgroup-level matrix
instructions"; as all elements are drawn alike, which of them stands where does not matter, and no layout is made. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#if __CUDA_ARCH__ >= 890
#include <cuda_fp8.h>
#endif

struct bf16 {};
struct f16 {};
struct tf32 {};
struct f8 {};  // e4m3
struct i8 {};

// -- data -------------------------------------------------------------------------------------------------------------

// A mixing of 32 bits (Mueller's hash, as in the Wang and PCG families): neighbouring indices give unrelated words.
__device__ __forceinline__ unsigned mixed(unsigned x) {
    x = (x ^ (x >> 16)) * 0x45d9f3bu;
    x = (x ^ (x >> 16)) * 0x45d9f3bu;
    return x ^ (x >> 16);
}

// Two independent normal numbers (Box and Muller 1958).
__device__ __forceinline__ float2 normal(unsigned index) {
    const float u = (static_cast<float>(mixed(2 * index) >> 8) + 1.0f) * 0x1p-24f;
    const float v = static_cast<float>(mixed(2 * index + 1) >> 8) * 0x1p-24f;
    float s, c;
    __sincosf(6.2831853f * v, &s, &c);
    const float r = sqrtf(fmaxf(-2.0f * __logf(u), 0.0f));  // __logf of a value close to 1 may be above 0
    return make_float2(r * c, r * s);
}

__device__ __forceinline__ unsigned byte_of(float x) { return static_cast<unsigned>(__float2int_rn(fminf(fmaxf(32.0f * x, -127.0f),
    127.0f))) & 0xffu; }

// 32 bits of elements of T.
__device__ __forceinline__ unsigned word(bf16, unsigned i) {
    const float2 x = normal(i);
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x.x, x.y);
    return *reinterpret_cast<const unsigned*>(&pair);
}

__device__ __forceinline__ unsigned word(f16, unsigned i) {
    const float2 x = normal(i);
    const __half2 pair = __floats2half2_rn(x.x, x.y);
    return *reinterpret_cast<const unsigned*>(&pair);
}

__device__ __forceinline__ unsigned word(tf32, unsigned i) {
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(normal(i).x));
    return bits;
}

#if __CUDA_ARCH__ >= 890
__device__ __forceinline__ unsigned word(f8, unsigned i) {
    const unsigned low = __nv_cvt_float2_to_fp8x2(normal(2 * i), __NV_SATFINITE, __NV_E4M3);
    return low | static_cast<unsigned>(__nv_cvt_float2_to_fp8x2(normal(2 * i + 1), __NV_SATFINITE, __NV_E4M3)) << 16;
}
#endif

__device__ __forceinline__ unsigned word(i8, unsigned i) {
    const float2 x = normal(2 * i), y = normal(2 * i + 1);
    return byte_of(x.x) | byte_of(x.y) << 8 | byte_of(y.x) << 16 | byte_of(y.y) << 24;
}

template <class T> struct Sum { using type = float; };
template <> struct Sum<i8> { using type = int; };

// -- mma.sync ---------------------------------------------------------------------------------------------------------

constexpr int SETS = 2, ROWS = 4, COLUMNS = 8;  // fragments of 16 rows and of 8 columns

#define MMA(T, C, SHAPE, TYPES)                                                                                       \
    __device__ __forceinline__ void multiply(T, Sum<T>::type (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { \
        asm("mma.sync.aligned." SHAPE ".row.col." TYPES " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
            : "+" C(d[0]), "+" C(d[1]), "+" C(d[2]), "+" C(d[3])                                                      \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                                      \
    }

MMA(bf16, "f", "m16n8k16", "f32.bf16.bf16.f32")
MMA(f16, "f", "m16n8k16", "f32.f16.f16.f32")
MMA(tf32, "f", "m16n8k8", "f32.tf32.tf32.f32")
MMA(i8, "r", "m16n8k32", "s32.s8.s8.s32")
#if __CUDA_ARCH__ >= 890
MMA(f8, "f", "m16n8k32", "f32.e4m3.e4m3.f32")  // sm_90 accepts it, and converts to half precision
#endif

// SETS * ROWS * COLUMNS instructions a warp and step.
template <class T> __global__ void __launch_bounds__(256, 1) mma(float* __restrict__ out, int steps) {
    using Acc = typename Sum<T>::type;
    const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned a[SETS][ROWS][4], b[SETS][COLUMNS][2];
    Acc d[ROWS][COLUMNS][4] = {};
#pragma unroll
    for (int s = 0; s < SETS; ++s) {
#pragma unroll
        for (int i = 0; i < ROWS * 4; ++i) a[s][i / 4][i % 4] = word(T{}, (thread * SETS + s) * 32 + i);
#pragma unroll
        for (int i = 0; i < COLUMNS * 2; ++i) b[s][i / 2][i % 2] = word(T{}, (thread * SETS + s) * 32 + 16 + i);
    }
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
#pragma unroll
        for (int s = 0; s < SETS; ++s)
#pragma unroll
            for (int i = 0; i < ROWS; ++i)
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j) multiply(T{}, d[i][j], a[s][i], b[s][j]);
    }
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < ROWS * COLUMNS * 4; ++i) sum += static_cast<float>(d[i / (COLUMNS * 4)][i / 4 % COLUMNS][i % 4]);
    out[thread] = sum;
}

// -- wgmma ------------------------------------------------------------------------------------------------------------

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr int STAGES = 4, WIDE = 128;  // WIDE: bytes of the inner dimension in a tile, the width of the swizzle
constexpr int A_BYTES = 2 * 64 * WIDE, B_BYTES = 256 * WIDE;         // of a tile; both warp groups' rows of A
constexpr int EACH = WIDE / 32;  // instructions a tile: each takes 32 bytes of the inner dimension

// The matrix descriptor of a K-major operand in rows of 128 bytes with 128-byte swizzle; 8 rows are 1024 bytes.
__device__ __forceinline__ unsigned long long matrix(unsigned address) {
    return (address & 0x3ffffu) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

#define D8(C, i) "+" C(d[i]), "+" C(d[i + 1]), "+" C(d[i + 2]), "+" C(d[i + 3]), "+" C(d[i + 4]), "+" C(d[i + 5]), "+" C(d[i + 6]), "+" C(d[i + 7])
#define D32(C, i) D8(C, i), D8(C, i + 8), D8(C, i + 16), D8(C, i + 24)
#define WGMMA(T, C, SHAPE, TYPES, REST)                                                                                  \
    __device__ __forceinline__ void multiply(T, Sum<T>::type (&d)[128], unsigned long long a, unsigned long long b) {    \
        asm volatile(                                                                                                    \
            "wgmma.mma_async.sync.aligned." SHAPE "." TYPES " {"                                                         \
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                     \
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                           \
            "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                           \
            "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "                           \
            "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                           \
            "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                           \
            "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "               \
            "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"             \
            "}, %128, %129, 1" REST ";"                                                                                  \
            : D32(C, 0), D32(C, 32), D32(C, 64), D32(C, 96)                                                              \
            : "l"(a), "l"(b));                                                                                           \
    }

WGMMA(bf16, "f", "m64n256k16", "f32.bf16.bf16", ", 1, 1, 0, 0")
WGMMA(f16, "f", "m64n256k16", "f32.f16.f16", ", 1, 1, 0, 0")
WGMMA(tf32, "f", "m64n256k8", "f32.tf32.tf32", ", 1, 1")
WGMMA(f8, "f", "m64n256k32", "f32.e4m3.e4m3", ", 1, 1")
WGMMA(i8, "r", "m64n256k32", "s32.s8.s8", "")

// STAGES * EACH instructions a warp group and step. Shared memory: STAGES * (A_BYTES + B_BYTES), 1024-byte aligned.
template <class T> __global__ void __launch_bounds__(256, 1) wgmma(float* __restrict__ out, int steps) {
    extern __shared__ __align__(1024) unsigned char shared[];
    unsigned* words = reinterpret_cast<unsigned*>(shared);
    for (int i = threadIdx.x; i < STAGES * (A_BYTES + B_BYTES) / 4; i += blockDim.x) words[i] = word(T{}, blockIdx.x * 65536u + i);
    asm volatile("fence.proxy.async;" ::: "memory");  // makes the threads' writes visible to the asynchronous reads
    __syncthreads();
    const unsigned base = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const unsigned rows = base + threadIdx.x / 128 * (A_BYTES / 2), columns = base + STAGES * A_BYTES;
    typename Sum<T>::type d[128] = {};
    int step = 0;
#pragma unroll 1
    do {
#pragma unroll
        for (int stage = 0; stage < STAGES; ++stage) {
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (int k = 0; k < EACH; ++k) multiply(T{}, d, matrix(rows + stage * A_BYTES + k * 32),
                matrix(columns + stage * B_BYTES + k * 32));
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        }
    } while (++step < steps);
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 128; ++i) sum += static_cast<float>(d[i]);
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
#endif
