/* rooftop
idea    = "Stochastic rounding too: the value in steps of 2^-16 of a code, 16 random bits added, the fraction truncated. One hash of the seed and the index serves eight neighbours, each of its products two of them."
predict = { speedup = 1.0, sectors_read = 16 }
limit   = "The instructions of the division; with stochastic rounding also those of the hash."
dtypes  = ["f32", "f16", "bf16"]
args    = ["L: i32", "x: T[N, L]", "xs: i64 = stride(x, 0)", "codes: u8[N, BYTES]", "scale: f32[N]", "seed: i32"]
demands = { has = ["LDG.E.128"], spills = 0 }

[requires]
"format == 'int8' or format == 'int4'" = "this rung makes int8 and int4"
"symmetric and scales == 'f32' and (rounding == 'nearest' or rounding == 'stochastic') and not present(over)" = "symmetric, float32 scales, rounded to nearest or stochastically"
"N * L > 0" = "there is nothing to quantise"
"stride(x, 1) == 1 or L == 1" = "the elements of a row must be neighbours"
"L % (16 // bytes(x)) == 0 and aligned(x, 16) and starts(codes, 8)" = "rows must start on 16-byte boundaries"
"L * bytes(x) <= 32768" = "a row must fit the registers of a block"

[let]
pieces = "max(1, ceil(L * bytes(x) / 4096))"

[[launch]]
kernel = "quantize<{T}, {pieces}, {4 if format == 'int4' else 8}, {1 if rounding == 'stochastic' else 0}>"
grid   = ["N"]
block  = [256]
*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "words.cuh"

/// The magnitude of a finite number, else 0: infinities and NaN do not influence a scale.
__device__ float finite_size(float v) { return fabsf(v) <= 3.4028234663852886e38f ? fabsf(v) : 0; }

__device__ float scale_of(float most, float largest_code) { return fmaxf(__fdiv_rn(most, largest_code), 0x1p-126f); }

/// round(v / s) with ties to even, at most `most`; NaN becomes 0.
__device__ int code_of(float v, float s, int most) {
    const float q = __fdiv_rn(v, s);
    return q != q ? 0 : __float2int_rn(fminf(fmaxf(q, static_cast<float>(-most)), static_cast<float>(most)));
}

/// Stochastic rounding: v / s in units of 2^-16, plus random bits, truncated; it rounds up with the probability of the fraction.
__device__ int drawn_code_of(float v, float s, int most, unsigned bits) {
    const float q = __fdiv_rn(v, s);
    const int steps = q != q ? 0 : __float2int_rn(fminf(fmaxf(q, -256.f), 256.f) * 65536.f);
    return (min(max(steps, -most * 65536), most * 65536) + static_cast<int>(bits)) >> 16;
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
template <typename T, int PIECES, int BITS, bool STOCHASTIC>
__global__ void __launch_bounds__(256) quantize(int L, const T* __restrict__ x, long long xs, unsigned char* __restrict__ codes, float* __restrict__ scale, int seed) {
    using P = Pack<T>;
    constexpr int MOST = (1 << (BITS - 1)) - 1, BYTES = P::N * BITS / 8;
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
    __shared__ float s[8];
    for (int step = 16; step > 0; step /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, step));
    if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = m;
    __syncthreads();
    m = s[threadIdx.x % 8];
    for (int step = 4; step > 0; step /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, step));
    const float unit = scale_of(m, MOST);
    if (threadIdx.x == 0) scale[blockIdx.x] = unit;
#pragma unroll
    for (int k = 0; k < PIECES; ++k) {
        if (threadIdx.x + k * 256 >= L / P::N) continue;
        Codes<BYTES> c;
        const unsigned long long index = static_cast<unsigned long long>(blockIdx.x) * L + (threadIdx.x + k * 256) * P::N;
        const RandomWords random(seed, index >> 3);
#pragma unroll
        for (int j = 0; j < P::N; ++j) {
            const float v = static_cast<float>(p[k].v[j]);
            const unsigned bits = STOCHASTIC ? random((static_cast<unsigned>(index) + j) >> 1 & 3) >> (j % 2 * 16) & 0xffff : 0;
            const int code = STOCHASTIC ? drawn_code_of(v, unit, MOST, bits) : code_of(v, unit, MOST);
            if (BITS == 8) c.v[j % BYTES] = static_cast<unsigned char>(code);
            else c.v[j / 2] = static_cast<unsigned char>(j % 2 ? c.v[j / 2] | code << 4 : code & 15);  // the first of two in the low bits
        }
        to[threadIdx.x + k * 256] = c;
    }
}
