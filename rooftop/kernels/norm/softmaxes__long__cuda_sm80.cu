/* rooftop
ops     = ["softmax", "softmax_bwd"]
idea    = """A row that is too long for one block is divided among a group of persistent blocks, a slice each. A slice, of x or of y and \
  dy, stays in a ring buffer in shared memory while the blocks exchange a pair (max, sum), or their sums of y dy, through global memory; \
  the row is finished a few rows later. So each row is read once, as long as all blocks together can hold it."""
limit   = "Rows longer than the shared memory of the whole card; blocks that do not make a whole group idle."
dtypes  = ["f32", "f16", "bf16"]
demands = { has = ["LDGSTS.E.128", "STG.E.128"], spills = 0 }
python  = ["supports", "choose", "configs", "scratch", "zeroed", "launches"]
valid   = "vectors > 0"
args = ["R: i32", "C: i32", "x: T[R, C, 1]", "xs: i64 = stride(x, 0)", "y: T[R, C, 1]", "ys: i64 = stride(y, 0)"]

[requires]
"C == 1 or stride(x, 1) == 1 and stride(y, 1) == 1" = "the elements of a row must be neighbours"

[config]
blocks  = 1
threads = 512
vectors = 0
stages  = 3
lag     = 1

[bwd]
args = [
    "R: i32", "C: i32", "dy: T[R, C, 1]", "gs: i64 = stride(dy, 0)", "y: T[R, C, 1]", "ys: i64 = stride(y, 0)", "dx: T[R, C, 1]",
    "xs: i64 = stride(dx, 0)",
]

[bwd.requires]
"C == 1 or stride(y, 1) == 1 and stride(dy, 1) == 1 and stride(dx, 1) == 1" = "the elements of a row must be neighbours"
*/
#include "packs.cuh"
#include "_ring.cuh"

// The identity of the maximum. With -inf, threads that have only -inf would give -inf - -inf = NaN, also in rows that have finite elements;
// with the lowest finite number such threads add exp(-inf) = 0, and a row of only -inf ends as 0 / 0.
constexpr float LOWEST = -3.402823466e38f;

/// The largest element of a part of a row, at least LOWEST, and the sum of e^(v - max) over it.
struct Pair {
    float max, sum;
};

__device__ inline float largest_of_lanes(float most) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    return most;
}

/// Combines `count` pairs, in all lanes of a warp.
template <typename T, typename Pairs>
__device__ Pair whole_of(int count, const Pairs& pairs) {
    const int lane = threadIdx.x % 32;
    float most = LOWEST, sum = 0;
    for (int p = lane; p < count; p += 32) most = fmaxf(most, pairs(p).max);
    most = largest_of_lanes(most);
    for (int p = lane; p < count; p += 32) sum += pairs(p).sum * exponential<T>(pairs(p).max - most);
    return {most, lanes_sum<32>(sum)};
}

template <typename T, int VECTORS, int STAGES, int LAG, bool ALIGNED>
__global__ void __launch_bounds__(512, 1)
    softmax_long(int R, int C, const T* __restrict__ x, long long xs, T* __restrict__ y, long long ys, int period, int blocks,
        unsigned long long* all_mail) {
    using Slice = Ring<T, VECTORS, STAGES, 1, 0, ALIGNED>;
    constexpr int N = Slice::N;
    __shared__ Pair parts[2][16];  // by warp, for this row and the next
    __shared__ float inbox[2][2][GROUP_MOST];      // by block: maxima, sums
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32, rank = blockIdx.x % blocks;
    const Walk walk(R, period, blockIdx.x / blocks, gridDim.x / blocks, 0, 1);
    const Mail<2> mail(all_mail, blocks);
    Slice slice;
    slice.row.locate(x + walk.phase * xs, C, rank * blockDim.x + threadIdx.x, blocks * blockDim.x);
    const T* const tensors[1] = {x};
    slice.begin(walk, tensors, &xs);
    for (int k = 0; k < walk.count + LAG; ++k) {
        const int back = k - LAG;  // the row that is finished in this iteration
        if (back >= 0) slice.fetch(back + STAGES - 1 < walk.count);
        const unsigned long long looked = back >= 0 ? mail.look(back) : 0;
        if (k < walk.count) {
            slice.now = k % STAGES;
            slice.take_singles(k + 1 < walk.count);
            __pipeline_wait_prior(STAGES - LAG - 1);
            float most = LOWEST, sum = 0;
            slice.each([&](float v) { most = fmaxf(most, v); });
            most = largest_of_lanes(most);
            slice.each([&](float v) { sum += exponential<T>(v - most); });
            sum = lanes_sum<32>(sum);
            if (lane == 0) parts[k % 2][warp] = {most, sum};
        }
        if (back >= 0) mail.take(back, looked, inbox[k % 2]);
        __syncthreads();
        if (k < walk.count && warp == 0) {
            const Pair p = whole_of<T>(warps, [&](int w) { return parts[k % 2][w]; });
            if (lane < 2) mail.send(k, lane, lane == 0 ? p.max : p.sum);
        }
        if (back < 0) continue;
        const Pair p = whole_of<T>(blocks, [&](int b) { return Pair{inbox[k % 2][0][b], inbox[k % 2][1][b]}; });
        const float scale = 1 / p.sum;
        T* const to = y + (walk.first + static_cast<long long>(back) * walk.step) * ys;
        const bool together = ALIGNED || aligned(to + slice.row.head);
        slice.now = back % STAGES;
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            if (!slice.row.has(i)) continue;
            float v[N];
            slice.widen(0, i, v);
#pragma unroll
            for (int j = 0; j < N; ++j) v[j] = quotient<T>(exponential<T>(v[j] - p.max), p.sum, scale);
            Pack<T>::store(to + slice.row.column(i), together, Pack<T>::narrow(v));
        }
        if (slice.row.has_single()) to[slice.row.single_column()] = T(quotient<T>(exponential<T>(slice.single(0) - p.max), p.sum, scale));
    }
}

