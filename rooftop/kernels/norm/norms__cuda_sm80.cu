/* rooftop
ops     = ["rms_norm", "layer_norm"]
idea    = """Each row is read once into registers and written once. norm_warp takes rows of up to 4 KiB (less with a residual or if they \
  are not 16-byte aligned): one warp holds one row or several short ones. norm_block takes longer rows, up to 64 KiB: one block a row. A \
  thread holds as many vectors of 16 bytes as the row needs, not rounded up to a power of two. x is loaded as evict-first (__ldcs), so that \
  the weight and the bias, which every row reads, stay in the L1. Example, bf16 rows of 8192 columns: 1024 vectors, 256 threads with 4 \
  vectors each, five blocks a multiprocessor. Not persistent: with one block a row, the hardware scheduler starts the next row wherever a \
  block has ended, which balances the load between multiprocessors; a persistent block would read weight and bias only once, but here they \
  come from the L1."""
limit   = """Memory bandwidth, if enough bytes are in flight: on an H200 0.92 of a copy with 72 KiB of resident rows a multiprocessor, 0.79 \
  to 0.84 with 56 KiB. Rows of 16 bits in a block are bound by instructions nearly as much. Rows of more than 64 KiB do not fit the \
  registers of a block: clusters of blocks take them (norms__cuda_sm90.cu)."""
dtypes  = ["f32", "f16", "bf16"]
args    = [
    "R: i32", "C: i32", "x: T[R, C]", "xs: i64 = stride(x, 0)", "residual: T[R, C]?", "rs: i64 = stride(residual, 0)", "weight: T[C]?",
    "bias: T[C]?", "y: T[R, C]", "ys: i64 = stride(y, 0)", "s: T[R, C]?", "ss: i64 = stride(s, 0)", "eps: f32",
]
demands = { has = ["LDG.E.128", "STG.E.128"], spills = 0 }
python  = ["supports", "choose", "configs", "launches"]
valid   = """16 * team * vectors > C * bytes(x) - 16 and (team >= min(32, 32 // bytes(x)) or C % (16 // bytes(x)) == 0 and aligned(x, 16) \
  and aligned(residual, 16) and aligned(weight, 16) and aligned(bias, 16) and aligned(y, 16) and aligned(s, 16))"""

[config]
team      = 32
vectors   = 1
rows      = 1
registers = 32
early     = false
*/
// Forward of rms_norm and layer_norm for rows that fit in registers: norm_warp takes several rows a warp, norm_block one row a block.
// CENTRE is true for layer_norm: the mean is subtracted; rms_norm has no mean.
//
//     y = (v - mean) / sqrt(mean of (v - mean)^2 + eps) * weight + bias     v = x, or v = s = x + residual, where s is an output too
//
// packs.cuh has Row, a row in registers. How many threads and vectors a row gets: _register_rows.py, which works out an example, 16384 rows
// of 8192 columns of bf16. `valid` in the head: the vectors hold the row, and a row that is not whole vectors has a thread for each single
// element at its ends.
//
// Steps of norm_block, in the order of this file:
//   1. Row::load (packs.cuh): every thread loads its vectors of 16 bytes into registers. All loads are issued before the first is used.
//      EARLY: then it starts copying its columns of weight and bias to shared memory (copy_early), which hides the latency of the L2 where
//      there are too few waves of blocks to hide it.
//   2. moments_of_lanes: each warp computes mean and sum of squares about it of its part of the row, in two passes over the registers.
//   3. moments_of_block: the warps write their parts to shared memory; after one barrier every warp combines all of them (Chan, Golub &
//      LeVeque 1979, the formula for two sets of which Welford's update is the case of one new element).
//   4. write_normalised: the row, still in registers, is scaled, multiplied by the weight, the bias is added, and it is stored as
//      evict-first.
// norm_warp needs no step 3. Aligned 16-bit rows of layer_norm, which instructions would limit, take one pass about a pivot that all
// threads of a row know (`one_pass`): steps 2 and 3 only add, and step 4 starts from the distances to the pivot.
#include <cuda_pipeline.h>

#include "pdl.cuh"
#include "packs.cuh"
#include "_moments.cuh"

constexpr int REGISTER_FILE = 65536;      // of a multiprocessor
constexpr int WARP_KERNEL_THREADS = 256;  // a block of the kernels that take several rows a warp
// EARLY: the block's vectors of the weight, then of the bias. A thread reads only what it copied itself.
extern __shared__ __align__(128) uint4 kept[];

/// Whether the statistics are computed in one pass about a pivot.
template <typename T>
constexpr bool one_pass(bool aligned, bool centre) {
    return sizeof(T) == 2 && aligned && centre;
}

