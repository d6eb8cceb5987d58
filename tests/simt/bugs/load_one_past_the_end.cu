/* rooftop
op     = "add"
idea   = "Planted fault: a reversed walk begins at [n] instead of [n - 1]."
limit  = "On a GPU: every element is off by one, and the first is read from behind the tensor."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "load_one_past_the_end"
grid   = ["ceil(n / 128)"]
block  = [128]
*/
#define FIXED 0

__global__ void load_one_past_the_end(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    const int i = blockIdx.x * 128 + threadIdx.x;
#if FIXED
    const int from = n - 1 - i;
#else
    const int from = n - i;
#endif
    if (i < n) out[n - 1 - i] = x[from] + y[from];  // BUG: out-of-bounds
}
