/* rooftop
idea    = "A thread an element of c; how many rows of threads a block has is chosen in Python, and rows past the first launch are a second one's."
dtypes  = ["bf16"]
args    = ["M: i32", "N: i32", "K: i32", "first: i32 = 0", "a: T[M, K]", "b: T[N, K]", "c: T[M, N]"]
python  = ["supports", "choose", "configs", "launches"]

[requires]
"stride(a, 1) == 1 and stride(b, 1) == 1 and stride(a, 0) == K and stride(b, 0) == K" = "rows lie one after another"

[config]
rows = 4
*/
#include <cuda_bf16.h>

template <int ROWS>
__global__ void mmt(int M, int N, int K, int first, const __nv_bfloat16* __restrict__ a, const __nv_bfloat16* __restrict__ b, __nv_bfloat16* __restrict__ c) {
    const int y = first + blockIdx.y * ROWS + threadIdx.y, x = blockIdx.x * 32 + threadIdx.x;
    if (y >= M || x >= N) return;
    float sum = 0;
    for (int k = 0; k < K; k++) sum = fmaf(__bfloat162float(a[y * K + k]), __bfloat162float(b[x * K + k]), sum);
    c[y * N + x] = __float2bfloat16(sum);
}
