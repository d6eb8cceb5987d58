/* rooftop
op     = "add"
idea   = "Right, though it looks wrong: several threads write one flag in shared memory, all the same value."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "same_value"
grid   = ["ceil(n / 128)"]
block  = [128]
*/
__global__ void same_value(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    __shared__ int negative;
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (threadIdx.x == 0) negative = 0;
    __syncthreads();
    if (i < n && x[i] < 0) negative = 1;
    __syncthreads();
    if (i < n) out[i] = negative ? x[i] + y[i] : y[i] + x[i];
}
