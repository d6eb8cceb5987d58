/* rooftop
ops     = ["softmax", "softmax_bwd", "log_softmax", "log_softmax_bwd"]
idea    = """A row, of x or of y and dy, is divided among the 1 to 16 blocks of a cluster and copied to their shared memory by cp.async, \
  which needs no registers: it is read once, and two or more resident blocks a multiprocessor keep the memory busy. Each warp writes one \
  pair (max, sum), or its part of the sum of y dy, to the shared memory of every block of its cluster; after one cluster barrier every warp \
  combines all of them."""
limit   = """As fast as a copy up to 32 KiB a row, the backward at all lengths; longer rows of the forward are 1 to 3 % slower on an H100, \
  5 to 15 % on an H200, whatever the number of warps: blocks of a cluster wait for each other between reading and writing."""
dtypes  = ["f32", "f16", "bf16"]
demands = { has = ["LDGSTS.E.128", "LDS.128", "STG.E.128"], spills = 0 }
python  = ["choose", "configs"]
args = ["C: i32", "x: T[R, C, 1]", "xs: i64 = stride(x, 0)", "y: T[R, C, 1]", "ys: i64 = stride(y, 0)"]

[requires]
"C == 1 or stride(x, 1) == 1 and stride(y, 1) == 1" = "the elements of a row must be neighbours"
"C * bytes(x) <= 1800000" = "a row must fit the shared memory of sixteen blocks, two on a multiprocessor"

[config]
threads = 256
cluster = 1
blocks  = 3

[bwd]
args = [
    "C: i32", "dy: T[R, C, 1]", "gs: i64 = stride(dy, 0)", "y: T[R, C, 1]", "ys: i64 = stride(y, 0)", "dx: T[R, C, 1]",
    "xs: i64 = stride(dx, 0)",
]

[bwd.requires]
"C == 1 or stride(dy, 1) == 1 and stride(y, 1) == 1 and stride(dx, 1) == 1" = "the elements of a row must be neighbours"
"C * bytes(y) <= 900000" = "a row of dy and of y must fit the shared memory of sixteen blocks, two on a multiprocessor"

[[launch]]
kernel  = """softmax{'_bwd' if op == 'softmax_bwd' or op == 'log_softmax_bwd' else ''}<{T}, {threads}, {cluster}, {blocks}, \
  {op == 'log_softmax' or op == 'log_softmax_bwd'}>"""
grid    = ["R * cluster"]
block   = ["threads"]
pdl = true
cluster = ["cluster"]
shared  = "(128 if op == 'softmax' or op == 'log_softmax' else 256) * ceil(C * bytes(y) / (128 * cluster))"
*/
#include <cooperative_groups.h>
#include <cuda_pipeline.h>
#include <math_constants.h>

#include "pdl.cuh"
#include "packs.cuh"

namespace cg = cooperative_groups;

/// A block's share of a row (Share, words.cuh) in whole lines of 128 bytes, for rows that start on one: no two blocks of the cluster then
/// copy the same line.
template <typename T, int CLUSTER>
struct LineShare : Share<T, CLUSTER> {
    __device__ LineShare(const T* row, int C, int rank) : Share<T, CLUSTER>(row, C, rank) {
        const int each = ((this->packs + CLUSTER - 1) / CLUSTER + 7) / 8 * 8, start = min(this->packs, rank * each);
        this->first = this->head + start * this->PACK;
        this->mine = min(this->packs - start, each);
    }
};

// The identity of the maximum. With -inf, a warp that has only -inf would give -inf - -inf = NaN, also in rows that have finite elements;
// with the lowest finite number such a warp adds exp(-inf) = 0, and a row of only -inf ends as 0 / 0.
constexpr float LOWEST = -3.402823466e38f;

// Aligned to 128 bytes: with a less aligned destination, asynchronous copies request each line two or three times from the L2
// (docs/persistent.md).
extern __shared__ __align__(128) uint4 held[];  // this block's packs, of y before those of dy; each thread reads only what it copied itself

