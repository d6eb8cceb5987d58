/* rooftop
idea    = """Short rows, several per warp: each row is read once, straight into the registers of as many lanes as it has vectors of 16 \
  bytes, and two shuffle reductions compute its maximum and sum. A block adds the losses of its rows in double; a second launch of one \
  block adds the sums of the blocks in order."""
limit   = "the read of the logits; below 4 MiB the second launch"
dtypes  = ["f32", "f16", "bf16"]
args    = ["R: i32", "C: i32", "input: T[R, C]", "xs: i64 = stride(input, 0)", "target: i64[R]"]
tensors = ["normaliser: f32[R, 2]"]
demands = { has = ["LDG.E.128"], spills = 0 }
python  = ["supports", "choose", "configs", "scratch", "launches"]
valid   = "vectors > 0"

[config]
lanes   = 32
vectors = 0
rows    = 1
*/
#include <math_constants.h>

#include "pdl.cuh"
#include "packs.cuh"

constexpr int WARP_KERNEL_THREADS = 256;  // a block of the kernels that take several rows a warp

// The identity of the maximum. With -inf, lanes that have only -inf would give -inf - -inf = NaN, also in rows that have finite elements;
// with the lowest finite number such lanes add exp(-inf) = 0, and a row of only -inf has the sum 0.
constexpr float LOWEST = -3.402823466e38f;

/// A sum of losses, and the number of rows.
struct alignas(16) Total {
    double sum;
    long long count;
};

__device__ inline Total over_lanes(Total v) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        v.sum += __shfl_xor_sync(~0u, v.sum, step), v.count += __shfl_xor_sync(~0u, v.count, step);
    }
    return v;
}

/// The sum over all threads of a block (up to 32 warps), in thread 0.
__device__ inline Total over_block(Total v) {
    __shared__ Total of_warps[32];
    v = over_lanes(v);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = v;
    __syncthreads();
    return over_lanes(threadIdx.x < blockDim.x / 32 ? of_warps[threadIdx.x] : Total{0, 0});
}

/// LANES lanes a row, ROWS rows each, whose loads are all issued before the first is used. Writes the rows' normalisers and their losses,
/// one by one (`loss`) or, with ADDED, summed over the block (`found`).
template <typename T, int LANES, int VECTORS, int ROWS, bool ALIGNED, bool CAPPED, bool SMOOTH, bool ADDED>
__global__ void __launch_bounds__(WARP_KERNEL_THREADS, 4)
    cross_entropy_warp(int R, int C, const T* __restrict__ x, long long xs, const long long* __restrict__ target, float* __restrict__ loss,
                       Total* __restrict__ found, float2* __restrict__ normaliser, float* __restrict__ divisor, long long ignore,
                       float smoothing, float scale,
                       float cap) {
    constexpr int TEAMS = 32 / LANES;  // rows that a warp processes at the same time
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long first = (static_cast<long long>(blockIdx.x) * (WARP_KERNEL_THREADS / 32) + warp) * (TEAMS * ROWS) + lane / LANES;
    const auto number = [&](int k) { return first + k * TEAMS; };
    // Rounded as a product: fused with the following difference, a number minus itself would not be 0.
    const auto bounded = [&](float v) { return CAPPED ? __fmul_rn(cap, tanhf(v / cap)) : v; };
    Row<T, VECTORS, ALIGNED> rows[ROWS];
#pragma unroll
    for (int k = 0; k < ROWS; ++k) rows[k].locate(x + number(k) * xs, number(k) < R ? C : 0, lane % LANES, LANES);
    gdc_wait();
    if (ADDED) gdc_launch_dependents();
    long long t[ROWS];
#pragma unroll
    for (int k = 0; k < ROWS; ++k) {
        rows[k].load(x + number(k) * xs);
        t[k] = number(k) < R ? target[number(k)] : 0;
    }
    Total total = {0, 0};
#pragma unroll
    for (int k = 0; k < ROWS; ++k) {
        float most = LOWEST, sums[2] = {0, 0};
        rows[k].each([&](float v) { most = fmaxf(most, v); });  // soft-capping is monotonic
#pragma unroll
        for (int step = LANES / 2; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
        most = fmaxf(bounded(most), LOWEST);
        rows[k].each([&](float v) {
            const float z = bounded(v);
            sums[0] += exponential<T>(z - most);
            if (SMOOTH) sums[1] += z;
        });
        lanes_sums<LANES>(sums);
        if (number(k) >= R || lane % LANES > 0) continue;
        const bool known = t[k] >= 0 && t[k] < C, counts = t[k] != ignore;
        const float hit = known ? bounded(static_cast<float>(x[number(k) * xs + t[k]])) : 0;
        const float sum = sums[0] == 0 ? CUDART_NAN_F : sums[0];  // only -inf
        const float above = logf(sum), z = most + above;
        const float off = SMOOTH ? (1 - smoothing) * (most - hit) + smoothing * (most - sums[1] / static_cast<float>(C)) : most - hit;
        const float one = !counts ? 0 : known ? above + off + scale * z * z : CUDART_NAN_F;
        normaliser[number(k)] = {most, sum};
        total.sum += one, total.count += counts;
        if (!ADDED) loss[number(k)] = one;
    }
    if (!ADDED) {
        if (blockIdx.x == 0 && threadIdx.x == 0) *divisor = 1;
        return;
    }
    total = over_block(total);
    if (threadIdx.x == 0) found[blockIdx.x] = total;
}

/// The sum of the partial sums of `count` blocks, with MEAN divided by the number of rows, always in the same order. One block.
template <bool MEAN>
__global__ void __launch_bounds__(1024) cross_entropy_blocks(int count, const Total* __restrict__ found, float* __restrict__ loss,
    float* __restrict__ divisor) {
    Total total = {0, 0};
    gdc_wait();
#pragma unroll 4
    for (int k = threadIdx.x; k < count; k += blockDim.x) total.sum += found[k].sum, total.count += found[k].count;
    total = over_block(total);
    if (threadIdx.x > 0) return;
    *divisor = MEAN ? static_cast<float>(total.count) : 1;
    *loss = static_cast<float>(MEAN ? total.sum / static_cast<double>(total.count) : total.sum);
}