/// What makes a normalised element of v: ((v - about) * scale + shift), or without a pivot (v - mean) * scale.
struct Scaling {
    float about, scale, shift;
};

/// The scaling of a row of `columns` elements from the sums of its distances from a pivot and of their squares.
__device__ inline Scaling scaling_of(float pivot, const float (&sums)[2], const Divisor& columns, float eps) {
    const float d = sums[1] * columns.part;  // the mean less the pivot
    const float scale = reciprocal_root(over(squares_less(sums[0], d * (2 * sums[1] - columns.n * d)), columns) + eps);
    return {pivot, scale, -d * scale};
}

/// The sums of a thread's elements of an aligned row: of the squares of the distances from a pivot, and of the distances.
template <typename T, int VECTORS, bool ALIGNED>
__device__ void distances(float (&sums)[2], const Row<T, VECTORS, ALIGNED>& row, float pivot) {
    using P = Pack<T>;
    float squares[2] = {0, 0}, rest[2] = {0, 0}, f[P::N];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        if (!row.has(i)) continue;
        P::widen(row.packs[i], f);
#pragma unroll
        for (int j = 0; j < P::N; ++j) {
            const float off = f[j] - pivot;
            squares[j % 2] += off * off, rest[j % 2] += off;
        }
    }
    sums[0] = squares[0] + squares[1], sums[1] = rest[0] + rest[1];
}

/// The moments of the n elements held by LANES neighbouring lanes, for K rows at once; all of these lanes get the result. Two passes, which
/// cost no memory traffic since the row is in registers: the mean, then the squares about it. The second pass also sums the distances
/// themselves, which gives the rounding error of the mean (Chan, Golub & LeVeque 1983): if all elements are equal, the result is exactly 0.
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

/// The moments of a row of `columns` elements from those of its warps (Chan, Golub & LeVeque 1979), with one barrier. All threads of the
/// block call it.
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
    const float base = CENTRE ? parts[0].m.mean : 0;  // means are summed as distances from this one: all 0 if all elements are equal
    const Part part = lane < warps ? parts[lane] : Part{0, {base, 0}};
    // weighted by n / columns before the sum: no overflow
    const float mean = CENTRE ? base + lanes_sum<32>(part.n * columns.part * (part.m.mean - base)) : 0;
    const float off = part.m.mean - mean;
    return {mean, lanes_sum<32>(part.m.squares + (CENTRE ? part.n * off * off : 0))};
}

/// Sixteen bytes from p, at any address in [begin, end): two aligned vectors are loaded and the bytes between them are shifted out. If one
/// of the two vectors would reach outside the array, the elements are loaded one by one; that loop is not unrolled, because it would need
/// too many registers.
template <typename T>
__device__ uint4 load_anywhere(const T* p, const T* begin, const T* end) {
    constexpr int N = Pack<T>::N;
    const unsigned off = reinterpret_cast<unsigned long long>(p) % 16;
    const T* const q = p - off / sizeof(T);
    if (off == 0) return *reinterpret_cast<const uint4*>(p);
    if (q < begin || q + 2 * N > end) {
        uint4 v = make_uint4(0, 0, 0, 0);
#pragma unroll 1
        for (int j = 0; j < N; ++j) {  // shift the vector down by one element and put the new one on top
            constexpr int BITS = 8 * sizeof(T) % 32;
            const unsigned next = sizeof(T) == 4 ? reinterpret_cast<const unsigned*>(p)[j] : reinterpret_cast<const unsigned short*>(p)[j];
            v.x = BITS ? __funnelshift_r(v.x, v.y, BITS) : v.y, v.y = BITS ? __funnelshift_r(v.y, v.z, BITS) : v.z;
            v.z = BITS ? __funnelshift_r(v.z, v.w, BITS) : v.w, v.w = BITS ? __funnelshift_r(v.w, next, BITS) : next;
        }
        return v;
    }
    const uint4 a = *reinterpret_cast<const uint4*>(q), b = *reinterpret_cast<const uint4*>(q + N);
    unsigned w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 6; ++i) w[i] = off & 8 ? w[i + 2] : w[i];
