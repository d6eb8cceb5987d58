/* rooftop
idea    = "Eight elements per thread, loaded and stored as 16 bytes."
predict = { speedup = 1.2 }
limit   = "A thread has one load of 16 bytes in flight and 245 instructions for its eight elements: 1.05 times the time of a copy. The tanh form has 222 and is the copy itself. At 32 MiB both torch and this take 1.15 times the copy; why is not known."
dtypes  = ["bf16", "f16"]
demands = { has = ["LDG.E.128", "STG.E.128"], spills = 0 }
args   = ["N: i64 = numel(x)", "x: T[R, C]", "y: T[R, C]"]

[requires]
"R == 1 or stride(x, 0) == C and stride(y, 0) == C" = "the elements must lie without gaps"

[[launch]]
kernel = "gelu_of<{T}, {approximate == 'tanh'}>"
grid   = ["ceil(R * C / 2048)"]
block  = [256]
*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <bool TANH>
__device__ float gelu(float x) {
    if (TANH) return 0.5f * x * (1 + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
    return x * (0.5f + 0.5f * erff(x * 0.7071067811865476f));
}

template <typename T>
struct alignas(16) Pack {
    static constexpr int N = 16 / sizeof(T);
    T v[N];
};

template <typename T, bool TANH>
__global__ void gelu_of(long long N, const T* __restrict__ x, T* __restrict__ y) {
    using P = Pack<T>;
    const long long i = P::N * (static_cast<long long>(blockIdx.x) * 256 + threadIdx.x);
    const bool aligned = (reinterpret_cast<unsigned long long>(x) | reinterpret_cast<unsigned long long>(y)) % 16 == 0;
    if (aligned && i + P::N <= N) {
        P p = *reinterpret_cast<const P*>(x + i);
#pragma unroll
        for (int j = 0; j < P::N; ++j) p.v[j] = T(gelu<TANH>(static_cast<float>(p.v[j])));
        *reinterpret_cast<P*>(y + i) = p;
    } else {
        for (long long j = i; j < N && j < i + P::N; ++j) y[j] = T(gelu<TANH>(static_cast<float>(x[j])));
    }
}
