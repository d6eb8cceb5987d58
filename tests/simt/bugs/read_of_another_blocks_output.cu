/* rooftop
op     = "add"
idea   = "Planted fault: a block adds to what another block of the same launch was to have written by then."
limit  = "On a GPU: wrong where that block has not run yet; in small grids all run at once and it seems to work."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "read_of_another_blocks_output"
grid   = ["ceil(n / 128)"]
block  = [128]
*/
#define FIXED 0

__global__ void read_of_another_blocks_output(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    const int t = threadIdx.x, mine = blockIdx.x * 128 + t;
    if (mine < n) out[mine] = x[mine];  // BUG: global-race
    __syncthreads();
#if FIXED
    const int i = blockIdx.x * 128 + 127 - t;
#else
    const int i = (gridDim.x - 1 - blockIdx.x) * 128 + 127 - t;
#endif
    if (i < n) out[i] += y[i];  // BUG: global-race, uninitialised
}
