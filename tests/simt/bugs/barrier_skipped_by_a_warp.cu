/* rooftop
op     = "add"
idea   = "Planted fault: one warp has nothing to stage and goes round the barrier, on to the next one."
limit  = "On a GPU: barriers pair up wrongly: stale elements or a hang."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "barrier_skipped_by_a_warp"
grid   = ["ceil(n / 64)"]
block  = [96]
*/
#define FIXED 0

__global__ void barrier_skipped_by_a_warp(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    __shared__ float staged[64];
    const int t = threadIdx.x, first = blockIdx.x * 64;
    if (t < 64) staged[t] = first + t < n ? x[first + t] : 0;  // MAY: shared-race
#if FIXED
    __syncthreads();
#else
    if (t < 64) __syncthreads();  // BUG: barrier-divergence
#endif
    const int i = first + 63 - t;
    if (t < 64 && i < n) out[i] = staged[63 - t] + y[i];  // MAY: shared-race, uninitialised
    __syncthreads();  // BUG: barrier-divergence
}
