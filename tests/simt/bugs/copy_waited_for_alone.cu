/* rooftop
op     = "add"
idea   = "Planted fault: each thread waits for its own copies, and then reads what the others copied, with no barrier."
limit  = "On a GPU: stale elements where another warp's copy is late."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "copy_waited_for_alone"
grid   = ["ceil(n / 128)"]
block  = [128]
*/
#include <cuda_pipeline.h>

#define FIXED 0

__global__ void copy_waited_for_alone(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    __shared__ float staged[128];
    const int first = blockIdx.x * 128, t = threadIdx.x;
    __pipeline_memcpy_async(&staged[t], x + min(first + t, n - 1), 4);  // MAY: shared-race
    __pipeline_commit();
    __pipeline_wait_prior(0);  // MAY: shared-race
#if FIXED
    __syncthreads();
#endif
    const int i = first + 127 - t;
    if (i < n) out[i] = staged[127 - t] + y[i];  // BUG: shared-race, missing-wait, uninitialised
}
