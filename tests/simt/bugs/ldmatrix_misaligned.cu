/* rooftop
op     = "square"
idea   = "Planted fault: ldmatrix takes rows that are nine halves apart: each must begin on a 16-byte boundary."
limit  = "On a GPU: the launch fails with a misaligned address."
dtypes = ["f16"]
args   = ["N: i32 = numel(x)", "x: T[R, C]", "y: T[R, C]"]

[[launch]]
kernel = "ldmatrix_misaligned"
grid   = ["ceil(numel(x) / 64)"]
block  = [32]
*/
#include <cuda_fp16.h>

#define FIXED 0

__global__ void ldmatrix_misaligned(int N, const __half* __restrict__ x, __half* __restrict__ y) {
    constexpr int STEP = FIXED ? 8 : 9;  // halves from row to row of the 8 x 8 tile
    __shared__ __align__(16) __half tile[8 * STEP];
    const int lane = threadIdx.x, first = blockIdx.x * 64;
    for (int i = lane; i < 64; i += 32) tile[i / 8 * STEP + i % 8] = first + i < N ? x[first + i] : __half(0.0f);
    __syncwarp();
    unsigned pair;  // elements 2 (lane % 4) and the next of row lane / 4
    const unsigned row = static_cast<unsigned>(__cvta_generic_to_shared(&tile[lane % 8 * STEP]));
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(pair) : "r"(row));  // BUG: misaligned
    const __half low = __ushort_as_half(pair & 0xffff), high = __ushort_as_half(pair >> 16);
    const int i = first + lane * 2;
    if (i < N) y[i] = __hmul(low, low);
    if (i + 1 < N) y[i + 1] = __hmul(high, high);
}
