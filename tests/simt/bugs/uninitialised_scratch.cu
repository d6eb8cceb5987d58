/* rooftop
op     = "rms_norm"
idea   = "Planted fault: blocks add to totals in scratch memory that no launch has cleared."
limit  = "On a GPU: right at the first call, if the allocator hands out zeros; wrong afterwards."
dtypes = ["f32"]
args   = ["C: i32", "x: T[R, C]", "y: T[R, C]", "eps: f32"]

[config]
fixed = 0
part = 32

[scratch]
total = "f32[R]"

[[launch]]
kernel = "clear"
grid   = ["R"]
block  = [1]
args   = ["total: f32[R]"]
when   = "fixed == 1"

[[launch]]
kernel = "add_up"
grid   = ["R", "ceil(C / part)"]
block  = [32]
args   = ["C: i32", "part: i32", "x: T[R, C]", "total: f32[R]"]

[[launch]]
kernel = "scale"
grid   = ["R"]
block  = [32]
args   = ["C: i32", "x: T[R, C]", "y: T[R, C]", "total: f32[R]", "eps: f32"]
*/
#define FIXED 0

/// Adds a part of a row's squares to its total. Several blocks a row.
__global__ void add_up(int C, int part, const float* __restrict__ x, float* total) {
    const int row = blockIdx.x, t = threadIdx.x, c = blockIdx.y * part + t;
    float s = t < part && c < C ? x[static_cast<long long>(row) * C + c] * x[static_cast<long long>(row) * C + c] : 0;
    for (int step = 16; step > 0; step /= 2) s += __shfl_xor_sync(~0u, s, step);
    if (t == 0)
        atomicAdd(&total[row], s);  // BUG: uninitialised
}

__global__ void clear(float* total) {
    total[blockIdx.x] = 0;
}

__global__ void scale(int C, const float* __restrict__ x, float* __restrict__ y, const float* __restrict__ total, float eps) {
    const long long at = static_cast<long long>(blockIdx.x) * C;
    const float by = 1 / sqrtf(total[blockIdx.x] / C + eps);
    for (int c = threadIdx.x; c < C; c += 32) y[at + c] = x[at + c] * by;
}
