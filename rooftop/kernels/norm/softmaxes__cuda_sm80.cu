/* rooftop
ops     = ["softmax", "softmax_bwd", "log_softmax", "log_softmax_bwd"]
idea    = """Each row, of x or of y and dy, is read once into registers, and the result is written once: several short rows a warp, or one \
  longer row a block. A thread holds as many vectors of 16 bytes as the row needs, not rounded up to a power of two. Each warp of a block \
  writes one pair (max, sum), or one sum of y dy, to shared memory; after one barrier every warp combines all of them."""
limit   = "Rows of more than 64 KiB do not fit the registers of a block: clusters of blocks take them (softmaxes__cuda_sm90.cu)."
dtypes  = ["f32", "f16", "bf16"]
demands = { has = ["LDG.E.128", "STG.E.128"], spills = 0 }
python  = ["supports", "choose", "configs", "launches"]
args = ["R: i32", "C: i32", "x: T[R, C, 1]", "xs: i64 = stride(x, 0)", "y: T[R, C, 1]", "ys: i64 = stride(y, 0)"]
valid = """16 * team * vectors > C * bytes(y) - 16 and (team >= min(32, 32 // bytes(y)) or C % (16 // bytes(y)) == 0 and aligned(x, 16) \
  and aligned(y, 16))"""

[requires]
"C == 1 or stride(x, 1) == 1 and stride(y, 1) == 1" = "the elements of a row must be neighbours"

[config]
team      = 32
vectors   = 1
rows      = 1
registers = 32

[bwd]
args = [
    "R: i32", "C: i32", "dy: T[R, C, 1]", "gs: i64 = stride(dy, 0)", "y: T[R, C, 1]", "ys: i64 = stride(y, 0)", "dx: T[R, C, 1]",
    "xs: i64 = stride(dx, 0)",
]
valid = """16 * team * vectors > C * bytes(y) - 16 and (team >= min(32, 32 // bytes(y)) or C % (16 // bytes(y)) == 0 and aligned(dy, 16) \
  and aligned(y, 16) and aligned(dx, 16))"""

[bwd.requires]
"C == 1 or stride(y, 1) == 1 and stride(dy, 1) == 1 and stride(dx, 1) == 1" = "the elements of a row must be neighbours"
*/
#include <math_constants.h>

#include "pdl.cuh"
#include "packs.cuh"

constexpr int REGISTER_FILE = 65536;      // of a multiprocessor
constexpr int WARP_KERNEL_THREADS = 256;  // a block of the kernels that take several rows a warp

// The identity of the maximum. With -inf, threads that have only -inf would give -inf - -inf = NaN, also in rows that have finite elements;
// with the lowest finite number such threads add exp(-inf) = 0, and a row of only -inf ends as 0 / 0.
constexpr float LOWEST = -3.402823466e38f;

/// The largest element of a part of a row, at least LOWEST, and the sum of e^(v - max) over it.
struct Pair {
    float max, sum;
};

/// Combines the pairs of LANES lanes; all of them get the result.
template <typename T, int LANES>
__device__ Pair fold(Pair p) {
    float most = p.max;
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    return {most, lanes_sum<LANES>(p.sum * exponential<T>(p.max - most))};
}

/// The pair (max, sum) of the elements of a row that LANES lanes hold. The maximum comes first, so that an element takes one exponential.
template <typename T, int LANES, int VECTORS, bool ALIGNED>
__device__ Pair pair_of_lanes(const Row<T, VECTORS, ALIGNED>& row) {
    float most = LOWEST;
    row.each([&](float v) { most = fmaxf(most, v); });
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    float sum = 0;
    row.each([&](float v) { sum += exponential<T>(v - most); });
    return {most, lanes_sum<LANES>(sum)};
}

/// LOG: the logarithm of the softmax.
template <bool LOG, typename T, int VECTORS, bool ALIGNED>
__device__ void write_softmax(const Row<T, VECTORS, ALIGNED>& row, const Pair& p, T* y) {
    using P = Pack<T>;
    const float scale = LOG ? logf(p.sum) : __fdividef(1, p.sum);  // its error is corrected where it matters
    const bool together = ALIGNED || aligned(y + row.head);
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        if (!row.has(i)) continue;
        float f[P::N];
        P::widen(row.packs[i], f);
#pragma unroll
        for (int j = 0; j < P::N; ++j) f[j] = LOG ? f[j] - p.max - scale : quotient<T>(exponential<T>(f[j] - p.max), p.sum, scale);
        P::store(y + row.column(i), together, P::narrow(f));
    }
    if (row.has_single()) y[row.single_column()] =
        T(LOG ? row.single - p.max - scale : quotient<T>(exponential<T>(row.single - p.max), p.sum, scale));
}

/// Short rows: LANES lanes work on a row; they take ROWS rows, all of whose loads are issued before the first is used. No barrier, no
/// shared memory.
template <typename T, int LANES, int VECTORS, int ROWS, int REGISTERS, bool ALIGNED, bool LOG = false>
__global__ void __launch_bounds__(WARP_KERNEL_THREADS, REGISTER_FILE / WARP_KERNEL_THREADS / REGISTERS)
    softmax_warp(int R, int C, const T* __restrict__ x, long long xs, T* __restrict__ y, long long ys) {
    constexpr int TEAMS = 32 / LANES;  // rows that a warp processes at the same time
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
    for (int k = 0; k < ROWS; ++k) write_softmax<LOG>(rows[k], pair_of_lanes<T, LANES>(rows[k]), y + number(k) * ys);
}

