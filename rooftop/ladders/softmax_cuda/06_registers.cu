/* rooftop
idea    = "The row stays in the registers of its block, as floats: read once, written once, and each exponential is computed once."
predict = { speedup = 1.15, reads = 1 }
limit   = "A row of 32768 floats occupies half of a multiprocessor's registers: one block at a time, and while it computes nothing is loaded. Longer rows do not fit."
dtypes  = ["f32", "bf16"]
args    = ["C: u32", "x: T[R, C, 1]", "xs: i64 = stride(x, 0)", "y: T[R, C, 1]", "ys: i64 = stride(y, 0)"]
demands = { has = ["LDG.E.128", "STG.E.128"], spills = 0 }
valid   = "C <= threads * packs * 16 // bytes(x)"

[requires]
"C == 1 or stride(x, 1) == 1 and stride(y, 1) == 1" = "the elements of a row must be neighbours"
"C <= 32768" = "a row must fit the registers of one block"

[config]
threads = 1024
packs   = 8

[[choice]]
when    = "C <= 4096 and bytes(x) == 4"
threads = 128

[[choice]]
when    = "C <= 8192 and bytes(x) == 4"
threads = 256

[[choice]]
when    = "C <= 16384 and bytes(x) == 4"
threads = 512

[[choice]]
when    = "C <= 4096 and bytes(x) == 2"
threads = 128
packs   = 4

[[choice]]
when    = "C <= 8192 and bytes(x) == 2"
threads = 256
packs   = 4

[[choice]]
when    = "C <= 16384 and bytes(x) == 2"
threads = 512
packs   = 4

[[choice]]
when    = "bytes(x) == 2"
packs   = 4

[[launch]]
kernel = "softmax<{T}, {threads}, {packs}>"
grid   = ["R"]
block  = ["threads"]
*/
#include <cuda_bf16.h>
#include <math_constants.h>

constexpr float LOWEST = -3.402823466e38f;  // a row of only -inf ends as 0 / 0 = NaN, which is the contract

/// `f` over the block's values, in every thread: by shuffles in each warp, then one value a warp through shared memory.
template <int WARPS, typename F>
__device__ float fold(float v, float* shared, F f) {
    for (int step = 16; step > 0; step /= 2) v = f(v, __shfl_xor_sync(~0u, v, step));
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
    v = shared[threadIdx.x % WARPS];
    for (int step = WARPS / 2; step > 0; step /= 2) v = f(v, __shfl_xor_sync(~0u, v, step));
    return v;
}

/// A pack: 16 bytes of a row, one vector access.
template <typename T>
struct alignas(16) Pack {
    static constexpr int N = 16 / sizeof(T);
    T v[N];
};

template <typename T, int THREADS, int PACKS>
__global__ void __launch_bounds__(THREADS) softmax(unsigned C, const T* __restrict__ x, long long xs, T* __restrict__ y, long long ys) {
    using P = Pack<T>;
    constexpr int WARPS = THREADS / 32;
    __shared__ float maxima[WARPS], sums[WARPS];
    const unsigned tid = threadIdx.x;
    x += blockIdx.x * xs;
    y += blockIdx.x * ys;
    const bool aligned = (reinterpret_cast<unsigned long long>(x) | reinterpret_cast<unsigned long long>(y)) % 16 == 0;

    float v[PACKS][P::N];
#pragma unroll
    for (int i = 0; i < PACKS; ++i) {
        const unsigned c = (i * THREADS + tid) * P::N;
        P p;
        if (aligned && c + P::N <= C) {
            p = *reinterpret_cast<const P*>(x + c);
        } else {
#pragma unroll
            for (int j = 0; j < P::N; ++j) p.v[j] = c + j < C ? x[c + j] : T(-CUDART_INF_F);
        }
#pragma unroll
        for (int j = 0; j < P::N; ++j) v[i][j] = static_cast<float>(p.v[j]);
    }

    float m = LOWEST, s = 0;
#pragma unroll
    for (int i = 0; i < PACKS; ++i)
#pragma unroll
        for (int j = 0; j < P::N; ++j) m = fmaxf(m, v[i][j]);
    m = fold<WARPS>(m, maxima, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
    for (int i = 0; i < PACKS; ++i) {
        float part = 0;  // a pack's sum first: a chain of PACKS sums loses less than one of all
#pragma unroll
        for (int j = 0; j < P::N; ++j) part += v[i][j] = expf(v[i][j] - m);
        s += part;
    }
    const float scale = 1 / fold<WARPS>(s, sums, [](float a, float b) { return a + b; });

#pragma unroll
    for (int i = 0; i < PACKS; ++i) {
        const unsigned c = (i * THREADS + tid) * P::N;
        P p;
#pragma unroll
        for (int j = 0; j < P::N; ++j) p.v[j] = T(v[i][j] * scale);
        if (aligned && c + P::N <= C) {
            *reinterpret_cast<P*>(y + c) = p;
        } else {
#pragma unroll
            for (int j = 0; j < P::N; ++j)
                if (c + j < C) y[c + j] = p.v[j];
        }
    }
}
