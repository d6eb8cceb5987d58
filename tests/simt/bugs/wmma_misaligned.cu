/* rooftop
op     = "matmul"
idea   = "Planted fault: wmma reads a tile whose rows are nine floats apart: their distance must be a multiple of 16 bytes."
limit  = "On a GPU: a misaligned address, or wrong numbers."
dtypes = ["f32"]
args   = ["M: i32", "N: i32", "K: i32", "a: T[M, K]", "b: T[K, N]", "out: T[M, N]"]

[[launch]]
kernel = "wmma_misaligned"
grid   = ["N // 16", "M // 16"]
block  = [32]
*/
#include <mma.h>

#define FIXED 0

__global__ void wmma_misaligned(int M, int N, int K, const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out) {
    using namespace nvcuda;
    constexpr int STEP = FIXED ? 12 : 9;  // floats from row to row of a's tile
    __shared__ __align__(32) float a_tile[16 * STEP], b_tile[8 * 16], out_tile[16 * 16];
    const int lane = threadIdx.x, m0 = blockIdx.y * 16, n0 = blockIdx.x * 16;
    wmma::fragment<wmma::accumulator, 16, 16, 8, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    for (int k = 0; k < K; k += 8) {
        for (int i = lane; i < 128; i += 32) {
            a_tile[i / 8 * STEP + i % 8] = a[(m0 + i / 8) * K + k + i % 8];
            b_tile[i] = b[(k + i / 16) * N + n0 + i % 16];
        }
        __syncwarp();
        wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> a_part;
        wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::row_major> b_part;
        wmma::load_matrix_sync(a_part, a_tile, STEP);  // BUG: misaligned
        wmma::load_matrix_sync(b_part, b_tile, 16);
        wmma::mma_sync(sum, a_part, b_part, sum);
        __syncwarp();
    }
    wmma::store_matrix_sync(out_tile, sum, 16, wmma::mem_row_major);
    __syncwarp();
    for (int i = lane; i < 256; i += 32) out[(m0 + i / 16) * N + n0 + i % 16] = out_tile[i];
}
