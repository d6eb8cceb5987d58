/* rooftop
idea    = "Mean and variance in one pass (Welford): every thread keeps the moments of its elements, relative to its own running mean, so that no digits are lost; the moments of threads are then combined pairwise."
predict = { speedup = 1.3, reads = 4 }
limit   = "Slower than rung 02 in bf16 (424.8 µs for 310.7 at 8192 columns, 1083 for 1023 at 131072) and at 8192 of float32: each element costs a division. The loop of the moments has 26 instructions per element where the two loops before it had 21, and one load in flight per thread where they had four. In float32 the saved read pays from 32768 columns on: 711.7 µs for 806.4."
dtypes  = ["f32", "bf16"]
args   = ["R: i64", "C: u32", "x: T[R, C]", "xs: i64 = stride(x, 0)", "weight: T[C]?", "bias: T[C]?", "y: T[R, C]", "ys: i64 = stride(y, 0)", "eps: f32"]

[requires]
"not present(residual)" = "this rung adds nothing before"

[config]
threads = 256

[[launch]]
kernel = "layer_norm<{T}, {threads}>"
grid   = ["R"]
block  = ["threads"]
*/
#include <cuda_bf16.h>

/// The number of elements, their mean and the sum of squares about it. Adds an element (Welford 1962), or combines two sets (Chan et al. 1979).
struct Moments {
    float n = 0, mean = 0, squares = 0;
    __device__ void add(float v) {
        n += 1;
        const float off = v - mean;
        mean += off / n;
        squares += off * (v - mean);
    }
    __device__ void join(const Moments& o) {
        const float all = n + o.n, off = o.mean - mean;
        if (all == 0) return;
        mean += off * (o.n / all);
        squares += o.squares + off * off * (n * o.n / all);
        n = all;
    }
    __device__ void join_across(int width) {
        for (int step = width / 2; step > 0; step /= 2) {
            Moments o;
            o.n = __shfl_xor_sync(~0u, n, step), o.mean = __shfl_xor_sync(~0u, mean, step), o.squares = __shfl_xor_sync(~0u, squares, step);
            join(o);
        }
    }
};

/// The moments of the whole block, in every thread.
template <int WARPS>
__device__ Moments fold(Moments m, Moments* shared) {
    m.join_across(32);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = m;
    __syncthreads();
    m = shared[threadIdx.x % WARPS];
    m.join_across(WARPS);
    return m;
}

/// v · weight + bias of column c.
template <typename T>
__device__ T affine(float v, const T* w, const T* b, unsigned c) {
    return T(v * (w ? static_cast<float>(w[c]) : 1) + (b ? static_cast<float>(b[c]) : 0));
}

template <typename T, int THREADS>
__global__ void layer_norm(long long R, unsigned C, const T* __restrict__ x, long long xs, const T* __restrict__ w, const T* __restrict__ b,
                           T* __restrict__ y, long long ys, float eps) {
    __shared__ alignas(16) unsigned char memory[THREADS / 32 * sizeof(Moments)];  // Moments has a constructor, which shared memory may not
    const unsigned tid = threadIdx.x;
    x += blockIdx.x * xs;
    y += blockIdx.x * ys;

    Moments m;
    for (unsigned c = tid; c < C; c += THREADS) m.add(static_cast<float>(x[c]));
    m = fold<THREADS / 32>(m, reinterpret_cast<Moments*>(memory));
    const float scale = 1 / sqrtf(m.squares / C + eps);
    for (unsigned c = tid; c < C; c += THREADS) y[c] = affine((static_cast<float>(x[c]) - m.mean) * scale, w, b, c);
}
