/* rooftop
idea    = "The row is held in shared memory, filled by asynchronous copies (cp.async) that use no registers: the whole row is in flight together, and a thread needs registers only for the sums, so that more blocks fit a multiprocessor: at 8192 columns of bf16 a thread has 40 registers instead of 84, and six blocks are resident instead of two."
predict = { speedup = 1.5, reads = 3 }
limit   = "Not timed yet. One block holds a row: from 64 KiB on a multiprocessor has one row (44 registers for each of 1024 threads), and while one is summed few loads are in flight. Rows above 96 KiB do not fit all cards."
dtypes  = ["f32", "bf16"]
demands = { has = ["LDGSTS.E.128", "STG.E.128"], spills = 0 }
args   = ["R: i64", "C: u32", "x: T[R, C]", "xs: i64 = stride(x, 0)", "weight: T[C]?", "bias: T[C]?", "y: T[R, C]", "ys: i64 = stride(y, 0)", "eps: f32"]

[requires]
"not present(residual)" = "this rung adds nothing before"
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
kernel = "layer_norm<{T}, {threads}>"
grid   = ["R"]
block  = ["threads"]
shared = "16 * ceil(C * bytes(x) / 16)"
*/
#include <cuda_bf16.h>
#include <cuda_pipeline.h>

/// The sum of v over the block, in every thread: by shuffles in each warp, then one value a warp through shared memory.
template <int WARPS>
__device__ float fold(float v, float* shared) {
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
    v = shared[threadIdx.x % WARPS];
    for (int step = WARPS / 2; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
    return v;
}

/// v · weight + bias of column c.
template <typename T>
__device__ T affine(float v, const T* w, const T* b, unsigned c) {
    return T(v * (w ? static_cast<float>(w[c]) : 1) + (b ? static_cast<float>(b[c]) : 0));
}

/// A pack: 16 bytes of a row, one vector access.
template <typename T>
struct alignas(16) Pack {
    static constexpr int N = 16 / sizeof(T);
    T v[N];
};

extern __shared__ __align__(128) unsigned char memory[];  // the row; a thread reads only what it copied itself

template <typename T, int THREADS>
__global__ void __launch_bounds__(THREADS)
    layer_norm(long long R, unsigned C, const T* __restrict__ x, long long xs, const T* __restrict__ w, const T* __restrict__ b, T* __restrict__ y, long long ys, float eps) {
    using P = Pack<T>;
    __shared__ float sums[THREADS / 32], squares[THREADS / 32];
    P* const held = reinterpret_cast<P*>(memory);
    const unsigned tid = threadIdx.x, packs = (C + P::N - 1) / P::N;
    x += blockIdx.x * xs;
    y += blockIdx.x * ys;
    const auto bits = [](const void* p) { return reinterpret_cast<unsigned long long>(p); };
    const bool aligned = (bits(x) | bits(y) | bits(w) | bits(b)) % 16 == 0;

    for (unsigned k = tid; k < packs; k += THREADS) {
        const unsigned c = k * P::N;
        if (aligned && c + P::N <= C) {
            __pipeline_memcpy_async(held + k, x + c, 16);
        } else {
#pragma unroll
            for (int j = 0; j < P::N; ++j) held[k].v[j] = c + j < C ? x[c + j] : T(0.0f);
        }
    }
    __pipeline_commit();
    __pipeline_wait_prior(0);

    float s = 0, q = 0;
    for (unsigned k = tid; k < packs; k += THREADS) {
        const P v = held[k];
#pragma unroll
        for (int j = 0; j < P::N; ++j) s += static_cast<float>(v.v[j]);
    }
    const float mean = fold<THREADS / 32>(s, sums) / C;
    for (unsigned k = tid; k < packs; k += THREADS) {
        const P v = held[k];
#pragma unroll
        for (int j = 0; j < P::N; ++j) {
            const float off = k * P::N + j < C ? static_cast<float>(v.v[j]) - mean : 0;
            q += off * off;
        }
    }
    const float scale = 1 / sqrtf(fold<THREADS / 32>(q, squares) / C + eps);

    for (unsigned k = tid; k < packs; k += THREADS) {
        const unsigned c = k * P::N;
        const P v = held[k];
        if (aligned && c + P::N <= C) {
            P q, a;
            if (w) q = *reinterpret_cast<const P*>(w + c);
            if (b) a = *reinterpret_cast<const P*>(b + c);
#pragma unroll
            for (int j = 0; j < P::N; ++j) {
                const float n = (static_cast<float>(v.v[j]) - mean) * scale;
                q.v[j] = T(n * (w ? static_cast<float>(q.v[j]) : 1) + (b ? static_cast<float>(a.v[j]) : 0));
            }
            *reinterpret_cast<P*>(y + c) = q;
        } else {
#pragma unroll
            for (int j = 0; j < P::N; ++j)
                if (c + j < C) y[c + j] = affine((static_cast<float>(v.v[j]) - mean) * scale, w, b, c + j);
        }
    }
}
