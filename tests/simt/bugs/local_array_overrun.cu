/* rooftop
op     = "add"
idea   = "Planted fault: each thread keeps five elements in an array of four."
limit  = "On a GPU: a neighbouring variable of the thread changes; nothing faults."
dtypes = ["f32"]
args   = ["n: i32", "each: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[config]
each = 5

[[launch]]
kernel = "local_array_overrun"
grid   = ["ceil(n / (128 * each))"]
block  = [128]
*/
#define FIXED 0

__global__ void local_array_overrun(int n, int each, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    float kept[4 + FIXED];
    const int first = (blockIdx.x * 128 + threadIdx.x) * each;
    for (int k = 0; k < each; ++k)
        kept[k] = first + k < n ? x[first + k] : 0;  // BUG: out-of-bounds
    for (int k = 0; k < each; ++k)
        if (first + k < n) out[first + k] = kept[k] + y[first + k];  // BUG: out-of-bounds
}
