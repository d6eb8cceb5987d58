/* rooftop
ops     = ["rms_norm", "layer_norm"]
idea    = """Each row is read once and written once, by one of five kernels (the table in kernels/norm/norms__cuda_sm90.py chooses). warp: \
  several short rows a warp, no barrier. whole row: one block holds an aligned row of 1 to 64 KiB in registers (32 to 44 KiB: persistent), \
  and copies weight and bias to shared memory (cp.async) while it computes the statistics; float32 takes two passes over the registers, \
  16-bit types one pass about a pivot. Longer rows, and unaligned rows from 8 KiB, are divided among the blocks of a cluster and held in \
  their shared memory; each thread computes its statistics in one pass about a pivot (its first element; in float32 the mean of its first \
  four), and the blocks exchange them through distributed shared memory. streaming: a cluster takes one or two rows and ends. persistent: \
  clusters live for the whole launch, so that weight and bias are read once; the next rows are prefetched by cp.async, and a row is \
  normalised and stored while the statistics of the next one travel between the blocks (st.async, counted by an mbarrier). cluster: the \
  general case, one cluster a row with one cluster barrier, for what no other kernel supports."""
predict = { speedup = 1.4 }
limit   = """Whole row: the bandwidth of a copy; weight and bias come from the L2 again for each row, without a visible cost (3.03 TB/s on \
  an H100 for 32 KiB of float32). Persistent clusters: multiprocessors get unequal shares of the memory bandwidth (docs/persistent.md). \
  Streaming clusters: weight and bias are read again for each row. Tensors of a few MiB: latency, two reductions and a barrier between load \
  and store."""
dtypes  = ["f32", "f16", "bf16"]
args    = [
    "R: i32", "C: i32", "x: T[R, C]", "xs: i64 = stride(x, 0)", "residual: T[R, C]?", "rs: i64 = stride(residual, 0)", "weight: T[C]?",
    "bias: T[C]?", "y: T[R, C]", "ys: i64 = stride(y, 0)", "s: T[R, C]?", "ss: i64 = stride(s, 0)", "eps: f32",
]
demands = { has = ["STG.E.128"], spills = 0 }
python  = ["choose", "configs", "launches"]
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
early   = 0
rows    = 1
stages  = 3
*/
// Device code: norm_cluster, norm_whole_row and norm_warp below; _fwd_slices_sm90.cuh has norm_persistent and norm_streaming. The table in
// kernels/norm/norms__cuda_sm90.py chooses one for a call; its docstring has worked examples for rows of 8192 columns of float32 and of
// bfloat16. For float16 and bfloat16 tensors of 64 MiB and more without a residual norms__cuda_sm80.cu is faster and is chosen first: its
// smaller blocks keep 80 KiB in flight instead of 48, and weight and bias stay in L1, because the rows are loaded evict-first (its example:
// kernels/norm/_register_rows.py). No kernel here calls gdc_launch_dependents(): all blocks load until the end, and an early launch would
// take their registers and bandwidth. So programmatic dependent launch hides the launch latency of the next kernel, but not its first
// loads. Forward of rms_norm and layer_norm on sm_90, first of two files; _fwd_slices_sm90.cuh has the kernels for long and for unaligned
// rows. CENTRE is true for
// layer_norm: the mean is subtracted. The table in norms__cuda_sm90.py chooses the kernel and its template arguments, and has worked
// examples.
//   norm_cluster    the general case, for what no other kernel supports: one cluster of blocks a row, in their shared memory
//   norm_whole_row  one block a row, in registers (aligned rows of up to 64 KiB)
//   norm_warp       one warp holds one or several short rows in registers
// A pack is 16 bytes, one vector load: 8 elements of 16 bits or 4 float32 (packs.cuh). The sm_80 kernels call it a vector.
// Every warp computes the mean and the sum of squares about this mean for its part of a row: in two passes over its registers for float32,
// in one about a pivot for 16-bit types (_moments.cuh says why). The parts are combined after Chan, Golub & LeVeque 1979
// (Welford's update is the case of one new element), so that one barrier is enough.
#include <cooperative_groups.h>
#include <cuda_pipeline.h>

