/* rooftop
op     = "add"
idea   = "Planted fault: two copies are on their way at first; the wait leaves one of them out, also when there is no later one."
limit  = "On a GPU: the last tile of each block is stale."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "copy_waited_for_too_late_a_stage"
grid   = ["ceil(n / 512)"]
block  = [128]
*/
#include <cuda_pipeline.h>

#define FIXED 0

__global__ void copy_waited_for_too_late_a_stage(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    __shared__ float staged[2][128];
    const int t = threadIdx.x, first = blockIdx.x * 512 + t;
    __pipeline_memcpy_async(&staged[0][t], x + min(first, n - 1), 4);
    __pipeline_commit();
    for (int tile = 0; tile < 4; ++tile) {
        if (tile < 3) {
            __pipeline_memcpy_async(&staged[(tile + 1) % 2][t], x + min(first + (tile + 1) * 128, n - 1), 4);
#if FIXED
        }
        __pipeline_commit();
#else
            __pipeline_commit();
        }
#endif
        __pipeline_wait_prior(1);
        const int i = first + tile * 128;
        if (i < n) out[i] = staged[tile % 2][t] + y[i];  // BUG: missing-wait
    }
}
