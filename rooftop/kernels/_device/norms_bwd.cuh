// The backward of rms_norm and layer_norm in CUDA C++, which differ in CENTRE alone.
#pragma once
#include <cooperative_groups.h>
#include <cuda_pipeline.h>

#include "packs.cuh"
#include "quotients.cuh"

namespace cg = cooperative_groups;

/// N elements of T as they lie in memory: a pack, or one element where rows start anywhere.
template <typename T, int N>
struct Raw {
    uint4 v;
    __device__ void load(const T* p) { v = *reinterpret_cast<const uint4*>(p); }
    __device__ void load_again(const T* p) {  // volatile: not to be taken out of the loop into registers
        asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    }
    __device__ void clear() { v = make_uint4(0, 0, 0, 0); }
    __device__ void widen(float (&f)[N]) const { Pack<T>::widen(v, f); }
    __device__ static void store(T* p, const float (&f)[N]) { __stcs(reinterpret_cast<uint4*>(p), Pack<T>::narrow(f)); }
};
template <typename T>
struct Raw<T, 1> {
    T v;
    __device__ void load(const T* p) { v = *p; }
    __device__ void load_again(const T* p) { v = *static_cast<const volatile T*>(p); }
    __device__ void clear() { v = T(0.0f); }
    __device__ void widen(float (&f)[1]) const { f[0] = static_cast<float>(v); }
    __device__ static void store(T* p, const float (&f)[1]) { *p = T(f[0]); }
};

/// A warp's part of a row: its elements, their mean and the sum of squares about it; backward: the sum of g, and of g times (s - mean).
struct Part {
    float n, mean, squares, g, products;
};

/// Every warp's part into the shared memory of every block of the cluster; then all have all.
template <int WARPS, int CLUSTER>
__device__ void share_parts(Part* parts, const Part& mine, int rank) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (CLUSTER > 1) {
        const auto cluster = cg::this_cluster();
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
    Part p = {static_cast<float>(C), 0, 0, 0, 0};
    if (CENTRE) {
#pragma unroll
        for (int i = lane; i < PARTS; i += 32) p.mean += parts[i].n * parts[i].mean;
        p.mean = over(warp_sum(p.mean), C);
    }
#pragma unroll
    for (int i = lane; i < PARTS; i += 32) {
        const float off = CENTRE ? parts[i].mean - p.mean : 0;
        p.squares += parts[i].squares + (CENTRE ? parts[i].n * off * off : 0);
        p.products += parts[i].products + (CENTRE ? parts[i].g * off : 0);
        if (CENTRE) p.g += parts[i].g;
    }
    p.squares = warp_sum(p.squares);
    p.products = warp_sum(p.products);
    if (CENTRE) p.g = warp_sum(p.g);
    return p;
}

extern __shared__ uint4 held[];  // rows on their way; each thread reads only what it copied itself

