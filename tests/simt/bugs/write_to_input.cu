/* rooftop
op     = "add"
idea   = "Planted fault: an input that the caller was promised to keep (const) is used as working memory."
limit  = "On a GPU: the caller's tensor has changed after the call; reads through the read-only path may miss the change."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "write_to_input"
grid   = ["ceil(n / 128)"]
block  = [128]
*/
#define FIXED 0

__global__ void write_to_input(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= n) return;
#if FIXED
    out[i] = x[i] + y[i];
#else
    float* work = const_cast<float*>(x);
    work[i] += y[i];  // BUG: const-write
    out[i] = work[i];
#endif
}
