/* rooftop
idea    = "One launch: the block that has found the largest magnitude of a row reads the row again, which is still in the L2 or the L1, and writes the codes."
predict = { speedup = 1.5 }
limit   = "Two bytes per load and one per store; a division, a comparison and two clamps for each."
dtypes  = ["f32", "f16", "bf16"]
args    = ["L: i32", "x: T[N, L]", "xs: i64 = stride(x, 0)", "codes: u8[N, BYTES]", "scale: f32[N]"]

[requires]
"format == 'int8'" = "this rung makes int8"
"symmetric and scales == 'f32' and rounding == 'nearest' and not present(over)" = "symmetric, float32 scales, rounded to nearest"
"N * L > 0" = "there is nothing to quantise"
"stride(x, 1) == 1 or L == 1" = "the elements of a row must be neighbours"

[[launch]]
kernel = "quantize<{T}>"
grid   = ["N"]
block  = [256]
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
__global__ void __launch_bounds__(256) quantize(int L, const T* __restrict__ x, long long xs, unsigned char* __restrict__ codes, float* __restrict__ scale) {
    __shared__ float s[256];
    x += blockIdx.x * xs;
    codes += static_cast<long long>(blockIdx.x) * L;
    float m = 0;
    for (int i = threadIdx.x; i < L; i += 256) m = fmaxf(m, finite_size(static_cast<float>(x[i])));
    s[threadIdx.x] = m;
    __syncthreads();
    for (int step = 128; step > 0; step /= 2) {
        if (threadIdx.x < step) s[threadIdx.x] = fmaxf(s[threadIdx.x], s[threadIdx.x + step]);
        __syncthreads();
    }
    const float unit = scale_of(s[0], 127);
    if (threadIdx.x == 0) scale[blockIdx.x] = unit;
    for (int i = threadIdx.x; i < L; i += 256) codes[i] = static_cast<unsigned char>(code_of(static_cast<float>(x[i]), unit, 127));
}
