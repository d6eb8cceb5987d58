// The forward of rms_norm and layer_norm for rows that registers hold: norm_warp, several rows a warp, and norm_block, a row a block. The two ops
// differ in CENTRE alone: whether the mean is taken off.
//
//     y = (v - mean) / sqrt(mean of (v - mean)^2 + eps) * weight + bias     v = x, or s = x + residual, which is written too
//
// Read downward: statistics of a warp's part of a row, of a row, the result, the two kernels.
#pragma once
#include "chain.cuh"
#include "lanes.cuh"
#include "quotients.cuh"
#include "rows.cuh"

/// Mean of some elements and the sum of squares about it; without CENTRE the mean is 0.
struct Moments {
    float mean, squares;
};

/// The moments of the n elements that LANES neighbouring lanes hold, in all of them, for K rows at once. Two passes, since the row is in registers;
/// the second also finds what rounding left in the mean (Chan, Golub & LeVeque 1983), so that equal elements come out as exactly 0.
template <bool CENTRE, int LANES, int K, typename R>
__device__ void moments_of_lanes(Moments (&m)[K], const R (&rows)[K], const Divisor& n) {
    float sums[K], both[2 * K];
    if (CENTRE) {
#pragma unroll
        for (int k = 0; k < K; ++k) {
            sums[k] = 0;
            rows[k].each([&](float v) { sums[k] += v; });
        }
        lanes_sums<LANES>(sums);
    }
#pragma unroll
    for (int k = 0; k < K; ++k) {
        m[k].mean = CENTRE ? over(sums[k], n) : 0;
        float squares = 0, rest = 0;
        rows[k].each([&](float v) {
            const float off = v - m[k].mean;
            squares += off * off;
            if (CENTRE) rest += off;
        });
        sums[k] = both[2 * k] = squares, both[2 * k + 1] = rest;
    }
    if (!CENTRE) {
        lanes_sums<LANES>(sums);
#pragma unroll
        for (int k = 0; k < K; ++k) m[k].squares = sums[k];
        return;
    }
    lanes_sums<LANES>(both);
#pragma unroll
    for (int k = 0; k < K; ++k) {
        const float rest = over(both[2 * k + 1], n);
        m[k] = {m[k].mean + rest, fmaxf(both[2 * k] - n.n * rest * rest, 0)};
    }
}

/// The moments of a row of `columns` elements from those of its warps (Chan, Golub & LeVeque 1979): one barrier. Every thread of the block.
template <bool CENTRE>
__device__ Moments moments_of_block(const Moments& of_warp, int elements, const Divisor& columns) {
    struct Part {
        float n;
        Moments m;
    };
    __shared__ Part parts[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    if (lane == 0) parts[warp] = {static_cast<float>(elements), of_warp};
    __syncthreads();
    const float base = CENTRE ? parts[0].m.mean : 0;  // sums of distances from it are exact where all elements are equal
    const Part part = lane < warps ? parts[lane] : Part{0, {base, 0}};
    const float mean = CENTRE ? base + over(lanes_sum<32>(part.n * (part.m.mean - base)), columns) : 0;
    const float off = part.m.mean - mean;
    return {mean, lanes_sum<32>(part.m.squares + (CENTRE ? part.n * off * off : 0))};
}

/// What is added to and multiplied with: weight and bias, either may be absent.
template <typename T>
struct Affine {
    const T *weight, *bias;
    int columns;

    /// f * weight + bias for the vector that begins at `column`, normalised before.
    template <bool ALIGNED>
    __device__ void apply(float (&f)[Pack<T>::N], int column) const {
        using P = Pack<T>;
        float g[P::N];
        if (weight) {
            P::widen(P::load_within(weight + column, ALIGNED, weight, weight + columns), g);
#pragma unroll
            for (int j = 0; j < P::N; ++j) f[j] *= g[j];
        }
        if (bias) {
            P::widen(P::load_within(bias + column, ALIGNED, bias, bias + columns), g);
#pragma unroll
            for (int j = 0; j < P::N; ++j) f[j] += g[j];
        }
    }
    __device__ float apply(float f, int column) const {
        if (weight) f *= static_cast<float>(weight[column]);
        if (bias) f += static_cast<float>(bias[column]);
        return f;
    }
};

/// x + residual -> s, and, rounded as s is, to `row`: that is what is normalised.
template <typename T, int VECTORS, bool ALIGNED>
__device__ void add_residual(Row<T, VECTORS, ALIGNED>& row, const T* residual, T* s) {
    using P = Pack<T>;
    uint4 packs[VECTORS];
    const bool together = ALIGNED || aligned(residual + row.head), together_s = ALIGNED || aligned(s + row.head);
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        if (row.has(i)) packs[i] = P::load(residual + row.column(i), together);
    }
    const float single = row.has_single() ? static_cast<float>(residual[row.single_column()]) : 0;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        if (!row.has(i)) continue;
        float f[P::N], g[P::N];
        P::widen(row.packs[i], f), P::widen(packs[i], g);
#pragma unroll
        for (int j = 0; j < P::N; ++j) f[j] += g[j];
        row.packs[i] = P::narrow(f);
        P::store(s + row.column(i), together_s, row.packs[i]);
    }
    if (row.has_single()) {
        const T sum = T(row.single + single);
        s[row.single_column()] = sum;
        row.single = static_cast<float>(sum);
    }
}

