/* rooftop
idea    = "One pass for maximum and sum: when a larger element comes, the sum so far is scaled down to it. Two passes instead of three."
predict = { speedup = 1.2 }
limit   = "Each thread's chain of dependent exponentials, and eight barriers a row."
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

constexpr float LOWEST = -3.402823466e38f;  // a row of -inf alone then ends as 0 / 0 = NaN, as it should

/// A maximum, and the sum of exp(x - m) over the elements it stands for (Milakov and Gimelshein 2018).
struct Part {
    float m, s;
};

__device__ Part add(Part p, float x) {
    const float d = x - p.m;
    const float e = __expf(-fabsf(d));  // one of exp(x - m') and exp(m - m') is 1, this is the other
    return {fmaxf(p.m, x), d > 0 ? p.s * e + 1 : p.s + e};
}

__device__ Part merge(Part a, Part b) {
    const float m = fmaxf(a.m, b.m);
    return {m, a.s * __expf(a.m - m) + b.s * __expf(b.m - m)};
}

template <typename T, int THREADS>
__global__ void softmax(unsigned C, const T* __restrict__ x, long long xs, T* __restrict__ y, long long ys) {
    __shared__ Part shared[THREADS];
    const unsigned tid = threadIdx.x;
    x += blockIdx.x * xs;
    y += blockIdx.x * ys;

    Part part = {LOWEST, 0};
    for (unsigned c = tid; c < C; c += THREADS) part = add(part, static_cast<float>(x[c]));
    shared[tid] = part;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (tid < half) shared[tid] = merge(shared[tid], shared[tid + half]);
        __syncthreads();
    }
    const float m = shared[0].m, scale = 1 / shared[0].s;

    for (unsigned c = tid; c < C; c += THREADS) y[c] = T(__expf(static_cast<float>(x[c]) - m) * scale);
}
