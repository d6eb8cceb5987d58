/* rooftop
op     = "add"
idea   = "Right, though it looks wrong: one piece of dynamic shared memory serves as floats, and after a barrier as packs of four."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "two_views_of_shared"
grid   = ["ceil(n / 256)"]
block  = [64]
shared = "1024"
*/
extern __shared__ float4 packs[];

__global__ void two_views_of_shared(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    float* singles = reinterpret_cast<float*>(packs);
    const int t = threadIdx.x, first = blockIdx.x * 256;
    for (int k = t; k < 256; k += 64) singles[k] = first + k < n ? x[first + k] : 0;
    __syncthreads();
    const float4 v = packs[63 - t];
    __syncthreads();
    singles[4 * t] = v.x, singles[4 * t + 1] = v.y, singles[4 * t + 2] = v.z, singles[4 * t + 3] = v.w;
    __syncwarp();
    for (int k = 0; k < 4; ++k) {
        const int i = first + 4 * (63 - t) + k;
        if (i < n) out[i] = singles[4 * t + k] + y[i];
    }
}
