/* rooftop
op      = "add"
idea    = "Planted fault: a barrier of the whole block that part of a warp does not reach. synccheck must find it."
dtypes  = ["f32"]
args    = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[config]
threads = 64

[[launch]]
kernel = "divergent"
grid   = ["ceil(n / threads)"]
block  = ["threads"]
*/
__global__ void divergent(int n, const float* x, const float* y, float* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (threadIdx.x < 40) __syncthreads();  // the fault: the second warp arrives with 8 of its 32 threads
    if (i < n) out[i] = x[i] + y[i];
}
