// Backward of rms_norm and layer_norm. CENTRE is true for layer_norm, whose forward subtracts the mean.
// With scale = 1 / sqrt(mean of (s - mean)^2 + eps), n = (s - mean) * scale and g = dy * weight:
//
//     dx = scale * (g - mean of g - n * mean of (g n)) + ds     dweight = sum over rows of dy n     dbias = sum over rows of dy
//
// The kernels are persistent: the grid has as many blocks as are resident at once, and each loops over its rows. A thread owns the same
// columns of every row, so it sums their dweight and dbias in registers. Rows in flight are in a ring buffer in shared memory (_ring.cuh).
// At its end a block writes one partial row of each sum in float32, and norm_bwd_columns adds the partial rows in a fixed order, so the
// result is deterministic.
//
// In the order of this file: statistics of a row (Part), the work of a thread on its columns (Columns), and norm_bwd_columns.
#pragma once
#include "pdl.cuh"
#include "packs.cuh"
#include "_moments.cuh"
#include "_ring.cuh"

// float32 sums are flushed to a second accumulator every SPAN rows: one sum of hundreds of rows has several times the rounding error
constexpr int SPAN = 16;

/// Statistics of some elements of a row: the mean of s, the sum of squares about it, the sum of g, the sum of g (s - mean). Without CENTRE
/// mean and level are 0.
struct Part {
    float mean, squares, level, products;
};

/// Combines the parts of LANES neighbouring lanes, n elements each, in all lanes (Chan, Golub & LeVeque 1979); `total`: their elements.
/// Means are summed as distances from the first part's: exact if all elements are equal. EXACT: the mean first, then the squares about it.
/// Otherwise all sums at once, then moved
/// to the mean: the squares may lose a few roundings for each part, which 16-bit results do not show.
template <bool CENTRE, bool EXACT, int LANES>
__device__ Part whole_of(const Part& p, float n, const Divisor& total) {
    if (!CENTRE) {
        float both[2] = {p.squares, p.products};
        lanes_sums<LANES>(both);
        return {0, both[0], 0, both[1]};
    }
    const float base = __shfl_sync(~0u, p.mean, 0, LANES), from_base = n > 0 ? p.mean - base : 0;
    const float share = n * total.part * from_base;  // weighted by n / total before the sum: no overflow
    if (!EXACT) {
        float sums[4] = {share, p.squares + n * from_base * from_base, p.level, p.products + p.level * from_base};
        four_sums<LANES>(sums);
        const float squares = sums[1] - total.n * sums[0] * sums[0];
        // not fmaxf, which would turn a NaN into 0
        return {base + sums[0], squares < 0 ? 0 : squares, sums[2], sums[3] - sums[2] * sums[0]};
    }
    const float mean = base + lanes_sum<LANES>(share), off = n > 0 ? p.mean - mean : 0;
    float sums[3] = {p.squares + n * off * off, p.level, p.products + p.level * off};
    lanes_sums<LANES>(sums);
    return {mean, sums[0], sums[1], sums[2]};
}

/// Sums over rows of one thread's columns: VECTORS vectors of N elements and a single one. Float32 sums are flushed every SPAN rows.
template <int VECTORS, int N, bool WANTED>
struct Sums {
    static constexpr bool SPANS = N == 4;  // float32
    float now[VECTORS][N] = {}, closed[VECTORS][N] = {}, single = 0, closed_single = 0;

    __device__ void close() {
        if (!WANTED || !SPANS) return;
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
#pragma unroll
            for (int j = 0; j < N; ++j) closed[i][j] += now[i][j], now[i][j] = 0;
        }
        closed_single += single, single = 0;
    }
    /// The total, after the last flush.
    __device__ float& total(int i, int j) { return SPANS ? closed[i][j] : now[i][j]; }
    __device__ float& total_single() { return SPANS ? closed_single : single; }
    /// Combines teams of LANES lanes; all lanes get the sums.
    template <int LANES>
    __device__ void add_teams() {
#pragma unroll
        for (int step = 16; step >= LANES && WANTED; step /= 2) {
#pragma unroll
            for (int i = 0; i < VECTORS; ++i) {
#pragma unroll
                for (int j = 0; j < N; ++j) total(i, j) += __shfl_xor_sync(~0u, total(i, j), step);
            }
            total_single() += __shfl_xor_sync(~0u, total_single(), step);
        }
    }
};

/// Partial rows start such that vectors of a row are on 16 bytes in them too: column c of a row that has `head` elements before its first
/// vector.
template <typename T, bool ALIGNED>
__device__ int place(int column, int head) { return ALIGNED ? column : column - head + Pack<T>::N; }
template <typename T, bool ALIGNED>
__device__ int pitch_of(int C) { return ALIGNED ? C : (C + 2 * Pack<T>::N) / 4 * 4; }

