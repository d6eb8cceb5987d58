/* rooftop
idea  = "A tile goes through shared memory, so that reads and writes are both along rows; its rows are one float longer, which takes its columns apart over the banks."
limit = "A column of the tile is read without conflict; every 32 floats of shared memory carry one that is never used."
args  = ["M: i32", "N: i32", "x: f32[M, N]", "out: f32[N, M]"]

[[launch]]
kernel = "transpose"
grid   = ["ceil(N / 32)", "ceil(M / 32)"]
block  = ["32", "8"]
*/
__global__ void transpose(int M, int N, const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float tile[32][33];
    const int n0 = blockIdx.x * 32, m0 = blockIdx.y * 32;
    const int lane = threadIdx.x;
    for (int i = threadIdx.y; i < 32; i += 8) {
        if (m0 + i >= M || n0 + lane >= N) continue;
        const float value = x[static_cast<long long>(m0 + i) * N + n0 + lane];   // 4 sectors a request
        tile[i][lane] = value;                                                   // 1 wavefront: 32 neighbours
    }
    __syncthreads();
    for (int i = threadIdx.y; i < 32; i += 8) {
        if (n0 + i >= N || m0 + lane >= M) continue;
        const float value = tile[lane][i];                                       // 1 wavefront: bank (33 lane + i) % 32 = (lane + i) % 32
        out[static_cast<long long>(n0 + i) * M + m0 + lane] = value;             // 4 sectors a request
    }
}
