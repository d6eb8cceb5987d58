/* rooftop
op     = "add"
idea   = "Planted fault: a search by halves for the number of bits of n does not move where it should, and touches no memory."
limit  = "On a GPU: the kernel never ends."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "endless_search"
grid   = ["ceil(n / 128)"]
block  = [128]
*/
#define FIXED 0

__global__ void endless_search(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    int low = 0, high = 31;
    for (int middle; middle = (low + high) / 2, low < high;) (n >> middle ? low : high) = middle + (n >> middle ? FIXED : 0);  // BUG: deadlock
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n && n >> low == 0) out[i] = x[i] + y[i];
}
