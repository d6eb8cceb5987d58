// The backward of rms_norm and layer_norm in CUDA C++, which differ in CENTRE alone.
#pragma once
#include <cooperative_groups.h>
#include <cuda_pipeline.h>

#include "packs.cuh"
#include "quotients.cuh"

namespace cg = cooperative_groups;

/// A part of a row, its n elements known: their mean, the sum of squares about it, of g = dy weight, and of g times (s - mean).
struct alignas(16) Part {
    float mean, squares, g, products;
};

/// The parts that a warp's lanes hold, each of n elements, as one, in all lanes (Chan, Golub & LeVeque 1979). `total`: elements of them all.
template <bool CENTRE>
__device__ Part fold(Part p, float n, float total) {
    const float base = CENTRE ? __shfl_sync(~0u, p.mean, 0) : 0;
    const float mean = CENTRE ? base + over(warp_sum(n * (p.mean - base)), total) : 0, off = CENTRE ? p.mean - mean : 0;
    Part all = {mean, warp_sum(p.squares + n * off * off), 0, warp_sum(p.products + p.g * off)};
    if (CENTRE) all.g = warp_sum(p.g);
    return all;
}

extern __shared__ uint4 held[];  // of each thread, and used by it alone: rows on their way, the weight, sums of dweight and of dbias

/// dx, and this cluster's part of dweight and dbias -> pw, pb[cluster, C]. A cluster of blocks walks over rows `clusters` apart. Each thread
/// owns PIECES packs of N columns: a row of s and dy in registers, the next STAGES rows on their way to shared memory, where the weight and
/// the sums wait as well, so that registers leave room for twice the threads.
template <typename T, int PIECES, int THREADS, int CLUSTER, int BLOCKS, int STAGES, bool CENTRE, bool WEIGHT, bool BIAS, bool SECOND>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    norm_backward(int R, int C, int clusters, const T* __restrict__ dy, long long dys, const T* __restrict__ ds, long long dss,
                  const T* __restrict__ s, long long ss, const T* __restrict__ w, T* __restrict__ dx, long long dxs, float* __restrict__ pw,
                  float* __restrict__ pb, float eps) {
    using P = Pack<T>;
    constexpr int N = P::N, QUADS = N / 4, WARPS = THREADS / 32;
    __shared__ Part of_warps[2][WARPS], of_blocks[2][CLUSTER];  // of even and of odd rows, so that one barrier a row is enough
    const auto cluster = cg::this_cluster();
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, rank = CLUSTER == 1 ? 0 : blockIdx.x % CLUSTER, id = blockIdx.x / CLUSTER;
    const int slice = (C + CLUSTER * N - 1) / (CLUSTER * N) * N, first = min(C, rank * slice), mine = min(C, first + slice) - first;
    uint4* const weights = held + STAGES * 2 * PIECES * THREADS;
    float4* const sums_w = reinterpret_cast<float4*>(weights + (WEIGHT ? PIECES * THREADS : 0));
    float4* const sums_b = sums_w + (WEIGHT ? PIECES * QUADS * THREADS : 0);

    const auto at = [&](int i) { return (i * THREADS + tid) * N; };  // column within the slice
    const auto slot = [&](int stage, int which, int i) { return held + ((stage * 2 + which) * PIECES + i) * THREADS + tid; };
    const auto fetch = [&](int stage, long long row) {
        if (row < R) {
#pragma unroll
            for (int i = 0; i < PIECES; ++i) {
                if (at(i) >= mine) continue;
                __pipeline_memcpy_async(slot(stage, 0, i), s + row * ss + first + at(i), 16);
                __pipeline_memcpy_async(slot(stage, 1, i), dy + row * dys + first + at(i), 16);
            }
        }
        __pipeline_commit();
    };
    const auto elements = [&](int warp) {
        int n = 0;
#pragma unroll
        for (int i = 0; i < PIECES; ++i) n += max(0, min(mine - (i * THREADS + warp * 32) * N, 32 * N));
        return static_cast<float>(n);
    };
    for (int stage = 0; stage < STAGES; ++stage) fetch(stage, id + static_cast<long long>(stage) * clusters);
    const float4 nought = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
        if (WEIGHT) weights[i * THREADS + tid] = at(i) < mine ? P::load(w + first + at(i), true) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int q = 0; q < QUADS; ++q) {
            if (WEIGHT) sums_w[(i * QUADS + q) * THREADS + tid] = nought;
            if (BIAS) sums_b[(i * QUADS + q) * THREADS + tid] = nought;
        }
    }
    const float of_lane = lane < WARPS ? elements(lane) : 0, of_warp = elements(warp);
    const float of_rank = lane < CLUSTER ? static_cast<float>(max(0, min(C - lane * slice, slice))) : 0;
    if (CLUSTER > 1) cluster.sync();  // all blocks have started

    int step = 0, stage = 0;
    for (int row = id; row < R; row += clusters, step ^= 1) {
        uint4 a[PIECES], g[PIECES], second[PIECES];
        __pipeline_wait_prior(STAGES - 1);
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            const bool there = at(i) < mine;
            a[i] = there ? *slot(stage, 0, i) : make_uint4(0, 0, 0, 0);
            g[i] = there ? *slot(stage, 1, i) : make_uint4(0, 0, 0, 0);
        }
        fetch(stage, row + static_cast<long long>(STAGES) * clusters);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        if (SECOND) {
#pragma unroll
            for (int i = 0; i < PIECES; ++i) second[i] = at(i) < mine ? P::load(ds + row * dss + first + at(i), true) : make_uint4(0, 0, 0, 0);
        }

        float v[N], h[N], k[N];
        Part part = {0, 0, 0, 0};
        if (CENTRE) {
#pragma unroll
            for (int i = 0; i < PIECES; ++i) {
                P::widen(a[i], v);
#pragma unroll
                for (int j = 0; j < N; ++j) part.mean += v[j];
            }
            part.mean = over(warp_sum(part.mean), fmaxf(of_warp, 1));
        }
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            if (CENTRE && at(i) >= mine) continue;
            P::widen(a[i], v), P::widen(g[i], h);
            if (WEIGHT) P::widen(weights[i * THREADS + tid], k);
