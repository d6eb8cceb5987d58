/* rooftop
idea   = "One thread per element: loads and stores of two bytes."
limit  = "A thread has 2 bytes in flight and 55 instructions: 2.26 times the time of a copy. The instructions are the lesser part: the tanh form has 47 and takes 395.1 µs for 405.0. How much is the bytes and how much the start of 524,288 blocks is not known."
dtypes = ["bf16", "f16"]
args   = ["N: i64 = numel(x)", "x: T[R, C]", "y: T[R, C]"]

[requires]
"R == 1 or stride(x, 0) == C and stride(y, 0) == C" = "the elements must lie without gaps"

[[launch]]
kernel = "gelu_of<{T}, {approximate == 'tanh'}>"
grid   = ["ceil(R * C / 256)"]
block  = [256]
*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <bool TANH>
__device__ float gelu(float x) {
    if (TANH) return 0.5f * x * (1 + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
    return x * (0.5f + 0.5f * erff(x * 0.7071067811865476f));
}

template <typename T, bool TANH>
__global__ void gelu_of(long long N, const T* __restrict__ x, T* __restrict__ y) {
    const long long i = static_cast<long long>(blockIdx.x) * 256 + threadIdx.x;
    if (i < N) y[i] = T(gelu<TANH>(static_cast<float>(x[i])));
}
