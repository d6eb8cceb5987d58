/* rooftop
idea    = """Clusters of blocks live for the whole launch and loop over rows (as norm_persistent, norms__cuda_sm90.cu). A ring in the shared \
  memory of a block holds its slice of three or four rows, filled by cp.async; while the maxima and sums of row k travel between the blocks \
  (st.async, counted by an mbarrier), row k - 1 is stored and a further row is requested. So neither the exchange nor the arithmetic stops \
  the memory, and no cluster starts or ends while rows are left."""
predict = { speedup = 1.12 }
limit   = "Odd rows are slower than in clusters that end with their row: several runs of rows, between which the ring runs empty."
dtypes  = ["f32", "f16", "bf16"]
args    = ["R: i32", "C: i32", "x: T[R, C, 1]", "xs: i64 = stride(x, 0)", "y: T[R, C, 1]", "ys: i64 = stride(y, 0)"]
demands = { has = ["LDGSTS.E.128", "LDS.128", "STG.E.128"], spills = 0 }
python  = ["supports", "choose", "configs", "launches"]
valid   = "threads > 0"

[requires]
"C == 1 or stride(x, 1) == 1 and stride(y, 1) == 1" = "the elements of a row must be neighbours"

[config]
cluster = 1
blocks  = 1
threads = 0
pieces  = 4
stages  = 3
*/
#include <cooperative_groups.h>
#include <cuda_pipeline.h>
#include <math_constants.h>

#include "pdl.cuh"
#include "_same_alignment.cuh"

// The identity of the maximum: with -inf, a warp that has only -inf would give -inf - -inf = NaN, also in rows that have finite elements.
constexpr float LOWEST = -3.402823466e38f;

extern __shared__ __align__(128) uint4 held[];  // STAGES slices of rows; a thread reads only what it copied itself

/// The largest element of a part of a row, at least LOWEST, and the sum of e^(v - most) over it.
struct alignas(8) Peak {
    float most, sum;
};

/// Combines the parts that LANES neighbouring lanes hold, in all of them.
template <typename T, int LANES>
__device__ Peak whole_of(const Peak& part) {
    float most = part.most;
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    float sum = part.sum * exponential<T>(part.most - most);
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    return {most, sum};
}

/// The grid is `clusters` clusters, as many as are resident at once. FIT, PIECES: cluster_slices.cuh; RUNS, period: _same_alignment.cuh.
template <typename T, int PIECES, int THREADS, int CLUSTER, int BLOCKS, int STAGES, int FIT, bool RUNS>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    softmax_ring(int R, int C, int clusters, int period, const T* __restrict__ x, long long xs, T* __restrict__ y, long long ys) {
    using P = Pack<T>;
    using W = Word<T>;
    using Packs = Slice<T, PIECES, THREADS, CLUSTER, FIT>;
    using Parts = Exchange<Peak, THREADS, CLUSTER>;
    constexpr int N = P::N, STAGE = Packs::SLOTS;
    __shared__ typename Parts::Shared shared;
    const int tid = threadIdx.x, lane = tid % 32, rank = CLUSTER == 1 ? 0 : blockIdx.x % CLUSTER, id = blockIdx.x / CLUSTER;
    Runs run(R, RUNS ? period : 1, clusters, id);
    Packs slice(C, Packs::EDGE ? beyond(x + run.first * xs) : 0, rank);
    const T* const end = x + (R - 1) * xs + C;
    const T* next;  // the next row to fetch

    const auto slots = [&](int at) { return [=](int i) { return held + at + tid + i * THREADS; }; };
    const auto fetch = [&](int at, int k) {
        if (k < run.count) slice.fetch(slots(at), next, x, end);
        next += run.step * xs;
        __pipeline_commit();
    };
    const auto fill = [&] {  // the ring, with the first rows of the run
        next = x + run.first * xs - slice.shift;
        for (int k = 0; k + 1 < STAGES; ++k) fetch(k * STAGE, k);
    };
    const auto of_warps = [&](Peak p) { return whole_of<T, 32>(lane < Parts::WARPS ? p : Peak{LOWEST, 0}); };
    gdc_wait();
    fill();
    Parts parts(shared, rank);
    do {
        T* to = y + run.first * ys - slice.shift;
        int previous = (STAGES - 1) * STAGE, current = 0;  // ring offsets: of row k - 1, which the next fetch overwrites, and of row k
        Peak gathered = {LOWEST, 0};
        for (int k = 0; k <= run.count; ++k) {
            if (k < run.count) {
                __pipeline_wait_prior(STAGES - 2);
                const auto at = slots(current);
                float f[W::N];
#pragma unroll
                for (int j = 0; j < W::N; ++j) f[j] = LOWEST;
                unsigned top = W::narrow(f);
#pragma unroll
                for (int i = 0; i < PIECES; ++i) {
                    if (!slice.has(i)) continue;
                    const uint4 p = *at(i);
                    top = W::larger(top, W::larger(W::larger(p.x, p.y), W::larger(p.z, p.w)));
                }
                if (slice.EDGE && tid < 32) __syncwarp();
                const float single = slice.has_edge() ? static_cast<float>(slice.edge(at(0))) : -CUDART_INF_F;
                W::widen(top, f);
                float most = fmaxf(LOWEST, single);
#pragma unroll
                for (int j = 0; j < W::N; ++j) most = fmaxf(most, f[j]);
                most = warp_max(most);
                float sums[2] = {exponential<T>(single - most), 0};
#pragma unroll
                for (int i = 0; i < PIECES; ++i) {
                    if (!slice.has(i)) continue;
                    float v[N];
                    P::widen(*at(i), v);
#pragma unroll
                    for (int j = 0; j < N; ++j) sums[j % 2] += exponential<T>(v[j] - most);
                }
                parts.post(run.done + k, Peak{most, warp_sum(sums[0] + sums[1])}, of_warps);
            }
            if (k > 0) {
                const Peak all = CLUSTER == 1 ? of_warps(gathered) : whole_of<T, CLUSTER>(gathered);
                const float scale = 1 / all.sum;
                const auto result = [&](float v) { return quotient<T>(exponential<T>(v - all.most), all.sum, scale); };
                const auto at = slots(previous);
#pragma unroll
                for (int i = 0; i < PIECES; ++i) {
                    if (!slice.has(i)) continue;
                    float v[N];
                    P::widen(*at(i), v);
#pragma unroll
                    for (int j = 0; j < N; ++j) v[j] = result(v[j]);
                    slice.store(to, i, P::narrow(v));
                }
                if (slice.has_edge()) (to + slice.shift)[slice.at_edge()] = T(result(static_cast<float>(slice.edge(at(0)))));
                to += run.step * ys;
            }
            fetch(previous, k + STAGES - 1);
            if (k < run.count) gathered = parts.wait(run.done + k);
            previous = current;
            current = current < (STAGES - 1) * STAGE ? current + STAGE : 0;
        }
        if (!RUNS || !run.next()) return;
        slice = Packs(C, beyond(x + run.first * xs), rank);
        fill();
    } while (true);
}
