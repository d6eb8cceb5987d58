/* rooftop
op     = "add"
idea   = "Planted fault: a row with a halo of one element is stored at [t + 1], in an array without room for it."
limit  = "On a GPU: shared memory is handed out in larger pieces, so it may go unseen until another array lies behind this one."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "shared_store_one_past_the_end"
grid   = ["ceil(n / 128)"]
block  = [128]
*/
#define FIXED 0

__global__ void shared_store_one_past_the_end(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    __shared__ float row[128 + FIXED];
    const int i = blockIdx.x * 128 + threadIdx.x, t = threadIdx.x;
    row[t + 1] = i < n ? x[i] : 0;  // BUG: out-of-bounds
    __syncthreads();
    const int j = blockIdx.x * 128 + 127 - t;
    if (j < n) out[j] = row[128 - t] + y[j];  // BUG: out-of-bounds
}
