/* rooftop
idea   = "One thread per row, three passes over it: maximum, sum, result. What one would write for a CPU."
limit  = "The 32 threads of a warp read 32 rows: each load touches 32 sectors for 64 useful bytes, and 2048 rows give only 64 warps of parallelism."
dtypes = ["f32", "bf16"]
args   = ["R: i64", "C: u32", "x: T[R, C, 1]", "xs: i64 = stride(x, 0)", "y: T[R, C, 1]", "ys: i64 = stride(y, 0)"]

[requires]
"C == 1 or stride(x, 1) == 1 and stride(y, 1) == 1" = "the elements of a row must be neighbours"

[config]
threads = 128

[[launch]]
kernel = "softmax<{T}>"
grid   = ["ceil(R / threads)"]
block  = ["threads"]
*/
#include <cuda_bf16.h>

constexpr float LOWEST = -3.402823466e38f;  // a row of only -inf ends as 0 / 0 = NaN, which is the contract

template <typename T>
__global__ void softmax(long long R, unsigned C, const T* __restrict__ x, long long xs, T* __restrict__ y, long long ys) {
    const long long row = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (row >= R) return;
    x += row * xs;
    y += row * ys;

    float m = LOWEST;
    for (unsigned c = 0; c < C; ++c) m = fmaxf(m, static_cast<float>(x[c]));

    // Up to 131072 terms in one float: without compensation (Kahan 1965) the last digits are lost.
    float s = 0, lost = 0;
    for (unsigned c = 0; c < C; ++c) {
        const float term = expf(static_cast<float>(x[c]) - m) - lost;
        const float next = s + term;
        lost = (next - s) - term;
        s = next;
    }

    for (unsigned c = 0; c < C; ++c) y[c] = T(expf(static_cast<float>(x[c]) - m) / s);
}
