/* rooftop
idea    = "K in two halves: every block leaves its half's sums in scratch memory, the grid waits for itself, and blocks add up the halves."
dtypes  = ["bf16"]
args    = ["M: i32", "N: i32", "K: i32", "a: T[M, K]", "b: T[N, K]", "c: T[M, N]", "half: f32[2, M, N]"]

[requires]
"stride(a, 0) == K and stride(b, 0) == K" = "rows lie one after another"

[scratch]
half = "f32[2, M, N]"

[[launch]]
kernel = "mmt"
grid   = ["min(8, sms)"]
block  = [128]
cooperative = true
*/
#include <cooperative_groups.h>
#include <cuda_bf16.h>

__global__ void mmt(int M, int N, int K, const __nv_bfloat16* __restrict__ a, const __nv_bfloat16* __restrict__ b, __nv_bfloat16* __restrict__ c, float* half) {
    const int threads = gridDim.x * blockDim.x, first = blockIdx.x * blockDim.x + threadIdx.x, elements = M * N;
    for (int i = first; i < 2 * elements; i += threads) {
        const int element = i % elements, from = i / elements ? K / 2 : 0, to = i / elements ? K : K / 2;
        float sum = 0;
        for (int k = from; k < to; k++)
            sum = fmaf(__bfloat162float(a[element / N * K + k]), __bfloat162float(b[element % N * K + k]), sum);
        half[i] = sum;
    }
    cooperative_groups::this_grid().sync();
    for (int i = first; i < elements; i += threads) c[i] = __float2bfloat16(half[i] + half[elements + i]);
}
