/* rooftop
idea    = "16 bytes per load, and four loads of the row in flight."
predict = { speedup = 1.3, sectors_read = 16 }
limit   = "The vector is read from L1 as often as the matrix from memory: half of all loads."
dtypes  = ["f32"]
args    = ["M: i32", "K: i32", "a: T[B, M, K]", "am: i64 = stride(a, 1)", "x: T[B, R, K]", "y: T[B, R, M]"]
demands = { has = ["LDG.E.128"], spills = 0 }

[requires]
"B == 1 and R == 1" = "takes one matrix and one vector"
"M * K > 0" = "there is nothing to multiply"
"stride(a, 2) == 1 and stride(x, 2) == 1" = "the rows of a, and x, must be neighbours along K"
"K % (16 // bytes(a)) == 0 and aligned(a, 16) and starts(x, 16)" = "rows and x must start on 16-byte boundaries"

[[launch]]
kernel = "gemv<{T}>"
grid   = ["ceil(M / 8)"]
block  = [256]
*/
__device__ float warp_sum(float v) {
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
    return v;
}

/// A pack: 16 bytes of a row, one vector access.
template <typename T>
struct alignas(16) Pack {
    static constexpr int N = 16 / sizeof(T);
    T v[N];
};

template <typename T>
__global__ void __launch_bounds__(256) gemv(int M, int K, const T* __restrict__ a, long long am, const T* __restrict__ x, T* __restrict__ y) {
    using P = Pack<T>;
    const int m = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (m >= M) return;
    const P *row = reinterpret_cast<const P*>(a + m * am), *v = reinterpret_cast<const P*>(x);
    float sum = 0;
#pragma unroll 4
    for (int k = lane; k < K / P::N; k += 32) {
        const P p = row[k], q = v[k];
        float part = 0;  // the sum of one pack: a chain a fourth as long has less rounding error
#pragma unroll
        for (int j = 0; j < P::N; ++j) part = fmaf(static_cast<float>(p.v[j]), static_cast<float>(q.v[j]), part);
        sum += part;
    }
    sum = warp_sum(sum);
    if (lane == 0) y[m] = static_cast<T>(sum);
}
