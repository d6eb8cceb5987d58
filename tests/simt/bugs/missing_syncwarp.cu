/* rooftop
op     = "add"
idea   = "Planted fault: lanes of one warp exchange values through shared memory as if they still ran in lockstep: __syncwarp is missing."
limit  = "On a GPU: since Volta lanes may run apart, and the compiler may swap the two accesses; mostly it works, which is the trap."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "missing_syncwarp"
grid   = ["ceil(n / 128)"]
block  = [128]
*/
#define FIXED 0

__global__ void missing_syncwarp(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    __shared__ float slots[4][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int i = blockIdx.x * 128 + threadIdx.x, j = i ^ 1;
    slots[warp][lane] = i < n ? x[i] : 0;  // BUG: warp-race
#if FIXED
    __syncwarp();
#endif
    if (j < n) out[j] = slots[warp][lane ^ 1] + y[j];  // BUG: warp-race, uninitialised
}
