// The forward of rms_norm and layer_norm (CENTRE) on sm_90 for rows that one block or a simple cluster takes. Three kernels, read downward: norm_cluster,
// any row, by shared memory; norm_whole_row, a row in the registers of a block; norm_warp, rows in the registers of a warp. Longer rows:
// norms_slices.cuh. norm_sm90.py has the table by which one of them is taken. Parts of a row, each with a mean of its own, are folded after Chan, Golub &
// LeVeque 1979, so that one barrier is enough.
#pragma once
#include <cooperative_groups.h>
#include <cuda_pipeline.h>

#include "chain.cuh"
#include "moments.cuh"
#include "packs.cuh"
#include "quotients.cuh"

namespace cg = cooperative_groups;

/// x + residual, rounded as it is returned: what is normalised.
template <typename T>
__device__ uint4 sum_of(const uint4& x, const uint4& r) {
    using P = Pack<T>;
    float f[P::N], g[P::N];
    P::widen(x, f), P::widen(r, g);
#pragma unroll
    for (int j = 0; j < P::N; ++j) f[j] += g[j];
    return P::narrow(f);
}

/// A pack normalised, times `weight` and plus `bias` where there are such.
template <typename T>
__device__ uint4 normalised(const uint4& x, float mean, float scale, bool w, const uint4& weight, bool b, const uint4& bias) {
    using P = Pack<T>;
    float f[P::N], g[P::N];
    P::widen(x, f);
#pragma unroll
    for (int j = 0; j < P::N; ++j) f[j] = (f[j] - mean) * scale;
    if (w) {
        P::widen(weight, g);
#pragma unroll
        for (int j = 0; j < P::N; ++j) f[j] *= g[j];
    }
    if (b) {
        P::widen(bias, g);
#pragma unroll
        for (int j = 0; j < P::N; ++j) f[j] += g[j];
    }
    return P::narrow(f);
}

/// A warp's part of a row: its elements, their mean and the sum of squares about it.
struct Part {
    float n, mean, squares;
};

/// Every warp's part into the shared memory of every block of the cluster; then all have all.
template <int WARPS, int CLUSTER>
__device__ void share_parts(Part* parts, const Part& mine, int rank) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (CLUSTER > 1) {
        const auto cluster = cg::this_cluster();
        cluster.barrier_wait();
        if (lane < CLUSTER) *cluster.map_shared_rank(&parts[rank * WARPS + warp], lane) = mine;
        cluster.sync();
    } else {
        if (lane == 0) parts[warp] = mine;
        __syncthreads();
    }
}

/// The parts of a row folded into one, by every warp for itself. Without CENTRE all means are 0.
template <int PARTS, bool CENTRE>
__device__ Part fold_parts(const Part* parts, int C) {
    const int lane = threadIdx.x % 32;
    Part p = {static_cast<float>(C), 0, 0};
    if (CENTRE) {
#pragma unroll
        for (int i = lane; i < PARTS; i += 32) p.mean += parts[i].n * (parts[i].mean - parts[0].mean);
        p.mean = parts[0].mean + over(warp_sum(p.mean), C);  // exact where all are equal
    }
#pragma unroll
    for (int i = lane; i < PARTS; i += 32) {
        const float off = CENTRE ? parts[i].mean - p.mean : 0;
        p.squares += parts[i].squares + (CENTRE ? parts[i].n * off * off : 0);
    }
    p.squares = warp_sum(p.squares);
    return p;
}

// On 128 bytes: an asynchronous copy whose destination is not asks the L2 for each line two or three times.
extern __shared__ __align__(128) uint4 held[];  // this block's packs of x, then of the residual; each thread reads only what it copied itself

