/* rooftop
idea    = "Each thread reads its part of the row once and keeps its k largest as a heap in shared memory, the smallest on top. Then the block extracts the maximum of all heaps, k times."
predict = { speedup = 6 }
limit   = "64 threads of 64 entries fill 32 KiB: few warps to hide the latency of a load, and each insertion sifts down a heap while the other lanes wait. Each of the k rounds at the end looks at all entries."
dtypes  = ["f32"]
args    = ["N: i32", "x: f32[R, N]", "xs: i64 = stride(x, 0)", "values: f32[R, K]", "indices: i64[R, K]"]

[let]
room = "64 * k * 8"

[requires]
"stride(x, 1) == 1" = "the elements of a row must be neighbours"
"largest and nan == 'largest'" = "takes the largest, NaN first"
"not present(lengths)" = "takes whole rows"
"N > 0 and R > 0" = "there is nothing to select"
"0 < k and k <= 80" = "64 heaps must fit shared memory"

[[launch]]
kernel = "heaps<{k}>"
grid   = ["R"]
block  = [64]
shared = "room"
*/
#include "_sort_keys.cuh"

extern __shared__ unsigned long long held[];  // [K][64]: entry i of thread t at i * 64 + t

template <int K>
__global__ void __launch_bounds__(64) heaps(int N, const float* __restrict__ x, long long xs, float* values, long long* indices) {
    __shared__ unsigned long long best[2];
    x += blockIdx.x * xs;
    unsigned long long* heap = held + threadIdx.x;
#pragma unroll 4
    for (int i = 0; i < K; ++i) heap[i * 64] = 0;  // padding: below every element
    unsigned long long least = 0;
    for (int i = threadIdx.x; i < N; i += 64) {
        const unsigned long long entry = static_cast<unsigned long long>(to_key<float>(__float_as_uint(x[i]), 0)) << 32 | ~static_cast<unsigned>(i);
        if (entry <= least) continue;
        int at = 0;
        for (int child = 1; child < K; child = 2 * at + 1) {  // sift the new entry down the heap
            if (child + 1 < K && heap[(child + 1) * 64] < heap[child * 64]) ++child;
            if (entry <= heap[child * 64]) break;
            heap[at * 64] = heap[child * 64], at = child;
        }
        heap[at * 64] = entry;
        least = heap[0];
    }
    for (int taken = 0; taken < K; ++taken) {
        unsigned long long most = 0;
        int place = 0;
#pragma unroll 4
        for (int i = 0; i < K; ++i) {
            if (heap[i * 64] > most) most = heap[i * 64], place = i;
        }
        unsigned long long all = most;
        for (int step = 16; step > 0; step /= 2) {
            const unsigned long long other = __shfl_xor_sync(~0u, all, step);
            all = other > all ? other : all;
        }
        if (threadIdx.x % 32 == 0) best[threadIdx.x / 32] = all;
        __syncthreads();
        all = best[0] > best[1] ? best[0] : best[1];
        if (most == all) {  // entries differ in their indices: one thread has it
            const unsigned at = ~static_cast<unsigned>(all);
            heap[place * 64] = 0;
            values[blockIdx.x * static_cast<long long>(K) + taken] = x[at];
            indices[blockIdx.x * static_cast<long long>(K) + taken] = at;
        }
        __syncthreads();
    }
}
