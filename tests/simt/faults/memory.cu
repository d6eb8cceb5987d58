// Planted faults in shared memory: too small by a byte or two, never written and copied on; failing asserts; structs by value.
#include <cassert>
#include <cuda_fp16.h>
#define FIXED 0

// launch: --grid 1 --block 256 --shared 255 --arg x=u8:256:range --arg y=u8:256:empty
// fixed: --shared 256
__global__ void one_byte_short(const unsigned char* x, unsigned char* y) {
    extern __shared__ unsigned char bytes[];
    bytes[threadIdx.x] = x[threadIdx.x];  // BUG: out-of-bounds
    __syncthreads();
    y[threadIdx.x] = bytes[255 - threadIdx.x];  // BUG: out-of-bounds
}

// launch: --grid 1 --block 33 --shared 64 --arg x=f16:33 --arg y=f16:33:empty
// fixed: --shared 66
__global__ void two_bytes_short(const __half* x, __half* y) {
    extern __shared__ __half halves[];
    halves[threadIdx.x] = x[threadIdx.x];  // BUG: out-of-bounds
    __syncthreads();
    y[threadIdx.x] = halves[32 - threadIdx.x];  // BUG: out-of-bounds
}

// launch: --grid 1 --block 32 --shared 126 --arg x=f32:32 --arg y=f32:32:empty
// fixed: --shared 128
__global__ void two_bytes_of_a_float_short(const float* x, float* y) {
    extern __shared__ float floats[];
    floats[threadIdx.x] = x[threadIdx.x];  // BUG: out-of-bounds
    __syncthreads();
    y[threadIdx.x] = floats[31 - threadIdx.x];  // BUG: out-of-bounds
}

// launch: --grid 1 --block 32 --shared 510 --arg x=f32:128 --arg y=f32:128:empty
// fixed: --shared 512
__global__ void two_bytes_of_a_vector_short(const float4* x, float4* y) {
    extern __shared__ float4 vectors[];
    vectors[threadIdx.x] = x[threadIdx.x];  // BUG: out-of-bounds
    __syncthreads();
    y[threadIdx.x] = vectors[31 - threadIdx.x];  // BUG: out-of-bounds
}

// launch: --grid 1 --block 14 --arg y=u8:14:empty
__global__ void one_byte_past_an_odd_array(unsigned char* y) {
    __shared__ unsigned char odd[FIXED ? 14 : 13];
    unsigned char* at = odd;
    at[threadIdx.x] = threadIdx.x;  // BUG: out-of-bounds
    __syncthreads();
    y[threadIdx.x] = at[13 - threadIdx.x];  // BUG: out-of-bounds
}

// launch: --grid 2 --block 32 --arg y=f32:64:empty
__global__ void unwritten_copied_on(float* y) {
    __shared__ float held[33];
    held[threadIdx.x] = threadIdx.x;
    __syncwarp();
    y[32 * blockIdx.x + threadIdx.x] = held[threadIdx.x + !FIXED];  // BUG: uninitialised
}

// launch: --grid 1 --block 32 --arg y=u32:32:empty
__global__ void half_of_a_word_unwritten(unsigned* y) {
    __shared__ __align__(4) unsigned short pairs[64];
    pairs[2 * threadIdx.x] = threadIdx.x;
    if (FIXED) pairs[2 * threadIdx.x + 1] = 7;
    __syncwarp();
    y[threadIdx.x] = reinterpret_cast<const unsigned*>(pairs)[threadIdx.x];  // BUG: uninitialised
}

// launch: --grid 1 --block 32 --arg scratch=f32:32:empty --arg y=f32:32:empty
__global__ void scratch_copied_on(float* scratch, float* y) {
    if (FIXED || threadIdx.x) scratch[threadIdx.x] = 1;
    y[threadIdx.x] = scratch[threadIdx.x];  // BUG: uninitialised
}

// launch: --grid 1 --block 32 --arg y=f32:32:empty
__global__ void unwritten_through_a_shuffle(float* y) {
    __shared__ float held[32];
    if (FIXED || threadIdx.x < 16) held[threadIdx.x] = threadIdx.x;
    __syncwarp();
    y[threadIdx.x] = __shfl_xor_sync(~0u, held[threadIdx.x], 1);  // BUG: uninitialised
}

// launch: --grid 1 --block 32 --arg y=f32:128:empty
__global__ void one_of_four_unwritten(float4* y) {
    __shared__ __align__(16) float held[128];
    for (int i = 0; i < 3 + FIXED; ++i) held[4 * threadIdx.x + i] = i;
    __syncwarp();
    y[threadIdx.x] = *reinterpret_cast<const float4*>(held + 4 * threadIdx.x);  // BUG: uninitialised
}

// launch: --grid 1 --block 64 --shared 256 --arg y=i32:64:empty
__global__ void dynamic_copied_on(int* y) {
    extern __shared__ int whole[];
    if (FIXED || threadIdx.x < 32) whole[threadIdx.x] = threadIdx.x;
    __syncthreads();
    y[threadIdx.x] = whole[63 - threadIdx.x];  // BUG: uninitialised
}

// launch: --grid 1 --block 32 --arg n=31 --arg y=f32:32:zeros
// fixed: --arg n=32
__global__ void assert_of_the_standard_library(int n, float* y) {
    assert(n % 32 == 0 && "whole warps");  // BUG: assert
    y[threadIdx.x] = n;
}

__device__ float root(float x) {
    assert(x >= 0);  // BUG: assert
    return sqrtf(x);
}
// launch: --grid 1 --block 32 --arg y=f32:32:zeros
__global__ void assert_in_a_function(float* y) { y[threadIdx.x] = root(FIXED ? threadIdx.x : threadIdx.x - 5.0f); }

struct Rows {
    const float* from;
    float* to;
    int n;
};
// launch: --grid 1 --block 64 --arg rows={x,y,63} --arg x=f32:64 --arg y=f32:60:empty
// fixed: --arg rows={x,y,60}
__global__ void past_the_end_of_a_structs_tensor(Rows rows) {
    if (threadIdx.x < rows.n) rows.to[threadIdx.x] = rows.from[threadIdx.x];  // BUG: out-of-bounds
}
