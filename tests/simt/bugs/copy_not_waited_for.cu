/* rooftop
op     = "add"
idea   = "Planted fault: an asynchronous copy is committed, and its result read without a wait."
limit  = "On a GPU: mostly the old contents of shared memory."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "copy_not_waited_for"
grid   = ["ceil(n / 128)"]
block  = [128]
*/
#include <cuda_pipeline.h>

#define FIXED 0

__global__ void copy_not_waited_for(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    __shared__ float staged[128];
    const int i = blockIdx.x * 128 + threadIdx.x, t = threadIdx.x;
    if (i < n) __pipeline_memcpy_async(&staged[t], x + i, 4);
    __pipeline_commit();
#if FIXED
    __pipeline_wait_prior(0);
#endif
    if (i < n) out[i] = staged[t] + y[i];  // BUG: missing-wait, uninitialised
}
