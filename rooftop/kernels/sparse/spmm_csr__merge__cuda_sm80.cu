/* rooftop
idea    = "Merge path: rows and elements are one list, each row's end after its elements, and every thread takes 7 or 11 items of it, however rows are long or empty. Elements are read side by side, multiplied, and added up from shared memory; sums of rows that go on from thread to thread by a scan, from block to block by a second launch, in order."
limit   = "predicted: the gathers of b, a sector of L2 or L1 for each element"
dtypes  = ["f32", "f16", "bf16"]
args    = ["values: T[Z]", "columns: i32[Z]", "offsets: i32[P]", "b: T[K, N]", "out: T[M, N]"]
python  = ["supports", "prefers", "choose", "configs", "launches", "scratch"]
demands = { spills = 0 }

[config]
items = 7
*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "chain.cuh"
#include "sparse_epilogue.cuh"

/// How many rows end within the first d items. By a whole warp.
__device__ inline int rows_within(const int* __restrict__ offsets, int M, int nnz, int d) {
    int low = max(d - nnz, 0), high = min(d, M);
    while (low < high) {
        const int step = (high - low + 31) / 32, probe = low + (static_cast<int>(threadIdx.x % 32) + 1) * step - 1;
        const int count = __popc(__ballot_sync(~0u, probe < high && min(max(offsets[probe + 1], 0), nnz) < d - probe));
        high = min(high, low + (count + 1) * step - 1);
        low = min(low + count * step, high);
    }
    return low;
}

/// A block has 256 ITEMS items, of column blockIdx.y of b. carry[block]: the sum of the row that its end leaves open. rows[block]: the row, -1 for none, that
/// began before the block and ends in it; head[block]: what the block has of its sum.
template <typename T, int ITEMS, int ACT, int BIAS>
__global__ void __launch_bounds__(256, 5)
merged(int M, int N, int K, int nnz, const T* __restrict__ values, const int* __restrict__ columns, const int* __restrict__ offsets, const T* __restrict__ b, long long bs,
       const T* __restrict__ bias, long long bias_step, float alpha, T* __restrict__ out, float* __restrict__ carry, float* __restrict__ head, int* __restrict__ rows) {
    constexpr int EACH = 256 * ITEMS;  // items of a block
    __shared__ int held[EACH + 1];  // ends of rows, counted from the block's first element, and one that never comes; then products
    __shared__ int found[2];
    __shared__ float sums[8];
    __shared__ int ended[8];
    wait_for_before();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = blockIdx.y;
    const int first = blockIdx.x * EACH, last = min(first + EACH, M + nnz), total = last - first;
    if (warp < 2) {
        const int x = rows_within(offsets, M, nnz, warp ? last : first);
        if (lane == 0) found[warp] = x;
    }
    __syncthreads();
    const int x0 = found[0], tall = min(max(found[1] - x0, 0), total), y0 = first - x0, count = total - tall;
    float* products = reinterpret_cast<float*>(held) + tall + 1;
    float v[ITEMS];
    int at[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const int j = threadIdx.x + i * 256;
        const bool here = j < count && y0 + j < nnz;
        v[i] = here ? static_cast<float>(values[y0 + j]) : 0.f;
        at[i] = here ? static_cast<int>(min(static_cast<unsigned>(columns[y0 + j]), static_cast<unsigned>(K - 1))) : -1;
    }
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        if (at[i] >= 0) v[i] *= static_cast<float>(b[at[i] * bs + n]);
    }
    for (int i = threadIdx.x; i < tall; i += 256) held[i] = min(max(offsets[x0 + i + 1], 0), nnz) - y0;
    if (threadIdx.x == 0) held[tall] = 0x7fffffff;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const int j = threadIdx.x + i * 256;
        if (j < count) products[j] = v[i];
    }
    __syncthreads();
    const int from = min(static_cast<int>(threadIdx.x) * ITEMS, total);
    int low = max(from - count, 0), high = min(from, tall);
    while (low < high) {
        const int middle = (low + high) / 2;
        if (held[middle] < from - middle) low = middle + 1;
        else high = middle;
    }
    const int begin = low;
    int x = low, y = from - low;
    float sum = 0.f, opened = 0.f;  // of the row at hand; of the first row that ends here
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        if (from + i >= total) break;
        if (y < min(held[x], count)) sum += products[y++];
        else if (x < tall) {
            if (x == begin) opened = sum;
            else out[static_cast<long long>(x0 + x) * N + n] = T(finished<ACT, BIAS>(sum, alpha, bias, bias_step, x0 + x, n));
            sum = 0.f, ++x;
        }
    }
    // What the threads before have of the row that this one begins with.
    float all = sum;
    bool ends = x > begin;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const float other = __shfl_up_sync(~0u, all, step);
        const bool before = __shfl_up_sync(~0u, static_cast<int>(ends), step);
        if (lane >= step) {
            if (!ends) all += other;
            ends |= before;
        }
    }
    if (lane == 31) sums[warp] = all, ended[warp] = ends;
    __syncthreads();
    float of_warps = 0.f;
    for (int w = 0; w < warp; ++w) of_warps = ended[w] ? sums[w] : of_warps + sums[w];
    const float beside = __shfl_up_sync(~0u, all, 1);
    const bool over = __shfl_up_sync(~0u, static_cast<int>(ends), 1);
    const float carried = lane == 0 ? of_warps : over ? beside : of_warps + beside;
    const int start = min(max(offsets[x0], 0), nnz);
    const bool open = tall > 0 && start < y0;  // row x0 began before the block
    if (x > begin) {
        const float whole = carried + opened;
        if (begin == 0 && open) head[static_cast<long long>(blockIdx.x) * N + n] = whole;
        else out[static_cast<long long>(x0 + begin) * N + n] = T(finished<ACT, BIAS>(whole, alpha, bias, bias_step, x0 + begin, n));
    }
    if (threadIdx.x == 255) carry[static_cast<long long>(blockIdx.x) * N + n] = ends ? all : of_warps + all;
    if (threadIdx.x == 0 && n == 0) rows[blockIdx.x] = open ? x0 : -1;
}

/// The rows of several blocks: a warp each, at the block where it ends.
template <typename T, int EACH, int ACT, int BIAS>
__global__ void __launch_bounds__(256)
join_blocks(int N, int nnz, int blocks, const int* __restrict__ offsets, const T* __restrict__ bias, long long bias_step, float alpha, T* __restrict__ out,
            const float* __restrict__ carry, const float* __restrict__ head, const int* __restrict__ rows) {
    wait_for_before();
    const int block = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32, n = blockIdx.y;
    if (block >= blocks) return;
    const int row = rows[block];
    if (row < 0) return;
    float sum = 0.f;
    const long long items = static_cast<long long>(row) + min(max(offsets[row], 0), nnz);
    for (int i = static_cast<int>(items / EACH) + lane; i < block; i += 32) sum += carry[static_cast<long long>(i) * N + n];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane == 0) {
        sum += head[static_cast<long long>(block) * N + n];
        out[static_cast<long long>(row) * N + n] = T(finished<ACT, BIAS>(sum, alpha, bias, bias_step, row, n));
    }
}
