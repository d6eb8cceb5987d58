/* rooftop
op     = "rms_norm"
idea   = "Right, though it looks wrong: warps go through a loop with __syncwarp a different number of times, each with a row of its own."
dtypes = ["f32"]
args   = ["R: i32", "C: i32", "x: T[R, C]", "y: T[R, C]", "eps: f32"]

[[launch]]
kernel = "warps_at_their_own_pace"
grid   = ["1"]
block  = [128]
*/
__global__ void warps_at_their_own_pace(int R, int C, const float* __restrict__ x, float* __restrict__ y, float eps) {
    __shared__ float parts[4][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int row = warp; row < R; row += 4) {
        float s = 0;
        for (int c = lane; c < C; c += 32) s += x[row * C + c] * x[row * C + c];
        parts[warp][lane] = s;
        __syncwarp();
        for (int half = 16; half > 0; half /= 2) {
            if (lane < half) parts[warp][lane] += parts[warp][lane + half];
            __syncwarp();
        }
        const float scale = 1 / sqrtf(parts[warp][0] / C + eps);
        for (int c = lane; c < C; c += 32) y[row * C + c] = x[row * C + c] * scale;
        __syncwarp();
    }
}
