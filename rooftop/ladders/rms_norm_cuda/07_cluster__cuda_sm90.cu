/* rooftop
idea    = "A row is divided among the blocks of a cluster: each block holds its part in shared memory, and its warps store their sums into the shared memory of all blocks of the cluster (distributed shared memory). Rows may be sixteen times as long and are still read once; and the parts of a long row are small enough for several blocks per multiprocessor. Up to 96 KiB nothing is gained: rows of up to 32 KiB take one block, as in rung 06, and at 32768 columns of bf16 four blocks of 32 KiB have as many bytes in flight as two of 64."
predict = { speedup = 1.0, reads = 2 }
limit   = "Not timed yet. A block that has summed its part waits for the slowest of its cluster, and the loads of the next row start only when a block ends. Long rows read the weight again from L2."
dtypes  = ["f32", "bf16"]
demands = { has = ["LDGSTS.E.128", "STG.E.128"], spills = 0 }
args   = ["R: i64", "C: u32", "x: T[R, C]", "xs: i64 = stride(x, 0)", "weight: T[C]?", "y: T[R, C]", "ys: i64 = stride(y, 0)", "eps: f32"]

[requires]
"not present(residual) and not present(bias)" = "this rung adds nothing before and nothing after"
"C * bytes(x) <= 1572864" = "a row must fit the shared memory of sixteen blocks"

[config]
threads = 512
cluster = 16

[[choice]]
when    = "C * bytes(x) <= 8192"
threads = 128
cluster = 1

[[choice]]
when    = "C * bytes(x) <= 16384"
threads = 256
cluster = 1

[[choice]]
when    = "C * bytes(x) <= 32768"
cluster = 1

[[choice]]
when    = "C * bytes(x) <= 65536"
cluster = 2

[[choice]]
when    = "C * bytes(x) <= 131072"
cluster = 4

[[choice]]
when    = "C * bytes(x) <= 524288"
cluster = 8

[[launch]]
kernel  = "rms_norm<{T}, {threads}, {cluster}>"
grid    = ["R * cluster"]
block   = ["threads"]
cluster = ["cluster"]
shared  = "16 * ceil(ceil(C * bytes(x) / 16) / cluster)"
*/
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_pipeline.h>

namespace cg = cooperative_groups;

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

template <typename T, int THREADS, int CLUSTER>
__global__ void __launch_bounds__(THREADS)
    rms_norm(long long R, unsigned C, const T* __restrict__ x, long long xs, const T* __restrict__ w, T* __restrict__ y, long long ys, float eps) {
    using P = Pack<T>;
    constexpr int WARPS = THREADS / 32, PARTS = WARPS * CLUSTER;
    __shared__ float parts[PARTS];  // of every warp of the cluster; every block has all of them
    P* const held = reinterpret_cast<P*>(memory);
    const auto cluster = cg::this_cluster();
    const unsigned tid = threadIdx.x, rank = blockIdx.x % CLUSTER, all = (C + P::N - 1) / P::N, each = (all + CLUSTER - 1) / CLUSTER;
    const unsigned first = min(rank * each, all), packs = min(each, all - first);
    x += blockIdx.x / CLUSTER * xs;
    y += blockIdx.x / CLUSTER * ys;
    const auto bits = [](const void* p) { return reinterpret_cast<unsigned long long>(p); };
    const bool aligned = (bits(x) | bits(y) | bits(w)) % 16 == 0;

    for (unsigned k = tid; k < packs; k += THREADS) {
        const unsigned c = (first + k) * P::N;
        if (aligned && c + P::N <= C) {
            __pipeline_memcpy_async(held + k, x + c, 16);
        } else {
#pragma unroll
            for (int j = 0; j < P::N; ++j) held[k].v[j] = c + j < C ? x[c + j] : T(0.0f);
        }
    }
    __pipeline_commit();
    if (CLUSTER > 1) cluster.barrier_arrive();  // after the matching wait all blocks are known to have started
    __pipeline_wait_prior(0);

    float s = 0;
    for (unsigned k = tid; k < packs; k += THREADS) {
        const P v = held[k];
#pragma unroll
        for (int j = 0; j < P::N; ++j) s += static_cast<float>(v.v[j]) * static_cast<float>(v.v[j]);
    }
    s = warp_sum(s);
    if (CLUSTER > 1) {
        cluster.barrier_wait();
        if (tid % 32 < CLUSTER) *cluster.map_shared_rank(&parts[rank * WARPS + tid / 32], tid % 32) = s;
        cluster.sync();
    } else {
        if (tid % 32 == 0) parts[tid / 32] = s;
        __syncthreads();
    }
    s = 0;
    for (int i = tid % 32; i < PARTS; i += 32) s += parts[i];
    const float scale = 1 / sqrtf(warp_sum(s) / C + eps);

    for (unsigned k = tid; k < packs; k += THREADS) {
        const unsigned c = (first + k) * P::N;
        const P v = held[k];
        if (aligned && c + P::N <= C) {
            P q;
            if (w) q = *reinterpret_cast<const P*>(w + c);
#pragma unroll
            for (int j = 0; j < P::N; ++j) q.v[j] = T(static_cast<float>(v.v[j]) * scale * (w ? static_cast<float>(q.v[j]) : 1));
            *reinterpret_cast<P*>(y + c) = q;
        } else {
#pragma unroll
            for (int j = 0; j < P::N; ++j)
                if (c + j < C) y[c + j] = T(static_cast<float>(v.v[j]) * scale * (w ? static_cast<float>(w[c + j]) : 1));
        }
    }
}
