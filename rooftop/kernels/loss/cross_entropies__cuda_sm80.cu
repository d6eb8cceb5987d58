/* rooftop
ops     = ["cross_entropy", "cross_entropy_bwd"]
idea    = """Short rows, several per warp: each row is read once, straight into the registers of as many lanes as it has vectors of 16 \
  bytes, and two shuffle reductions compute its maximum and sum. A block adds the losses of its rows in double; a second launch of one \
  block adds the sums of the blocks in order."""
limit   = "the read of the logits; below 4 MiB the second launch"
args    = ["R: i32", "C: i32", "input: T[R, C]", "xs: i64 = stride(input, 0)", "target: i64[R]"]
tensors = ["normaliser: f32[R, 2]"]
demands = { has = ["LDG.E.128"], spills = 0 }
dtypes  = ["f32", "f16", "bf16"]
python  = ["supports", "choose", "configs", "scratch", "launches"]
valid   = "vectors > 0"

[config]
lanes   = 32
vectors = 0
rows    = 1

[bwd]
idea    = """Each logit is read once and its gradient written once (in place if requested), in vectors of 16 bytes at any alignment of a \
  row. Short rows are processed several per warp, a longer row by as many blocks as it needs, each thread with several vectors in flight. \
  The values shared by a row (shift, sum, target) are loaded while the vectors are in flight."""
limit   = "the copy of the same bytes"
args    = ["R: i32", "C: i32", "input: T[R, C]"]
tensors = ["dinput: T[R, C]", "target: i64[R]", "normaliser: f32[R, 2]"]
demands = { has = ["LDG.E.128", "STG.E.128"], spills = 0 }
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

constexpr float LOG2E = 1.4426950408889634f;
// the accuracy of soft-capped logits: EXACT to float32's last digits; SHORT to 2e-7 of the cap, which 16-bit gradients do not show
enum Cap { NONE, EXACT, SHORT };

/// What the gradients of all rows depend on.
struct Options {
    float smoothing, scale, cap;  // of the contract: label_smoothing, lse_square_scale, softcap
    long long ignore;
};

/// What the gradient of one row's logits depends on.
struct Slope {
    float shift, each, smoothed, g;  // e^(z - shift) and its factor; the smoothing term of one class; the gradient of the row's loss
    long long target;
    bool live;  // not ignored

    __device__ Slope(int C, const float* dloss, const long long* targets, const float2* normalisers, const float* divisor, long long gs,
        long long row, const Options& o) {
        target = targets[row], live = target != o.ignore;
        const float2 n = normalisers[row];
        shift = n.x, each = (1 + 2 * o.scale * (n.x + logf(n.y))) / n.y, smoothed = o.smoothing / static_cast<float>(C);
        g = target >= 0 && target < C ? dloss[row * gs] / *divisor : CUDART_NAN_F;
    }
    /// d loss / d logit, for logit v in column `column`.
    template <typename T, int CAP>
    __device__ float of(float v, int column, const Options& o) const {
        float slope = 1;
        if (CAP == SHORT) {
            const float off = v * (2 * LOG2E / o.cap);
            float e;
            asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(off > 30 ? 30 : off));  // 2^30: there the tanh is 1 - 2e-9
            const float part = __fdividef(2, 1 + e);  // 1 - tanh
            v = o.cap - o.cap * part, slope = part * (2 - part);
        }
        if (CAP == EXACT) {
            const float tanh = tanhf(v / o.cap);
            v = __fmul_rn(o.cap, tanh),  // as the forward: fused with what follows, the only class of a row would not cancel
            slope = 1 - tanh * tanh;
        }
        float d = exponential<T>(v - shift) * each - smoothed;
        if (column == target) d -= 1 - o.smoothing;
        d *= g;
        return CAP == NONE ? d : d * slope;
    }
};

template <typename T, int CAP, int VECTORS, bool ALIGNED>
__device__ void write_gradient(const Row<T, VECTORS, ALIGNED>& row, const Slope& slope, const Options& o, T* dx) {
    using P = Pack<T>;
    const bool together = ALIGNED || aligned(dx + row.head);
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        if (!row.has(i)) continue;
        float f[P::N];
        P::widen(row.packs[i], f);
#pragma unroll
        for (int j = 0; j < P::N; ++j) f[j] = slope.live ? slope.template of<T, CAP>(f[j], row.column(i) + j, o) : 0;
        P::store(dx + row.column(i), together, P::narrow(f));
    }
    if (row.has_single()) dx[row.single_column()] = T(slope.live ? slope.template of<T, CAP>(row.single, row.single_column(), o) : 0);
}

/// Short rows: LANES lanes a row, ROWS rows each, whose loads are all issued before the first is used.
template <typename T, int LANES, int VECTORS, int ROWS, bool ALIGNED, int CAP>
__global__ void __launch_bounds__(WARP_KERNEL_THREADS, 4)
    cross_entropy_bwd_warp(int R, int C, const float* __restrict__ dloss, long long gs, const T* x, long long xs,
        const long long* __restrict__ target,
                           const float2* __restrict__ normaliser, const float* __restrict__ divisor, T* dx, long long ds, long long ignore,
                           float smoothing,
                           float scale, float cap) {
    constexpr int TEAMS = 32 / LANES;  // rows that a warp processes at the same time
    const Options o = {smoothing, scale, cap, ignore};
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long first = (static_cast<long long>(blockIdx.x) * (WARP_KERNEL_THREADS / 32) + warp) * (TEAMS * ROWS) + lane / LANES;
    const auto number = [&](int k) { return first + k * TEAMS; };
    Row<T, VECTORS, ALIGNED> rows[ROWS];
#pragma unroll
    for (int k = 0; k < ROWS; ++k) rows[k].locate(x + number(k) * xs, number(k) < R ? C : 0, lane % LANES, LANES);
    gdc_wait();
#pragma unroll
    for (int k = 0; k < ROWS; ++k) rows[k].load(x + number(k) * xs);
#pragma unroll
    for (int k = 0; k < ROWS; ++k) {
        if (number(k) < R) write_gradient<T, CAP>(rows[k], Slope(C, dloss, target, normaliser, divisor, gs, number(k), o), o,
            dx + number(k) * ds);
    }
}

/// Longer rows: `parts` blocks a row, which take its vectors in turn.
template <typename T, int VECTORS, bool ALIGNED, int CAP>
__global__ void __launch_bounds__(512, 2)
    cross_entropy_bwd_block(int R, int C, const float* __restrict__ dloss, long long gs, const T* x, long long xs,
        const long long* __restrict__ target,
                            const float2* __restrict__ normaliser, const float* __restrict__ divisor, T* dx, long long ds, long long ignore,
                            float smoothing,
                            float scale, float cap, int parts) {
    const Options o = {smoothing, scale, cap, ignore};
    const long long number = blockIdx.x / parts;
    const int part = blockIdx.x % parts;
    Row<T, VECTORS, ALIGNED> row;
    row.locate(x + number * xs, C, part * blockDim.x + threadIdx.x, parts * blockDim.x);
    gdc_wait();
    row.load(x + number * xs);
    write_gradient<T, CAP>(row, Slope(C, dloss, target, normaliser, divisor, gs, number, o), o, dx + number * ds);
}
