/* rooftop
ops     = ["rms_norm", "layer_norm"]
idea    = """A row that is too long for a block's registers is divided among the blocks of a cluster and held in their shared memory: it is \
  read once and written once. Each thread computes the statistics of its part in one pass about a pivot (its first element; in float32 the \
  mean of its first four), and the blocks exchange them through distributed shared memory. streaming: a cluster takes one or two rows and \
  ends. persistent: clusters live for the whole launch, so that weight and bias are read once; the next rows are prefetched by cp.async, \
  and a row is normalised and stored while the statistics of the next one travel between the blocks (st.async, counted by an mbarrier)."""
predict = { speedup = 1.4 }
limit   = """Persistent clusters: multiprocessors get unequal shares of the memory bandwidth (docs/persistent.md). Streaming clusters: weight \
  and bias are read again for each row, and a cluster's loads, exchange and stores follow each other: 0.3 to 0.5 of a copy where there are \
  too few rows for several clusters a multiprocessor."""
dtypes  = ["f32", "f16", "bf16"]
args    = [
    "R: i32", "C: i32", "x: T[R, C]", "xs: i64 = stride(x, 0)", "residual: T[R, C]?", "rs: i64 = stride(residual, 0)", "weight: T[C]?",
    "bias: T[C]?", "y: T[R, C]", "ys: i64 = stride(y, 0)", "s: T[R, C]?", "ss: i64 = stride(s, 0)", "eps: f32",
]
demands = { has = ["STG.E.128"], spills = 0 }
python  = ["supports", "choose", "configs", "launches"]
valid   = "threads > 0"

[requires]
"R > 0" = "there must be a row"
"C * bytes(x) * (2 if present(residual) else 1) <= 1800000" = "a row, and the residual's, must fit the shared memory of sixteen blocks, two on a multiprocessor"
"R * cluster < 2147483648" = "a launch has fewer than 2^31 blocks"

[config]
path    = ""
threads = 0
cluster = 1
blocks  = 1
pieces  = 1
rows    = 1
stages  = 3
*/
// Forward of rms_norm and layer_norm on sm_90 for long rows, in packs of 16 bytes (cluster_slices.cuh). norm_persistent: clusters live for
// the whole launch and loop over rows; norm_streaming: clusters take one or two rows and end. The table in norms__cuda_sm90.py chooses.
// CENTRE is true for layer_norm: the mean is subtracted. Statistics: each thread in one pass about its first element (float32: the mean of
// its first four), then the parts of warps and blocks are combined after Chan, Golub & LeVeque 1979 (_moments.cuh), the formula of which
// Welford's update is the case of one new element. No kernel here calls gdc_launch_dependents(): all blocks load until the end, and an
// early launch would take their registers and bandwidth. So programmatic dependent launch hides the launch latency of the next kernel, but
// not its first loads.
#include <cuda_pipeline.h>

#include "pdl.cuh"
#include "_moments.cuh"
#include "_same_alignment.cuh"
#include "cluster_slices.cuh"

// Aligned to 128 bytes: with a less aligned destination, asynchronous copies request each line two or three times from the L2.
extern __shared__ __align__(128) uint4 held[];  // rows, the residual's rows, weight, bias; a thread reads only what it copied itself

/// x + residual, rounded to T: the value that is stored as s is also the one that is normalised.
template <typename T>
__device__ uint4 sum_of(const uint4& x, const uint4& r) {
    using P = Pack<T>;
    float f[P::N], g[P::N];
    P::widen(x, f), P::widen(r, g);
#pragma unroll
    for (int j = 0; j < P::N; ++j) f[j] += g[j];
    return P::narrow(f);
}

