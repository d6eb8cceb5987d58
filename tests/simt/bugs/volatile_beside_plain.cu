/* rooftop
op     = "add"
idea   = "Planted fault: each block writes a word as volatile and reads what the blocks have there by a plain read."
limit  = "On a GPU: the plain read may be of an old value in the L1, or be left out."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "volatile_beside_plain"
grid   = ["ceil(n / 128)"]
block  = [128]
*/
#define FIXED 0

__device__ int latest;

__global__ void volatile_beside_plain(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    const int t = threadIdx.x, i = blockIdx.x * 128 + t;
    volatile int* word = &latest;
    if (t == 0) *word = blockIdx.x + 1;  // BUG: global-race
    __syncthreads();
#if FIXED
    const int seen = *word;
#else
    const int seen = latest;  // BUG: global-race
#endif
    if (i < n) out[i] = seen > 0 ? x[i] + y[i] : 0;
}
