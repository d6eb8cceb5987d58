/* rooftop
idea    = "Split-K: K is divided among blocks too, in parts of at least 2048 elements, until there are two blocks for each one that can be resident; the eight warps of a block divide its part again. A second launch adds the parts, always in the same order."
predict = { speedup = 1.05, sectors_read = 16 }
limit   = "The read of the matrix; the second launch."
dtypes  = ["f32"]
args    = ["a: T[B, M, K]", "x: T[B, R, K]", "y: T[B, R, M]"]
demands = { has = ["LDG.E.128"], spills = 0 }

[requires]
"B == 1 and R == 1" = "takes one matrix and one vector"
"M * K > 0" = "there is nothing to multiply"
"stride(a, 2) == 1 and stride(x, 2) == 1" = "the rows of a, and x, must be neighbours along K"
"K % (16 // bytes(a)) == 0 and aligned(a, 16) and starts(x, 16)" = "rows and x must start on 16-byte boundaries"

[let]
wanted = "min(max(1, ceil(16 * sms / ceil(M / 4))), max(1, K // 2048))"
share  = "ceil(ceil(K / wanted) / 2048) * 2048"
shares = "ceil(K / share)"

[scratch]
parts = "f32[shares, M]"

[[launch]]
kernel = "gemv<{T}>"
grid   = ["ceil(M / 4)", "shares"]
block  = [256]
args   = ["M: i32", "K: i32", "share: i32", "a: T[B, M, K]", "am: i64 = stride(a, 1)", "x: T[B, R, K]", "parts: f32[S, M]"]

[[launch]]
kernel = "fold<{T}>"
grid   = ["ceil(M / 8)"]
block  = [256]
args   = ["M: i32", "shares: i32", "parts: f32[S, M]", "y: T[B, R, M]"]
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

/// A block has four rows and a part of K (split-K), which its eight warps divide. parts: [parts of K, M]
template <typename T>
__global__ void __launch_bounds__(256) gemv(int M, int K, int share, const T* __restrict__ a, long long am, const T* __restrict__ x, float* __restrict__ parts) {
    using P = Pack<T>;
    constexpr int ROWS = 4;
    __shared__ float sums[8][ROWS];
    const int m0 = blockIdx.x * ROWS, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int first = blockIdx.y * share / P::N, last = min(K, (static_cast<int>(blockIdx.y) + 1) * share) / P::N;
    const P *row[ROWS], *v = reinterpret_cast<const P*>(x);
#pragma unroll
    for (int i = 0; i < ROWS; ++i) row[i] = reinterpret_cast<const P*>(a + min(m0 + i, M - 1) * am);
    float sum[ROWS] = {};
#pragma unroll 2
    for (int k = first + threadIdx.x; k < last; k += 256) {
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
        if (lane == i) sums[warp][i] = sum[i];
    }
    __syncthreads();
    if (threadIdx.x >= ROWS || m0 + threadIdx.x >= M) return;
    float s = 0;
    for (int i = 0; i < 8; ++i) s += sums[i][threadIdx.x];
    parts[blockIdx.y * static_cast<long long>(M) + m0 + threadIdx.x] = s;
}

template <typename T>
__global__ void __launch_bounds__(256) fold(int M, int shares, const float* __restrict__ parts, T* __restrict__ y) {
    const int m = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (m >= M) return;
    float sum = 0;
    for (int i = lane; i < shares; i += 32) sum += parts[i * static_cast<long long>(M) + m];
    sum = warp_sum(sum);
    if (lane == 0) y[m] = static_cast<T>(sum);
}