/// s = x + residual, rounded to T; the slots of x in shared memory then hold it too. `s` points to the boundary before the row.
template <typename T, int PIECES, int THREADS, int CLUSTER, int FIT, typename Slot, typename Beside>
__device__ void add_residual(const Slice<T, PIECES, THREADS, CLUSTER, FIT>& slice, const Slot& at, const Beside& beside, T* s) {
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
        if (!slice.has(i)) continue;
        *at(i) = sum_of<T>(*at(i), *beside(i));
        slice.store(s, i, *at(i));
    }
    if (slice.EDGE && threadIdx.x < 32) __syncwarp();
    if (slice.has_edge()) {
        T& sum = slice.edge(at(0));
        sum = T(static_cast<float>(sum) + static_cast<float>(slice.edge(beside(0))));
        (s + slice.shift)[slice.at_edge()] = sum;
    }
}

/// The moments of a thread's part of a row.
template <bool CENTRE, typename T, int PIECES, int THREADS, int CLUSTER, int FIT, typename Slot>
__device__ Moments part_of_thread(const Slice<T, PIECES, THREADS, CLUSTER, FIT>& slice, const Slot& at, float of_thread, float inverse) {
    using P = Pack<T>;
    float f[P::N];
    P::widen(*at(0), f);
    // The pivot for float32 is the mean of the first four elements (exact if they are equal): a single outlier as pivot would cost
    // accuracy.
    Pass<CENTRE> pass(P::N == 4 ? (f[0] * 0.25f + f[1] * 0.25f) + (f[2] * 0.25f + f[3] * 0.25f) : f[0]);
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
        P::widen(*at(i), f);
        pass.add(f, slice.has(i));
    }
    if (slice.EDGE && threadIdx.x < 32) __syncwarp();
    if (slice.has_edge()) pass.add(static_cast<float>(slice.edge(at(0))));
    return pass.moments(of_thread, inverse);
}

/// The moments of the ROWS rows that a cluster takes at once.
template <int ROWS>
struct alignas(8 * ROWS) Together {
    Moments of[ROWS];
};

