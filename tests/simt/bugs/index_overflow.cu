/* rooftop
op     = "add"
idea   = "Planted fault: a permuted index is computed in 32 bits, though the product does not fit them."
limit  = "On a GPU: the index turns negative: an illegal address, at large sizes only."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "index_overflow"
grid   = ["ceil(n / 128)"]
block  = [128]
*/
#define FIXED 0

__global__ void index_overflow(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    const int j = blockIdx.x * 128 + threadIdx.x;
    if (j >= n) return;
#if FIXED
    const int i = static_cast<int>(static_cast<long long>(j) * 33331 % n);
#else
    const int i = static_cast<int>(static_cast<unsigned>(j) * 33331u) % n;
#endif
    out[i] = x[i] + y[i];  // BUG: out-of-bounds
}
