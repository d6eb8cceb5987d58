/* rooftop
idea    = "The row stays in the registers of its block, in the format it has in memory: read once, written once. The mean is computed first and then the variance about it, with no division in the loop."
predict = { speedup = 1.3, reads = 3 }
limit   = "Slower than rung 04 at 8192 columns of bf16, 316.6 µs for 216.9, and no faster at 32768: the words of each load are unpacked before the next load is issued, so a thread has 16 bytes in flight, and at 8192 columns 84 registers per thread leave a quarter of the threads. In float32 all loads are issued together: the same time as a copy at 8192 columns, 1.12 times at 32768. Rows above 128 KiB do not fit."
dtypes  = ["f32", "bf16"]
demands = { has = ["LDG.E.128", "STG.E.128"], spills = 0 }
valid   = "C * bytes(x) <= 16 * threads * packs"
args   = ["R: i64", "C: u32", "x: T[R, C]", "xs: i64 = stride(x, 0)", "weight: T[C]?", "bias: T[C]?", "y: T[R, C]", "ys: i64 = stride(y, 0)", "eps: f32"]

[requires]
"not present(residual)" = "this rung adds nothing before"
"C * bytes(x) <= 131072" = "a row must fit the registers of one block"

[config]
threads = 1024
packs   = 8

[[choice]]
when    = "C * bytes(x) <= 8192"
threads = 128
packs   = 4

[[choice]]
when    = "C * bytes(x) <= 16384"
threads = 256
packs   = 4

[[choice]]
when    = "C * bytes(x) <= 32768"
threads = 512
packs   = 4

[[choice]]
when    = "C * bytes(x) <= 65536"
threads = 1024
packs   = 4

[[launch]]
kernel = "layer_norm<{T}, {threads}, {packs}>"
grid   = ["R"]
block  = ["threads"]
*/
#include <cuda_bf16.h>

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

template <typename T, int THREADS, int PACKS>
__global__ void __launch_bounds__(THREADS) layer_norm(long long R, unsigned C, const T* __restrict__ x, long long xs, const T* __restrict__ w, const T* __restrict__ b,
                           T* __restrict__ y, long long ys, float eps) {
    using P = Pack<T>;
    __shared__ float sums[THREADS / 32], squares[THREADS / 32];
    const unsigned tid = threadIdx.x;
    x += blockIdx.x * xs;
    y += blockIdx.x * ys;
    const auto bits = [](const void* p) { return reinterpret_cast<unsigned long long>(p); };
    const bool aligned = (bits(x) | bits(y) | bits(w) | bits(b)) % 16 == 0;

    P v[PACKS];
    float s = 0, q = 0;
#pragma unroll
    for (int i = 0; i < PACKS; ++i) {
        const unsigned c = (i * THREADS + tid) * P::N;
        if (aligned && c + P::N <= C) {
            v[i] = *reinterpret_cast<const P*>(x + c);
        } else {
#pragma unroll
            for (int j = 0; j < P::N; ++j) v[i].v[j] = c + j < C ? x[c + j] : T(0.0f);
        }
    }
#pragma unroll
    for (int i = 0; i < PACKS; ++i)
#pragma unroll
        for (int j = 0; j < P::N; ++j) s += static_cast<float>(v[i].v[j]);
    const float mean = fold<THREADS / 32>(s, sums) / C;
#pragma unroll
    for (int i = 0; i < PACKS; ++i)
#pragma unroll
        for (int j = 0; j < P::N; ++j) {
            const float off = (i * THREADS + tid) * P::N + j < C ? static_cast<float>(v[i].v[j]) - mean : 0;
            q += off * off;
        }
    const float scale = 1 / sqrtf(fold<THREADS / 32>(q, squares) / C + eps);

#pragma unroll
    for (int i = 0; i < PACKS; ++i) {
        const unsigned c = (i * THREADS + tid) * P::N;
        if (aligned && c + P::N <= C) {
            P k, a;
            if (w) k = *reinterpret_cast<const P*>(w + c);
            if (b) a = *reinterpret_cast<const P*>(b + c);
#pragma unroll
            for (int j = 0; j < P::N; ++j) {
                const float n = (static_cast<float>(v[i].v[j]) - mean) * scale;
                k.v[j] = T(n * (w ? static_cast<float>(k.v[j]) : 1) + (b ? static_cast<float>(a.v[j]) : 0));
            }
            *reinterpret_cast<P*>(y + c) = k;
        } else {
#pragma unroll
            for (int j = 0; j < P::N; ++j)
                if (c + j < C) y[c + j] = affine((static_cast<float>(v[i].v[j]) - mean) * scale, w, b, c + j);
        }
    }
}
