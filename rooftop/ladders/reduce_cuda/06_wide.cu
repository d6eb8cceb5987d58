/* rooftop
idea    = "Loads of 16 bytes, four of them in flight before the first is added: 64 bytes per thread instead of 16."
predict = { speedup = 1.1, sectors_read = 16 }
limit   = "The read itself; the second launch waits for the first to end."
dtypes  = ["f32"]
args    = ["x: f32[A, B, C, D, E]", "out: f32[A, 1, C, 1, E]"]
demands = { has = ["LDG.E.128"], spills = 0 }

[requires]
"op == 'sum'" = "this rung adds"
"A * B * C * E == 1 and D > 0" = "takes all elements to one sum"
"stride(x, 3) == 1" = "the elements must be neighbours"
"starts(x, 16)" = "the elements must start on a 16-byte boundary"

[let]
blocks = "min(8 * sms, ceil(D / 1024))"

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
    const long long packs = n / 4, step = gridDim.x * 256ll;
    for (long long k = blockIdx.x * 256ll + threadIdx.x; k < packs; k += 4 * step) {
        float4 v[4];
#pragma unroll
        for (int u = 0; u < 4; ++u) v[u] = k + u * step < packs ? reinterpret_cast<const float4*>(x)[k + u * step] : make_float4(0, 0, 0, 0);
#pragma unroll
        for (int u = 0; u < 4; ++u) sum += (v[u].x + v[u].y) + (v[u].z + v[u].w);
    }
    if (blockIdx.x == 0 && threadIdx.x < n % 4) sum += x[packs * 4 + threadIdx.x];
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