#include "pdl.cuh"
#include "_moments.cuh"
#include "packs.cuh"

namespace cg = cooperative_groups;

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

/// A normalised pack, times `weight` if w, plus `bias` if b.
template <typename T>
__device__ uint4 normalised(const uint4& x, float mean, float scale, bool w, const uint4& weight, bool b, const uint4& bias) {
    using P = Pack<T>;
    float f[P::N], g[P::N];
    P::widen(x, f);
#pragma unroll
    for (int j = 0; j < P::N; ++j) f[j] = (f[j] - mean) * scale;
    if (w) {
        P::widen(weight, g);
#pragma unroll
        for (int j = 0; j < P::N; ++j) f[j] *= g[j];
    }
    if (b) {
        P::widen(bias, g);
#pragma unroll
        for (int j = 0; j < P::N; ++j) f[j] += g[j];
    }
    return P::narrow(f);
}

/// A warp's part of a row: how many elements, their mean, and the sum of squares about this mean.
struct Part {
    float n, mean, squares;
};

/// Writes every warp's part into the shared memory of every block of the cluster, then waits: afterwards each block has all parts.
template <int WARPS, int CLUSTER>
__device__ void share_parts(Part* parts, const Part& mine, int rank) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (CLUSTER > 1) {
        const auto cluster = cg::this_cluster();
        cluster.barrier_wait();
        if (lane < CLUSTER) *cluster.map_shared_rank(&parts[rank * WARPS + warp], lane) = mine;
        cluster.sync();
    } else {
        if (lane == 0) parts[warp] = mine;
        __syncthreads();
    }
}

/// Combines the parts of a row (Chan, Golub & LeVeque 1979). Every warp does it for itself. Without CENTRE all means are 0.
template <int PARTS, bool CENTRE>
__device__ Part fold_parts(const Part* parts, int C) {
    const int lane = threadIdx.x % 32;
    Part p = {static_cast<float>(C), 0, 0};
    if (CENTRE) {
#pragma unroll
        for (int i = lane; i < PARTS; i += 32) p.mean += parts[i].n * (parts[i].mean - parts[0].mean);
        p.mean = parts[0].mean + over(warp_sum(p.mean), C);  // exact if all means are equal
    }
#pragma unroll
    for (int i = lane; i < PARTS; i += 32) {
        const float off = CENTRE ? parts[i].mean - p.mean : 0;
        p.squares += parts[i].squares + (CENTRE ? parts[i].n * off * off : 0);
    }
    p.squares = warp_sum(p.squares);
    return p;
}

// Aligned to 128 bytes: with a less aligned destination, asynchronous copies request each line two or three times from the L2.
// norm_cluster: the block's packs of x, then of the residual; norm_whole_row: weight, then bias. A thread reads only what it copied itself.
extern __shared__ __align__(128) uint4 held[];

