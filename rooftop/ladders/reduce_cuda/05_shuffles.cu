/* rooftop
idea    = "Warps reduce by shuffles, without barriers; one barrier is left, between warps."
predict = { speedup = 1.02 }
limit   = "The trees were already a small part of the time: what remains is the number of bytes in flight."
dtypes  = ["f32"]
args    = ["x: f32[A, B, C, D, E]", "out: f32[A, 1, C, 1, E]"]

[requires]
"op == 'sum'" = "this rung adds"
"A * B * C * E == 1 and D > 0" = "takes all elements to one sum"
"stride(x, 3) == 1" = "the elements must be neighbours"

[let]
blocks = "min(8 * sms, ceil(D / 256))"

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
__device__ float warp_sum(float v) {
    for (int step = 16; step > 0; step /= 2) v += __shfl_down_sync(~0u, v, step);
    return v;
}

/// In thread 0.
template <int THREADS>
__device__ float block_sum(float v) {
    __shared__ float s[THREADS / 32];
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = v;
    __syncthreads();
    return threadIdx.x < 32 ? warp_sum(threadIdx.x < THREADS / 32 ? s[threadIdx.x] : 0) : 0;
}

__global__ void __launch_bounds__(256) add(long long n, const float* __restrict__ x, float* __restrict__ parts) {
    float sum = 0;
    for (long long i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll) sum += x[i];
    sum = block_sum<256>(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

/// The sum of n partial sums, by one block.
__global__ void __launch_bounds__(1024) fold(long long n, const float* __restrict__ parts, float* __restrict__ out) {
    float sum = 0;
    for (long long i = threadIdx.x; i < n; i += 1024) sum += parts[i];
    sum = block_sum<1024>(sum);
    if (threadIdx.x == 0) *out = sum;
}