/// The row normalised -> y.
template <typename T, int VECTORS, bool ALIGNED>
__device__ void write_normalised(const Row<T, VECTORS, ALIGNED>& row, const Moments& m, const Divisor& columns, float eps, const Affine<T>& affine, T* y) {
    using P = Pack<T>;
    const float scale = reciprocal_root(over(m.squares, columns) + eps);
    const bool together = ALIGNED || aligned(y + row.head);
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        if (!row.has(i)) continue;
        float f[P::N];
        P::widen(row.packs[i], f);
#pragma unroll
        for (int j = 0; j < P::N; ++j) f[j] = (f[j] - m.mean) * scale;
        affine.template apply<ALIGNED>(f, row.column(i));
        P::store(y + row.column(i), together, P::narrow(f));
    }
    if (row.has_single()) y[row.single_column()] = T(affine.apply((row.single - m.mean) * scale, row.single_column()));
}

constexpr int WARP_KERNEL_THREADS = 256;

/// Short rows: LANES lanes a row, ROWS rows each, all of them on their way before the first is used. No barrier, no shared memory.
template <typename T, int LANES, int VECTORS, int ROWS, int BLOCKS, bool ALIGNED, bool CENTRE, bool RESIDUAL>
__global__ void __launch_bounds__(WARP_KERNEL_THREADS, BLOCKS)
    norm_warp(int R, int C, const T* __restrict__ x, long long xs, const T* __restrict__ residual, long long rs, const T* __restrict__ weight,
              const T* __restrict__ bias, T* __restrict__ y, long long ys, T* __restrict__ s, long long ss, float eps) {
    constexpr int TEAMS = 32 / LANES;  // rows that a warp takes side by side
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long first = (static_cast<long long>(blockIdx.x) * (WARP_KERNEL_THREADS / 32) + warp) * (TEAMS * ROWS) + lane / LANES;
    const auto number = [&](int k) { return first + k * TEAMS; };
    Row<T, VECTORS, ALIGNED> rows[ROWS];
#pragma unroll
    for (int k = 0; k < ROWS; ++k) rows[k].locate(x + number(k) * xs, number(k) < R ? C : 0, lane % LANES, LANES);
    wait_for_before();
#pragma unroll
    for (int k = 0; k < ROWS; ++k) rows[k].load(x + number(k) * xs);
    if (RESIDUAL) {
#pragma unroll
        for (int k = 0; k < ROWS; ++k) add_residual(rows[k], residual + number(k) * rs, s + number(k) * ss);
    }
    const Divisor columns(C);
    Moments m[ROWS];
    moments_of_lanes<CENTRE, LANES>(m, rows, columns);
    const Affine<T> affine = {weight, bias, C};
#pragma unroll
    for (int k = 0; k < ROWS; ++k) write_normalised(rows[k], m[k], columns, eps, affine, y + number(k) * ys);
}

/// Longer rows: a row a block of whatever size the row asks for, up to THREADS threads.
template <typename T, int VECTORS, int THREADS, int BLOCKS, bool ALIGNED, bool CENTRE, bool RESIDUAL>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    norm_block(int R, int C, const T* __restrict__ x, long long xs, const T* __restrict__ residual, long long rs, const T* __restrict__ weight,
               const T* __restrict__ bias, T* __restrict__ y, long long ys, T* __restrict__ s, long long ss, float eps) {
    const long long number = blockIdx.x;
    Row<T, VECTORS, ALIGNED> rows[1];
    rows[0].locate(x + number * xs, C, threadIdx.x, blockDim.x);
    wait_for_before();
    rows[0].load(x + number * xs);
    if (RESIDUAL) add_residual(rows[0], residual + number * rs, s + number * ss);
    const int elements = rows[0].elements_of_warp(threadIdx.x / 32);
    const Divisor columns(C);
    Moments m[1];
    moments_of_lanes<CENTRE, 32>(m, rows, Divisor(max(elements, 1)));
    write_normalised(rows[0], moments_of_block<CENTRE>(m[0], elements, columns), columns, eps, Affine<T>{weight, bias, C}, y + number * ys);
}