/// Softmax, or its logarithm.
template <typename T, int THREADS, int CLUSTER, int BLOCKS, bool LOG>
__global__ void __launch_bounds__(THREADS, BLOCKS) softmax(int C, const T* __restrict__ x, long long xs, T* __restrict__ y, long long ys) {
    constexpr int N = Word<T>::N, PACK = 16 / sizeof(T), WARPS = THREADS / 32, PAIRS = WARPS * CLUSTER;
    __shared__ float2 pairs[PAIRS];  // (max, sum) of every warp of the cluster; every block has all of them
    const auto cluster = cg::this_cluster();
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const int rank = CLUSTER == 1 ? 0 : blockIdx.x % CLUSTER;
    const long long row = blockIdx.x / CLUSTER;
    x += row * xs;
    y += row * ys;
    const LineShare<T, CLUSTER> share(x, C, rank);

    const T* from = x + share.first;
    gdc_wait();
#pragma unroll 8
    for (int k = tid; k < share.mine; k += THREADS) __pipeline_memcpy_async(held + k, from + k * PACK, 16);
    __pipeline_commit();
    if (CLUSTER > 1) cluster.barrier_arrive();  // after the matching wait all blocks are known to have started
    const float single = tid < share.singles ? static_cast<float>(x[share.single(tid)]) : -CUDART_INF_F;
    __pipeline_wait_prior(0);

    float f[N];
#pragma unroll
    for (int j = 0; j < N; ++j) f[j] = LOWEST;
    unsigned most = Word<T>::narrow(f);
#pragma unroll 4
    for (int k = tid; k < share.mine; k += THREADS) {
        const uint4 p = held[k];
        most = Word<T>::larger(most, Word<T>::larger(Word<T>::larger(p.x, p.y), Word<T>::larger(p.z, p.w)));
    }
    Word<T>::widen(most, f);
    float m = fmaxf(LOWEST, single);
#pragma unroll
    for (int j = 0; j < N; ++j) m = fmaxf(m, f[j]);
    m = warp_max(m);
    float s = exponential<T>(single - m);
#pragma unroll 4
    for (int k = tid; k < share.mine; k += THREADS) {
        const uint4 p = held[k];
        const unsigned w[4] = {p.x, p.y, p.z, p.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            Word<T>::widen(w[i], f);
#pragma unroll
            for (int j = 0; j < N; ++j) s += exponential<T>(f[j] - m);
        }
    }
    s = warp_sum(s);

    if (CLUSTER > 1) {
        cluster.barrier_wait();
        if (lane < CLUSTER) *cluster.map_shared_rank(&pairs[rank * WARPS + warp], lane) = make_float2(m, s);
        cluster.sync();
    } else {
        if (lane == 0) pairs[warp] = make_float2(m, s);
        __syncthreads();
    }
    m = LOWEST;
#pragma unroll
    for (int i = lane; i < PAIRS; i += 32) m = fmaxf(m, pairs[i].x);
    m = warp_max(m);
    s = 0;
#pragma unroll
    for (int i = lane; i < PAIRS; i += 32) s += pairs[i].y * exponential<T>(pairs[i].x - m);
    s = warp_sum(s);
    const float scale = LOG ? logf(s) : 1 / s;

    T* to = y + share.first;
    const bool together = aligned(to);
#pragma unroll 4
    for (int k = tid; k < share.mine; k += THREADS) {
        const uint4 p = held[k];
        unsigned w[4] = {p.x, p.y, p.z, p.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            Word<T>::widen(w[i], f);
#pragma unroll
            for (int j = 0; j < N; ++j) f[j] = LOG ? f[j] - m - scale : quotient<T>(exponential<T>(f[j] - m), s, scale);
            w[i] = Word<T>::narrow(f);
        }
        if (together) {  // written once: evict-first in the L2
            __stcs(reinterpret_cast<uint4*>(to) + k, make_uint4(w[0], w[1], w[2], w[3]));
        } else {
#pragma unroll
            for (int j = 0; j < PACK; ++j) to[k * PACK + j] = reinterpret_cast<T*>(w)[j];
        }
    }
    if (tid < share.singles) y[share.single(tid)] = T(LOG ? single - m - scale : quotient<T>(exponential<T>(single - m), s, scale));
}