#pragma unroll
    for (int i = 0; i < 5; ++i) w[i] = off & 4 ? w[i + 1] : w[i];
    if (sizeof(T) == 2) {
#pragma unroll
        for (int i = 0; i < 4; ++i) w[i] = __funnelshift_r(w[i], w[i + 1], off % 4 * 8);
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/// s = x + residual, rounded to T; `row` then holds s, which is what is normalised.
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

/// Starts copying the thread's columns of weight and bias to shared memory: they arrive while the row's sums are computed.
template <bool WEIGHT, bool BIAS, typename T, int VECTORS>
__device__ void copy_early(const Row<T, VECTORS, true>& row, const T* weight, const T* bias) {
    uint4* const mine = kept + row.thread;
#pragma unroll 1  // a loop that is not unrolled stays here; unrolled, the compiler moves the copies behind the sums
    for (int k = 0; k < WEIGHT + BIAS; ++k) {
        const T* const from = WEIGHT && k == 0 ? weight : bias;
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            if (row.has(i)) __pipeline_memcpy_async(mine + (k * VECTORS + i) * row.team, from + row.column(i), 16);
        }
    }
    __pipeline_commit();
}

/// y = the normalised row, times weight and plus bias if they are given. SHIFTED: from the distances to a pivot. EARLY: weight and bias are
/// in shared memory (copy_early).
template <bool WEIGHT, bool BIAS, bool SHIFTED, bool EARLY, typename T, int VECTORS, bool ALIGNED>
__device__ void write_scaled(const Row<T, VECTORS, ALIGNED>& row, const Scaling& by, int C, const T* weight, const T* bias, T* y) {
    using P = Pack<T>;
    const bool together = ALIGNED || aligned(y + row.head);
    const auto load = [&](const T* of_columns, int i, int at) {
        const int column = row.column(i);
        if (EARLY) return kept[row.thread + (at * VECTORS + i) * row.team];
        return ALIGNED ? *reinterpret_cast<const uint4*>(of_columns + column)
            : load_anywhere(of_columns + column, of_columns, of_columns + C);
    };
    if (EARLY) __pipeline_wait_prior(0);
    const auto normalised = [&](float v) { return SHIFTED ? fmaf(v - by.about, by.scale, by.shift) : (v - by.about) * by.scale; };
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        if (!row.has(i)) continue;
        const int column = row.column(i);
        float f[P::N], g[P::N], h[P::N];
        P::widen(row.packs[i], f);
        if (WEIGHT) P::widen(load(weight, i, 0), g);
        if (BIAS) P::widen(load(bias, i, WEIGHT), h);
#pragma unroll
        for (int j = 0; j < P::N; ++j) {
            f[j] = normalised(f[j]);
            if (WEIGHT) f[j] *= g[j];
            if (BIAS) f[j] += h[j];
        }
        P::store(y + column, together, P::narrow(f));
    }
    if (row.has_single()) {
        const int column = row.single_column();
        float f = normalised(row.single);
        if (WEIGHT) f *= static_cast<float>(weight[column]);
        if (BIAS) f += static_cast<float>(bias[column]);
        y[column] = T(f);
    }
}

template <bool WEIGHT, bool BIAS, bool EARLY, typename T, int VECTORS, bool ALIGNED>
__device__ void write_normalised(const Row<T, VECTORS, ALIGNED>& row, const Moments& m, int C, float eps, const T* weight, const T* bias,
    T* y) {
    const float scale = reciprocal_root(over(m.squares, Divisor(C)) + eps);
    write_scaled<WEIGHT, BIAS, false, EARLY>(row, {m.mean, scale, 0}, C, weight, bias, y);
}

/// Short rows: LANES lanes work on a row; they take ROWS rows, all of whose loads are issued before the first is used. No barrier, no
/// shared memory.
template <typename T, int LANES, int VECTORS, int ROWS, int REGISTERS, bool ALIGNED, bool CENTRE, bool RESIDUAL, bool WEIGHT, bool BIAS>
__global__ void __launch_bounds__(WARP_KERNEL_THREADS, REGISTER_FILE / WARP_KERNEL_THREADS / REGISTERS)
    norm_warp(int R, int C, const T* __restrict__ x, long long xs, const T* __restrict__ residual, long long rs,
        const T* __restrict__ weight,
              const T* __restrict__ bias, T* __restrict__ y, long long ys, T* __restrict__ s, long long ss, float eps) {
    constexpr int TEAMS = 32 / LANES;  // rows that a warp takes side by side
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long first = (static_cast<long long>(blockIdx.x) * (WARP_KERNEL_THREADS / 32) + warp) * (TEAMS * ROWS) + lane / LANES;
    const auto number = [&](int k) { return first + k * TEAMS; };
    Row<T, VECTORS, ALIGNED> rows[ROWS];
#pragma unroll
    for (int k = 0; k < ROWS; ++k) rows[k].locate(x + number(k) * xs, number(k) < R ? C : 0, lane % LANES, LANES);
    gdc_wait();
#pragma unroll
    for (int k = 0; k < ROWS; ++k) rows[k].load(x + number(k) * xs);
    if (RESIDUAL) {
#pragma unroll
        for (int k = 0; k < ROWS; ++k) add_residual(rows[k], residual + number(k) * rs, s + number(k) * ss);
    }
    if (one_pass<T>(ALIGNED, CENTRE)) {
        const Divisor columns(C);
        float sums[2 * ROWS], pivots[ROWS];
#pragma unroll
        for (int k = 0; k < ROWS; ++k) {
            float leading[Word<T>::N], of_row[2];  // the row's first element, from its first lane
            Word<T>::widen(__shfl_sync(~0u, rows[k].packs[0].x, 0, LANES), leading);
            pivots[k] = finite_or_zero(leading[0]);
            distances(of_row, rows[k], pivots[k]);
            sums[2 * k] = of_row[0], sums[2 * k + 1] = of_row[1];
        }
        lanes_sums<LANES>(sums);
#pragma unroll
        for (int k = 0; k < ROWS; ++k) {
            const float of_row[2] = {sums[2 * k], sums[2 * k + 1]};
            write_scaled<WEIGHT, BIAS, true, false>(rows[k], scaling_of(pivots[k], of_row, columns, eps), C, weight, bias, y + number(k) * ys);
        }
        return;
    }
    Moments m[ROWS];
    moments_of_lanes<CENTRE, LANES>(m, rows, Divisor(C));
#pragma unroll
    for (int k = 0; k < ROWS; ++k) write_normalised<WEIGHT, BIAS, false>(rows[k], m[k], C, eps, weight, bias, y + number(k) * ys);
}