#pragma unroll
            for (int j = 0; j < N; ++j) {
                const float off = v[j] - part.mean, gw = WEIGHT ? h[j] * k[j] : h[j];
                part.squares += off * off;
                part.products += gw * off;
                if (CENTRE) part.g += gw;
            }
        }
        part.squares = warp_sum(part.squares);
        part.products = warp_sum(part.products);
        if (CENTRE) part.g = warp_sum(part.g);
        if (lane == 0) of_warps[step][warp] = part;
        __syncthreads();
        Part all;
        if (CLUSTER == 1 || warp == 0) {  // alone in its cluster, every warp for itself
            const Part one = lane < WARPS ? of_warps[step][lane] : Part{0, 0, 0, 0};
            all = fold<CENTRE>(one, of_lane, fmaxf(static_cast<float>(mine), 1));
        }
        if (CLUSTER > 1) {
            if (warp == 0 && lane < CLUSTER) *cluster.map_shared_rank(&of_blocks[step][rank], lane) = all;
            cluster.sync();
            all = fold<CENTRE>(lane < CLUSTER ? of_blocks[step][lane] : Part{0, 0, 0, 0}, of_rank, C);
        }
        const float scale = reciprocal_root(over(all.squares, C) + eps), along = over(all.products * scale, C), level = CENTRE ? over(all.g, C) : 0;

#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            if (at(i) >= mine) continue;
            float d[N];
            P::widen(a[i], v), P::widen(g[i], h);
            if (WEIGHT) P::widen(weights[i * THREADS + tid], k);
            if (SECOND) P::widen(second[i], d);
#pragma unroll
            for (int q = 0; q < QUADS; ++q) {
                float4* const sum_w = sums_w + (i * QUADS + q) * THREADS + tid;
                float4* const sum_b = sums_b + (i * QUADS + q) * THREADS + tid;
                float of_w[4], of_b[4];
                if (WEIGHT) *reinterpret_cast<float4*>(of_w) = *sum_w;
                if (BIAS) *reinterpret_cast<float4*>(of_b) = *sum_b;
#pragma unroll
                for (int l = 0; l < 4; ++l) {
                    const int j = q * 4 + l;
                    const float unit = (v[j] - all.mean) * scale, gw = WEIGHT ? h[j] * k[j] : h[j];
                    if (WEIGHT) of_w[l] += h[j] * unit;
                    if (BIAS) of_b[l] += h[j];
                    const float found = scale * (gw - unit * along - level);
                    d[j] = SECOND ? found + d[j] : found;
                }
                if (WEIGHT) *sum_w = *reinterpret_cast<float4*>(of_w);
                if (BIAS) *sum_b = *reinterpret_cast<float4*>(of_b);
            }
            P::store(dx + row * dxs + first + at(i), true, P::narrow(d));
        }
    }
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
        if (at(i) >= mine) continue;
#pragma unroll
        for (int q = 0; q < QUADS; ++q) {
            const long long to = static_cast<long long>(id) * C + first + at(i) + q * 4;
            if (WEIGHT) *reinterpret_cast<float4*>(pw + to) = sums_w[(i * QUADS + q) * THREADS + tid];
            if (BIAS) *reinterpret_cast<float4*>(pb + to) = sums_b[(i * QUADS + q) * THREADS + tid];
        }
    }
}

/// The sums of `count` partial rows of dweight and of dbias (either may be absent: null), always in the same order. A block of 32 × 32
/// threads takes 32 columns of one of them.
template <typename T>
__global__ void __launch_bounds__(1024)
    norm_columns(int count, int C, const float* __restrict__ pw, T* __restrict__ dw, const float* __restrict__ pb, T* __restrict__ db) {
    __shared__ float sums[32][33];
    const bool of_weight = dw && blockIdx.y == 0;
    const float* parts = of_weight ? pw : pb;
    T* to = of_weight ? dw : db;
    const int column = blockIdx.x * 32 + threadIdx.x;
    float sum = 0;
    if (column < C) {
#pragma unroll 8
        for (int k = threadIdx.y; k < count; k += 32) sum += parts[static_cast<long long>(k) * C + column];
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    sum = warp_sum(sums[threadIdx.x][threadIdx.y]);
    if (threadIdx.x == 0 && blockIdx.x * 32 + threadIdx.y < C) to[blockIdx.x * 32 + threadIdx.y] = T(sum);
}
