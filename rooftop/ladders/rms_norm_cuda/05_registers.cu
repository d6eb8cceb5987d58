/* rooftop
idea    = "The row stays in the registers of its block, in the format it has in memory: read once, written once."
predict = { speedup = 1.2, reads = 2 }
limit   = "In bf16 the words of each load are unpacked before the next load is issued, so a thread has 16 bytes in flight: 1.05 times the time of a copy at 8192 columns, 1.28 at 32768, where only one block fits a multiprocessor. In float32 all loads are issued together: 1.005 and 1.03. Rows above 128 KiB do not fit."
dtypes  = ["f32", "bf16"]
demands = { has = ["LDG.E.128", "STG.E.128"], spills = 0 }
valid   = "C * bytes(x) <= 16 * threads * packs"
args   = ["R: i64", "C: u32", "x: T[R, C]", "xs: i64 = stride(x, 0)", "weight: T[C]?", "y: T[R, C]", "ys: i64 = stride(y, 0)", "eps: f32"]

[requires]
"not present(residual) and not present(bias)" = "this rung adds nothing before and nothing after"
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
kernel = "rms_norm<{T}, {threads}, {packs}>"
grid   = ["R"]
block  = ["threads"]
*/
#include <cuda_bf16.h>

__device__ float warp_sum(float v, int width) {
    for (int step = width / 2; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
    return v;
}

/// A pack: 16 bytes of a row, one vector access.
template <typename T>
struct alignas(16) Pack {
    static constexpr int N = 16 / sizeof(T);
    T v[N];
};

template <typename T, int THREADS, int PACKS>
__global__ void __launch_bounds__(THREADS)
    rms_norm(long long R, unsigned C, const T* __restrict__ x, long long xs, const T* __restrict__ w, T* __restrict__ y, long long ys, float eps) {
    using P = Pack<T>;
    constexpr int WARPS = THREADS / 32;
    __shared__ float sums[WARPS];
    const unsigned tid = threadIdx.x;
    x += blockIdx.x * xs;
    y += blockIdx.x * ys;
    const auto bits = [](const void* p) { return reinterpret_cast<unsigned long long>(p); };
    const bool aligned = (bits(x) | bits(y) | bits(w)) % 16 == 0;

    P v[PACKS];
    float s = 0;
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
        for (int j = 0; j < P::N; ++j) s += static_cast<float>(v[i].v[j]) * static_cast<float>(v[i].v[j]);
    s = warp_sum(s, 32);
    if (tid % 32 == 0) sums[tid / 32] = s;
    __syncthreads();
    const float scale = 1 / sqrtf(warp_sum(sums[tid % WARPS], WARPS) / C + eps);

#pragma unroll
    for (int i = 0; i < PACKS; ++i) {
        const unsigned c = (i * THREADS + tid) * P::N;
        if (aligned && c + P::N <= C) {
            P q;
            if (w) q = *reinterpret_cast<const P*>(w + c);
#pragma unroll
            for (int j = 0; j < P::N; ++j) q.v[j] = T(static_cast<float>(v[i].v[j]) * scale * (w ? static_cast<float>(q.v[j]) : 1));
            *reinterpret_cast<P*>(y + c) = q;
        } else {
#pragma unroll
            for (int j = 0; j < P::N; ++j)
                if (c + j < C) y[c + j] = T(static_cast<float>(v[i].v[j]) * scale * (w ? static_cast<float>(w[c + j]) : 1));
        }
    }
}