/// dx, and this cluster's part of dweight and dbias -> pw, pb[cluster, C]. A cluster walks over rows `clusters` apart. Each thread owns 16
/// columns: a row of s and dy in registers, its sums of dweight and dbias, and the next STAGES rows on their way to its own part of shared
/// memory (with N = 1, where rows start anywhere, one row on its way to registers).
template <typename T, int N, int THREADS, int CLUSTER, int BLOCKS, int STAGES, bool CENTRE, bool WEIGHT, bool BIAS, bool SECOND>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    norm_backward(int R, int C, int clusters, const T* __restrict__ dy, long long dys, const T* __restrict__ ds, long long dss,
                  const T* __restrict__ s, long long ss, const T* __restrict__ w, T* __restrict__ dx, long long dxs, float* __restrict__ pw,
                  float* __restrict__ pb, float eps) {
    using Held = Raw<T, N>;
    constexpr int PIECES = 16 / N, WARPS = THREADS / 32, PARTS = WARPS * CLUSTER;
    constexpr bool KEEP = sizeof(T) == 2 && N > 1 && THREADS <= 512;  // the weight in registers; else from the L1 each time
    __shared__ Part parts[2][PARTS];  // of even and of odd steps, so that one barrier a row is enough
    const int tid = threadIdx.x, rank = CLUSTER == 1 ? 0 : blockIdx.x % CLUSTER, id = blockIdx.x / CLUSTER;
    const int slice = (C + CLUSTER * N - 1) / (CLUSTER * N) * N, first = rank * slice, last = min(first + slice, C);

    const auto column = [&](int i) { return first + (i * THREADS + tid) * N; };
    const auto load = [&](Held(&to)[PIECES], const T* row) {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) column(i) < last ? to[i].load(row + column(i)) : to[i].clear();
    };
    const auto slot = [&](int stage, int which, int i) { return held + ((stage * 2 + which) * PIECES + i) * THREADS + tid; };
    const auto fetch = [&](int stage, long long row) {
        if (row < R) {
#pragma unroll
            for (int i = 0; i < PIECES; ++i) {
                if (column(i) >= last) continue;
                __pipeline_memcpy_async(slot(stage, 0, i), s + row * ss + column(i), 16);
                __pipeline_memcpy_async(slot(stage, 1, i), dy + row * dys + column(i), 16);
            }
        }
        __pipeline_commit();
    };
    Held a[PIECES], g[PIECES], next_a[PIECES], next_g[PIECES], weight[PIECES], second[PIECES];
    const auto weigh = [&](int i, float(&k)[N]) {
        if (!KEEP) weight[i].load_again(w + column(i));
        weight[i].widen(k);
    };
    float sum_w[PIECES][N] = {}, sum_b[PIECES][N] = {}, n = 0;
    if (WEIGHT && KEEP) load(weight, w);
    if (CENTRE) {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) n += column(i) < last ? N : 0;
        n = warp_sum(n);
    }
    if constexpr (N > 1) {
        for (int stage = 0; stage < STAGES; ++stage) fetch(stage, id + static_cast<long long>(stage) * clusters);
    } else {
        if (id < R) load(next_a, s + id * ss), load(next_g, dy + id * dys);
    }
    if (CLUSTER > 1) cg::this_cluster().sync();  // all blocks have started

    int step = 0, stage = 0;
    for (int row = id; row < R; row += clusters, step ^= 1) {
        if constexpr (N > 1) {
            __pipeline_wait_prior(STAGES - 1);
#pragma unroll
            for (int i = 0; i < PIECES; ++i) {
                if (column(i) < last) {
                    a[i].v = *slot(stage, 0, i), g[i].v = *slot(stage, 1, i);
                } else {
                    a[i].clear(), g[i].clear();
                }
            }
            fetch(stage, row + static_cast<long long>(STAGES) * clusters);
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        } else {
#pragma unroll
            for (int i = 0; i < PIECES; ++i) a[i] = next_a[i], g[i] = next_g[i];
            const long long next = static_cast<long long>(row) + clusters;
            if (next < R) load(next_a, s + next * ss), load(next_g, dy + next * dys);
        }
        if (SECOND) load(second, ds + row * dss);

        float v[N], h[N], k[N];
        Part part = {n, 0, 0, 0, 0};
        if (CENTRE) {
            float total = 0;
#pragma unroll
            for (int i = 0; i < PIECES; ++i) {
                a[i].widen(v);
#pragma unroll
                for (int j = 0; j < N; ++j) total += v[j];
            }
            total = warp_sum(total);
            part.mean = over(total, fmaxf(n, 1));
        }
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            if (column(i) >= last) continue;
            a[i].widen(v), g[i].widen(h);
            if (WEIGHT) weigh(i, k);
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
        share_parts<WARPS, CLUSTER>(parts[step], part, rank);
        const Part all = fold_parts<PARTS, CENTRE>(parts[step], C);
        const float scale = reciprocal_root(over(all.squares, C) + eps), along = over(all.products * scale, C), level = CENTRE ? over(all.g, C) : 0;

#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            if (column(i) >= last) continue;
            float d[N];
            a[i].widen(v), g[i].widen(h);
            if (WEIGHT) weigh(i, k);
            if (SECOND) second[i].widen(d);
#pragma unroll
            for (int j = 0; j < N; ++j) {
                const float unit = (v[j] - all.mean) * scale, gw = WEIGHT ? h[j] * k[j] : h[j];
                if (WEIGHT) sum_w[i][j] += h[j] * unit;
                if (BIAS) sum_b[i][j] += h[j];
                const float found = scale * (gw - unit * along - level);
                d[j] = SECOND ? found + d[j] : found;
            }
            Held::store(dx + row * dxs + column(i), d);
        }
    }
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
        if (column(i) >= last) continue;
#pragma unroll
        for (int j = 0; j < N; ++j) {
            if (WEIGHT) pw[static_cast<long long>(id) * C + column(i) + j] = sum_w[i][j];
            if (BIAS) pb[static_cast<long long>(id) * C + column(i) + j] = sum_b[i][j];
        }
    }
}

/// The sum of `count` partial rows, always in the same order; a block of 32 × 32 threads takes 32 columns.
template <typename T>
__global__ void __launch_bounds__(1024) norm_columns(int count, int C, const float* __restrict__ parts, T* __restrict__ to) {
    __shared__ float sums[32][33];
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