/// A thread's work on its columns of the rows of its team. The ring buffer has s, dy and, with SECOND, ds; the weight stays in shared
/// memory.
template <typename T, int VECTORS, int STAGES, bool ALIGNED, bool CENTRE, bool SECOND, bool WEIGHT, bool BIAS>
struct Columns : Ring<T, VECTORS, STAGES, SECOND ? 3 : 2, WEIGHT, ALIGNED> {
    using Base = Ring<T, VECTORS, STAGES, SECOND ? 3 : 2, WEIGHT, ALIGNED>;
    using Base::row, Base::now, Base::widen, Base::widen_kept, Base::single, Base::kept_single;
    using P = Pack<T>;
    static constexpr int N = P::N;
    static constexpr bool EXACT = sizeof(T) == 4;  // how statistics are computed
    enum { S, DY, DS };
    Sums<VECTORS, N, WEIGHT> dweight;
    Sums<VECTORS, N, BIAS> dbias;

    __device__ void begin(const Walk& walk, const T* s, long long ss, const T* dy, long long dys, const T* ds, long long dss,
        const T* weight) {
        const T* const tensors[3] = {s, dy, ds};
        const long long strides[3] = {ss, dys, dss};
        if (WEIGHT) Base::keep(0, weight);
        Base::begin(walk, tensors, strides);
    }
    /// After row k.
    __device__ void end_row(int k) {
        if (k % SPAN == SPAN - 1) close();
    }
    __device__ void close() { dweight.close(), dbias.close(); }

    /// Rounded to float32 each time, without fma: its mean, computed of the rounded values, is subtracted from it.
    __device__ float product(float dy, float w) const { return WEIGHT ? __fmul_rn(dy, w) : dy; }
    /// Calls use(s, g) for each of this thread's elements.
    template <typename Use>
    __device__ void each_pair(const Use& use) const {
        float s[N], dy[N], w[N];
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            if (!row.has(i)) continue;
            widen(S, i, s), widen(DY, i, dy);
            if (WEIGHT) widen_kept(0, i, w);
#pragma unroll
            for (int j = 0; j < N; ++j) use(s[j], product(dy[j], w[j]));
        }
        if (row.has_single()) use(single(S), product(single(DY), kept_single[0]));
    }
    /// Statistics of the n elements of the row that LANES neighbouring lanes hold, in all of them. EXACT: the mean first; its rounding
    /// error is found together with the squares about it. Otherwise one pass about a pivot, the first lane's first element; the squares
    /// then lose at most as many roundings as the lanes have elements.
    template <int LANES>
    __device__ Part part(const Divisor& n) const {
        if (!CENTRE) {
            float both[2] = {0, 0};
            each_pair([&](float s, float g) { both[0] += s * s, both[1] += g * s; });
            lanes_sums<LANES>(both);
            return {0, both[0], 0, both[1]};
        }
        float about;
        if (EXACT) {
            float sum = 0;
            Base::each([&](float s) { sum += s; });
            about = over(lanes_sum<LANES>(sum), n);
        } else {
            float first[N] = {};
            if (row.has(0)) widen(S, 0, first);
            about = __shfl_sync(~0u, first[0], 0, LANES);
        }
        float sums[4] = {0, 0, 0, 0};
        each_pair([&](float s, float g) {
            const float off = s - about;
            sums[0] += off, sums[1] += off * off, sums[2] += g, sums[3] += g * off;
        });
        four_sums<LANES>(sums);
        const float rest = over(sums[0], n);
        const float squares = sums[1] - n.n * rest * rest;
        return {about + rest, squares < 0 ? 0 : squares, sums[2], sums[3] - sums[2] * rest};
    }
    /// dx from the statistics `p` of the whole row of C elements, and the row's contribution to the sums.
    __device__ void finish(const Part& p, const Divisor& C, float eps, T* dx) {
        float scale = reciprocal_root(over(p.squares, C) + eps);
        if (CENTRE && C.n == 1) scale = 0;  // one column: the gradient is 0, and rounding errors would give another value
        const float along = over(p.products * scale, C) * scale, level = CENTRE ? over(p.level, C) * scale : 0;
        const auto gradient = [&](float n, float g) { return fmaf(g, scale, fmaf(-n, along, -level)); };
        const bool together = ALIGNED || aligned(dx + row.head);
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            if (!row.has(i)) continue;
            float s[N], dy[N], w[N], d[N];
            widen(S, i, s), widen(DY, i, dy);
            if (WEIGHT) widen_kept(0, i, w);
            if (SECOND) widen(DS, i, d);
#pragma unroll
            for (int j = 0; j < N; ++j) {
                const float n = (s[j] - p.mean) * scale, found = gradient(n, product(dy[j], w[j]));
                if (WEIGHT) dweight.now[i][j] += dy[j] * n;
                if (BIAS) dbias.now[i][j] += dy[j];
                d[j] = SECOND ? found + d[j] : found;
            }
            P::store(dx + row.column(i), together, P::narrow(d));
        }
        if (!row.has_single()) return;
        const float dy = single(DY), n = (single(S) - p.mean) * scale, found = gradient(n, product(dy, kept_single[0]));
        dweight.single += dy * n, dbias.single += dy;
        dx[row.single_column()] = T(SECOND ? found + single(DS) : found);
    }
    /// Writes this thread's sums to a partial row of each, in shared or global memory.
    __device__ void leave(float* pw, float* pb) {
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            if (!row.has(i)) continue;
#pragma unroll
            for (int j = 0; j < N; j += 4) {
                const int at = place<T, ALIGNED>(row.column(i), row.head) + j;
                if (WEIGHT) *reinterpret_cast<float4*>(pw + at) = quad(dweight, i, j);
                if (BIAS) *reinterpret_cast<float4*>(pb + at) = quad(dbias, i, j);
            }
        }
        if (!row.has_single()) return;
        const int at = place<T, ALIGNED>(row.single_column(), row.head);
        if (WEIGHT) pw[at] = dweight.total_single();
        if (BIAS) pb[at] = dbias.total_single();
    }
    /// Adds the sums of `teams` teams of the block in order, through the shared memory of the ring buffer, and writes them to a partial row
    /// of each. The columns of each team are located, and the sums flushed in each thread with `mine`.
    __device__ void leave_together(int team, int teams, bool mine, int C, float* pw, float* pb) {
        const int pitch = pitch_of<T, ALIGNED>(C);
        float* const of_teams = reinterpret_cast<float*>(ring);
        __pipeline_wait_prior(0);
        __syncthreads();
        if (mine) leave(of_teams + 2 * team * pitch, of_teams + (2 * team + 1) * pitch);
        __syncthreads();
        for (int c = threadIdx.x; c < C; c += blockDim.x) {
            const int at = place<T, ALIGNED>(c, row.head);
            float w = 0, b = 0;
            for (int k = 0; k < teams; ++k) {
                if (WEIGHT) w += of_teams[2 * k * pitch + at];
                if (BIAS) b += of_teams[(2 * k + 1) * pitch + at];
            }
            if (WEIGHT) pw[at] = w;
            if (BIAS) pb[at] = b;
        }
    }
    template <typename S>
    __device__ float4 quad(S& sums, int i, int j) {
        return make_float4(sums.total(i, j), sums.total(i, j + 1), sums.total(i, j + 2), sums.total(i, j + 3));
    }
};

