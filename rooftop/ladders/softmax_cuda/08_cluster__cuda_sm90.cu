/* rooftop
idea    = "A row is divided among the blocks of a cluster: each block holds its part in shared memory, and its warps store their pairs of maximum and sum into the shared memory of all blocks of the cluster (distributed shared memory). One exchange is enough: a warp takes its exponentials about its own maximum, and whoever combines the pairs rescales them. So rows that no block can hold (131072 columns) are read once. Nothing is gained at the headline: rows of up to 32 KiB take one block, as in rung 07."
predict = { speedup = 1.0, reads = 1 }
limit   = "A block that has summed its part waits for the slowest of its cluster, and the loads of the next row start only when a block ends. A row that does not start on 16 bytes is copied element by element."
dtypes  = ["f32", "bf16"]
args    = ["C: u32", "x: T[R, C, 1]", "xs: i64 = stride(x, 0)", "y: T[R, C, 1]", "ys: i64 = stride(y, 0)"]
demands = { has = ["LDGSTS.E.128", "STG.E.128"], spills = 0 }

[requires]
"C == 1 or stride(x, 1) == 1 and stride(y, 1) == 1" = "the elements of a row must be neighbours"
"C * bytes(x) <= 1572864" = "a row must fit the shared memory of sixteen blocks"

[config]
threads = 256
cluster = 16
blocks  = 2

[[choice]]
when    = "C * bytes(x) <= 8192"
threads = 128
cluster = 1
blocks  = 16

[[choice]]
when    = "C * bytes(x) <= 16384"
cluster = 1
blocks  = 8

[[choice]]
when    = "C * bytes(x) <= 32768"
threads = 512
cluster = 1
blocks  = 4

[[choice]]
when    = "C * bytes(x) <= 65536"
threads = 512
cluster = 1
blocks  = 3

[[choice]]
when    = "C * bytes(x) <= 131072"
cluster = 2
blocks  = 3

[[choice]]
when    = "C * bytes(x) <= 262144"
cluster = 4
blocks  = 3

[[choice]]
when    = "C * bytes(x) <= 524288"
cluster = 8
blocks  = 3

[[launch]]
kernel  = "softmax<{T}, {threads}, {cluster}, {blocks}>"
grid    = ["R * cluster"]
block   = ["threads"]
cluster = ["cluster"]
shared  = "16 * ceil(ceil(C * bytes(x) / 16) / cluster)"
*/
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_pipeline.h>
#include <math_constants.h>

namespace cg = cooperative_groups;

constexpr float LOWEST = -3.402823466e38f;  // a row of only -inf ends as 0 / 0 = NaN, which is the contract

__device__ float warp_max(float v) {
    for (int step = 16; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, step));
    return v;
}

__device__ float warp_sum(float v) {
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
    return v;
}

/// A pack: 16 bytes of a row, one vector access.
template <typename T>
struct alignas(16) Pack {
    static constexpr int N = 16 / sizeof(T);
    T v[N];
};

extern __shared__ __align__(128) unsigned char memory[];  // this block's part of the row; a thread reads only what it copied itself

template <typename T, int THREADS, int CLUSTER, int BLOCKS>
__global__ void __launch_bounds__(THREADS, BLOCKS) softmax(unsigned C, const T* __restrict__ x, long long xs, T* __restrict__ y, long long ys) {
    using P = Pack<T>;
    constexpr int WARPS = THREADS / 32, PAIRS = WARPS * CLUSTER;
    __shared__ float2 pairs[PAIRS];  // (maximum, sum) of every warp of the cluster; every block has all of them
    P* const held = reinterpret_cast<P*>(memory);
    const auto cluster = cg::this_cluster();
    const unsigned tid = threadIdx.x, lane = tid % 32, warp = tid / 32, rank = blockIdx.x % CLUSTER;
    const unsigned all = (C + P::N - 1) / P::N, each = (all + CLUSTER - 1) / CLUSTER, first = min(rank * each, all), packs = min(each, all - first);
    x += blockIdx.x / CLUSTER * xs;
    y += blockIdx.x / CLUSTER * ys;
    const bool aligned = (reinterpret_cast<unsigned long long>(x) | reinterpret_cast<unsigned long long>(y)) % 16 == 0;

    for (unsigned k = tid; k < packs; k += THREADS) {
        const unsigned c = (first + k) * P::N;
        if (aligned && c + P::N <= C) {
            __pipeline_memcpy_async(held + k, x + c, 16);
        } else {
#pragma unroll
            for (int j = 0; j < P::N; ++j) held[k].v[j] = c + j < C ? x[c + j] : T(-CUDART_INF_F);
        }
    }
    __pipeline_commit();
    if (CLUSTER > 1) cluster.barrier_arrive();  // after the matching wait all blocks are known to have started
    __pipeline_wait_prior(0);

    float m = LOWEST, s = 0;
    for (unsigned k = tid; k < packs; k += THREADS) {
        const P p = held[k];
#pragma unroll
        for (int j = 0; j < P::N; ++j) m = fmaxf(m, static_cast<float>(p.v[j]));
    }
    m = warp_max(m);
    for (unsigned k = tid; k < packs; k += THREADS) {
        const P p = held[k];
        float part = 0;  // a pack's sum first: a chain of sums of packs loses less than one of all elements
#pragma unroll
        for (int j = 0; j < P::N; ++j) part += expf(static_cast<float>(p.v[j]) - m);
        s += part;
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
    // Every warp combines the pairs for itself.
    m = LOWEST, s = 0;
    for (unsigned i = lane; i < PAIRS; i += 32) m = fmaxf(m, pairs[i].x);
    m = warp_max(m);
    for (unsigned i = lane; i < PAIRS; i += 32) s += pairs[i].y * expf(pairs[i].x - m);
    const float scale = 1 / warp_sum(s);

    for (unsigned k = tid; k < packs; k += THREADS) {
        const unsigned c = (first + k) * P::N;
        P p = held[k];
#pragma unroll
        for (int j = 0; j < P::N; ++j) p.v[j] = T(expf(static_cast<float>(p.v[j]) - m) * scale);
        if (aligned && c + P::N <= C) {
            *reinterpret_cast<P*>(y + c) = p;
        } else {
#pragma unroll
            for (int j = 0; j < P::N; ++j)
                if (c + j < C) y[c + j] = p.v[j];
        }
    }
}