/// y = norm(x + residual) · weight + bias, s = x + residual: a cluster a row, copied to shared memory (cp.async) and read once.
template <typename T, int THREADS, int CLUSTER, int BLOCKS, bool CENTRE, bool RESIDUAL>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    norm_cluster(int C, const T* __restrict__ x, long long xs, const T* __restrict__ r, long long rs, const T* __restrict__ w,
                 const T* __restrict__ b, T* __restrict__ y, long long ys, T* __restrict__ s, long long ss, float eps) {
    using P = Pack<T>;
    constexpr int N = P::N, WARPS = THREADS / 32;
    __shared__ Part parts[WARPS * CLUSTER];
    const int tid = threadIdx.x, rank = CLUSTER == 1 ? 0 : blockIdx.x % CLUSTER;
    const long long row = blockIdx.x / CLUSTER;
    x += row * xs, r += row * rs, y += row * ys, s += row * ss;
    const Share<T, CLUSTER> share(x, C, rank);
    const T *from = x + share.first, *also = r + share.first;
    wait_for_before();

#pragma unroll 8
    for (int k = tid; k < share.mine; k += THREADS) __pipeline_memcpy_async(held + k, from + k * N, 16);
    uint4* held_r = held + share.mine;
    if (RESIDUAL) {
        if (aligned(also)) {
#pragma unroll 4
            for (int k = tid; k < share.mine; k += THREADS) __pipeline_memcpy_async(held_r + k, also + k * N, 16);
        } else {
            for (int k = tid; k < share.mine; k += THREADS) held_r[k] = P::load(also + k * N, false);
        }
    }
    __pipeline_commit();
    if (CLUSTER > 1) cg::this_cluster().barrier_arrive();  // whoever has passed the matching wait knows that all blocks have started
    const bool has_single = tid < share.singles;
    const int at = has_single ? share.single(tid) : 0;
    float single = has_single ? static_cast<float>(x[at]) : 0;
    if (RESIDUAL && has_single) {
        const T sum = T(single + static_cast<float>(r[at]));
        s[at] = sum;
        single = static_cast<float>(sum);
    }
    __pipeline_wait_prior(0);

    float f[N], total = single, squares = single * single, count = has_single;
    const bool together_s = RESIDUAL && aligned(s + share.first);
#pragma unroll 4
    for (int k = tid; k < share.mine; k += THREADS) {
        if (!RESIDUAL) {
            P::widen(held[k], f);
        } else {
            const uint4 sum = sum_of<T>(held[k], held_r[k]);
            held[k] = sum;
            P::store(s + share.first + k * N, together_s, sum);
            P::widen(sum, f);
        }
        count += N;
#pragma unroll
        for (int j = 0; j < N; ++j) CENTRE ? total += f[j] : squares += f[j] * f[j];
    }
    Part part = {0, 0, 0};
    if (CENTRE) {
        part.n = warp_sum(count);
        part.mean = over(warp_sum(total), fmaxf(part.n, 1));
        float rest = has_single ? single - part.mean : 0;
        squares = rest * rest;
#pragma unroll 4
        for (int k = tid; k < share.mine; k += THREADS) {
            P::widen(held[k], f);
#pragma unroll
            for (int j = 0; j < N; ++j) {
                const float off = f[j] - part.mean;
                rest += off;
                squares += off * off;
            }
        }
        rest = over(warp_sum(rest), fmaxf(part.n, 1));  // the rounding error of the mean
        part.mean += rest;
        squares = fmaxf(warp_sum(squares) - part.n * rest * rest, 0);
    } else {
        squares = warp_sum(squares);
    }
    part.squares = squares;
    share_parts<WARPS, CLUSTER>(parts, part, rank);
    const Part all = fold_parts<WARPS * CLUSTER, CENTRE>(parts, C);
    const float scale = reciprocal_root(over(all.squares, C) + eps);

    const bool together = aligned(y + share.first), together_w = aligned(w + share.first), together_b = aligned(b + share.first);
#pragma unroll 4
    for (int k = tid; k < share.mine; k += THREADS) {
        const int column = share.first + k * N;
        P::widen(held[k], f);
#pragma unroll
        for (int j = 0; j < N; ++j) f[j] = (f[j] - all.mean) * scale;
        float g[N];
        if (w) {
            P::widen(P::load_within(w + column, together_w, w, w + C), g);
#pragma unroll
            for (int j = 0; j < N; ++j) f[j] *= g[j];
        }
        if (b) {
            P::widen(P::load_within(b + column, together_b, b, b + C), g);
#pragma unroll
            for (int j = 0; j < N; ++j) f[j] += g[j];
        }
        P::store(y + column, together, P::narrow(f));
    }
    if (has_single) {
        float v = (single - all.mean) * scale;
        if (w) v *= static_cast<float>(w[at]);
        if (b) v += static_cast<float>(b[at]);
        y[at] = T(v);
    }
}

