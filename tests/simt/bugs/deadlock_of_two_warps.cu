/* rooftop
op     = "add"
idea   = "Planted fault: two warps wait for each other's flag before they raise their own."
limit  = "On a GPU: the kernel never ends."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "deadlock_of_two_warps"
grid   = ["ceil(n / 64)"]
block  = [64]
*/
#define FIXED 0

__global__ void deadlock_of_two_warps(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    __shared__ int ready[2];
    const int i = blockIdx.x * 64 + threadIdx.x, warp = threadIdx.x / 32;
    if (threadIdx.x < 2) ready[threadIdx.x] = 0;
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
#if FIXED
        atomicExch(&ready[warp], 1);
#endif
        while (atomicAdd(&ready[1 - warp], 0) == 0) {  // BUG: deadlock
        }
#if !FIXED
        atomicExch(&ready[warp], 1);
#endif
    }
    __syncthreads();  // MAY: deadlock
    if (i < n) out[i] = x[i] + y[i];
}
