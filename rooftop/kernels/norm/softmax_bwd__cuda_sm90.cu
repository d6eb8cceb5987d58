/* rooftop
idea    = """A row of dy and of y is divided among the 1 to 16 blocks of a cluster and copied to their shared memory by cp.async: each is \
  read once. Each warp writes its part of sum(dy y) to the shared memory of every block of its cluster; after one cluster barrier every \
  warp adds the parts."""
limit   = "As fast as a copy of the same bytes."
dtypes  = ["f32", "f16", "bf16"]
args    = [
    "C: i32", "dy: T[R, C, 1]", "gs: i64 = stride(dy, 0)", "y: T[R, C, 1]", "ys: i64 = stride(y, 0)", "dx: T[R, C, 1]",
    "xs: i64 = stride(dx, 0)",
]
demands = { has = ["LDGSTS.E.128", "LDS.128", "STG.E.128"], spills = 0 }
python  = ["choose"]

[requires]
"C == 1 or stride(dy, 1) == 1 and stride(y, 1) == 1 and stride(dx, 1) == 1" = "the elements of a row must be neighbours"
"C * bytes(y) <= 900000" = "a row of dy and of y must fit the shared memory of sixteen blocks, two on a multiprocessor"

[config]
threads = 512
cluster = 1
blocks  = 3

[[launch]]
kernel  = "softmax_bwd<{T}, {threads}, {cluster}, {blocks}>"
grid    = ["R * cluster"]
block   = ["threads"]
chained = true
cluster = ["cluster"]
shared  = "256 * ceil(C * bytes(y) / (128 * cluster))"
*/
#include <cooperative_groups.h>
#include <cuda_pipeline.h>

#include "pdl.cuh"
#include "_line_share.cuh"

namespace cg = cooperative_groups;

// Aligned to 128 bytes: with a less aligned destination, asynchronous copies request each line two or three times from the L2
// (docs/persistent.md).
extern __shared__ __align__(128) uint4 held[];  // this block's packs of y, then those of dy; each thread reads only what it copied itself

template <typename T, int THREADS, int CLUSTER, int BLOCKS>
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

    float a[N], b[N], s = single_y * single_dy;
#pragma unroll 4
    for (int k = tid; k < share.mine; k += THREADS) {
        const uint4 p = held_y[k], q = held_dy[k];
        const unsigned v[4] = {p.x, p.y, p.z, p.w}, w[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            Word<T>::widen(v[i], a);
            Word<T>::widen(w[i], b);
#pragma unroll
            for (int j = 0; j < N; ++j) s += a[j] * b[j];
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
            for (int j = 0; j < N; ++j) a[j] *= b[j] - s;
            v[i] = Word<T>::narrow(a);
        }
        if (together) {  // written once: evict-first in the L2
            __stcs(reinterpret_cast<uint4*>(to) + k, make_uint4(v[0], v[1], v[2], v[3]));
        } else {
#pragma unroll
            for (int j = 0; j < PACK; ++j) to[k * PACK + j] = reinterpret_cast<T*>(v)[j];
        }
    }
    if (has_single) dx[share.single(tid)] = T(single_y * (single_dy - s));
}
