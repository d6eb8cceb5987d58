/* rooftop
idea    = "Online softmax, one pass for maximum and sum: when a larger element is found, the sum so far is rescaled to it. Two passes instead of three."
predict = { speedup = 1.2, reads = 2 }
limit   = "Each thread's chain of dependent exponentials, and sixteen barriers per row."
dtypes  = ["f32", "bf16"]
args    = ["C: u32", "x: T[R, C, 1]", "xs: i64 = stride(x, 0)", "y: T[R, C, 1]", "ys: i64 = stride(y, 0)"]

[requires]
"C == 1 or stride(x, 1) == 1 and stride(y, 1) == 1" = "the elements of a row must be neighbours"

[config]
threads = 256

[[launch]]
kernel = "softmax<{T}, {threads}>"
grid   = ["R"]
block  = ["threads"]
*/
#include <cuda_bf16.h>

constexpr float LOWEST = -3.402823466e38f;  // a row of only -inf ends as 0 / 0 = NaN, which is the contract

/// Online softmax (Milakov and Gimelshein 2018): adds an element to a maximum `m` and the sum `s` of exp(x - m).
__device__ void add(float x, float& m, float& s) {
    const float d = x - m, e = expf(-fabsf(d));  // one of exp(x - m') and exp(m - m') is 1, this is the other
    s = d > 0 ? s * e + 1 : s + e;
    m = fmaxf(m, x);
}

template <typename T, int THREADS>
__global__ void softmax(unsigned C, const T* __restrict__ x, long long xs, T* __restrict__ y, long long ys) {
    __shared__ float shared[THREADS];
    const unsigned tid = threadIdx.x;
    x += blockIdx.x * xs;
    y += blockIdx.x * ys;

    float own = LOWEST, s = 0;
    for (unsigned c = tid; c < C; c += THREADS) add(static_cast<float>(x[c]), own, s);
    shared[tid] = own;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (tid < half) shared[tid] = fmaxf(shared[tid], shared[tid + half]);
        __syncthreads();
    }
    const float m = shared[0];
    __syncthreads();

    shared[tid] = s * expf(own - m);
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (tid < half) shared[tid] += shared[tid + half];
        __syncthreads();
    }
    const float scale = 1 / shared[0];

    for (unsigned c = tid; c < C; c += THREADS) y[c] = T(expf(static_cast<float>(x[c]) - m) * scale);
}
