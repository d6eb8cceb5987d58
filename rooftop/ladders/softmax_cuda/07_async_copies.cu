/* rooftop
idea    = "The row is held in shared memory, in the format it has in memory, filled by asynchronous copies (cp.async) that use no registers: the whole row is in flight together, and a thread needs few registers, so that more blocks fit a multiprocessor: at 8192 columns of bf16 a thread has 32 registers instead of 48, and eight blocks are resident instead of five. Each exponential is computed twice, once for the sum and once for the result."
predict = { speedup = 1.01, reads = 1 }
limit   = "Not timed yet. One block holds a row: above 32 KiB a multiprocessor has at most two rows, and while one is summed few loads are in flight. Rows above 96 KiB do not fit all cards."
dtypes  = ["f32", "bf16"]
args    = ["C: u32", "x: T[R, C, 1]", "xs: i64 = stride(x, 0)", "y: T[R, C, 1]", "ys: i64 = stride(y, 0)"]
demands = { has = ["LDGSTS.E.128", "STG.E.128"], spills = 0 }

[requires]
"C == 1 or stride(x, 1) == 1 and stride(y, 1) == 1" = "the elements of a row must be neighbours"
"C * bytes(x) <= 98304" = "a row must fit the shared memory of one block"

[config]
threads = 1024

[[choice]]
when    = "C * bytes(x) <= 8192"
threads = 128

[[choice]]
when    = "C * bytes(x) <= 16384"
threads = 256

[[choice]]
when    = "C * bytes(x) <= 32768"
threads = 512

[[launch]]
kernel = "softmax<{T}, {threads}>"
grid   = ["R"]
block  = ["threads"]
shared = "16 * ceil(C * bytes(x) / 16)"
*/
#include <cuda_bf16.h>
#include <cuda_pipeline.h>
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

extern __shared__ __align__(128) unsigned char memory[];  // the row; a thread reads only what it copied itself

template <typename T, int THREADS>
__global__ void __launch_bounds__(THREADS, 2048 / THREADS) softmax(unsigned C, const T* __restrict__ x, long long xs, T* __restrict__ y, long long ys) {
    using P = Pack<T>;
    constexpr int WARPS = THREADS / 32;
    __shared__ float maxima[WARPS], sums[WARPS];
    P* const held = reinterpret_cast<P*>(memory);
    const unsigned tid = threadIdx.x, packs = (C + P::N - 1) / P::N;
    x += blockIdx.x * xs;
    y += blockIdx.x * ys;
    const bool aligned = (reinterpret_cast<unsigned long long>(x) | reinterpret_cast<unsigned long long>(y)) % 16 == 0;

    for (unsigned k = tid; k < packs; k += THREADS) {
        const unsigned c = k * P::N;
        if (aligned && c + P::N <= C) {
            __pipeline_memcpy_async(held + k, x + c, 16);
        } else {
#pragma unroll
            for (int j = 0; j < P::N; ++j) held[k].v[j] = c + j < C ? x[c + j] : T(-CUDART_INF_F);
        }
    }
    __pipeline_commit();
    __pipeline_wait_prior(0);

    float m = LOWEST, s = 0;
    for (unsigned k = tid; k < packs; k += THREADS) {
        const P p = held[k];
#pragma unroll
        for (int j = 0; j < P::N; ++j) m = fmaxf(m, static_cast<float>(p.v[j]));
    }
    m = fold<WARPS>(m, maxima, [](float a, float b) { return fmaxf(a, b); });
    for (unsigned k = tid; k < packs; k += THREADS) {
        const P p = held[k];
        float part = 0;  // a pack's sum first: a chain of sums of packs loses less than one of all elements
#pragma unroll
        for (int j = 0; j < P::N; ++j) part += expf(static_cast<float>(p.v[j]) - m);
        s += part;
    }
    const float scale = 1 / fold<WARPS>(s, sums, [](float a, float b) { return a + b; });

    for (unsigned k = tid; k < packs; k += THREADS) {
        const unsigned c = k * P::N;
        P p = held[k];
#pragma unroll
        for (int j = 0; j < P::N; ++j) p.v[j] = T(expf(static_cast<float>(p.v[j]) - m) * scale);
        if (aligned && c + P::N <= C) {
            *reinterpret_cast<P*>(y + c) = p;
        } else {
#pragma unroll
            for (int j = 0; j < P::N; ++j)
                if (c + j < C) y[c + j] = p.v[j];
        }
    }
}