/// y = norm(x + residual) · weight + bias, s = x + residual. One cluster a row: cp.async copies the row to shared memory, where it is read
/// for the statistics (two passes for layer_norm) and for the result.
template <typename T, int THREADS, int CLUSTER, int BLOCKS, bool CENTRE, bool RESIDUAL>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    norm_cluster(int C, const T* __restrict__ x, long long xs, const T* __restrict__ r, long long rs, const T* __restrict__ w,
                 const T* __restrict__ b, T* __restrict__ y, long long ys, T* __restrict__ s, long long ss, float eps) {
    using P = Pack<T>;
    constexpr int N = P::N, WARPS = THREADS / 32;
    __shared__ Part parts[WARPS * CLUSTER];
    const int tid = threadIdx.x, rank = CLUSTER == 1 ? 0 : blockIdx.x % CLUSTER;
    const long long row = blockIdx.x / CLUSTER;
    x += row * xs, r += row * rs, y += row * ys, s += row * ss;
    const Share<T, CLUSTER> share(x, C, rank);
    const T *from = x + share.first, *also = r + share.first;
    gdc_wait();

#pragma unroll 8
    for (int k = tid; k < share.mine; k += THREADS) __pipeline_memcpy_async(held + k, from + k * N, 16);
    uint4* held_r = held + share.mine;
    if (RESIDUAL) {
        if (aligned(also)) {
#pragma unroll 4
            for (int k = tid; k < share.mine; k += THREADS) __pipeline_memcpy_async(held_r + k, also + k * N, 16);
        } else {
            for (int k = tid; k < share.mine; k += THREADS) held_r[k] = P::load(also + k * N, false);
        }
    }
    __pipeline_commit();
    // share_parts waits for it: a block's shared memory may be written only after it has started
    if (CLUSTER > 1) cg::this_cluster().barrier_arrive();
    const bool has_single = tid < share.singles;
    const int at = has_single ? share.single(tid) : 0;
    float single = has_single ? static_cast<float>(x[at]) : 0;
    if (RESIDUAL && has_single) {
        const T sum = T(single + static_cast<float>(r[at]));
        s[at] = sum;
        single = static_cast<float>(sum);
    }
    __pipeline_wait_prior(0);

    float f[N], total = single, squares = single * single, count = has_single;
    const bool together_s = RESIDUAL && aligned(s + share.first);
#pragma unroll 4
    for (int k = tid; k < share.mine; k += THREADS) {
        if (!RESIDUAL) {
            P::widen(held[k], f);
        } else {
            const uint4 sum = sum_of<T>(held[k], held_r[k]);
            held[k] = sum;
            P::store(s + share.first + k * N, together_s, sum);
            P::widen(sum, f);
        }
        count += N;
#pragma unroll
        for (int j = 0; j < N; ++j) CENTRE ? total += f[j] : squares += f[j] * f[j];
    }
    Part part = {0, 0, 0};
    if (CENTRE) {
        part.n = warp_sum(count);
        part.mean = over(warp_sum(total), fmaxf(part.n, 1));
        float rest = has_single ? single - part.mean : 0;
        squares = rest * rest;
#pragma unroll 4
        for (int k = tid; k < share.mine; k += THREADS) {
            P::widen(held[k], f);
#pragma unroll
            for (int j = 0; j < N; ++j) {
                const float off = f[j] - part.mean;
                rest += off;
                squares += off * off;
            }
        }
        rest = over(warp_sum(rest), fmaxf(part.n, 1));  // the rounding error of the mean
        part.mean += rest;
        squares = fmaxf(warp_sum(squares) - part.n * rest * rest, 0);
    } else {
        squares = warp_sum(squares);
    }
    part.squares = squares;
    share_parts<WARPS, CLUSTER>(parts, part, rank);
    const Part all = fold_parts<WARPS * CLUSTER, CENTRE>(parts, C);
    const float scale = reciprocal_root(over(all.squares, C) + eps);

    const bool together = aligned(y + share.first), together_w = aligned(w + share.first), together_b = aligned(b + share.first);
#pragma unroll 4
    for (int k = tid; k < share.mine; k += THREADS) {
        const int column = share.first + k * N;
        P::widen(held[k], f);
#pragma unroll
        for (int j = 0; j < N; ++j) f[j] = (f[j] - all.mean) * scale;
        float g[N];
        if (w) {
            P::widen(P::load_within(w + column, together_w, w, w + C), g);
#pragma unroll
            for (int j = 0; j < N; ++j) f[j] *= g[j];
        }
        if (b) {
            P::widen(P::load_within(b + column, together_b, b, b + C), g);
#pragma unroll
            for (int j = 0; j < N; ++j) f[j] += g[j];
        }
        P::store(y + column, together, P::narrow(f));
    }
    if (has_single) {
        float v = (single - all.mean) * scale;
        if (w) v *= static_cast<float>(w[at]);
        if (b) v += static_cast<float>(b[at]);
        y[at] = T(v);
    }
}

