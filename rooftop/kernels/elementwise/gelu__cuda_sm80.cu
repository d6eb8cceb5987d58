/* rooftop
idea    = """One pack of 16 bytes per thread. With programmatic dependent launch more blocks are cheaper than two packs per thread. At 16 \
  bits Φ is the sigmoid of x times a polynomial of x² (rooftop/kernels/_device/activations.py), with the fast exponential and reciprocal: \
  20 instructions per element instead of 38, fewer than can be issued in the time of a copy."""
predict = { speedup = 1.02 }
limit   = "The copy of the same bytes, from 4 MiB on."
dtypes  = ["f32", "f16", "bf16"]
args    = ["N: i64 = numel(x)", "x: T[R, C]", "y: T[R, C]"]
demands = { has = ["LDG.E.128", "STG.E.128"], spills = 0 }

[requires]
"R == 1 or stride(x, 0) == C and stride(y, 0) == C" = "the elements must lie without gaps"

[config]
threads = 256
packs   = 1

[[launch]]
kernel = "gelu_of<{T}, {approximate == 'tanh'}, {threads}, {packs}>"
grid   = ["ceil(R * C * bytes(x) / (16 * packs * threads))"]
block  = ["threads"]
pdl = true
*/
#include "pdl.cuh"
#include "packs.cuh"

/// 1 / (1 + e^-z); with fast instructions, accurate to a few units in the last place of float32, if the result is rounded to 16 bits.
template <bool FAST>
__device__ float sigmoid(float z) {
    return FAST ? __fdividef(1, 1 + __expf(-z)) : 1 / (1 + expf(-z));
}

template <bool TANH, bool FAST>
__device__ float gelu(float x) {
    if (TANH) {  // 1 + tanh z = 2 sigmoid 2z; for float32 results by tanhf, to the last digits
        return FAST ? x * sigmoid<true>(1.5957691216057308f * (x + 0.044715f * x * x * x))
                    : x * (0.5f + 0.5f * tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
    }
    if (!FAST) return x * (0.5f + 0.5f * erff(x * 0.7071067811865476f));
    const float t = fminf(x * x, 30.25f);
    float q = fmaf(-4.5792598107055025e-11f, t, 5.60175225105277e-09f);
    q = fmaf(q, t, -2.845478877014151e-07f);
    q = fmaf(q, t, 7.6270199844752935e-06f);
    q = fmaf(q, t, -0.00010387284107891617f);
    q = fmaf(q, t, -0.00010807971911727351f);
    q = fmaf(q, t, 0.07276761597245177f);
    q = fmaf(q, t, 1.5957047235797504f);
    return x * sigmoid<true>(x * q);
}

template <typename T, bool TANH, int THREADS, int PACKS>
__global__ void __launch_bounds__(THREADS) gelu_of(long long N, const T* __restrict__ x, T* __restrict__ y) {
    using P = Pack<T>;
    constexpr bool FAST = sizeof(T) == 2;
    const long long first = (static_cast<long long>(blockIdx.x) * PACKS * THREADS + threadIdx.x) * P::N;
    const bool whole = aligned(x) && aligned(y);
    uint4 p[PACKS];
    gdc_wait();
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        const long long i = first + k * THREADS * P::N;
        if (whole && i + P::N <= N) p[k] = P::load(x + i, true);
    }
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        const long long i = first + k * THREADS * P::N;
        if (whole && i + P::N <= N) {
            float f[P::N];
            P::widen(p[k], f);
#pragma unroll
            for (int j = 0; j < P::N; ++j) f[j] = gelu<TANH, FAST>(f[j]);
            P::store(y + i, true, P::narrow(f));
        } else {
            for (long long j = i; j < N && j < i + P::N; ++j) y[j] = T(gelu<TANH, FAST>(static_cast<float>(x[j])));
        }
    }
}
