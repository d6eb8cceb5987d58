/* rooftop
idea    = "One warp per row: its lanes read 128 contiguous bytes per load, and reduce by shuffles at the end."
predict = { speedup = 8, sectors_read = 4 }
limit   = "Loads of 4 bytes, two for each FMA: the row's and the vector's."
dtypes  = ["f32"]
args    = ["M: i32", "K: i32", "a: T[B, M, K]", "am: i64 = stride(a, 1)", "x: T[B, R, K]", "y: T[B, R, M]"]

[requires]
"B == 1 and R == 1" = "takes one matrix and one vector"
"M * K > 0" = "there is nothing to multiply"
"stride(a, 2) == 1 and stride(x, 2) == 1" = "the rows of a, and x, must be neighbours along K"

[[launch]]
kernel = "gemv<{T}>"
grid   = ["ceil(M / 8)"]
block  = [256]
*/
__device__ float warp_sum(float v) {
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
    return v;
}

template <typename T>
__global__ void __launch_bounds__(256) gemv(int M, int K, const T* __restrict__ a, long long am, const T* __restrict__ x, T* __restrict__ y) {
    const int m = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (m >= M) return;
    a += m * am;
    float sum = 0;
    for (int k0 = lane; k0 < K; k0 += 512) {  // accumulation chains of 16 terms, and one over them: short chains have less rounding error
        float part = 0;
        for (int k = k0; k < min(k0 + 512, K); k += 32) part = fmaf(static_cast<float>(a[k]), static_cast<float>(x[k]), part);
        sum += part;
    }
    sum = warp_sum(sum);
    if (lane == 0) y[m] = static_cast<T>(sum);
}
