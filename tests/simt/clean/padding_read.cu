/* rooftop
op     = "add"
idea   = "Right, though it looks wrong: a vector load takes a fourth float with it that nobody has written, and nobody uses."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "padding_read"
grid   = ["ceil(n / 192)"]
block  = [64]
*/
__global__ void padding_read(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    __shared__ __align__(16) float rows[64][4];  // three of each four are used
    const int t = threadIdx.x, first = blockIdx.x * 192;
    for (int k = t; k < 192; k += 64) rows[k / 3][k % 3] = first + k < n ? x[first + k] : 0;
    __syncthreads();
    const float4 v = *reinterpret_cast<const float4*>(rows[63 - t]);
    const int i = first + 3 * (63 - t);
    if (i < n) out[i] = v.x + y[i];
    if (i + 1 < n) out[i + 1] = v.y + y[i + 1];
    if (i + 2 < n) out[i + 2] = v.z + y[i + 2];
}
