/* rooftop
op     = "add"
idea   = "Planted fault: a tile is read backwards from [128] instead of [127]."
limit  = "On a GPU: the first thread reads what lies behind the tile, all others their neighbour's element."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "shared_load_one_past_the_end"
grid   = ["ceil(n / 128)"]
block  = [128]
*/
#define FIXED 0

__global__ void shared_load_one_past_the_end(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    __shared__ float tile[128];
    const int first = blockIdx.x * 128, t = threadIdx.x;
    tile[t] = first + t < n ? x[first + t] : 0;
    __syncthreads();
    const int i = first + 127 - t;
#if FIXED
    const int from = 127 - t;
#else
    const int from = 128 - t;
#endif
    if (i < n) out[i] = tile[from] + y[i];  // BUG: out-of-bounds
}
