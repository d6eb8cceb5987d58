/* rooftop
idea    = "Fewer instructions an element, and no slow rows. Two elements of 16 bits are one word: they are converted, compared and rounded together, and an exponential of a 16-bit result is two instructions (ex2.approx after one multiplication). A row that does not start on 16 bytes is a few single elements, up to the boundary and after the last whole pack, and packs between them, which are copied 16 bytes at a time as in any other row. Results are stored evict-first: nobody reads them again soon."
predict = { speedup = 1.04, reads = 1 }
limit   = "1.24 times as fast as rung 08 on an H200, where 1.04 was predicted: instructions were more of a limit than the memory. Now 1.05 times the time of a copy at 16 KiB a row. The blocks of a cluster wait for each other between reading and writing, and each kernel for the one before it to end."
dtypes  = ["f32", "bf16"]
args    = ["C: i32", "x: T[R, C, 1]", "xs: i64 = stride(x, 0)", "y: T[R, C, 1]", "ys: i64 = stride(y, 0)"]
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
#include <cuda_pipeline.h>
#include <math_constants.h>

#include "packs.cuh"

namespace cg = cooperative_groups;

constexpr float LOWEST = -3.402823466e38f;  // a row of only -inf ends as 0 / 0 = NaN, which is the contract

extern __shared__ __align__(128) uint4 held[];  // this block's packs of the row; a thread reads only what it copied itself

template <typename T, int THREADS, int CLUSTER, int BLOCKS>
__global__ void __launch_bounds__(THREADS, BLOCKS) softmax(int C, const T* __restrict__ x, long long xs, T* __restrict__ y, long long ys) {
    constexpr int N = Word<T>::N, PACK = 16 / sizeof(T), WARPS = THREADS / 32, PAIRS = WARPS * CLUSTER;
    __shared__ float2 pairs[PAIRS];  // (maximum, sum) of every warp of the cluster; every block has all of them
    const auto cluster = cg::this_cluster();
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, rank = blockIdx.x % CLUSTER;
    x += blockIdx.x / CLUSTER * xs;
    y += blockIdx.x / CLUSTER * ys;
    const Share<T, CLUSTER> share(x, C, rank);

    for (int k = tid; k < share.mine; k += THREADS) __pipeline_memcpy_async(held + k, x + share.first + k * PACK, 16);
    __pipeline_commit();
    if (CLUSTER > 1) cluster.barrier_arrive();  // after the matching wait all blocks are known to have started
    const float single = tid < share.singles ? static_cast<float>(x[share.single(tid)]) : -CUDART_INF_F;
    __pipeline_wait_prior(0);

    float f[N], m = fmaxf(LOWEST, single);
    for (int j = 0; j < N; ++j) f[j] = LOWEST;
    unsigned most = Word<T>::narrow(f);
    for (int k = tid; k < share.mine; k += THREADS) {
        const uint4 p = held[k];
        most = Word<T>::larger(most, Word<T>::larger(Word<T>::larger(p.x, p.y), Word<T>::larger(p.z, p.w)));
    }
    Word<T>::widen(most, f);
#pragma unroll
    for (int j = 0; j < N; ++j) m = fmaxf(m, f[j]);
    m = warp_max(m);
    float s = exponential<T>(single - m);
    for (int k = tid; k < share.mine; k += THREADS) {
        const uint4 p = held[k];
        const unsigned w[4] = {p.x, p.y, p.z, p.w};
        float part = 0;  // a pack's sum first: a chain of sums of packs loses less than one of all elements
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            Word<T>::widen(w[i], f);
#pragma unroll
            for (int j = 0; j < N; ++j) part += exponential<T>(f[j] - m);
        }
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
    for (int i = lane; i < PAIRS; i += 32) m = fmaxf(m, pairs[i].x);
    m = warp_max(m);
    for (int i = lane; i < PAIRS; i += 32) s += pairs[i].y * exponential<T>(pairs[i].x - m);
    s = warp_sum(s);
    const float scale = 1 / s;

    T* const to = y + share.first;
    const bool together = aligned(to);
    for (int k = tid; k < share.mine; k += THREADS) {
        const uint4 p = held[k];
        unsigned w[4] = {p.x, p.y, p.z, p.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            Word<T>::widen(w[i], f);
#pragma unroll
            for (int j = 0; j < N; ++j) f[j] = quotient<T>(exponential<T>(f[j] - m), s, scale);
            w[i] = Word<T>::narrow(f);
        }
        Pack<T>::store(to + k * PACK, together, make_uint4(w[0], w[1], w[2], w[3]));
    }
    if (tid < share.singles) y[share.single(tid)] = T(quotient<T>(exponential<T>(single - m), s, scale));
}