/// A persistent kernel: the grid is `clusters` clusters, as many as are resident at once; cluster c takes rows c, c + clusters, c + 2
/// clusters, ..., or runs of rows that start at the same place within 32 bytes (_same_alignment.cuh). The weight and the bias, which a long
/// row would otherwise read from the L2 every time, are read once into shared memory. Beside them is a ring of STAGES rows, filled by
/// cp.async. Each thread owns PIECES packs and reads only what it copied itself, so the ring needs no barrier. Software pipeline: while the
/// statistics of row k travel between the blocks, row k - 1 is normalised and stored; STAGES is at least 3. FIT: the alignment of the rows
/// of all four tensors (cluster_slices.cuh). RUNS: a cluster has several runs of rows.
template <typename T, int PIECES, int THREADS, int CLUSTER, int BLOCKS, int STAGES, int FIT, bool RUNS, bool CENTRE, bool RESIDUAL,
    bool WEIGHT, bool BIAS>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    norm_persistent(int R, int C, int clusters, int period, const T* __restrict__ x, long long xs, const T* __restrict__ r, long long rs,
        const T* __restrict__ w,
              const T* __restrict__ b, T* __restrict__ y, long long ys, T* __restrict__ s, long long ss, float eps) {
    using P = Pack<T>;
    using Packs = Slice<T, PIECES, THREADS, CLUSTER, FIT>;
    constexpr bool EDGE = Packs::EDGE;
    constexpr int N = P::N, SLOTS = Packs::SLOTS, STAGE = (RESIDUAL ? 2 : 1) * SLOTS,
        LANES = lanes_for(THREADS / 32 > CLUSTER ? THREADS / 32 : CLUSTER);
    constexpr bool EXACT = sizeof(T) == 4;
    using Parts = Exchange<Together<1>, THREADS, CLUSTER>;
    __shared__ typename Parts::Shared shared;
    const int tid = threadIdx.x, lane = tid % 32, rank = CLUSTER == 1 ? 0 : blockIdx.x % CLUSTER, id = blockIdx.x / CLUSTER;
    Runs run(R, RUNS ? period : 1, clusters, id);
    Packs slice(C, EDGE ? beyond(x + run.first * xs) : 0, rank);
    uint4* const weights = held + STAGES * STAGE + tid;
    uint4* const biases = weights + (WEIGHT ? SLOTS : 0);
    const T *const end = x + (R - 1) * xs + C, *const end_r = r + (R - 1) * rs + C;
    const T *next, *next_r;  // the next row to fetch

    const auto slots = [&](int at) { return [=](int i) { return held + at + tid + i * THREADS; }; };
    const auto fetch = [&](int at, int k) {
        if (k < run.count) {
            slice.fetch(slots(at), next, x, end);
            if (RESIDUAL) slice.fetch(slots(at + SLOTS), next_r, r, end_r);
        }
        next += run.step * xs, next_r += run.step * rs;
        __pipeline_commit();
    };
    const auto fill = [&] {  // the ring, with the first rows of the run
        next = x + run.first * xs - slice.shift, next_r = r + run.first * rs - slice.shift;
        for (int k = 0; k + 1 < STAGES; ++k) fetch(k * STAGE, k);
    };
    const auto clear = [&] {  // what the thread does not have
        if (!slice.lacks()) return;
        for (int k = 0; k < STAGES; ++k) {
#pragma unroll
            for (int i = 0; i < PIECES; ++i) {
                if (!slice.has(i)) *slots(k * STAGE)(i) = make_uint4(0, 0, 0, 0);
            }
        }
    };
    clear();
    gdc_wait();
    fill();
    Parts parts(shared, rank);
    const Divisor columns(C);
    do {
        if (WEIGHT) keep_columns<RUNS>(slice, [&](int i) { return weights + i * THREADS; }, w);
        if (BIAS) keep_columns<RUNS>(slice, [&](int i) { return biases + i * THREADS; }, b);
        T *to = y + run.first * ys - slice.shift, *to_s = s + run.first * ss - slice.shift;
        const float of_lane = lane < Parts::WARPS ? slice.of_warp(lane) : 0;
        const Divisor of_warp(fmaxf(slice.of_warp(parts.warp), 1)), of_block(fmaxf(slice.of_rank(rank), 1));
        const float of_thread = slice.of_thread(), inverse = of_thread > 0 ? 1 / of_thread : 0;
        const float of_rank = slice.of_rank(lane % CLUSTER);

        int previous = (STAGES - 1) * STAGE, current = 0;  // ring offsets: of row k - 1, which the next fetch overwrites, and of row k
        Together<1> gathered = {};
        float f[N], g[N];
        for (int k = 0; k <= run.count; ++k) {
            if (k < run.count) {
                __pipeline_wait_prior(STAGES - 2);
                if (RESIDUAL) add_residual(slice, slots(current), slots(current + SLOTS), to_s), to_s += run.step * ss;
                Together<1> part = {part_of_thread<CENTRE>(slice, slots(current), of_thread, inverse)};
                fold<CENTRE, EXACT, 32>(part.of, of_thread, of_warp);
                parts.post(run.done + k, part, [&](Together<1> p) {
                    fold<CENTRE, EXACT, LANES>(p.of, of_lane, of_block);
                    return p;
                });
            }
            if (k > 0) {
                fold<CENTRE, EXACT, CLUSTER == 1 ? 32 : CLUSTER>(gathered.of, CLUSTER == 1 ? of_lane : of_rank, columns);
                const Moments all = gathered.of[0];
                const float scale = reciprocal_root(over(all.squares, columns) + eps);
                const auto at = slots(previous);
#pragma unroll
                for (int i = 0; i < PIECES; ++i) {
                    P::widen(*at(i), f);
#pragma unroll
                    for (int j = 0; j < N; ++j) f[j] = (f[j] - all.mean) * scale;
                    if (WEIGHT) {
                        P::widen(weights[i * THREADS], g);
#pragma unroll
                        for (int j = 0; j < N; ++j) f[j] *= g[j];
                    }
                    if (BIAS) {
                        P::widen(biases[i * THREADS], g);
#pragma unroll
                        for (int j = 0; j < N; ++j) f[j] += g[j];
                    }
                    slice.store(to, i, P::narrow(f));
                }
                if (slice.has_edge()) {
                    float v = (static_cast<float>(slice.edge(at(0))) - all.mean) * scale;
                    if (WEIGHT) v *= static_cast<float>(slice.edge(weights));
                    if (BIAS) v += static_cast<float>(slice.edge(biases));
                    (to + slice.shift)[slice.at_edge()] = T(v);
                }
                to += run.step * ys;
            }
            fetch(previous, k + STAGES - 1);
            if (k < run.count) gathered = parts.wait(run.done + k);
            previous = current;
            current = current < (STAGES - 1) * STAGE ? current + STAGE : 0;
        }
        if (!RUNS || !run.next()) return;
        slice = Packs(C, beyond(x + run.first * xs), rank);
        clear();
        fill();
    } while (true);
}

