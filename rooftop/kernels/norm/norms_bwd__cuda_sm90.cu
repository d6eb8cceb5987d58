/* rooftop
ops     = ["rms_norm_bwd", "layer_norm_bwd"]
idea    = """A persistent kernel: as many clusters of 1 to 16 blocks as are resident at once, each loops over rows. A thread owns the same \
  8 to 32 columns of every row. The weight and the prefetched rows are in shared memory, the sums of dweight and dbias there or in \
  registers: every row is read once, and all partial sums together are a few MiB. A row needs four sums, computed in one pass with the \
  thread's first element as pivot. While its parts travel between the blocks (st.async, counted by an mbarrier), the row before is \
  finished. If there are many partial rows for few rows, groups of blocks first add up theirs (distributed shared memory). A second launch \
  adds the partial rows in a fixed order, so the result is deterministic."""
predict = { speedup = 1.8 }
limit   = """Persistent blocks: multiprocessors get unequal shares of the memory bandwidth (docs/persistent.md). Unaligned rows: unless the \
  grid is a multiple of 8 or 16 clusters, the ring of a cluster runs empty one to three times. Few rows: prologue, epilogue and the second \
  launch."""
dtypes  = ["f32", "f16", "bf16"]
tensors = ["dweight: T[C]?", "dbias: T[C]?"]
args    = [
    "R: i32", "C: i32", "dy: T[R, C]", "dys: i64 = stride(dy, 0)", "ds: T[R, C]?", "dss: i64 = stride(ds, 0)", "s: T[R, C]",
    "ss: i64 = stride(s, 0)", "weight: T[C]?", "dx: T[R, C]", "dxs: i64 = stride(dx, 0)", "eps: f32",
]
demands = { has = ["LDGSTS.E.128", "STG.E.128"], spills = 0 }
python  = ["supports", "choose", "configs", "scratch", "launches"]
valid   = "threads > 0"

[requires]
"R > 0" = "there must be a row"
"R < 2147483648" = "rows are counted in 32 bits"
"op == 'rms_norm_bwd' or aligned(s, 16) and C % (16 // bytes(s)) == 0 or C * bytes(s) >= 576" = "odd rows shorter than that leave a lane an element at the row's end and no pack: its sums would be taken about zero"

[config]
threads = 0
pieces  = 4
cluster = 16
group   = 1
blocks  = 1
stages  = 3
sums    = "registers"
*/
// Backward of rms_norm and layer_norm (CENTRE) on sm_90. Two kernels, in this order: norm_backward, persistent clusters that loop over the
// rows and each write a partial row of the sums for dweight and dbias; and norm_column_sums, which adds the partial rows in a fixed order.
// _bwd_sm90.py has the table of configs.
#include <cuda_pipeline.h>

#include "pdl.cuh"
#include "packs.cuh"
#include "_moments.cuh"
#include "_same_alignment.cuh"
#include "cluster_slices.cuh"

/// Statistics of a part of a row (its number of elements is known elsewhere): the mean of s, the sum of squares about it, the sums of g =
/// dy weight and of g (s - mean).
struct alignas(16) Part {
    float mean, squares, g, products;
};

/// Statistics about the mean, of the sums of off, off², g and g · off, where off = s - pivot.
__device__ inline Part about_mean(float pivot, const float (&sums)[4], const Divisor& n) {
    const float d = over(sums[0], n), squares = sums[1] - sums[0] * d;
    // infinite, not NaN, where squares overflow
    return {pivot + d, squares < 0 ? 0 : squares == squares ? squares : sums[1], sums[2], sums[3] - sums[2] * d};
}

/// Combines the parts of LANES lanes, n elements each, in all lanes (Chan, Golub & LeVeque 1979). `total`: the number of all elements.
/// Means are summed as distances from lane 0's: exact if all are equal. n is the first factor of n · off · off: 0 even if off² overflows.
/// EXACT (float32): the mean first, then the sums about it. Otherwise all sums at once about the mean of lane 0, then moved to the mean;
/// the relative error is a few parts in a million, since LANES is small.
template <bool CENTRE, bool EXACT, int LANES = 32>
__device__ Part fold(Part p, float n, const Divisor& total) {
    if (!CENTRE) return {0, lanes_sum<LANES>(p.squares), 0, lanes_sum<LANES>(p.products)};
    const float base = __shfl_sync(~0u, p.mean, 0), from_base = p.mean - base;
    if (!EXACT) {
        float sums[4] = {n * from_base, p.squares + n * from_base * from_base, p.g, p.products + p.g * from_base};
        four_sums<LANES>(sums);
        return about_mean(base, sums, total);
    }
    const float d = over(lanes_sum<LANES>(n * from_base), total), off = p.mean - (base + d);
    return {base + d, lanes_sum<LANES>(p.squares + n * off * off), lanes_sum<LANES>(p.g), lanes_sum<LANES>(p.products + p.g * off)};
}

