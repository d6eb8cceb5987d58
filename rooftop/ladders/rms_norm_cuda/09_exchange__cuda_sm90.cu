/* rooftop
idea    = "The exchange of the statistics is no barrier: one warp of a block combines the parts of its warps and sends one part to every block of the cluster (st.async), whose mbarrier counts the bytes that have arrived. A row waits for nothing but its own statistics, and while they travel the row before is normalised and stored."
predict = { speedup = 1.02 }
limit   = "Multiprocessors get unequal shares of the memory bandwidth, and rows are dealt out beforehand (docs/persistent.md). At 8192 columns a block that ends and is replaced does as well. Measured: 1.29 times the rung before instead of 1.02, since that one had lost more to its barrier than was predicted; against the clusters of rung 07 it is 1.0 up to 32768 columns and 1.07 to 1.11 times at 131072."
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
#include "_moments.cuh"
#include "cluster_slices.cuh"

constexpr int STAGES = 3;  // rows of the ring

extern __shared__ __align__(128) uint4 held[];  // the ring, then the weight; a thread reads only what it copied itself

template <typename T, int PIECES, int THREADS, int CLUSTER, int BLOCKS>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    rms_norm(int R, int C, const T* __restrict__ x, long long xs, const T* __restrict__ w, T* __restrict__ y, long long ys, float eps) {
    using P = Pack<T>;
    using Packs = Slice<T, PIECES, THREADS, CLUSTER, ALIGNED>;
    using Parts = Exchange<Moments, THREADS, CLUSTER>;
    constexpr int N = P::N, SLOTS = Packs::SLOTS, LANES = lanes_for(THREADS / 32 > CLUSTER ? THREADS / 32 : CLUSTER);
    __shared__ typename Parts::Shared shared;
    const int tid = threadIdx.x, rank = blockIdx.x % CLUSTER, clusters = gridDim.x / CLUSTER;
    const Packs slice(C, 0, rank);
    const auto slot = [&](int stage) { return [=](int i) { return held + stage * SLOTS + i * THREADS + tid; }; };
    const auto fetch = [&](int stage, long long row) {
        if (row < R) slice.fetch(slot(stage), x + row * xs, x, x + (R - 1) * xs + C);
        __pipeline_commit();
    };
    if (w) slice.keep(slot(STAGES), w);
    const long long first = blockIdx.x / CLUSTER;
    const int count = first < R ? static_cast<int>((R - first + clusters - 1) / clusters) : 0;
    for (int k = 0; k + 1 < STAGES; ++k) fetch(k, first + k * clusters);
    Parts parts(shared, rank);
    Moments gathered = {};
    int stage = 0, before = STAGES - 1;  // of row k, and of the row before
    for (int k = 0; k <= count; ++k) {
        float f[N], g[N];
        if (k < count) {
            __pipeline_wait_prior(STAGES - 2);
            Moments part = {0, 0};
#pragma unroll
            for (int i = 0; i < PIECES; ++i) {
                if (!slice.has(i)) continue;
                P::widen(*slot(stage)(i), f);
#pragma unroll
                for (int j = 0; j < N; ++j) part.squares += f[j] * f[j];
            }
            part.squares = warp_sum(part.squares);
            parts.post(k, part, [&](Moments p) { return Moments{0, lanes_sum<LANES>(p.squares)}; });
        }
        if (k > 0) {  // while these travel: the result of the row before
            const float scale = reciprocal_root(over(lanes_sum<CLUSTER == 1 ? 32 : CLUSTER>(gathered.squares), C) + eps);
#pragma unroll
            for (int i = 0; i < PIECES; ++i) {
                if (!slice.has(i)) continue;
                P::widen(*slot(before)(i), f);
#pragma unroll
                for (int j = 0; j < N; ++j) f[j] *= scale;
                if (w) {
                    P::widen(*slot(STAGES)(i), g);
#pragma unroll
                    for (int j = 0; j < N; ++j) f[j] *= g[j];
                }
                slice.store(y + (first + (k - 1LL) * clusters) * ys, i, P::narrow(f));
            }
        }
        fetch(before, first + (k + STAGES - 1LL) * clusters);
        if (k < count) gathered = parts.wait(k);
        before = stage;
        stage = stage + 1 < STAGES ? stage + 1 : 0;
    }
    if (CLUSTER > 1) cooperative_groups::this_cluster().sync();  // nobody ends while others may still write to it
}
