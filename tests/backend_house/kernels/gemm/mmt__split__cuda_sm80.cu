/* rooftop
idea    = "K in parts, a block of one warp each: the last block of an element to arrive, as a counter tells, adds up what all have left in scratch memory."
dtypes  = ["bf16"]
args    = ["N: i32", "K: i32", "parts: i32", "a: T[M, K]", "b: T[N, K]", "c: T[M, N]", "left: f32[parts, M, N]", "arrived: i32[M, N]"]

[requires]
"stride(a, 0) == K and stride(b, 0) == K" = "rows lie one after another"
"M * N <= 65535" = "an element of c is a block of the grid's second dimension"

[config]
parts = 3

[scratch]
left    = "f32[parts, M, N]"
arrived = "i32[M, N] = 0"

[[launch]]
kernel = "mmt"
grid   = ["parts", "M * N"]
block  = [32]
*/
#include <cuda_bf16.h>

__global__ void mmt(int N, int K, int parts, const __nv_bfloat16* __restrict__ a, const __nv_bfloat16* __restrict__ b, __nv_bfloat16* __restrict__ c,
                    float* __restrict__ left, int* __restrict__ arrived) {
    const int part = blockIdx.x, element = blockIdx.y, elements = gridDim.y;
    const __nv_bfloat16 *row = a + static_cast<long long>(element / N) * K, *column = b + static_cast<long long>(element % N) * K;
    float sum = 0;
    for (int k = part * 32 + threadIdx.x; k < K; k += parts * 32) sum = fmaf(__bfloat162float(row[k]), __bfloat162float(column[k]), sum);
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (threadIdx.x != 0) return;
    left[part * elements + element] = sum;
    __threadfence();
    if (atomicAdd(&arrived[element], 1) != parts - 1) return;
    __threadfence();
    float all = 0;
    for (int p = 0; p < parts; p++) all += __ldcg(&left[p * elements + element]);  // in one order, whoever comes last
    c[element] = __float2bfloat16(all);
}
