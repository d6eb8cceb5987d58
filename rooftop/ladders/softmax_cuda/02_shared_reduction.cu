/* rooftop
idea    = "One block per row: neighbouring threads read neighbouring elements, and maximum and sum are tree reductions in shared memory, with half the threads at each step."
predict = { speedup = 10, sectors_read = 2, reads = 3 }
limit   = "Three passes over the row, and 16 barriers per row while most threads wait."
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

template <typename T, int THREADS>
__global__ void softmax(unsigned C, const T* __restrict__ x, long long xs, T* __restrict__ y, long long ys) {
    __shared__ float shared[THREADS];
    const unsigned tid = threadIdx.x;
    x += blockIdx.x * xs;
    y += blockIdx.x * ys;

    float m = LOWEST;
    for (unsigned c = tid; c < C; c += THREADS) m = fmaxf(m, static_cast<float>(x[c]));
    shared[tid] = m;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (tid < half) shared[tid] = fmaxf(shared[tid], shared[tid + half]);
        __syncthreads();
    }
    m = shared[0];
    __syncthreads();

    float s = 0;
    for (unsigned c = tid; c < C; c += THREADS) s += expf(static_cast<float>(x[c]) - m);
    shared[tid] = s;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (tid < half) shared[tid] += shared[tid + half];
        __syncthreads();
    }
    const float scale = 1 / shared[0];

    for (unsigned c = tid; c < C; c += THREADS) y[c] = T(expf(static_cast<float>(x[c]) - m) * scale);
}