/// Longer rows: one block a row. blockDim.x is the team of _register_rows.py: just enough threads for VECTORS vectors each.
/// The launch bounds are written for 1024 threads, so that REGISTERS is the limit for blocks of any size.
template <typename T, int VECTORS, int REGISTERS, bool EARLY, bool ALIGNED, bool CENTRE, bool RESIDUAL, bool WEIGHT, bool BIAS>
__global__ void __launch_bounds__(1024, REGISTER_FILE / 1024 / REGISTERS)
    norm_block(int R, int C, const T* __restrict__ x, long long xs, const T* __restrict__ residual, long long rs,
        const T* __restrict__ weight,
               const T* __restrict__ bias, T* __restrict__ y, long long ys, T* __restrict__ s, long long ss, float eps) {
    const long long number = blockIdx.x;
    Row<T, VECTORS, ALIGNED> rows[1];
    rows[0].locate(x + number * xs, C, threadIdx.x, blockDim.x);
    gdc_wait();
    constexpr bool ONE_PASS = one_pass<T>(ALIGNED, CENTRE) && !RESIDUAL;
    using P = Pack<T>;
    // the row's first vector, in all threads
    const uint4 leading = ONE_PASS ? *reinterpret_cast<const uint4*>(x + number * xs) : make_uint4(0, 0, 0, 0);
    rows[0].load(x + number * xs);
    if constexpr (EARLY) copy_early<WEIGHT, BIAS>(rows[0], weight, bias);
    if (RESIDUAL) add_residual(rows[0], residual + number * rs, s + number * ss);
    if (ONE_PASS) {
        __shared__ float2 parts[32];
        const int lane = threadIdx.x % 32;
        float f[P::N], sums[2];
        P::widen(leading, f);
        // The pivot is the mean of N elements (exact if they are equal). A single outlier, up to sqrt(C) standard deviations away, would
        // cost a long row accuracy.
#pragma unroll
        for (int step = P::N / 2; step > 0; step /= 2) {
#pragma unroll
            for (int j = 0; j < step; ++j) f[j] = f[j] * 0.5f + f[j + step] * 0.5f;
        }
        const float pivot = finite_or_zero(f[0]);
        distances(sums, rows[0], pivot);
        lanes_sums<32>(sums);
        if (lane == 0) parts[threadIdx.x / 32] = make_float2(sums[0], sums[1]);
        __syncthreads();
        const float2 part = lane < blockDim.x / 32 ? parts[lane] : make_float2(0, 0);
        sums[0] = part.x, sums[1] = part.y;
        lanes_sums<32>(sums);
        write_scaled<WEIGHT, BIAS, true, EARLY>(rows[0], scaling_of(pivot, sums, Divisor(C), eps), C, weight, bias, y + number * ys);
        return;
    }
    const int elements = rows[0].elements_of_warp(threadIdx.x / 32);
    Moments of_warp[1];
    moments_of_lanes<CENTRE, 32>(of_warp, rows, Divisor(max(elements, 1)));
    const Moments of_row = moments_of_block<CENTRE>(of_warp[0], elements, Divisor(C));
    write_normalised<WEIGHT, BIAS, EARLY>(rows[0], of_row, C, eps, weight, bias, y + number * ys);
}
