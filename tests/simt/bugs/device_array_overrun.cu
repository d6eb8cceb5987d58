/* rooftop
op     = "add"
idea   = "Planted fault: a __device__ array with a halo of one element is written at [i + 1], and has no room for it."
limit  = "On a GPU: what the program keeps behind the array is overwritten; nothing is reported."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "device_array_overrun"
grid   = ["ceil(n / 128)"]
block  = [128]
*/
#define FIXED 0

__device__ float held[1003 + FIXED];  // the case has 1003 elements
__device__ float behind[8];

__global__ void device_array_overrun(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= n) return;
    held[i + 1] = x[i];  // BUG: out-of-bounds
    out[i] = held[i + 1] + y[i] + behind[i % 8];  // BUG: out-of-bounds
}
