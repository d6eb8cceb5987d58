/* rooftop
op     = "add"
idea   = "Right, though it looks wrong: threads past the end return before a barrier, which then waits for the others alone; nothing of theirs is read."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "return_before_a_barrier"
grid   = ["ceil(n / 128)"]
block  = [128]
*/
__global__ void return_before_a_barrier(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    __shared__ float staged[128];
    const int t = threadIdx.x, i = blockIdx.x * 128 + t;
    if (i >= n) return;
    staged[t] = x[i];
    __syncthreads();
    const int left = n - blockIdx.x * 128 < 128 ? n - blockIdx.x * 128 : 128;  // threads that stay
    const int j = left - 1 - t;
    out[blockIdx.x * 128 + j] = staged[j] + y[blockIdx.x * 128 + j];
}
