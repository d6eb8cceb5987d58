/* rooftop
idea    = "Loads of 16 bytes, stores of 8, and the row stays in registers between its maximum and its codes: it is read once."
predict = { speedup = 1.6, sectors_read = 16 }
limit   = "Nine barriers between the read and the write, during which the block has no load in flight."
dtypes  = ["f32", "f16", "bf16"]
args    = ["L: i32", "x: T[N, L]", "xs: i64 = stride(x, 0)", "codes: u8[N, BYTES]", "scale: f32[N]"]
demands = { has = ["LDG.E.128"], spills = 0 }

[requires]
"format == 'int8'" = "this rung makes int8"
"symmetric and scales == 'f32' and rounding == 'nearest' and not present(over)" = "symmetric, float32 scales, rounded to nearest"
"N * L > 0" = "there is nothing to quantise"
"stride(x, 1) == 1 or L == 1" = "the elements of a row must be neighbours"
"L % (16 // bytes(x)) == 0 and aligned(x, 16) and starts(codes, 8)" = "rows must start on 16-byte boundaries"
"L * bytes(x) <= 32768" = "a row must fit the registers of a block"

[let]
pieces = "max(1, ceil(L * bytes(x) / 4096))"

[[launch]]
kernel = "quantize<{T}, {pieces}>"
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

/// A pack of 16 bytes of a row, and the codes of as many elements.
template <typename T>
struct alignas(16) Pack {
    static constexpr int N = 16 / sizeof(T);
    T v[N];
};
template <int BYTES>
struct alignas(BYTES) Codes {
    unsigned char v[BYTES];
};

/// The row stays in registers: PIECES packs a thread.
template <typename T, int PIECES>
__global__ void __launch_bounds__(256) quantize(int L, const T* __restrict__ x, long long xs, unsigned char* __restrict__ codes, float* __restrict__ scale) {
    using P = Pack<T>;
    constexpr int MOST = 127, BYTES = P::N;
    const P* from = reinterpret_cast<const P*>(x + blockIdx.x * xs);
    Codes<BYTES>* to = reinterpret_cast<Codes<BYTES>*>(codes) + static_cast<long long>(blockIdx.x) * (L / P::N);
    P p[PIECES];
#pragma unroll
    for (int k = 0; k < PIECES; ++k) {
        if (threadIdx.x + k * 256 < L / P::N) p[k] = from[threadIdx.x + k * 256];
    }
    float m = 0;
#pragma unroll
    for (int k = 0; k < PIECES; ++k) {
        if (threadIdx.x + k * 256 >= L / P::N) continue;
#pragma unroll
        for (int j = 0; j < P::N; ++j) m = fmaxf(m, finite_size(static_cast<float>(p[k].v[j])));
    }
    __shared__ float s[256];
    s[threadIdx.x] = m;
    __syncthreads();
    for (int step = 128; step > 0; step /= 2) {
        if (threadIdx.x < step) s[threadIdx.x] = fmaxf(s[threadIdx.x], s[threadIdx.x + step]);
        __syncthreads();
    }
    const float unit = scale_of(s[0], MOST);
    if (threadIdx.x == 0) scale[blockIdx.x] = unit;
#pragma unroll
    for (int k = 0; k < PIECES; ++k) {
        if (threadIdx.x + k * 256 >= L / P::N) continue;
        Codes<BYTES> c;
#pragma unroll
        for (int j = 0; j < P::N; ++j) c.v[j] = static_cast<unsigned char>(code_of(static_cast<float>(p[k].v[j]), unit, MOST));
        to[threadIdx.x + k * 256] = c;
    }
}
