/* rooftop
op     = "rms_norm"
idea   = "Planted fault: a shuffle of all lanes in a loop that lanes leave one round early where the row's length is no multiple of 32."
limit  = "On a GPU: lanes that have left the loop are waited for at another shuffle: undefined values in the last round."
dtypes = ["f32"]
args   = ["C: i32", "x: T[R, C]", "y: T[R, C]", "eps: f32"]

[[launch]]
kernel = "shuffle_in_ragged_loop"
grid   = ["R"]
block  = [32]
*/
#define FIXED 0

__global__ void shuffle_in_ragged_loop(int C, const float* __restrict__ x, float* __restrict__ y, float eps) {
    const int lane = threadIdx.x;
    x += static_cast<long long>(blockIdx.x) * C;
    y += static_cast<long long>(blockIdx.x) * C;

    float s = 0;
#if FIXED
    for (int first = 0; first < C; first += 32) {
        const int c = first + lane;
#else
    for (int c = lane; c < C; c += 32) {
#endif
        const float v = c < C ? x[c] * x[c] : 0;
        s += v + __shfl_xor_sync(~0u, v, 1);  // BUG: absent-lane, barrier-divergence, deadlock
    }
    for (int step = 16; step > 1; step /= 2)
        s += __shfl_xor_sync(~0u, s, step);  // MAY: absent-lane, barrier-divergence, deadlock
    const float scale = 1 / sqrtf(s / C + eps);
    for (int c = lane; c < C; c += 32) y[c] = x[c] * scale;
}