/// dx = y (dy - sum of dy y), or, of the logarithm, dx = dy - e^y sum of dy.
template <typename T, int THREADS, int CLUSTER, int BLOCKS, bool LOG>
__global__ void __launch_bounds__(THREADS, BLOCKS)
softmax_bwd(int C, const T* __restrict__ dy, long long gs, const T* __restrict__ y, long long ys, T* __restrict__ dx, long long xs) {
    constexpr int N = Word<T>::N, PACK = 16 / sizeof(T), WARPS = THREADS / 32, PARTS = WARPS * CLUSTER;
    __shared__ float parts[PARTS];  // of every warp of the cluster; every block has all of them
    const auto cluster = cg::this_cluster();
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const int rank = CLUSTER == 1 ? 0 : blockIdx.x % CLUSTER;
    const long long row = blockIdx.x / CLUSTER;
    dy += row * gs;
    y += row * ys;
    dx += row * xs;
    const LineShare<T, CLUSTER> share(y, C, rank);
    uint4 *held_y = held, *held_dy = held + share.mine;

    const T *from_y = y + share.first, *from_dy = dy + share.first;
    gdc_wait();
    if (aligned(from_dy)) {
#pragma unroll 4
        for (int k = tid; k < share.mine; k += THREADS) {
            __pipeline_memcpy_async(held_y + k, from_y + k * PACK, 16);
            __pipeline_memcpy_async(held_dy + k, from_dy + k * PACK, 16);
        }
    } else {
        for (int k = tid; k < share.mine; k += THREADS) {
            __pipeline_memcpy_async(held_y + k, from_y + k * PACK, 16);
            for (int j = 0; j < PACK; ++j) reinterpret_cast<T*>(held_dy + k)[j] = from_dy[k * PACK + j];
        }
    }
    __pipeline_commit();
    if (CLUSTER > 1) cluster.barrier_arrive();  // after the matching wait all blocks are known to have started
    const bool has_single = tid < share.singles;
    const float single_y = has_single ? static_cast<float>(y[share.single(tid)]) : 0;
    const float single_dy = has_single ? static_cast<float>(dy[share.single(tid)]) : 0;
    __pipeline_wait_prior(0);

    float a[N], b[N], s = LOG ? single_dy : single_y * single_dy;
#pragma unroll 4
    for (int k = tid; k < share.mine; k += THREADS) {
        const uint4 p = held_y[k], q = held_dy[k];
        const unsigned v[4] = {p.x, p.y, p.z, p.w}, w[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            Word<T>::widen(v[i], a);
            Word<T>::widen(w[i], b);
#pragma unroll
            for (int j = 0; j < N; ++j) s += LOG ? b[j] : a[j] * b[j];
        }
    }
    s = warp_sum(s);

    if (CLUSTER > 1) {
        cluster.barrier_wait();
        if (lane < CLUSTER) *cluster.map_shared_rank(&parts[rank * WARPS + warp], lane) = s;
        cluster.sync();
    } else {
        if (lane == 0) parts[warp] = s;
        __syncthreads();
    }
    s = 0;
#pragma unroll
    for (int i = lane; i < PARTS; i += 32) s += parts[i];
    s = warp_sum(s);

    T* to = dx + share.first;
    const bool together = aligned(to);
#pragma unroll 4
    for (int k = tid; k < share.mine; k += THREADS) {
        const uint4 p = held_y[k], q = held_dy[k];
        unsigned v[4] = {p.x, p.y, p.z, p.w};
        const unsigned w[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            Word<T>::widen(v[i], a);
            Word<T>::widen(w[i], b);
#pragma unroll
            for (int j = 0; j < N; ++j) a[j] = LOG ? b[j] - exponential<T>(a[j]) * s : a[j] * (b[j] - s);
            v[i] = Word<T>::narrow(a);
        }
        if (together) {  // written once: evict-first in the L2
            __stcs(reinterpret_cast<uint4*>(to) + k, make_uint4(v[0], v[1], v[2], v[3]));
        } else {
#pragma unroll
            for (int j = 0; j < PACK; ++j) to[k * PACK + j] = reinterpret_cast<T*>(v)[j];
        }
    }
    if (has_single) dx[share.single(tid)] = T(LOG ? single_dy - exponential<T>(single_y) * s : single_y * (single_dy - s));
}
