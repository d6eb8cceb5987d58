/* rooftop
op      = "add"
idea    = "Planted fault: the last thread's guard lets one element too many through. memcheck must find it."
dtypes  = ["f32"]
args    = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[config]
threads = 128

[[launch]]
kernel = "overrun"
grid   = ["ceil((n + 1) / threads)"]
block  = ["threads"]
*/
__global__ void overrun(int n, const float* x, const float* y, float* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] + y[i];
    if (i == n) out[i] = 1.0f;  // the fault
}
