/* rooftop
op     = "add"
idea   = "Planted fault: sixteen bytes at a time from a tensor that begins four bytes past a 16-byte boundary."
limit  = "On a GPU: the launch fails with a misaligned address."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "misaligned_float4"
grid   = ["ceil(n / 512)"]
block  = [128]
*/
#define FIXED 0

__global__ void misaligned_float4(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    const int i = 4 * (blockIdx.x * 128 + threadIdx.x);
#if FIXED
    const bool aligned = (reinterpret_cast<unsigned long long>(x) | reinterpret_cast<unsigned long long>(y) | reinterpret_cast<unsigned long long>(out)) % 16 == 0;
#else
    const bool aligned = true;
#endif
    if (aligned && i + 4 <= n) {
        const float4 p = *reinterpret_cast<const float4*>(x + i), q = *reinterpret_cast<const float4*>(y + i);  // BUG: misaligned
        *reinterpret_cast<float4*>(out + i) = make_float4(p.x + q.x, p.y + q.y, p.z + q.z, p.w + q.w);           // BUG: misaligned
    } else {
        for (int j = i; j < n && j < i + 4; ++j) out[j] = x[j] + y[j];
    }
}
