/* rooftop
op     = "add"
idea   = "Planted fault: a cuda::pipeline whose stage is read before consumer_wait."
limit  = "On a GPU: mostly the old contents of shared memory."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "pipeline_without_wait"
grid   = ["ceil(n / 128)"]
block  = [128]
*/
#include <cuda/pipeline>

#define FIXED 0

__global__ void pipeline_without_wait(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    __shared__ float staged[128];
    const int i = blockIdx.x * 128 + threadIdx.x, t = threadIdx.x;
    cuda::pipeline<cuda::thread_scope_thread> pipe = cuda::make_pipeline();
    pipe.producer_acquire();
    if (i < n) cuda::memcpy_async(&staged[t], x + i, sizeof(float), pipe);
    pipe.producer_commit();
#if FIXED
    pipe.consumer_wait();
#endif
    if (i < n) out[i] = staged[t] + y[i];  // BUG: missing-wait, uninitialised
#if !FIXED
    pipe.consumer_wait();
#endif
    pipe.consumer_release();
}
