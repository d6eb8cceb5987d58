/* rooftop
idea    = "A warp computes four rows, so that each load of the vector serves four rows."
predict = { speedup = 1.05, sectors_read = 16 }
limit   = "A fourth of the warps: 256 blocks at 8192 rows, two for each multiprocessor, and fewer if the matrix has few rows."
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
grid   = ["ceil(M / 32)"]
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
    constexpr int ROWS = 4;
    const int m0 = (blockIdx.x * 8 + threadIdx.x / 32) * ROWS, lane = threadIdx.x % 32;
    if (m0 >= M) return;
    const P *row[ROWS], *v = reinterpret_cast<const P*>(x);
#pragma unroll
    for (int i = 0; i < ROWS; ++i) row[i] = reinterpret_cast<const P*>(a + min(m0 + i, M - 1) * am);
    float sum[ROWS] = {};
#pragma unroll 2
    for (int k = lane; k < K / P::N; k += 32) {
        P p[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; ++i) p[i] = row[i][k];
        const P q = v[k];
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            float part = 0;
#pragma unroll
            for (int j = 0; j < P::N; ++j) part = fmaf(static_cast<float>(p[i].v[j]), static_cast<float>(q.v[j]), part);
            sum[i] += part;
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        sum[i] = warp_sum(sum[i]);
        if (lane == i && m0 + i < M) y[m0 + i] = static_cast<T>(sum[i]);
    }
}