/// Longer rows: one block a row. blockDim.x is the team of _register_rows.py: just enough threads for VECTORS vectors each.
template <typename T, int VECTORS, int REGISTERS, bool ALIGNED, bool LOG = false>
__global__ void __launch_bounds__(1024, REGISTER_FILE / 1024 / REGISTERS)
    softmax_block(int R, int C, const T* __restrict__ x, long long xs, T* __restrict__ y, long long ys) {
    __shared__ Pair pairs[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long number = blockIdx.x;
    Row<T, VECTORS, ALIGNED> row;
    row.locate(x + number * xs, C, threadIdx.x, blockDim.x);
    gdc_wait();
    row.load(x + number * xs);
    const Pair of_warp = pair_of_lanes<T, 32>(row);
    if (lane == 0) pairs[warp] = of_warp;
    __syncthreads();
    const Pair of_row = fold<T, 32>(lane < blockDim.x / 32 ? pairs[lane] : Pair{LOWEST, 0});
    write_softmax<LOG>(row, of_row, y + number * ys);
}

/// A thread's elements of a row of y and of dy. The vectors start on 16-byte boundaries of y.
template <typename T, int VECTORS, bool ALIGNED>
struct Rows {
    using P = Pack<T>;
    Row<T, VECTORS, ALIGNED> y;
    uint4 dy[VECTORS];
    float dy_single = 0;

    __device__ void load(const T* of_y, const T* of_dy) {
        const bool together = ALIGNED || aligned(of_dy + y.head);
        y.load(of_y);
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            if (!y.has(i)) continue;
            const T* const from = of_dy + y.column(i);
            dy[i] = together ? __ldcs(reinterpret_cast<const uint4*>(from)) : P::load(from, false);
        }
        if (y.has_single()) dy_single = static_cast<float>(of_dy[y.single_column()]);
    }
    /// The sum of y dy, or of dy with LOG, over this thread's elements.
    template <bool LOG>
    __device__ float products() const {
        float sum = 0, a[P::N], b[P::N];
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            if (!y.has(i)) continue;
            P::widen(y.packs[i], a), P::widen(dy[i], b);
#pragma unroll
            for (int j = 0; j < P::N; ++j) sum += LOG ? b[j] : a[j] * b[j];
        }
        return y.has_single() ? sum + (LOG ? dy_single : y.single * dy_single) : sum;
    }
    /// dx = y (dy - sum), or dy - e^y sum with LOG.
    template <bool LOG>
    __device__ void write(float sum, T* dx) const {
        const bool together = ALIGNED || aligned(dx + y.head);
        float a[P::N], b[P::N];
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            if (!y.has(i)) continue;
            P::widen(y.packs[i], a), P::widen(dy[i], b);
#pragma unroll
            for (int j = 0; j < P::N; ++j) a[j] = LOG ? b[j] - exponential<T>(a[j]) * sum : a[j] * (b[j] - sum);
            P::store(dx + y.column(i), together, P::narrow(a));
        }
        if (y.has_single()) dx[y.single_column()] =
            T(LOG ? dy_single - exponential<T>(y.single) * sum : y.single * (dy_single - sum));
    }
};

/// Short rows: LANES lanes a row, ROWS rows each, whose loads are all issued before the first is used. No barrier, no shared memory.
template <typename T, int LANES, int VECTORS, int ROWS, int REGISTERS, bool ALIGNED, bool LOG = false>
__global__ void __launch_bounds__(WARP_KERNEL_THREADS, REGISTER_FILE / WARP_KERNEL_THREADS / REGISTERS)
    softmax_bwd_warp(int R, int C, const T* __restrict__ dy, long long gs, const T* __restrict__ y, long long ys, T* __restrict__ dx,
        long long xs) {
    constexpr int TEAMS = 32 / LANES;  // rows that a warp processes at the same time
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long first = (static_cast<long long>(blockIdx.x) * (WARP_KERNEL_THREADS / 32) + warp) * (TEAMS * ROWS) + lane / LANES;
    const auto number = [&](int k) { return first + k * TEAMS; };
    Rows<T, VECTORS, ALIGNED> rows[ROWS];
#pragma unroll
    for (int k = 0; k < ROWS; ++k) rows[k].y.locate(y + number(k) * ys, number(k) < R ? C : 0, lane % LANES, LANES);
    gdc_wait();
#pragma unroll
    for (int k = 0; k < ROWS; ++k) rows[k].load(y + number(k) * ys, dy + number(k) * gs);
#pragma unroll
    for (int k = 0; k < ROWS; ++k) rows[k].template write<LOG>(lanes_sum<LANES>(rows[k].template products<LOG>()), dx + number(k) * xs);
}

/// As softmax_block.
template <typename T, int VECTORS, int REGISTERS, bool ALIGNED, bool LOG = false>
__global__ void __launch_bounds__(1024, REGISTER_FILE / 1024 / REGISTERS)
    softmax_bwd_block(int R, int C, const T* __restrict__ dy, long long gs, const T* __restrict__ y, long long ys, T* __restrict__ dx,
        long long xs) {
    __shared__ float sums[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long number = blockIdx.x;
    Rows<T, VECTORS, ALIGNED> row;
    row.y.locate(y + number * ys, C, threadIdx.x, blockDim.x);
    gdc_wait();
    row.load(y + number * ys, dy + number * gs);
    const float of_warp = lanes_sum<32>(row.template products<LOG>());
    if (lane == 0) sums[warp] = of_warp;
    __syncthreads();
    row.template write<LOG>(lanes_sum<32>(lane < blockDim.x / 32 ? sums[lane] : 0), dx + number * xs);
}
