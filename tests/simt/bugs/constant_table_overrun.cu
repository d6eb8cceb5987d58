/* rooftop
op     = "add"
idea   = "Planted fault: a __constant__ table of four factors is read at [i % 5]."
limit  = "On a GPU: the fifth is whatever the program keeps behind the table."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "constant_table_overrun"
grid   = ["ceil(n / 128)"]
block  = [128]
*/
#define FIXED 0

__constant__ const float factors[4] = {1, 1, 1, 1};

__global__ void constant_table_overrun(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= n) return;
    const float factor = factors[i % (5 - FIXED)];  // BUG: out-of-bounds
    out[i] = factor * x[i] + y[i];
}
