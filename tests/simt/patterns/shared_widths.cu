/* rooftop
idea  = "One, two, eight and sixteen bytes a lane of shared memory: 8-byte accesses go half-warp by half-warp, 16-byte ones quarter by quarter. 128 threads: four warps."
args  = ["x: f32[N]", "out: f32[N]"]

[[launch]]
kernel = "byte_linear"
grid   = [1]
block  = [128]

[[launch]]
kernel = "byte_stride_4"
grid   = [1]
block  = [128]

[[launch]]
kernel = "byte_stride_8"
grid   = [1]
block  = [128]

[[launch]]
kernel = "half_linear"
grid   = [1]
block  = [128]

[[launch]]
kernel = "half_stride_2"
grid   = [1]
block  = [128]

[[launch]]
kernel = "half_stride_32"
grid   = [1]
block  = [128]

[[launch]]
kernel = "half2_linear"
grid   = [1]
block  = [128]

[[launch]]
kernel = "float2_linear"
grid   = [1]
block  = [128]

[[launch]]
kernel = "float2_stride_2"
grid   = [1]
block  = [128]

[[launch]]
kernel = "float2_stride_16"
grid   = [1]
block  = [128]

[[launch]]
kernel = "double_linear"
grid   = [1]
block  = [128]

[[launch]]
kernel = "float4_linear"
grid   = [1]
block  = [128]

[[launch]]
kernel = "float4_stride_2"
grid   = [1]
block  = [128]

[[launch]]
kernel = "float4_column_of_32"
grid   = [1]
block  = [128]

[[launch]]
kernel = "float4_column_of_36"
grid   = [1]
block  = [128]

[[launch]]
kernel = "float4_store_stride_2"
grid   = [1]
block  = [128]
*/
#include <cuda_fp16.h>

__global__ void byte_linear(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) unsigned char s[128];
    const int t = threadIdx.x;
    for (int i = t; i < 128; i += 128) s[i] = reinterpret_cast<const unsigned char*>(x)[i];
    __syncthreads();
    const unsigned char v = s[127 - t];            // COUNT requests=4 wavefronts=4: four lanes a word
    reinterpret_cast<unsigned char*>(out)[t] = v;  // COUNT requests=4 sectors=4 ideal=4: 32 bytes a warp
}

__global__ void byte_stride_4(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) unsigned char s[512];
    const int t = threadIdx.x;
    for (int i = t; i < 512; i += 128) s[i] = reinterpret_cast<const unsigned char*>(x)[i];
    __syncthreads();
    const unsigned char v = s[(127 - t) * 4];      // COUNT requests=4 wavefronts=4: a word a lane, 32 banks
    reinterpret_cast<unsigned char*>(out)[t] = v;  // COUNT requests=4 sectors=4 ideal=4: 32 bytes a warp
}

__global__ void byte_stride_8(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) unsigned char s[1024];
    const int t = threadIdx.x;
    for (int i = t; i < 1024; i += 128) s[i] = reinterpret_cast<const unsigned char*>(x)[i];
    __syncthreads();
    const unsigned char v = s[(127 - t) * 8];      // COUNT requests=4 wavefronts=8: 16 banks, two words each
    reinterpret_cast<unsigned char*>(out)[t] = v;  // COUNT requests=4 sectors=4 ideal=4: 32 bytes a warp
}

__global__ void half_linear(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) __half s[128];
    const int t = threadIdx.x;
    for (int i = t; i < 128; i += 128) s[i] = reinterpret_cast<const __half*>(x)[i];
    __syncthreads();
    const __half v = s[127 - t];            // COUNT requests=4 wavefronts=4: two lanes a word, no conflict
    reinterpret_cast<__half*>(out)[t] = v;  // COUNT requests=4 sectors=8 ideal=8: 64 bytes a warp
}

__global__ void half_stride_2(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) __half s[256];
    const int t = threadIdx.x;
    for (int i = t; i < 256; i += 128) s[i] = reinterpret_cast<const __half*>(x)[i];
    __syncthreads();
    const __half v = s[(127 - t) * 2];      // COUNT requests=4 wavefronts=4: a word a lane, 32 banks
    reinterpret_cast<__half*>(out)[t] = v;  // COUNT requests=4 sectors=8 ideal=8: 64 bytes a warp
}

__global__ void half_stride_32(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) __half s[4096];
    const int t = threadIdx.x;
    for (int i = t; i < 4096; i += 128) s[i] = reinterpret_cast<const __half*>(x)[i];
    __syncthreads();
    const __half v = s[(127 - t) * 32];     // COUNT requests=4 wavefronts=64: 64 bytes apart: two banks, 16 words each
    reinterpret_cast<__half*>(out)[t] = v;  // COUNT requests=4 sectors=8 ideal=8: 64 bytes a warp
}

