/* rooftop
op     = "add"
idea   = "Planted fault: the next copy goes into a buffer that other warps may still be reading: no barrier at the end of a round."
limit  = "On a GPU: elements of the tile after the next one."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "copy_into_a_buffer_in_use"
grid   = ["ceil(n / 512)"]
block  = [128]
*/
#include <cuda_pipeline.h>

#define FIXED 0

__global__ void copy_into_a_buffer_in_use(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    __shared__ float staged[2][128];
    const int t = threadIdx.x, first = blockIdx.x * 512;
    __pipeline_memcpy_async(&staged[0][t], x + min(first + t, n - 1), 4);
    __pipeline_commit();
    for (int tile = 0; tile < 4; ++tile) {
        if (tile < 3) __pipeline_memcpy_async(&staged[(tile + 1) % 2][t], x + min(first + (tile + 1) * 128 + t, n - 1), 4);  // BUG: shared-race
        __pipeline_commit();
        __pipeline_wait_prior(1);  // MAY: shared-race
        __syncthreads();
        const int i = first + tile * 128 + 127 - t;
        if (i < n) out[i] = staged[tile % 2][127 - t] + y[i];  // BUG: shared-race, missing-wait
#if FIXED
        __syncthreads();
#endif
    }
}
