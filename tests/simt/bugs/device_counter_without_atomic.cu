/* rooftop
op     = "rms_norm"
idea   = "Planted fault: blocks count themselves in a __device__ variable by a plain increment, and the last one is to finish the row."
limit  = "On a GPU: two blocks read the same count: no block takes itself for the last, and the row is not written."
dtypes = ["f32"]
args   = ["C: i32", "part: i32", "x: T[R, C]", "y: T[R, C]", "parts: f32[R, B]", "eps: f32"]

[config]
fixed = 0
part = 32

[scratch]
parts = "f32[R, ceil(C / part)]"

[[launch]]
kernel = "device_counter_without_atomic"
grid   = ["R", "ceil(C / part)"]
block  = [32]
*/
#define FIXED 0

__device__ int tickets[64];

__global__ void device_counter_without_atomic(int C, int part, const float* __restrict__ x, float* __restrict__ y, float* parts, float eps) {
    __shared__ bool last;
    const int row = blockIdx.x, blocks = gridDim.y, lane = threadIdx.x, c = blockIdx.y * part + lane;
    const long long at = static_cast<long long>(row) * C;
    float s = lane < part && c < C ? x[at + c] * x[at + c] : 0;
    for (int step = 16; step > 0; step /= 2) s += __shfl_xor_sync(~0u, s, step);
    if (lane == 0) {
        parts[row * blocks + blockIdx.y] = s;
        __threadfence();
#if FIXED
        last = atomicAdd(&tickets[row], 1) == blocks - 1;
#else
        last = tickets[row]++ == blocks - 1;  // BUG: global-race
#endif
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    s = 0;
    for (int b = lane; b < blocks; b += 32) s += parts[row * blocks + b];  // MAY: global-race, uninitialised
    for (int step = 16; step > 0; step /= 2) s += __shfl_xor_sync(~0u, s, step);
    const float scale = 1 / sqrtf(s / C + eps);
    for (int k = lane; k < C; k += 32) y[at + k] = x[at + k] * scale;
    if (lane == 0) tickets[row] = 0;  // MAY: global-race
}