/// As norm_cluster, of rows that start on 16 bytes and fit one block: a row a block, PIECES packs a thread, in registers. EARLY: the weight and the
/// bias are asked for 0: after the sums; 1: before the barrier, at 4 registers a pack; 2: when the row has been, on the way to shared memory, where
/// each thread reads only what it copied itself; 3: so, before the row.
template <typename T, int THREADS, int PIECES, int BLOCKS, int EARLY, bool CENTRE, bool RESIDUAL>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    norm_whole_row(int C, const T* __restrict__ x, long long xs, const T* __restrict__ r, long long rs, const T* __restrict__ w,
               const T* __restrict__ b, T* __restrict__ y, long long ys, T* __restrict__ s, long long ss, float eps) {
    using P = Pack<T>;
    constexpr int N = P::N, WARPS = THREADS / 32, LANES = lanes_for(WARPS);
    constexpr bool EXACT = sizeof(T) == 4;
    static_assert(WARPS <= 32, "a lane folds one warp's part");
    __shared__ Moments parts[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long row = blockIdx.x;
    const auto column = [&](int i) { return (i * THREADS + static_cast<int>(threadIdx.x)) * N; };
    const auto columns_of = [&](int warp) {  // elements of a warp
        int n = 0;
#pragma unroll
        for (int i = 0; i < PIECES; ++i) n += max(0, min(C - (i * THREADS + warp * 32) * N, 32 * N));
        return static_cast<float>(n);
    };
    uint4* const weights = held + threadIdx.x;
    uint4* const biases = weights + (w ? PIECES * THREADS : 0);
    const auto copy_weights = [&] {
#pragma unroll 1  // copies in a loop are asked for where it stands; others the compiler puts off until after the sums
        for (int k = 0; k < 2; ++k) {
            const T* const from = k == 0 ? w : b;
            if (!from) continue;
#pragma unroll
            for (int i = 0; i < PIECES; ++i) {
                if (column(i) < C) __pipeline_memcpy_async((k == 0 ? weights : biases) + i * THREADS, from + column(i), 16);
            }
        }
        __pipeline_commit();
    };
    uint4 p[1][PIECES], own[PIECES], pw[PIECES], pb[PIECES];
    uint4* const pr = EXACT ? pw : own;  // the residual's: with either place for all, the compiler puts off loads of one type until others have come
    const auto load_weights = [&](int i) {
        if (w && column(i) < C) pw[i] = EARLY >= 2 ? weights[i * THREADS] : P::load(w + column(i), true);
        if (b && column(i) < C) pb[i] = EARLY >= 2 ? biases[i * THREADS] : P::load(b + column(i), true);
    };
    wait_for_before();
    if (EARLY == 3) copy_weights();
#pragma unroll
    for (int i = 0; i < PIECES; ++i) p[0][i] = column(i) < C ? P::load(x + row * xs + column(i), true) : make_uint4(0, 0, 0, 0);
    if (RESIDUAL) {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) pr[i] = column(i) < C ? P::load(r + row * rs + column(i), true) : make_uint4(0, 0, 0, 0);
    }
    if (EARLY == 2) copy_weights();
    if (RESIDUAL) {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            p[0][i] = sum_of<T>(p[0][i], pr[i]);
            if (column(i) < C) P::store(s + row * ss + column(i), true, p[0][i]);
        }
    }
    if (EARLY == 1) {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) load_weights(i);
    }
    Moments part[1];
    part_of_warp<T, CENTRE>(part, p, [&](int i) { return column(i) < C; }, Divisor(fmaxf(columns_of(warp), 1)));
    const Divisor columns(C);
    if (WARPS > 1) {
        if (lane == 0) parts[warp] = part[0];
        __syncthreads();
        const int other = lane % LANES;
        part[0] = other < WARPS ? parts[other] : Moments{0, 0};
        const float base[1] = {parts[0].mean};
        fold<CENTRE, EXACT, LANES>(part, base, other < WARPS ? columns_of(other) : 0, columns);
    }
    const float scale = reciprocal_root(over(part[0].squares, columns) + eps);
    if (EARLY >= 2) __pipeline_wait_prior(0);
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
        if (column(i) >= C) continue;
        if (EARLY != 1) load_weights(i);
        P::store(y + row * ys + column(i), true, normalised<T>(p[0][i], part[0].mean, scale, w, pw[i], b, pb[i]));
    }
}

