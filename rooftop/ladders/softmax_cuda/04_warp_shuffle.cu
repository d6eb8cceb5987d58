/* rooftop
idea    = "The threads of a warp reduce maximum and sum in registers (shuffles); shared memory holds one value per warp, and two barriers per row are left instead of sixteen."
predict = { speedup = 1.05 }
limit   = "Two bytes per load: eight times as many load and store instructions as the bytes need."
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

template <typename T, int THREADS>
__global__ void softmax(unsigned C, const T* __restrict__ x, long long xs, T* __restrict__ y, long long ys) {
    constexpr int WARPS = THREADS / 32;
    __shared__ float maxima[WARPS], sums[WARPS];
    const unsigned tid = threadIdx.x;
    x += blockIdx.x * xs;
    y += blockIdx.x * ys;

    float own = LOWEST, s = 0;
    for (unsigned c = tid; c < C; c += THREADS) add(static_cast<float>(x[c]), own, s);
    const float m = fold<WARPS>(own, maxima, [](float a, float b) { return fmaxf(a, b); });
    const float scale = 1 / fold<WARPS>(s * expf(own - m), sums, [](float a, float b) { return a + b; });

    for (unsigned c = tid; c < C; c += THREADS) y[c] = T(expf(static_cast<float>(x[c]) - m) * scale);
}