/// A compile-time number as a function argument.
template <int V>
struct Constant {
    static constexpr int VALUE = V;
};

/// A cluster takes ROWS rows and ends. As many rows are in flight as the shared memory of a multiprocessor holds, and the hardware starts
/// the next cluster where one ended, which balances the load: multiprocessors do not get equal shares of the memory bandwidth. The weight
/// and the bias are read from the L2 again every ROWS rows.
template <typename T, int PIECES, int ROWS, int THREADS, int CLUSTER, int BLOCKS, int FIT, bool CENTRE, bool RESIDUAL>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    norm_streaming(int R, int C, const T* __restrict__ x, long long xs, const T* __restrict__ r, long long rs, const T* __restrict__ w,
              const T* __restrict__ b, T* __restrict__ y, long long ys, T* __restrict__ s, long long ss, float eps) {
    using P = Pack<T>;
    using Packs = Slice<T, PIECES, THREADS, CLUSTER, FIT>;
    constexpr bool EDGE = Packs::EDGE;
    constexpr int SLOTS = Packs::SLOTS;
    static_assert(ROWS == 1 || ROWS == 2 && !EDGE, "rows that start anywhere do not start as far from 16 bytes as their neighbours");
    constexpr int N = P::N, LANES = lanes_for(THREADS / 32 > CLUSTER ? THREADS / 32 : CLUSTER);
    constexpr bool EXACT = sizeof(T) == 4;
    using Parts = Exchange<Together<ROWS>, THREADS, CLUSTER>;
    __shared__ typename Parts::Shared shared;
    const int tid = threadIdx.x, lane = tid % 32, rank = CLUSTER == 1 ? 0 : blockIdx.x % CLUSTER;
    const long long first = static_cast<long long>(blockIdx.x / CLUSTER) * ROWS;
    // ROWS = 2 and an odd R: the last row is computed twice and stored once
    const auto inside = [&](int k) { return ROWS == 1 || first + k < R; };
    const auto row = [&](int k) { return inside(k) ? first + k : R - 1LL; };
    const Packs slice(C, EDGE ? beyond(x + first * xs) : 0, rank);
    const auto slots = [&](int k) { return [=](int i) { return held + k * SLOTS + i * THREADS + tid; }; };
    gdc_wait();
#pragma unroll
    for (int k = 0; k < ROWS; ++k) {
        slice.fetch(slots(k), x + row(k) * xs - slice.shift, x, x + (R - 1) * xs + C);
        if (RESIDUAL) slice.fetch(slots(ROWS + k), r + row(k) * rs - slice.shift, r, r + (R - 1) * rs + C);
    }
    __pipeline_commit();
    Parts parts(shared, rank);
    if (slice.lacks()) {
#pragma unroll
        for (int i = 0; i < ROWS * PIECES; ++i) {
            if (!slice.has(i % PIECES)) *slots(i / PIECES)(i % PIECES) = make_uint4(0, 0, 0, 0);
        }
    }
    const float of_lane = lane < Parts::WARPS ? slice.of_warp(lane) : 0;
    const Divisor of_warp(fmaxf(slice.of_warp(parts.warp), 1)), of_block(fmaxf(slice.of_rank(rank), 1)), columns(C);
    const float of_thread = slice.of_thread(), inverse = of_thread > 0 ? 1 / of_thread : 0;
    const float of_rank = slice.of_rank(lane % CLUSTER);
    Together<ROWS> part;
    __pipeline_wait_prior(0);
#pragma unroll
    for (int k = 0; k < ROWS; ++k) {
        if (RESIDUAL) add_residual(slice, slots(k), slots(ROWS + k), s + row(k) * ss - slice.shift);
        part.of[k] = part_of_thread<CENTRE>(slice, slots(k), of_thread, inverse);
    }
    fold<CENTRE, EXACT, 32>(part.of, of_thread, of_warp);
    parts.post(0, part, [&](Together<ROWS> p) {
        fold<CENTRE, EXACT, LANES>(p.of, of_lane, of_block);
        return p;
    });
    part = parts.wait(0);
    fold<CENTRE, EXACT, CLUSTER == 1 ? 32 : CLUSTER>(part.of, CLUSTER == 1 ? of_lane : of_rank, columns);
    float scale[ROWS];
#pragma unroll
    for (int k = 0; k < ROWS; ++k) scale[k] = reciprocal_root(over(part.of[k].squares, columns) + eps);
    const auto finish = [&](auto load) {
#pragma unroll 2
        for (int i = 0; i < PIECES; ++i) {
            if (!slice.has(i)) continue;
            float f[N], g[N], h[N];
            if (w) P::widen(load(w, i), g);
            if (b) P::widen(load(b, i), h);
#pragma unroll
            for (int k = 0; k < ROWS; ++k) {
                P::widen(*slots(k)(i), f);
#pragma unroll
                for (int j = 0; j < N; ++j) {
                    f[j] = (f[j] - part.of[k].mean) * scale[k];
                    if (w) f[j] *= g[j];
                    if (b) f[j] += h[j];
                }
                if (inside(k)) slice.store(y + row(k) * ys - slice.shift, i, P::narrow(f));
            }
        }
    };
    if (!EDGE) {
        finish([&](const T* of_all, int i) { return slice.load(of_all, i); });
    } else {  // all packs of weight and bias are misaligned alike; the misalignment in words (0 to 3) becomes a template argument
        const auto off = [&](const T* of_all) { return static_cast<unsigned>(reinterpret_cast<unsigned long long>(of_all - slice.shift) % 16); };
        const auto with_word = [&](auto word) {
            finish([&](const T* of_all, int i) {
                const int column = slice.column(i);
                const T* at = of_all + column;
                if (column < N || column + 2 * N > C) return P::load_within(at, false, of_all, of_all + C);
                return P::template load_amid<decltype(word)::VALUE>(at - off(of_all) / sizeof(T), off(of_all) % 4 * 8);
            });
        };
        const unsigned word = off(w ? w : b) / 4;
        if (w && b && off(w) != off(b)) {
            finish([&](const T* of_all, int i) { return P::load_within(of_all + slice.column(i), false, of_all, of_all + C); });
        } else if (word == 0) {
            with_word(Constant<0>());
        } else if (word == 1) {
            with_word(Constant<1>());
        } else if (word == 2) {
            with_word(Constant<2>());
        } else {
            with_word(Constant<3>());
        }
    }
    if (slice.has_edge()) {
        const int at = slice.at_edge();
        float v = (static_cast<float>(slice.edge(slots(0)(0))) - part.of[0].mean) * scale[0];
        if (w) v *= static_cast<float>(w[at]);
        if (b) v += static_cast<float>(b[at]);
        y[first * ys + at] = T(v);
    }
}
