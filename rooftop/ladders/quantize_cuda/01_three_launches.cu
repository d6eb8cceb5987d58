/* rooftop
idea    = "As in torch: three launches, for the largest magnitude of each row, for the scales, and for the codes. One block per row in the first, one thread per element in the last."
limit   = "The input is read twice from memory, two bytes per load, and each launch waits for the preceding one."
dtypes  = ["f32", "f16", "bf16"]
args    = ["x: T[N, L]", "codes: u8[N, BYTES]", "scale: f32[N]"]

[requires]
"format == 'int8'" = "this rung makes int8"
"symmetric and scales == 'f32' and rounding == 'nearest' and not present(over)" = "symmetric, float32 scales, rounded to nearest"
"N * L > 0" = "there is nothing to quantise"
"stride(x, 1) == 1 or L == 1" = "the elements of a row must be neighbours"

[scratch]
most = "f32[N]"

[[launch]]
kernel = "largest<{T}>"
grid   = ["N"]
block  = [256]
args   = ["L: i32", "x: T[N, L]", "xs: i64 = stride(x, 0)", "most: f32[N]"]

[[launch]]
kernel = "scales"
grid   = ["ceil(N / 256)"]
block  = [256]
args   = ["N: i64", "most: f32[N]", "scale: f32[N]"]

[[launch]]
kernel = "encode<{T}>"
grid   = ["ceil(N * L / 256)"]
block  = [256]
args   = ["N: i64", "L: i32", "x: T[N, L]", "xs: i64 = stride(x, 0)", "scale: f32[N]", "codes: u8[N, BYTES]"]
*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

/// The magnitude of a finite number, else 0: infinities and NaN do not influence a scale.
__device__ float finite_size(float v) { return fabsf(v) <= 3.4028234663852886e38f ? fabsf(v) : 0; }

__device__ float scale_of(float most, float largest_code) { return fmaxf(__fdiv_rn(most, largest_code), 0x1p-126f); }

/// round(v / s) with ties to even, at most `most`; NaN becomes 0.
__device__ int code_of(float v, float s, int most) {
    const float q = __fdiv_rn(v, s);
    return q != q ? 0 : __float2int_rn(fminf(fmaxf(q, static_cast<float>(-most)), static_cast<float>(most)));
}

template <typename T>
__global__ void largest(int L, const T* __restrict__ x, long long xs, float* __restrict__ most) {
    __shared__ float s[256];
    x += blockIdx.x * xs;
    float m = 0;
    for (int i = threadIdx.x; i < L; i += 256) m = fmaxf(m, finite_size(static_cast<float>(x[i])));
    s[threadIdx.x] = m;
    __syncthreads();
    for (int step = 128; step > 0; step /= 2) {
        if (threadIdx.x < step) s[threadIdx.x] = fmaxf(s[threadIdx.x], s[threadIdx.x + step]);
        __syncthreads();
    }
    if (threadIdx.x == 0) most[blockIdx.x] = s[0];
}

__global__ void scales(long long N, const float* __restrict__ most, float* __restrict__ scale) {
    const long long n = blockIdx.x * 256ll + threadIdx.x;
    if (n < N) scale[n] = scale_of(most[n], 127);
}

template <typename T>
__global__ void encode(long long N, int L, const T* __restrict__ x, long long xs, const float* __restrict__ scale, unsigned char* __restrict__ codes) {
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= N * L) return;
    const long long n = i / L;
    codes[i] = static_cast<unsigned char>(code_of(static_cast<float>(x[n * xs + i % L]), scale[n], 127));
}
