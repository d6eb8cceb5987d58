/* rooftop
op     = "add"
idea   = "Planted fault: a barrier in a loop that some threads go through once more than others; those wait at the barrier after it."
limit  = "On a GPU: the kernel hangs, or the last tile is stale."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "barrier_in_ragged_loop"
grid   = ["1"]
block  = [128]
*/
#define FIXED 0

__global__ void barrier_in_ragged_loop(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    __shared__ float staged[128];
    const int t = threadIdx.x;
#if FIXED
    for (int first = 0; first < n; first += 128) {
        const int i = first + t;
#else
    for (int i = t; i < n; i += 128) {
#endif
        staged[t] = i < n ? x[i] : 0;
        __syncthreads();  // BUG: barrier-divergence
        const int j = i ^ 1;
        if (j < n) out[j] = staged[t ^ 1] + y[j];
        __syncthreads();  // BUG: barrier-divergence
    }
    __syncthreads();  // BUG: barrier-divergence
}