/// EARLY, when norm_whole_row loads weight and bias: after the statistics (in step 4); before the barrier (step 3) into registers, 4 a
/// pack; by cp.async to shared memory, issued after the loads of the row, or before them.
enum { AFTER_STATISTICS, TO_REGISTERS, TO_SHARED, TO_SHARED_FIRST };

/// One block a row, for rows that start on 16 bytes: PIECES packs of 16 bytes a thread, in registers.
///   1. All packs of the row are loaded (and the residual's, added and stored as s).
///   2. Weight and bias are copied to shared memory by cp.async (EARLY: TO_SHARED), so that their latency is hidden behind steps 1 and 3.
///   3. Each warp computes mean and sum of squares of its part (part_of_warp, _moments.cuh) and writes them to shared memory; after the
/// only barrier every
///      warp combines the parts of all warps (fold).
///   4. Each thread normalises its packs, reads its weight and bias packs (which it copied itself, so no barrier is needed) and stores y.
template <typename T, int THREADS, int PIECES, int BLOCKS, int EARLY, bool CENTRE, bool RESIDUAL>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    norm_whole_row(int C, const T* __restrict__ x, long long xs, const T* __restrict__ r, long long rs, const T* __restrict__ w,
               const T* __restrict__ b, T* __restrict__ y, long long ys, T* __restrict__ s, long long ss, float eps) {
    using P = Pack<T>;
    constexpr int N = P::N, WARPS = THREADS / 32, LANES = lanes_for(WARPS);
    constexpr bool EXACT = sizeof(T) == 4;
    static_assert(WARPS <= 32, "a lane folds one warp's part");
    __shared__ Moments parts[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long row = blockIdx.x;
    const auto column = [&](int i) { return (i * THREADS + static_cast<int>(threadIdx.x)) * N; };
    const auto columns_of = [&](int warp) {  // elements of a warp
        int n = 0;
#pragma unroll
        for (int i = 0; i < PIECES; ++i) n += max(0, min(C - (i * THREADS + warp * 32) * N, 32 * N));
        return static_cast<float>(n);
    };
    uint4* const weights = held + threadIdx.x;
    uint4* const biases = weights + (w ? PIECES * THREADS : 0);
    const auto copy_weights = [&] {
#pragma unroll 1  // a loop that is not unrolled stays here; unrolled, the compiler moves the copies behind the statistics
        for (int k = 0; k < 2; ++k) {
            const T* const from = k == 0 ? w : b;
            if (!from) continue;
#pragma unroll
            for (int i = 0; i < PIECES; ++i) {
                if (column(i) < C) __pipeline_memcpy_async((k == 0 ? weights : biases) + i * THREADS, from + column(i), 16);
            }
        }
        __pipeline_commit();
    };
    uint4 p[1][PIECES], own[PIECES], pw[PIECES], pb[PIECES];
    // The residual is kept in registers that are free until it has been added. For either type, with the other array the compiler moves
    // loads behind arithmetic.
    uint4* const pr = EXACT ? pw : own;
    const auto load_weights = [&](int i) {
        if (w && column(i) < C) pw[i] = EARLY >= TO_SHARED ? weights[i * THREADS] : P::load(w + column(i), true);
        if (b && column(i) < C) pb[i] = EARLY >= TO_SHARED ? biases[i * THREADS] : P::load(b + column(i), true);
    };
    gdc_wait();
    if (EARLY == TO_SHARED_FIRST) copy_weights();
#pragma unroll
    for (int i = 0; i < PIECES; ++i) p[0][i] = column(i) < C ? P::load(x + row * xs + column(i), true) : make_uint4(0, 0, 0, 0);
    if (RESIDUAL) {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) pr[i] = column(i) < C ? P::load(r + row * rs + column(i), true) : make_uint4(0, 0, 0, 0);
    }
    if (EARLY == TO_SHARED) copy_weights();
    if (RESIDUAL) {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            p[0][i] = sum_of<T>(p[0][i], pr[i]);
            if (column(i) < C) P::store(s + row * ss + column(i), true, p[0][i]);
        }
    }
    if (EARLY == TO_REGISTERS) {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) load_weights(i);
    }
    Moments part[1];
    part_of_warp<T, CENTRE>(part, p, [&](int i) { return column(i) < C; }, Divisor(fmaxf(columns_of(warp), 1)));
    const Divisor columns(C);
    if (WARPS > 1) {
        if (lane == 0) parts[warp] = part[0];
        __syncthreads();
        const int other = lane % LANES;
        part[0] = other < WARPS ? parts[other] : Moments{0, 0};
        const float base[1] = {parts[0].mean};
        fold<CENTRE, EXACT, LANES>(part, base, other < WARPS ? columns_of(other) : 0, columns);
    }
    const float scale = reciprocal_root(over(part[0].squares, columns) + eps);
    if (EARLY >= TO_SHARED) __pipeline_wait_prior(0);
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
        if (column(i) >= C) continue;
        if (EARLY != TO_REGISTERS) load_weights(i);
        P::store(y + row * ys + column(i), true, normalised<T>(p[0][i], part[0].mean, scale, w, pw[i], b, pb[i]));
    }
}

