/* rooftop
op     = "add"
idea   = "Planted fault: the launch asks for the shared memory of one array, the kernel uses two."
limit  = "On a GPU: an illegal address, or the neighbour block's shared memory, by how it is handed out."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[config]
fixed = 0

[[launch]]
kernel = "dynamic_shared_too_small"
grid   = ["ceil(n / 128)"]
block  = [128]
shared = "512 * (1 + fixed)"
*/
#define FIXED 0

extern __shared__ float both[];

__global__ void dynamic_shared_too_small(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    const int i = blockIdx.x * 128 + threadIdx.x, t = threadIdx.x;
    both[t] = i < n ? x[i] : 0;
    both[128 + t] = i < n ? y[i] : 0;  // BUG: out-of-bounds
    __syncthreads();
    const int j = blockIdx.x * 128 + 127 - t;
    if (j < n) out[j] = both[127 - t] + both[255 - t];  // BUG: out-of-bounds
}