// Aligned to 128 bytes: with a less aligned destination, asynchronous copies request each line two or three times from the L2.
extern __shared__ __align__(128) uint4 held[];  // a thread uses only its own packs: rows in flight, the weight, sums of dweight and dbias

constexpr int SPAN = 16;  // rows between two flushes of float32 sums

/// Column sums of a thread's PIECES packs of N columns, in registers, or in shared memory, which leaves registers for twice the threads.
/// Float32 sums (N = 4) are flushed to a second accumulator every SPAN rows: one sum of hundreds of rows has several times the rounding
/// error of a pairwise sum.
template <int PIECES, int N, int THREADS, bool REGISTERS, bool WANTED>
struct Sums {
    static constexpr int QUADS = PIECES * N / 4, SIZE = REGISTERS || !WANTED ? 0 : QUADS * THREADS;  // packs of shared memory
    static constexpr bool SPANS = WANTED && N == 4;
    float4 own[REGISTERS && WANTED ? QUADS : 1], past[SPANS ? QUADS : 1];
    float4* const shared;

    __device__ explicit Sums(uint4* at) : shared(reinterpret_cast<float4*>(at) + threadIdx.x) {
#pragma unroll
        for (int i = 0; i < QUADS; ++i) {
            if (WANTED) (*this)[i] = {0, 0, 0, 0};
            if (SPANS) past[i] = {0, 0, 0, 0};
        }
    }
    __device__ float4& operator[](int i) { return REGISTERS ? own[i] : shared[i * THREADS]; }
    /// After row k.
    __device__ void close_span(int k) {
        if (!SPANS || k % SPAN != 0) return;
#pragma unroll
        for (int i = 0; i < QUADS; ++i) past[i] = all(i), (*this)[i] = {0, 0, 0, 0};
    }
    __device__ float4 all(int i) {
        const float4 a = WANTED ? (*this)[i] : float4{}, b = SPANS ? past[i] : float4{};
        return SPANS ? float4{a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w} : a;
    }
};

/// Like Sums, for the element of the row's edge that a lane of the first warp has: in shared memory, the current span and the flushed sum.
template <bool SPANS>
struct EdgeSum {
    float *const open, *const past;
    __device__ explicit EdgeSum(float* at) : open(at + threadIdx.x), past(at + 32 + threadIdx.x) {}
    __device__ void clear() { *open = *past = 0; }
    __device__ void add(float v, int k) {
        *open += v;
        if (SPANS && k % SPAN == 0) *past += *open, *open = 0;
    }
    __device__ float all() const { return *open + *past; }
};

