/* rooftop
op     = "add"
idea   = "Right, though it looks wrong: one warp hands its values to another by a flag: a fence before it is raised, an atomic to see it."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "flag_between_warps"
grid   = ["ceil(n / 32)"]
block  = [64]
*/
__global__ void flag_between_warps(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    __shared__ float staged[32];
    __shared__ int ready;
    const int lane = threadIdx.x % 32, i = blockIdx.x * 32 + lane;
    if (threadIdx.x == 0) ready = 0;
    __syncthreads();
    if (threadIdx.x < 32) {
        staged[lane] = i < n ? x[i] : 0;
        __threadfence_block();
        __syncwarp();
        if (lane == 0) atomicExch(&ready, 1);
    } else {
        if (lane == 0) {
            while (atomicAdd(&ready, 0) == 0) {
            }
        }
        __syncwarp();
        __threadfence_block();
        const int j = blockIdx.x * 32 + 31 - lane;
        if (j < n) out[j] = staged[31 - lane] + y[j];
    }
}