/// Short rows: a warp holds ROWS consecutive rows in registers, PIECES packs a lane and row. All loads are issued before the first value is
/// used. No barrier and no shared memory; the weight and the bias are read once a warp.
template <typename T, int THREADS, int PIECES, int ROWS, int BLOCKS, bool CENTRE, bool RESIDUAL>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    norm_warp(int R, int C, const T* __restrict__ x, long long xs, const T* __restrict__ r, long long rs, const T* __restrict__ w,
              const T* __restrict__ b, T* __restrict__ y, long long ys, T* __restrict__ s, long long ss, float eps) {
    using P = Pack<T>;
    constexpr int N = P::N;
    const int lane = threadIdx.x % 32;
    const long long first = (static_cast<long long>(blockIdx.x) * (THREADS / 32) + threadIdx.x / 32) * ROWS;
    const auto column = [&](int i) { return (i * 32 + lane) * N; };
    const auto has = [&](int k, int i) { return column(i) < C && (ROWS == 1 || first + k < R); };
    const Divisor columns(C);
    uint4 p[ROWS][PIECES], pr[ROWS][PIECES], pw[PIECES], pb[PIECES];
    gdc_wait();
    if (first >= R) return;
    x += first * xs, y += first * ys;
    if (RESIDUAL) r += first * rs, s += first * ss;
#pragma unroll
    for (int k = 0; k < ROWS; ++k) {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) p[k][i] = has(k, i) ? P::load(x + k * xs + column(i), true) : make_uint4(0, 0, 0, 0);
    }
    if (RESIDUAL) {
#pragma unroll
        for (int k = 0; k < ROWS; ++k) {
#pragma unroll
            for (int i = 0; i < PIECES; ++i) pr[k][i] = has(k, i) ? P::load(r + k * rs + column(i), true) : make_uint4(0, 0, 0, 0);
        }
    }
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
        if (w && column(i) < C) pw[i] = P::load(w + column(i), true);
        if (b && column(i) < C) pb[i] = P::load(b + column(i), true);
    }
    if (RESIDUAL) {
#pragma unroll
        for (int k = 0; k < ROWS; ++k) {
#pragma unroll
            for (int i = 0; i < PIECES; ++i) {
                p[k][i] = sum_of<T>(p[k][i], pr[k][i]);
                if (has(k, i)) P::store(s + k * ss + column(i), true, p[k][i]);
            }
        }
    }
    Moments part[ROWS];
    part_of_warp<T, CENTRE>(part, p, [&](int i) { return column(i) < C; }, columns);
#pragma unroll
    for (int k = 0; k < ROWS; ++k) {
        const float scale = reciprocal_root(over(part[k].squares, columns) + eps);
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            if (has(k, i)) P::store(y + k * ys + column(i), true, normalised<T>(p[k][i], part[k].mean, scale, w, pw[i], b, pb[i]));
        }
    }
}

#include "_fwd_slices_sm90.cuh"