__global__ void half2_linear(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) __half2 s[128];
    const int t = threadIdx.x;
    for (int i = t; i < 128; i += 128) s[i] = reinterpret_cast<const __half2*>(x)[i];
    __syncthreads();
    const __half2 v = s[127 - t];            // COUNT requests=4 wavefronts=4: one access of a word
    reinterpret_cast<__half2*>(out)[t] = v;  // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void float2_linear(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float2 s[128];
    const int t = threadIdx.x;
    for (int i = t; i < 128; i += 128) s[i] = reinterpret_cast<const float2*>(x)[i];
    __syncthreads();
    const float2 v = s[127 - t];            // COUNT requests=4 wavefronts=8: a half-warp takes 32 banks
    reinterpret_cast<float2*>(out)[t] = v;  // COUNT requests=4 sectors=32 ideal=32: 256 bytes a warp
}

__global__ void float2_stride_2(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float2 s[256];
    const int t = threadIdx.x;
    for (int i = t; i < 256; i += 128) s[i] = reinterpret_cast<const float2*>(x)[i];
    __syncthreads();
    const float2 v = s[(127 - t) * 2];      // COUNT requests=4 wavefronts=16: each half-warp meets 16 banks twice
    reinterpret_cast<float2*>(out)[t] = v;  // COUNT requests=4 sectors=32 ideal=32: 256 bytes a warp
}

__global__ void float2_stride_16(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float2 s[2048];
    const int t = threadIdx.x;
    for (int i = t; i < 2048; i += 128) s[i] = reinterpret_cast<const float2*>(x)[i];
    __syncthreads();
    const float2 v = s[(127 - t) * 16];     // COUNT requests=4 wavefronts=128: each half-warp meets two banks 16 times
    reinterpret_cast<float2*>(out)[t] = v;  // COUNT requests=4 sectors=32 ideal=32: 256 bytes a warp
}

__global__ void double_linear(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) double s[128];
    const int t = threadIdx.x;
    for (int i = t; i < 128; i += 128) s[i] = reinterpret_cast<const double*>(x)[i];
    __syncthreads();
    const double v = s[127 - t];            // COUNT requests=4 wavefronts=8: as float2
    reinterpret_cast<double*>(out)[t] = v;  // COUNT requests=4 sectors=32 ideal=32: 256 bytes a warp
}

__global__ void float4_linear(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float4 s[128];
    const int t = threadIdx.x;
    for (int i = t; i < 128; i += 128) s[i] = reinterpret_cast<const float4*>(x)[i];
    __syncthreads();
    const float4 v = s[127 - t];            // COUNT requests=4 wavefronts=16: a quarter-warp takes 32 banks
    reinterpret_cast<float4*>(out)[t] = v;  // COUNT requests=4 sectors=64 ideal=64: 512 bytes a warp
}

__global__ void float4_stride_2(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float4 s[256];
    const int t = threadIdx.x;
    for (int i = t; i < 256; i += 128) s[i] = reinterpret_cast<const float4*>(x)[i];
    __syncthreads();
    const float4 v = s[(127 - t) * 2];      // COUNT requests=4 wavefronts=32: each quarter-warp meets 16 banks twice
    reinterpret_cast<float4*>(out)[t] = v;  // COUNT requests=4 sectors=64 ideal=64: 512 bytes a warp
}

__global__ void float4_column_of_32(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float4 s[256];
    const int t = threadIdx.x;
    for (int i = t; i < 256; i += 128) s[i] = reinterpret_cast<const float4*>(x)[i];
    __syncthreads();
    const float4 v = s[t % 32 * 8 + t / 32];  // COUNT requests=4 wavefronts=128: rows of 128 bytes: each quarter-warp meets four banks eight times
    reinterpret_cast<float4*>(out)[t] = v;    // COUNT requests=4 sectors=64 ideal=64: 512 bytes a warp
}

__global__ void float4_column_of_36(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float4 s[288];
    const int t = threadIdx.x;
    for (int i = t; i < 288; i += 128) s[i] = reinterpret_cast<const float4*>(x)[i];
    __syncthreads();
    const float4 v = s[t % 32 * 9 + t / 32];  // COUNT requests=4 wavefronts=16: rows of 144 bytes: the eight lanes of a quarter-warp take 32 banks
    reinterpret_cast<float4*>(out)[t] = v;    // COUNT requests=4 sectors=64 ideal=64: 512 bytes a warp
}

__global__ void float4_store_stride_2(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float4 s[256];
    const int t = threadIdx.x;
    const float4 u = reinterpret_cast<const float4*>(x)[t];  // COUNT requests=4 sectors=64 ideal=64: 512 bytes a warp
    s[t * 2] = u;                                            // COUNT requests=4 wavefronts=32: each quarter-warp meets 16 banks twice
    __syncthreads();
    const float4 v = s[(127 - t) * 2];                       // COUNT requests=4 wavefronts=32: the same, backwards
    reinterpret_cast<float4*>(out)[t] = v;                   // COUNT requests=4 sectors=64 ideal=64: 512 bytes a warp
}
