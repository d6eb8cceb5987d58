/* rooftop
op     = "matmul"
idea   = "Planted fault: tiles of 16 x 16 whose rows and columns are masked, but not their depth where K is no multiple of 16."
limit  = "On a GPU: products of the next row's numbers are added to every sum; behind the last row memory is read that is not the tensor's."
dtypes = ["f32"]
args   = ["M: i32", "N: i32", "K: i32", "a: T[M, K]", "b: T[K, N]", "out: T[M, N]"]

[[launch]]
kernel = "depth_tail_not_masked"
grid   = ["ceil(N / 16)", "ceil(M / 16)"]
block  = [16, 16]
*/
#define FIXED 0

__global__ void depth_tail_not_masked(int M, int N, int K, const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out) {
    __shared__ float a_tile[16][16], b_tile[16][16];
    const int tx = threadIdx.x, ty = threadIdx.y, m = blockIdx.y * 16 + ty, c = blockIdx.x * 16 + tx;
    float sum = 0;
    for (int k = 0; k < K; k += 16) {
#if FIXED
        a_tile[ty][tx] = m < M && k + tx < K ? a[m * K + k + tx] : 0;
        b_tile[ty][tx] = c < N && k + ty < K ? b[(k + ty) * N + c] : 0;
#else
        a_tile[ty][tx] = m < M ? a[m * K + k + tx] : 0;    // BUG: out-of-bounds
        b_tile[ty][tx] = c < N ? b[(k + ty) * N + c] : 0;  // BUG: out-of-bounds
#endif
        __syncthreads();
        for (int i = 0; i < 16; ++i) sum = fmaf(a_tile[ty][i], b_tile[i][tx], sum);
        __syncthreads();
    }
    if (m < M && c < N) out[m * N + c] = sum;
}
