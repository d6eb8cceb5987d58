/* rooftop
op     = "add"
idea   = "Planted fault: a warp fills its own slot, waits for its own lanes alone, and then reads the slot of the warp beside it."
limit  = "On a GPU: stale elements whenever the other warp is behind."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "wrong_warp_slot"
grid   = ["ceil(n / 128)"]
block  = [128]
*/
#define FIXED 0

__global__ void wrong_warp_slot(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    __shared__ float slots[4][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = blockIdx.x * 128;
    const int i = first + threadIdx.x;
    slots[warp][lane] = i < n ? x[i] : 0;  // BUG: shared-race
    __syncwarp();
#if FIXED
    const int from = warp;
#else
    const int from = warp ^ 1;
#endif
    const int j = first + from * 32 + 31 - lane;
    if (j < n) out[j] = slots[from][31 - lane] + y[j];  // BUG: shared-race, uninitialised
}
