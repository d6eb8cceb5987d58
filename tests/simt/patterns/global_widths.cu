/* rooftop
idea  = "One, two, four, eight and sixteen bytes a lane of global memory. 128 threads: four warps."
args  = ["x: f32[N]", "out: f32[N]"]

[[launch]]
kernel = "float2_linear"
grid   = [1]
block  = [128]

[[launch]]
kernel = "float4_linear"
grid   = [1]
block  = [128]

[[launch]]
kernel = "float2_offset_1"
grid   = [1]
block  = [128]

[[launch]]
kernel = "float4_offset_1"
grid   = [1]
block  = [128]

[[launch]]
kernel = "float4_stride_2"
grid   = [1]
block  = [128]

[[launch]]
kernel = "float2_stride_4"
grid   = [1]
block  = [128]

[[launch]]
kernel = "double_linear"
grid   = [1]
block  = [128]

[[launch]]
kernel = "half_linear"
grid   = [1]
block  = [128]

[[launch]]
kernel = "half2_linear"
grid   = [1]
block  = [128]

[[launch]]
kernel = "byte_linear"
grid   = [1]
block  = [128]
*/
#include <cuda_fp16.h>

__global__ void float2_linear(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    const float2 v = reinterpret_cast<const float2*>(x)[t];  // COUNT requests=4 sectors=32 ideal=32: 256 bytes a warp
    reinterpret_cast<float2*>(out)[t] = v;                   // COUNT requests=4 sectors=32 ideal=32: the same
}

__global__ void float4_linear(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    const float4 v = reinterpret_cast<const float4*>(x)[t];  // COUNT requests=4 sectors=64 ideal=64: 512 bytes a warp
    reinterpret_cast<float4*>(out)[t] = v;                   // COUNT requests=4 sectors=64 ideal=64: the same
}

__global__ void float2_offset_1(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    const float2 v = reinterpret_cast<const float2*>(x)[t + 1];  // COUNT requests=4 sectors=36 ideal=32: bytes 8 to 263: one sector more
    reinterpret_cast<float2*>(out)[t] = v;                       // COUNT requests=4 sectors=32 ideal=32: 256 bytes a warp
}

__global__ void float4_offset_1(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    const float4 v = reinterpret_cast<const float4*>(x)[t + 1];  // COUNT requests=4 sectors=68 ideal=64: bytes 16 to 527: one sector more
    reinterpret_cast<float4*>(out)[t] = v;                       // COUNT requests=4 sectors=64 ideal=64: 512 bytes a warp
}

__global__ void float4_stride_2(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    const float4 v = reinterpret_cast<const float4*>(x)[t * 2];  // COUNT requests=4 sectors=128 ideal=64: half of each sector
    reinterpret_cast<float4*>(out)[t] = v;                       // COUNT requests=4 sectors=64 ideal=64: 512 bytes a warp
}

__global__ void float2_stride_4(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    const float2 v = reinterpret_cast<const float2*>(x)[t * 4];  // COUNT requests=4 sectors=128 ideal=32: a quarter of each sector
    reinterpret_cast<float2*>(out)[t] = v;                       // COUNT requests=4 sectors=32 ideal=32: 256 bytes a warp
}

__global__ void double_linear(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    const double v = reinterpret_cast<const double*>(x)[t];  // COUNT requests=4 sectors=32 ideal=32: 256 bytes a warp
    reinterpret_cast<double*>(out)[t] = v;                   // COUNT requests=4 sectors=32 ideal=32: the same
}

__global__ void half_linear(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    const __half v = reinterpret_cast<const __half*>(x)[t];  // COUNT requests=4 sectors=8 ideal=8: 64 bytes a warp
    reinterpret_cast<__half*>(out)[t] = v;                   // COUNT requests=4 sectors=8 ideal=8: the same
}

__global__ void half2_linear(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    const __half2 v = reinterpret_cast<const __half2*>(x)[t];  // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
    reinterpret_cast<__half2*>(out)[t] = v;                    // COUNT requests=4 sectors=16 ideal=16: the same
}

__global__ void byte_linear(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    const unsigned char v = reinterpret_cast<const unsigned char*>(x)[t];  // COUNT requests=4 sectors=4 ideal=4: 32 bytes a warp
    reinterpret_cast<unsigned char*>(out)[t] = v;                          // COUNT requests=4 sectors=4 ideal=4: the same
}
