/* rooftop
op     = "add"
idea   = "Planted fault: the last block has more threads than elements are left, and nothing masks them."
limit  = "On a GPU: memory behind the tensor is read and written."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "tail_not_masked"
grid   = ["ceil(n / 128)"]
block  = [128]
*/
#define FIXED 0

__global__ void tail_not_masked(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    const int i = blockIdx.x * 128 + threadIdx.x;
#if FIXED
    if (i < n)
#endif
        out[i] = x[i] + y[i];  // BUG: out-of-bounds
}