template <typename T, int VECTORS, int STAGES, int LAG, bool ALIGNED>
__global__ void __launch_bounds__(512, 1)
    softmax_bwd_long(int R, int C, const T* __restrict__ dy, long long gs, const T* __restrict__ y, long long ys, T* __restrict__ dx,
        long long xs, int period,
                     int blocks, unsigned long long* all_mail) {
    using Slice = Ring<T, VECTORS, STAGES, 2, 0, ALIGNED>;
    constexpr int N = Slice::N;
    enum { Y, DY };
    __shared__ float parts[2][16], inbox[2][1][GROUP_MOST];  // by warp, for this row and the next; by block
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32, rank = blockIdx.x % blocks;
    const Walk walk(R, period, blockIdx.x / blocks, gridDim.x / blocks, 0, 1);
    const Mail<1> mail(all_mail, blocks);
    Slice slice;
    slice.row.locate(y + walk.phase * ys, C, rank * blockDim.x + threadIdx.x, blocks * blockDim.x);
    const T* const tensors[2] = {y, dy};
    const long long strides[2] = {ys, gs};
    slice.begin(walk, tensors, strides);
    for (int k = 0; k < walk.count + LAG; ++k) {
        const int back = k - LAG;  // the row that is finished in this iteration
        if (back >= 0) slice.fetch(back + STAGES - 1 < walk.count);
        const unsigned long long looked = back >= 0 ? mail.look(back) : 0;
        float a[N], b[N];
        if (k < walk.count) {
            slice.now = k % STAGES;
            slice.take_singles(k + 1 < walk.count);
            __pipeline_wait_prior(STAGES - LAG - 1);
            float sum = slice.row.has_single() ? slice.single(Y) * slice.single(DY) : 0;
#pragma unroll
            for (int i = 0; i < VECTORS; ++i) {
                if (!slice.row.has(i)) continue;
                slice.widen(Y, i, a), slice.widen(DY, i, b);
#pragma unroll
                for (int j = 0; j < N; ++j) sum += a[j] * b[j];
            }
            sum = lanes_sum<32>(sum);
            if (lane == 0) parts[k % 2][warp] = sum;
        }
        if (back >= 0) mail.take(back, looked, inbox[k % 2]);
        __syncthreads();
        if (k < walk.count && warp == 0) {
            const float sum = lanes_sum<32>(lane < warps ? parts[k % 2][lane] : 0);
            if (lane == 0) mail.send(k, 0, sum);
        }
        if (back < 0) continue;
        float sum = 0;
        for (int p = lane; p < blocks; p += 32) sum += inbox[k % 2][0][p];
        sum = lanes_sum<32>(sum);
        T* const to = dx + (walk.first + static_cast<long long>(back) * walk.step) * xs;
        const bool together = ALIGNED || aligned(to + slice.row.head);
        slice.now = back % STAGES;
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            if (!slice.row.has(i)) continue;
            slice.widen(Y, i, a), slice.widen(DY, i, b);
#pragma unroll
            for (int j = 0; j < N; ++j) a[j] *= b[j] - sum;
            Pack<T>::store(to + slice.row.column(i), together, Pack<T>::narrow(a));
        }
        if (slice.row.has_single()) to[slice.row.single_column()] = T(slice.single(Y) * (slice.single(DY) - sum));
    }
}
