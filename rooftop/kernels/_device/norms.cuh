// Normalisation of rows in CUDA C++: rms_norm and layer_norm, which differ in CENTRE alone; rows shared out in whole packs: norms_slices.cuh, their
// backward: norms_bwd.cuh. A row is shared out over the blocks of a cluster; every warp leaves its part of the statistics in the shared memory of all
// of them, one barrier, and every warp folds the parts. Parts with a mean of their own are folded after Chan, Golub & LeVeque 1979, so that one
// barrier is enough.
#pragma once
#include <cooperative_groups.h>
#include <cuda_pipeline.h>

#include "packs.cuh"
#include "quotients.cuh"

namespace cg = cooperative_groups;

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

/// y = norm(x + residual) · weight + bias, s = x + residual; a cluster a row, brought to shared memory by asynchronous copies and read once.
template <typename T, int THREADS, int CLUSTER, int BLOCKS, bool CENTRE, bool RESIDUAL>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    norm_forward(int C, const T* __restrict__ x, long long xs, const T* __restrict__ r, long long rs, const T* __restrict__ w,
                 const T* __restrict__ b, T* __restrict__ y, long long ys, T* __restrict__ s, long long ss, float eps) {
    using P = Pack<T>;
    constexpr int N = P::N, WARPS = THREADS / 32;
    __shared__ Part parts[WARPS * CLUSTER];
    const int tid = threadIdx.x, rank = CLUSTER == 1 ? 0 : blockIdx.x % CLUSTER;
    const long long row = blockIdx.x / CLUSTER;
    x += row * xs, r += row * rs, y += row * ys, s += row * ss;
    const Share<T, CLUSTER> share(x, C, rank);
    const T *from = x + share.first, *also = r + share.first;

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
        P::widen(held[k], f);
        if (RESIDUAL) {
            float g[N];
            P::widen(held_r[k], g);
#pragma unroll
            for (int j = 0; j < N; ++j) f[j] += g[j];
            const uint4 sum = P::narrow(f);  // what is normalised is what is returned
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

/// As norm_forward, of rows that start on 16 bytes and fit one block: a row a block, PIECES packs a thread, in registers. EARLY: the weight and
/// the bias are asked for before the barrier, at 4 registers a pack.
template <typename T, int THREADS, int PIECES, int BLOCKS, bool EARLY, bool CENTRE, bool RESIDUAL>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    norm_whole(int C, const T* __restrict__ x, long long xs, const T* __restrict__ r, long long rs, const T* __restrict__ w,
               const T* __restrict__ b, T* __restrict__ y, long long ys, T* __restrict__ s, long long ss, float eps) {
    using P = Pack<T>;
    constexpr int N = P::N, WARPS = THREADS / 32;
    static_assert(WARPS <= 32, "a lane folds one warp's part");
    __shared__ float2 parts[WARPS];  // mean and sum of squares about it
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long row = blockIdx.x;
    const auto column = [&](int i) { return (i * THREADS + static_cast<int>(threadIdx.x)) * N; };
    const auto columns_of = [&](int warp) {  // elements of a warp
        int n = 0;
#pragma unroll
        for (int i = 0; i < PIECES; ++i) n += max(0, min(C - (i * THREADS + warp * 32) * N, 32 * N));
        return static_cast<float>(n);
    };
    uint4 p[PIECES], pw[PIECES], pb[PIECES];
    float f[N], g[N];
#pragma unroll
    for (int i = 0; i < PIECES; ++i) p[i] = column(i) < C ? P::load(x + row * xs + column(i), true) : make_uint4(0, 0, 0, 0);
    if (RESIDUAL) {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) pw[i] = column(i) < C ? P::load(r + row * rs + column(i), true) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            P::widen(p[i], f), P::widen(pw[i], g);
#pragma unroll
            for (int j = 0; j < N; ++j) f[j] += g[j];
            p[i] = P::narrow(f);  // what is normalised is what is returned
            if (column(i) < C) P::store(s + row * ss + column(i), true, p[i]);
        }
    }
    const auto ask = [&](int i) {
        if (w && column(i) < C) pw[i] = P::load(w + column(i), true);
        if (b && column(i) < C) pb[i] = P::load(b + column(i), true);
    };
    if (EARLY) {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) ask(i);
    }
    float mean = 0, squares = 0, rest = 0;
    if (CENTRE) {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            P::widen(p[i], f);
#pragma unroll
            for (int j = 0; j < N; ++j) mean += f[j];
        }
        mean = over(warp_sum(mean), fmaxf(columns_of(warp), 1));
    }
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
        P::widen(p[i], f);
        if (CENTRE && column(i) >= C) continue;
#pragma unroll
        for (int j = 0; j < N; ++j) {
            const float off = f[j] - mean;
            squares += off * off;
            if (CENTRE) rest += off;
        }
    }
    squares = warp_sum(squares);
    if (CENTRE) {
        const float n = columns_of(warp);
        rest = over(warp_sum(rest), fmaxf(n, 1));  // the rounding error of the mean
        mean += rest;
        squares = fmaxf(squares - n * rest * rest, 0);
    }
    if (WARPS > 1) {
        if (lane == 0) parts[warp] = make_float2(mean, squares);
        __syncthreads();
        const float2 part = lane < WARPS ? parts[lane] : make_float2(0, 0);
        if (CENTRE) {
            const float n = lane < WARPS ? columns_of(lane) : 0;
            mean = parts[0].x + over(warp_sum(n * (part.x - parts[0].x)), C);  // exact where all are equal
            squares = warp_sum(part.y + n * (part.x - mean) * (part.x - mean));
        } else {
            squares = warp_sum(part.y);
        }
    }
    const float scale = reciprocal_root(over(squares, C) + eps);
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
        if (column(i) >= C) continue;
        if (!EARLY) ask(i);
        P::widen(p[i], f);
#pragma unroll
        for (int j = 0; j < N; ++j) f[j] = (f[j] - mean) * scale;
        if (w) {
            P::widen(pw[i], g);
#pragma unroll
            for (int j = 0; j < N; ++j) f[j] *= g[j];
        }
        if (b) {
            P::widen(pb[i], g);
#pragma unroll
            for (int j = 0; j < N; ++j) f[j] += g[j];
        }
        P::store(y + row * ys + column(i), true, P::narrow(f));
    }
}
