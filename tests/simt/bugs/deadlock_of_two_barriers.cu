/* rooftop
op     = "add"
idea   = "Planted fault: half of each warp waits for the warp, the other half for the block."
limit  = "On a GPU: the kernel never ends."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "deadlock_of_two_barriers"
grid   = ["ceil(n / 64)"]
block  = [64]
*/
#define FIXED 0

__global__ void deadlock_of_two_barriers(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    const int i = blockIdx.x * 64 + threadIdx.x;
#if !FIXED
    if (threadIdx.x % 32 < 16)
        __syncwarp();  // BUG: deadlock, barrier-divergence
    else
#endif
        __syncthreads();  // BUG: deadlock, barrier-divergence
    if (i < n) out[i] = x[i] + y[i];
}