/// dx, and this cluster's part of dweight and dbias, written to pw and pb [cluster / GROUP, C]. A cluster takes rows that are `clusters`
/// apart; each thread owns PIECES packs. Rows are prefetched to shared memory, STAGES (at least 3) in the ring buffer: while the parts of a
/// row travel between the blocks, the row before is finished. FIT: the alignment of the rows of all four tensors. REGISTERS, which sums are
/// in registers: 1 both, 2 dweight's, 0 none. GROUP blocks, each
/// its own cluster for rows, add up their sums together: the hardware's clusters are of GROUP blocks. RUNS: a cluster has several runs of
/// rows, which start at different places within 32 bytes (_same_alignment.cuh); at the end of each its threads' columns change, so the sums
/// are added to the partial row.
template <typename T, int PIECES, int THREADS, int CLUSTER, int GROUP, int BLOCKS, int STAGES, int REGISTERS, int FIT, bool RUNS,
    bool CENTRE, bool WEIGHT, bool BIAS, bool SECOND>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    norm_backward(int R, int C, int clusters, int period, const T* __restrict__ dy, long long dys, const T* __restrict__ ds, long long dss,
                  const T* __restrict__ s, long long ss, const T* __restrict__ w, T* __restrict__ dx, long long dxs, float* __restrict__ pw,
                  float* __restrict__ pb, float eps) {
    using P = Pack<T>;
    constexpr int N = P::N, QUADS = N / 4;
    using Parts = Exchange<Part, THREADS, CLUSTER>;
    __shared__ typename Parts::Shared shared;
    const int tid = threadIdx.x, lane = tid % 32, rank = CLUSTER == 1 ? 0 : blockIdx.x % CLUSTER, id = blockIdx.x / CLUSTER;
    using Packs = Slice<T, PIECES, THREADS, CLUSTER, FIT>;
    constexpr bool EDGE = Packs::EDGE;
    constexpr int SLOTS = Packs::SLOTS, STAGE = 2 * SLOTS;
    constexpr bool EXACT = sizeof(T) == 4;  // how statistics are computed
    constexpr int OF_THREAD = PIECES * QUADS, SUMS = (WEIGHT + BIAS) * OF_THREAD * THREADS, OWN = SUMS / GROUP;  // quads
    static_assert(GROUP == 1 || CLUSTER == 1 && !EDGE && SUMS <= STAGES * STAGE && SUMS % GROUP == 0,
        "blocks of a group have whole rows, in packs");
    Runs run(R, RUNS ? period : 1, clusters, id);
    Packs slice(C, EDGE ? beyond(s + run.first * ss) : 0, rank);
    uint4* const weights = held + STAGES * STAGE + tid;
    uint4* const behind = held + STAGES * STAGE + (WEIGHT ? SLOTS : 0);
    const T *const end = s + (R - 1) * ss + C, *const end_dy = dy + (R - 1) * dys + C;
    const T *next_s, *next_dy;  // the next row to fetch
    const auto slots = [&](int at) { return [=](int i) { return held + at + tid + i * THREADS; }; };
    const auto fetch = [&](int at, int k) {
        if (k < run.count) {
            slice.fetch(slots(at), next_s, s, end);
            slice.fetch(slots(at + SLOTS), next_dy, dy, end_dy);
        }
        next_s += run.step * ss, next_dy += run.step * dys;
        __pipeline_commit();
    };
    const auto fill = [&] {  // the ring, with the first rows of the run
        next_s = s + run.first * ss - slice.shift, next_dy = dy + run.first * dys - slice.shift;
        for (int k = 0; k + 1 < STAGES; ++k) fetch(k * STAGE, k);
    };
    const auto clear = [&] {  // what the thread does not have
        if (!slice.lacks()) return;
        for (int k = 0; k < 2 * STAGES; ++k) {
#pragma unroll
            for (int i = 0; i < PIECES; ++i) {
                if (!slice.has(i)) *slots(k * SLOTS)(i) = make_uint4(0, 0, 0, 0);
            }
        }
    };
    clear();
    const unsigned mbarrier = shared_address(&shared.mbarriers[0]);
    if (GROUP > 1 && tid == 0) {  // visible to the group after the barrier at the end
        mbarrier_init(mbarrier), mbarrier_expect(mbarrier, SUMS * 16);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    gdc_wait();
    if (WEIGHT || BIAS) gdc_launch_dependents();  // the launch that adds the partial rows
    fill();
    Parts parts(shared, rank);
    const Divisor columns(C);
    do {
        using OfWeight = Sums<PIECES, N, THREADS, (REGISTERS > 0), WEIGHT>;
        using OfBias = Sums<PIECES, N, THREADS, REGISTERS == 1, BIAS>;
        OfWeight sums_w(behind);
        OfBias sums_b(behind + OfWeight::SIZE);
        float* const edges = reinterpret_cast<float*>(behind + OfWeight::SIZE + OfBias::SIZE);
        if (WEIGHT) keep_columns<RUNS>(slice, [&](int i) { return weights + i * THREADS; }, w);
        T* to = dx + run.first * dxs - slice.shift;
        EdgeSum<N == 4> edge_w(edges), edge_b(edges + 64);
        if (slice.has_edge()) edge_w.clear(), edge_b.clear();
        const float of_lane = lane < Parts::WARPS ? slice.of_warp(lane) : 0;
        const Divisor of_warp(fmaxf(slice.of_warp(parts.warp), 1)), of_block(fmaxf(slice.of_rank(rank), 1));
        const float of_thread = slice.of_thread(), inverse = of_thread > 0 ? 1 / of_thread : 0;
        const float of_rank = slice.of_rank(lane % CLUSTER);

        // offsets in the ring of the row before, which the next fetch overwrites, and of this row
        int previous = (STAGES - 1) * STAGE, current = 0;
        Part gathered = {0, 0, 0, 0};
        float v[N], h[N], c[N];
        for (int k = 0; k <= run.count; ++k) {
            uint4 second[PIECES];
            float second_edge = 0;
            if (SECOND && k > 0) {
                const long long before = run.first + static_cast<long long>(k - 1) * run.step;
#pragma unroll
                for (int i = 0; i < PIECES; ++i) second[i] = slice.load(ds + before * dss, i);
                if (slice.has_edge()) second_edge = static_cast<float>(ds[before * dss + slice.at_edge()]);
            }
            if (k < run.count) {
                float pivot = 0, total = 0, squares = 0, products = 0, level = 0;  // about the pivot, the first element of the thread or warp
                __pipeline_wait_prior(STAGES - 2);
                const auto at_s = slots(current), at_dy = slots(current + SLOTS);
                if (CENTRE) P::widen(*at_s(0), v), pivot = EXACT ? v[0] : __shfl_sync(~0u, v[0], 0);
#pragma unroll
                for (int i = 0; i < PIECES; ++i) {
                    P::widen(*at_s(i), v), P::widen(*at_dy(i), h);
                    if (WEIGHT) P::widen(weights[i * THREADS], c);
                    const float about = slice.has(i) ? pivot : 0;  // a pack that the thread does not have holds zeros
#pragma unroll
                    for (int j = 0; j < N; ++j) {
                        const float off = v[j] - about, gw = WEIGHT ? h[j] * c[j] : h[j];
                        squares += off * off;
                        products += gw * off;
                        if (CENTRE) total += off, level += gw;
                    }
                }
                if (EDGE && tid < 32) __syncwarp();
                if (slice.has_edge()) {
                    const float off = static_cast<float>(slice.edge(at_s(0))) - pivot;
                    const float gw = static_cast<float>(slice.edge(at_dy(0))) * (WEIGHT ? static_cast<float>(slice.edge(weights)) : 1);
                    squares += off * off;
                    products += gw * off;
                    if (CENTRE) total += off, level += gw;
                }
                // Recomputed in every row, except where the edge leaves registers to spare: kept in registers, it makes other kernels
                // spill.
                const Divisor in_warp = EDGE ? of_warp : Divisor(of_warp.n);
                Part part;
                if (CENTRE && !EXACT) {
                    float sums[4] = {total, squares, level, products};
                    four_sums<32>(sums);
                    part = about_mean(pivot, sums, in_warp);
                } else {
                    const float d = total * inverse;  // the mean of the thread's elements less the pivot
                    if (CENTRE) squares = fmaxf(squares - d * (2 * total - of_thread * d), 0), products -= level * d;
                    part = fold<CENTRE, EXACT>({pivot + d, squares, level, products}, of_thread, in_warp);
                }
                parts.post(run.done + k, part, [&](const Part& p) { return fold<CENTRE, EXACT>(p, of_lane,
                    EDGE ? of_block : Divisor(of_block.n)); });
            }
            if (k > 0) {
                const Part all = CLUSTER == 1 ? fold<CENTRE, EXACT>(gathered, of_lane, columns)
                    : fold<CENTRE, EXACT, CLUSTER>(gathered, of_rank, columns);
                float scale = reciprocal_root(over(all.squares, columns) + eps);
                if (EDGE && CENTRE && C == 1) scale = 0;  // one column: the gradient is 0, and two roundings would give another value
                const float along = over(all.products * scale, columns), level = CENTRE ? over(all.g, columns) : 0;
                const auto at_s = slots(previous), at_dy = slots(previous + SLOTS);
#pragma unroll
                for (int i = 0; i < PIECES; ++i) {
                    float d[N];
                    P::widen(*at_s(i), v), P::widen(*at_dy(i), h);
                    if (WEIGHT) P::widen(weights[i * THREADS], c);
                    if (SECOND) P::widen(second[i], d);
#pragma unroll
                    for (int q = 0; q < QUADS; ++q) {
                        float of_w[4], of_b[4];
                        if (WEIGHT) *reinterpret_cast<float4*>(of_w) = sums_w[i * QUADS + q];
                        if (BIAS) *reinterpret_cast<float4*>(of_b) = sums_b[i * QUADS + q];
#pragma unroll
                        for (int l = 0; l < 4; ++l) {
                            const int j = q * 4 + l;
                            // rounded without fma, as in the sum
                            const float unit = (v[j] - all.mean) * scale, gw = WEIGHT ? __fmul_rn(h[j], c[j]) : h[j];
                            if (WEIGHT) of_w[l] += h[j] * unit;
                            if (BIAS) of_b[l] += h[j];
                            // One instruction less where all warps wait for the one with the edge; elsewhere this makes equal gradients
                            // give exactly 0.
                            const float found = EDGE ? fmaf(gw, scale, fmaf(-unit, along * scale, -level * scale))
                                : scale * fmaf(-unit, along, gw - level);
                            d[j] = SECOND ? found + d[j] : found;
                        }
                        if (WEIGHT) sums_w[i * QUADS + q] = *reinterpret_cast<float4*>(of_w);
                        if (BIAS) sums_b[i * QUADS + q] = *reinterpret_cast<float4*>(of_b);
                    }
                    slice.store(to, i, P::narrow(d));
                }
                if (slice.has_edge()) {
                    const float unit = (static_cast<float>(slice.edge(at_s(0))) - all.mean) * scale,
                        h = static_cast<float>(slice.edge(at_dy(0)));
                    const float gw = WEIGHT ? __fmul_rn(h, static_cast<float>(slice.edge(weights))) : h;
                    if (WEIGHT) edge_w.add(h * unit, k);
                    if (BIAS) edge_b.add(h, k);
                    (to + slice.shift)[slice.at_edge()] = T(scale * fmaf(-unit, along, gw - level) + (SECOND ? second_edge : 0));
                }
                to += run.step * dxs;
                sums_w.close_span(k), sums_b.close_span(k);
            }
            fetch(previous, k + STAGES - 1);
            if (k < run.count) gathered = parts.wait(run.done + k);
            previous = current;
            current = current < (STAGES - 1) * STAGE ? current + STAGE : 0;
        }
        if (GROUP > 1) {
            if (SUMS == 0) return;
            // Each block adds up its share of the columns for the group, in the memory of the ring buffer, which is not read after the
            // barrier. The barrier is relaxed: the values in that memory have been used, and a release would wait for the stores of dx.
            asm volatile("barrier.cluster.arrive.relaxed;\n\tbarrier.cluster.wait;" ::: "memory");
            constexpr bool WHOLE = OWN % THREADS == 0;
            const int me = id % GROUP;
            const auto pass = [&](int row, const float4& v) {
                const int at = row * THREADS + tid, owner = WHOLE ? row * THREADS / OWN : at / OWN;
                store_async(shared_of_block(owner, shared_address(held + me * OWN + at - owner * OWN)), v,
                    shared_of_block(owner, mbarrier));
            };
#pragma unroll
            for (int i = 0; i < OF_THREAD; ++i) {
                if (WEIGHT) pass(i, sums_w.all(i));
                if (BIAS) pass((WEIGHT ? OF_THREAD : 0) + i, sums_b.all(i));
            }
            mbarrier_wait(mbarrier, 0);
#pragma unroll
            for (int k = 0; k < (OWN + THREADS - 1) / THREADS; ++k) {
                const int at = k * THREADS + tid, place = me * OWN + at, row = WHOLE ? me * (OWN / THREADS) + k : place / THREADS;
                const int pack = row % OF_THREAD / QUADS * THREADS + place - row * THREADS;
                if (!WHOLE && at >= OWN || FIT != FILLED && pack >= slice.inner) continue;
                const float4* const from = reinterpret_cast<const float4*>(held) + at;
                float4 sum = *from;
#pragma unroll
                for (int g = 1; g < GROUP; ++g) {
                    const float4 v = from[g * OWN];
                    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
                }
                float* const to = (WEIGHT && row < OF_THREAD ? pw : pb) + static_cast<long long>(id / GROUP) * C;
                *reinterpret_cast<float4*>(to + pack * N + row % QUADS * 4) = sum;
            }
            return;
        }
        const bool again = RUNS && run.done > 0;
        const auto leave = [&](auto& sums, float* to) {
            const long long row = static_cast<long long>(id) * C;
            if (!EDGE) {
#pragma unroll
                for (int i = 0; i < PIECES * QUADS; ++i) {
                    if (slice.has(i / QUADS)) *reinterpret_cast<float4*>(to + row + slice.column(i / QUADS) + i % QUADS * 4) = sums.all(i);
                }
                return;
            }
            // Unaligned rows: through shared memory, so that neighbouring lanes write neighbouring columns.
            __syncthreads();
            const int me = slice.here();
            float4* const own = reinterpret_cast<float4*>(held);
#pragma unroll
            for (int i = 0; i < PIECES * QUADS; ++i) own[(i / QUADS * THREADS + me) * QUADS + i % QUADS] = sums.all(i);
            __syncthreads();
            float* const first = to + row + (slice.first + slice.heads) * N - slice.shift;
            for (int k = me; k < slice.inner * N; k += THREADS) first[k] = reinterpret_cast<float*>(held)[k]
                + (again ? __ldcg(first + k) : 0);
        };
        if (EDGE) __pipeline_wait_prior(0);
        if (WEIGHT) leave(sums_w, pw);
        if (BIAS) leave(sums_b, pb);
        if (slice.has_edge()) {
            const long long at = static_cast<long long>(id) * C + slice.at_edge();
            if (WEIGHT) pw[at] = edge_w.all() + (again ? __ldcg(pw + at) : 0);
            if (BIAS) pb[at] = edge_b.all() + (again ? __ldcg(pb + at) : 0);
        }
        if (!RUNS || !run.next()) return;
        if (CLUSTER == 1) {
            __syncthreads();  // the ring has been read
        } else {
            cooperative_groups::this_cluster().sync();  // and columns that go over to another block have been written
        }
        slice = Packs(C, beyond(s + run.first * ss), rank);
        clear();
        fill();
    } while (true);
}

/// The sums of `count` partial rows of dweight and of dbias (either may be null), always in the same order. A block of ACROSS × HEIGHT
/// threads takes ACROSS · VEC columns of one of them; VEC is 4 if the rows start on 16 bytes, else 1. A thread has loads of DEEP rows in
/// flight.
template <typename T, int VEC, int ACROSS, int HEIGHT, int DEEP>
__global__ void __launch_bounds__(ACROSS * HEIGHT)
    norm_column_sums(int count, int C, const float* __restrict__ pw, T* __restrict__ dw, const float* __restrict__ pb, T* __restrict__ db) {
    constexpr int WARPS = ACROSS * HEIGHT / 32, WIDTH = ACROSS * VEC;
    struct alignas(4 * VEC) Columns {
        float of[VEC];
    };
    __shared__ Columns sums[WARPS][ACROSS];
    const bool of_weight = dw && blockIdx.y == 0;
    const float* parts = of_weight ? pw : pb;
    T* to = of_weight ? dw : db;
    const int first = blockIdx.x * WIDTH, column = first + threadIdx.x * VEC, thread = threadIdx.y * ACROSS + threadIdx.x;
    Columns sum = {};
    gdc_wait();
    if (column < C) {
#pragma unroll 1
        for (int k = threadIdx.y; k < count; k += DEEP * HEIGHT) {
            Columns v[DEEP] = {};
#pragma unroll
            for (int i = 0; i < DEEP; ++i) {
                if (k + i * HEIGHT < count) v[i] =
                    *reinterpret_cast<const Columns*>(parts + static_cast<long long>(k + i * HEIGHT) * C + column);
            }
#pragma unroll
            for (int i = 0; i < DEEP * VEC; ++i) sum.of[i % VEC] += v[i / VEC].of[i % VEC];
        }
    }
#pragma unroll
    for (int j = 0; j < VEC; ++j) {
#pragma unroll
        for (int step = ACROSS; step < 32; step *= 2) sum.of[j] += __shfl_xor_sync(~0u, sum.of[j], step);
    }
    if (thread % 32 < ACROSS) sums[thread / 32][threadIdx.x] = sum;
    __syncthreads();
    if (thread >= WIDTH || first + thread >= C) return;
    float all = 0;
#pragma unroll
    for (int k = 0; k < WARPS; ++k) all += reinterpret_cast<const float*>(sums[k])[thread];
    to[first + thread] = T(all);
}
