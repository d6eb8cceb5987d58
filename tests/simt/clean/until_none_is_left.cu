/* rooftop
op     = "add"
idea   = "Right, though it looks wrong: a loop with a barrier that every thread leaves in the same round, as __syncthreads_or decides."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "until_none_is_left"
grid   = ["1"]
block  = [128]
*/
__global__ void until_none_is_left(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    __shared__ float staged[128];
    const int t = threadIdx.x;
    int i = t;
    while (__syncthreads_or(i < n)) {
        staged[t] = i < n ? x[i] : 0;
        __syncthreads();
        const int j = i ^ 1;
        if (j < n) out[j] = staged[t ^ 1] + y[j];
        i += 128;
    }
}
