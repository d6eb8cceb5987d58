/* rooftop
op     = "add"
idea   = "Planted fault: four elements at a time, though the length is no multiple of four: the last pack reaches past the end."
limit  = "On a GPU: up to three elements behind the tensor are overwritten."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "vector_tail"
grid   = ["ceil(n / 512)"]
block  = [128]
*/
#define FIXED 0

__global__ void vector_tail(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    const int i = 4 * (blockIdx.x * 128 + threadIdx.x);
#if FIXED
    if (i < n && i + 4 > n) {
        for (int j = i; j < n; ++j) out[j] = x[j] + y[j];
        return;
    }
#endif
    if (i < n) {
        const float4 p = *reinterpret_cast<const float4*>(x + i), q = *reinterpret_cast<const float4*>(y + i);  // BUG: out-of-bounds
        *reinterpret_cast<float4*>(out + i) = make_float4(p.x + q.x, p.y + q.y, p.z + q.z, p.w + q.w);           // BUG: out-of-bounds
    }
}