/// As norm_whole_row, of rows that fit a warp: ROWS of them, which follow one another, a warp, all on their way before the first is used. No barrier, no
/// shared memory; the weight and the bias are read once a warp.
template <typename T, int THREADS, int PIECES, int ROWS, int BLOCKS, bool CENTRE, bool RESIDUAL>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    norm_warp(int R, int C, const T* __restrict__ x, long long xs, const T* __restrict__ r, long long rs, const T* __restrict__ w,
              const T* __restrict__ b, T* __restrict__ y, long long ys, T* __restrict__ s, long long ss, float eps) {
    using P = Pack<T>;
    constexpr int N = P::N;
    const int lane = threadIdx.x % 32;
    const long long first = (static_cast<long long>(blockIdx.x) * (THREADS / 32) + threadIdx.x / 32) * ROWS;
    const auto column = [&](int i) { return (i * 32 + lane) * N; };
    const auto has = [&](int k, int i) { return column(i) < C && (ROWS == 1 || first + k < R); };
    const Divisor columns(C);
    uint4 p[ROWS][PIECES], pr[ROWS][PIECES], pw[PIECES], pb[PIECES];
    wait_for_before();
    if (first >= R) return;
    x += first * xs, y += first * ys;
    if (RESIDUAL) r += first * rs, s += first * ss;
#pragma unroll
    for (int k = 0; k < ROWS; ++k) {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) p[k][i] = has(k, i) ? P::load(x + k * xs + column(i), true) : make_uint4(0, 0, 0, 0);
    }
    if (RESIDUAL) {
#pragma unroll
        for (int k = 0; k < ROWS; ++k) {
#pragma unroll
            for (int i = 0; i < PIECES; ++i) pr[k][i] = has(k, i) ? P::load(r + k * rs + column(i), true) : make_uint4(0, 0, 0, 0);
        }
    }
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
        if (w && column(i) < C) pw[i] = P::load(w + column(i), true);
        if (b && column(i) < C) pb[i] = P::load(b + column(i), true);
    }
    if (RESIDUAL) {
#pragma unroll
        for (int k = 0; k < ROWS; ++k) {
#pragma unroll
            for (int i = 0; i < PIECES; ++i) {
                p[k][i] = sum_of<T>(p[k][i], pr[k][i]);
                if (has(k, i)) P::store(s + k * ss + column(i), true, p[k][i]);
            }
        }
    }
    Moments part[ROWS];
    part_of_warp<T, CENTRE>(part, p, [&](int i) { return column(i) < C; }, columns);
#pragma unroll
    for (int k = 0; k < ROWS; ++k) {
        const float scale = reciprocal_root(over(part[k].squares, columns) + eps);
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            if (has(k, i)) P::store(y + k * ys + column(i), true, normalised<T>(p[k][i], part[k].mean, scale, w, pw[i], b, pb[i]));
        }
    }
}
