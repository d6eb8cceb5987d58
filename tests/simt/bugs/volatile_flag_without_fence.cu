/* rooftop
op     = "add"
idea   = "Planted fault: the first block tells the others by a volatile flag that a value is there, with no fence before the flag."
limit  = "On a GPU: the flag may be seen before the value, so that a block now and then takes what was there before."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "volatile_flag_without_fence"
grid   = ["ceil(n / 128)"]
block  = [128]
*/
#define FIXED 0

__device__ volatile int ready;
__device__ float factor;

__global__ void volatile_flag_without_fence(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    const int t = threadIdx.x, i = blockIdx.x * 128 + t;
    if (blockIdx.x == 0 && t == 0) {
        factor = 1;
#if FIXED
        __threadfence();
#endif
        ready = 1;
    }
    if (t == 0) {
        while (ready == 0) {}
        __threadfence();
    }
    __syncthreads();
    if (i < n) out[i] = x[i] + factor * y[i];  // BUG: global-race
}
