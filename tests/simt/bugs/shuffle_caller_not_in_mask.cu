/* rooftop
op     = "rms_norm"
idea   = "Planted fault: all lanes take part in a shuffle whose mask names the lower half alone."
limit  = "On a GPU: undefined: right on some cards, wrong or hanging on others."
dtypes = ["f32"]
args   = ["C: i32", "x: T[R, C]", "y: T[R, C]", "eps: f32"]

[[launch]]
kernel = "shuffle_caller_not_in_mask"
grid   = ["R"]
block  = [32]
*/
#define FIXED 0

__global__ void shuffle_caller_not_in_mask(int C, const float* __restrict__ x, float* __restrict__ y, float eps) {
    const int lane = threadIdx.x;
    x += static_cast<long long>(blockIdx.x) * C;
    y += static_cast<long long>(blockIdx.x) * C;

    float s = 0;
    for (int c = lane; c < C; c += 32) s += x[c] * x[c];
#if FIXED
    const unsigned mask = ~0u;
#else
    const unsigned mask = 0xffffu;
#endif
    for (int step = 16; step > 0; step /= 2)
        s += __shfl_xor_sync(mask, s, step);  // BUG: absent-lane
    const float scale = 1 / sqrtf(s / C + eps);
    for (int c = lane; c < C; c += 32) y[c] = x[c] * scale;
}
