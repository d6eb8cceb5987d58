/* rooftop
op     = "matmul"
idea   = "Planted fault: products are added up in the output itself, which nobody has cleared."
limit  = "On a GPU: right as long as the allocator hands out zeros; then sums grow from call to call."
dtypes = ["f32"]
args   = ["M: i32", "N: i32", "K: i32", "a: T[M, K]", "b: T[K, N]", "out: T[M, N]"]

[[launch]]
kernel = "uninitialised_output"
grid   = ["ceil(N / 16)", "ceil(M / 16)"]
block  = [16, 16]
*/
#define FIXED 0

__global__ void uninitialised_output(int M, int N, int K, const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out) {
    const int c = blockIdx.x * 16 + threadIdx.x, m = blockIdx.y * 16 + threadIdx.y;
    if (m >= M || c >= N) return;
#if FIXED
    out[m * N + c] = 0;
#endif
    for (int k = 0; k < K; ++k)
        out[m * N + c] += a[m * K + k] * b[k * N + c];  // BUG: uninitialised
}
