/* rooftop
idea    = "The active threads are neighbours: whole warps are idle, and their issue slots are free. The elements stay where they were."
predict = { speedup = 1.1, conflicts = 3.9 }
limit   = "Bank conflicts: neighbouring threads access words 2 * step apart, up to 8 of them in one bank."
dtypes  = ["f32"]
args    = ["x: f32[A, B, C, D, E]", "out: f32[A, 1, C, 1, E]"]

[requires]
"op == 'sum'" = "this rung adds"
"A * B * C * E == 1 and D > 0" = "takes all elements to one sum"
"stride(x, 3) == 1" = "the elements must be neighbours"

[let]
blocks = "ceil(D / 256)"

[scratch]
parts = "f32[blocks]"

[[launch]]
kernel = "add"
grid   = ["blocks"]
block  = [256]
args   = ["n: i64 = D", "x: f32[A, B, C, D, E]", "parts: f32[P]"]

[[launch]]
kernel = "fold"
grid   = [1]
block  = [1024]
args   = ["n: i64 = blocks", "parts: f32[P]", "out: f32[A, 1, C, 1, E]"]
*/
__global__ void __launch_bounds__(256) add(long long n, const float* __restrict__ x, float* __restrict__ parts) {
    __shared__ float s[256];
    const int t = threadIdx.x;
    const long long i = blockIdx.x * 256ll + t;
    s[t] = i < n ? x[i] : 0;
    __syncthreads();
    for (int step = 1; step < 256; step *= 2) {
        const int at = 2 * step * t;
        if (at < 256) s[at] += s[at + step];
        __syncthreads();
    }
    if (t == 0) parts[blockIdx.x] = s[0];
}

/// The sum of n partial sums, by one block.
__global__ void __launch_bounds__(1024) fold(long long n, const float* __restrict__ parts, float* __restrict__ out) {
    __shared__ float s[1024];
    float sum = 0;
    for (long long i = threadIdx.x; i < n; i += 1024) sum += parts[i];
    s[threadIdx.x] = sum;
    __syncthreads();
    for (int step = 512; step > 0; step /= 2) {
        if (threadIdx.x < step) s[threadIdx.x] += s[threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x == 0) *out = s[0];
}
