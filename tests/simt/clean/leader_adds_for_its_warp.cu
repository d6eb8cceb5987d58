/* rooftop
op     = "rms_norm"
idea   = "Right, though it looks wrong: the lanes with work find out about each other by a ballot, and the first of them adds for all."
dtypes = ["f32"]
args   = ["C: i32", "x: T[R, C]", "y: T[R, C]", "eps: f32"]

[[launch]]
kernel = "leader_adds_for_its_warp"
grid   = ["R"]
block  = [128]
*/
__global__ void leader_adds_for_its_warp(int C, const float* __restrict__ x, float* __restrict__ y, float eps) {
    __shared__ float total;
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    const int t = threadIdx.x;
    x += static_cast<long long>(blockIdx.x) * C;
    y += static_cast<long long>(blockIdx.x) * C;
    float s = 0;
    for (int c = t; c < C; c += 128) s += x[c] * x[c];
    const unsigned busy = __ballot_sync(~0u, t < C);
    if (t < C) {
        float sum = 0;
        for (unsigned left = busy; left; left &= left - 1) sum += __shfl_sync(busy, s, __ffs(left) - 1);
        if (t % 32 == __ffs(busy) - 1) atomicAdd(&total, sum);
    }
    __syncthreads();
    const float scale = 1 / sqrtf(total / C + eps);
    for (int c = t; c < C; c += 128) y[c] = x[c] * scale;
}
