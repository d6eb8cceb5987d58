/* rooftop
op     = "add"
idea   = "Planted fault: a barrier inside a branch that the threads past the end do not take; they wait at the next one."
limit  = "On a GPU: the two barriers count each other's threads: stale elements, or a kernel that never ends."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "barrier_in_branch"
grid   = ["ceil(n / 128)"]
block  = [128]
*/
#define FIXED 0

__global__ void barrier_in_branch(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    __shared__ float staged[128];
    const int first = blockIdx.x * 128, t = threadIdx.x;
#if FIXED
    staged[t] = first + t < n ? x[first + t] : 0;
    __syncthreads();
#else
    if (first + t < n) {
        staged[t] = x[first + t];  // MAY: shared-race
        __syncthreads();  // BUG: barrier-divergence
    }
#endif
    const int i = first + 127 - t;
    const float sum = i < n ? staged[127 - t] + y[i] : 0;  // MAY: shared-race, uninitialised
    __syncthreads();  // BUG: barrier-divergence
    if (i < n) out[i] = sum;
}
