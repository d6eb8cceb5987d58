/* rooftop
op     = "add"
idea   = "Planted fault: a tile is overwritten with the next one while other warps still read it: the barrier at the end of the loop is missing."
limit  = "On a GPU: some elements are those of the next tile; it shows when warps run apart."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "missing_barrier_before_overwrite"
grid   = ["ceil(n / 512)"]
block  = [128]
*/
#define FIXED 0

__global__ void missing_barrier_before_overwrite(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    __shared__ float staged[128];
    const int t = threadIdx.x;
    for (int tile = 0; tile < 4; ++tile) {
        const int first = (blockIdx.x * 4 + tile) * 128;
        staged[t] = first + t < n ? x[first + t] : 0;  // BUG: shared-race
        __syncthreads();
        const int i = first + 127 - t;
        if (i < n) out[i] = staged[127 - t] + y[i];  // BUG: shared-race
#if FIXED
        __syncthreads();
#endif
    }
}
