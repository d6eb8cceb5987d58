/* rooftop
op     = "add"
idea   = "Planted fault: threads read what other warps put into shared memory, with no barrier between the store and the read."
limit  = "On a GPU: now and then an element is stale or zero; more often when the block shares its multiprocessor."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "missing_barrier"
grid   = ["ceil(n / 128)"]
block  = [128]
*/
#define FIXED 0

__global__ void missing_barrier(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    __shared__ float staged[128];
    const int first = blockIdx.x * 128, t = threadIdx.x;
    staged[t] = first + t < n ? x[first + t] : 0;  // BUG: shared-race
#if FIXED
    __syncthreads();
#endif
    const int i = first + 127 - t;
    if (i < n) out[i] = staged[127 - t] + y[i];  // BUG: shared-race, uninitialised
}
