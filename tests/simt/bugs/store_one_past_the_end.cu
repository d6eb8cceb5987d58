/* rooftop
op     = "add"
idea   = "Planted fault: the guard of the store lets one element too many through (<= for <)."
limit  = "On a GPU: the first bytes of whatever lies behind the tensor change."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "store_one_past_the_end"
grid   = ["ceil((n + 1) / 128)"]
block  = [128]
*/
#define FIXED 0

__global__ void store_one_past_the_end(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    const float sum = i < n ? x[i] + y[i] : 0;
#if FIXED
    if (i < n)
#else
    if (i <= n)
#endif
        out[i] = sum;  // BUG: out-of-bounds
}
