/* rooftop
idea  = "One thread an element: reads are neighbours along a row of x, and so the writes lie a whole column apart."
limit = "A warp writes 32 rows of out: each store touches 32 sectors for 128 useful bytes."
args  = ["M: i32", "N: i32", "x: f32[M, N]", "out: f32[N, M]"]

[[launch]]
kernel = "transpose"
grid   = ["ceil(N / 32)", "ceil(M / 32)"]
block  = ["32", "8"]
*/
__global__ void transpose(int M, int N, const float* __restrict__ x, float* __restrict__ out) {
    const int n = blockIdx.x * 32 + threadIdx.x;
    for (int i = threadIdx.y; i < 32; i += 8) {
        const int m = blockIdx.y * 32 + i;
        if (m >= M || n >= N) continue;
        const float value = x[static_cast<long long>(m) * N + n];   // 4 sectors a request: 32 neighbours, 128 bytes
        out[static_cast<long long>(n) * M + m] = value;             // 32 sectors a request: every lane in a row of its own
    }
}
