/* rooftop
idea    = "Clusters are persistent: as many as are resident at once, and each loops over rows. So a thread reads its part of the weight once, into shared memory, instead of once a row from L2. Beside them is a ring of three rows, filled by cp.async two rows ahead: copies are in flight while a row is summed, exchanged and stored. A thread reads only what it copied itself, so that the ring needs no barrier."
predict = { speedup = 1.0 }
limit   = "Each row has its cluster barrier, for which all earlier stores must be finished, and between the barrier and the sums nothing is stored. Multiprocessors get unequal shares of the memory bandwidth, and rows are dealt out beforehand. Measured on an H200: 0.78 of the speed of the rung before, where nothing was to be lost; long rows lose most (131072 columns: 0.62 to 0.75). A cluster that ends is replaced by one that has begun to load; a persistent one waits at its barrier with nothing of the next row stored."
dtypes  = ["f32", "bf16"]
demands = { has = ["LDGSTS.E.128", "STG.E.128"], spills = 0 }
args    = ["R: i32", "C: i32", "x: T[R, C]", "xs: i64 = stride(x, 0)", "weight: T[C]?", "y: T[R, C]", "ys: i64 = stride(y, 0)", "eps: f32"]

[let]
threads = "32 * max(1, ceil(C * bytes(x) / (512 * cluster * pieces)))"
clusters = "min(R, sms * blocks // cluster if cluster <= 2 else sms * blocks * 23 // (25 * cluster))"

[requires]
"R > 0" = "there must be a row"
"not present(residual) and not present(bias)" = "this rung adds nothing before and nothing after"
"C * bytes(x) <= 524288" = "a cluster of sixteen must hold three parts of a row and one of the weight"
"C * bytes(x) % 16 == 0 and starts(x, 16) and starts(y, 16)" = "rows must be whole packs of 16 bytes and start on one"
"not present(weight) or starts(weight, 16)" = "the weight must start on 16 bytes"

[config]
cluster = 16
pieces  = 4
blocks  = 1

[[choice]]
when    = "C * bytes(x) <= 4096"
cluster = 1
pieces  = 2
blocks  = 8

[[choice]]
when    = "C * bytes(x) <= 8192"
cluster = 1
blocks  = 4

[[choice]]
when    = "C * bytes(x) <= 16384"
cluster = 1
blocks  = 3

[[choice]]
when    = "C * bytes(x) <= 32768"
cluster = 1

[[choice]]
when    = "C * bytes(x) <= 65536"
cluster = 4
blocks  = 2

[[choice]]
when    = "C * bytes(x) <= 131072"
cluster = 4

[[choice]]
when    = "C * bytes(x) <= 262144"
cluster = 8

[[launch]]
kernel  = "rms_norm<{T}, {pieces}, {threads}, {cluster}, {blocks}>"
grid    = ["clusters * cluster"]
block   = ["threads"]
cluster = ["cluster"]
shared  = "16 * pieces * threads * 4"
*/
#include <cooperative_groups.h>

#include "cluster_slices.cuh"

namespace cg = cooperative_groups;

constexpr int STAGES = 3;  // rows of the ring

extern __shared__ __align__(128) uint4 held[];  // the ring, then the weight; a thread reads only what it copied itself

template <typename T, int PIECES, int THREADS, int CLUSTER, int BLOCKS>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    rms_norm(int R, int C, const T* __restrict__ x, long long xs, const T* __restrict__ w, T* __restrict__ y, long long ys, float eps) {
    using P = Pack<T>;
    using Packs = Slice<T, PIECES, THREADS, CLUSTER, ALIGNED>;
    constexpr int N = P::N, SLOTS = Packs::SLOTS, WARPS = THREADS / 32, PARTS = WARPS * CLUSTER;
    __shared__ float parts[2][PARTS];  // the squares of every warp of the cluster, for even and for odd rows; every block has all of them
    const auto cluster = cg::this_cluster();
    const int tid = threadIdx.x, rank = blockIdx.x % CLUSTER, clusters = gridDim.x / CLUSTER;
    const Packs slice(C, 0, rank);
    const auto slot = [&](int stage) { return [=](int i) { return held + stage * SLOTS + i * THREADS + tid; }; };
    const auto fetch = [&](int stage, long long row) {
        if (row < R) slice.fetch(slot(stage), x + row * xs, x, x + (R - 1) * xs + C);
        __pipeline_commit();
    };
    if (w) slice.keep(slot(STAGES), w);
    long long row = blockIdx.x / CLUSTER;
    for (int k = 0; k + 1 < STAGES; ++k) fetch(k, row + k * clusters);
    if (CLUSTER > 1) cluster.sync();  // all blocks have started

    int stage = 0;
    for (int k = 0; row < R; row += clusters, ++k) {
        const int free = stage == 0 ? STAGES - 1 : stage - 1;  // that of the row before
        fetch(free, row + (STAGES - 1) * clusters);
        __pipeline_wait_prior(STAGES - 1);
        float f[N], g[N];
        float s = 0;
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            if (!slice.has(i)) continue;
            P::widen(*slot(stage)(i), f);
#pragma unroll
            for (int j = 0; j < N; ++j) s += f[j] * f[j];
        }
        s = warp_sum(s);
        float* const all = parts[k % 2];
        if (CLUSTER > 1) {
            if (tid % 32 < CLUSTER) *cluster.map_shared_rank(&all[rank * WARPS + tid / 32], tid % 32) = s;
            cluster.sync();
        } else {
            if (tid % 32 == 0) all[tid / 32] = s;
            __syncthreads();
        }
        s = 0;  // every warp adds them for itself
        for (int i = tid % 32; i < PARTS; i += 32) s += all[i];
        const float scale = 1 / sqrtf(warp_sum(s) / C + eps);
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            if (!slice.has(i)) continue;
            P::widen(*slot(stage)(i), f);
#pragma unroll
            for (int j = 0; j < N; ++j) f[j] *= scale;
            if (w) {
                P::widen(*slot(STAGES)(i), g);
#pragma unroll
                for (int j = 0; j < N; ++j) f[j] *= g[j];
            }
            slice.store(y + row * ys, i, P::narrow(f));
        }
        stage = stage + 1 < STAGES ? stage + 1 : 0;
    }
    if (CLUSTER > 1) cluster.sync();  // nobody ends while others may still write to it
}