/// dweight (blockIdx.y 0, if there is one) and dbias: the sums of `count` partial rows, always in the same order. A block of 32 x HEIGHT
/// threads takes 32 columns; a thread has loads of DEEP partial rows in flight.
template <typename T, int HEIGHT, int DEEP, bool ALIGNED>
__global__ void __launch_bounds__(32 * HEIGHT)
    norm_bwd_columns(int count, int C, const float* __restrict__ pw, T* __restrict__ dweight, const float* __restrict__ pb,
        T* __restrict__ dbias,
                     const T* s, long long ss, int period) {
    __shared__ float sums[HEIGHT][32];
    const bool of_weight = dweight != nullptr && blockIdx.y == 0;
    const float* const parts = of_weight ? pw : pb;
    const int column = blockIdx.x * 32 + threadIdx.x, pitch = pitch_of<T, ALIGNED>(C);
    const auto at = [&](int k) {
        const int head = ALIGNED ? 0 : min(C,
            static_cast<int>(-reinterpret_cast<unsigned long long>(s + k % period * ss) % 16 / sizeof(T)));
        return k * static_cast<long long>(pitch) + place<T, ALIGNED>(column, head);
    };
    float sum = 0;
    gdc_wait();
    for (int k = threadIdx.y; k < count && column < C; k += DEEP * HEIGHT) {
        float v[DEEP];
#pragma unroll
        for (int i = 0; i < DEEP; ++i) v[i] = k + i * HEIGHT < count ? parts[at(k + i * HEIGHT)] : 0;
#pragma unroll
        for (int i = 0; i < DEEP; ++i) sum += v[i];
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || column >= C) return;
    sum = 0;
#pragma unroll
    for (int k = 0; k < HEIGHT; ++k) sum += sums[k][threadIdx.x];
    (of_weight ? dweight : dbias)[column] = T(sum);
}
