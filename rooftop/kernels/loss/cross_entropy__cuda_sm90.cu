/* rooftop
idea    = """A row is processed by one block, or divided among the blocks of a cluster, in packs of 16 bytes and whole lines of 128 bytes per \
  warp, at any alignment of the row. The data stay in registers only, since each logit is needed once. Each thread computes an \
  online softmax (Milakov & Gimelshein 2018): a maximum, updated once for all packs that it holds at a time, and the sum of \
  exponentials relative to it. The target's logit is loaded after the first packs have arrived. Earlier, the warp would wait for \
  the target first; that is better only for few rows. Capped logits need no maximum, but two exponentials and a quarter of a \
  reciprocal each: 0.97 of what the special function units can do in the time of a read. So one exponential in four is computed by \
  a polynomial on the other units. Ignored rows store -0.0, which is the loss of no other row, so that the launch that adds the \
  losses, in a fixed order, can also count them."""
predict = { speedup = 1.02 }
limit   = """0.95 to 0.98 of a read from 256 MiB on, 0.98 without the launch that adds the losses: it costs about 1.2 us, 2.3 for 16384 rows. \
  With all options 0.93: the special function units; if all capped logits of a row are nearly equal, the loss has an error of 2e-7 \
  of the cap. With few rows, the latency of the reductions over the parts of a row and over the losses."""
dtypes  = ["f32", "f16", "bf16"]
args    = ["C: i32", "input: T[R, C]", "xs: i64 = stride(input, 0)", "target: i64[R]"]
tensors = ["normaliser: f32[R, 2]"]
demands = { has = ["LDG.E.128", "MUFU.EX2"], spills = 0 }
python  = ["choose", "configs", "for_any_rows", "scratch", "launches"]
valid   = """(threads * blocks == 1024 or threads * blocks == 2048 or threads * blocks == 512 and threads <= 64) and (cluster == 1 or C * \
  bytes(input) >= 4096 * cluster) and (pieces * threads * 8 * cluster < C * bytes(input) or threads == 32) and (ahead == 0 or \
  pieces * threads * 16 * cluster < C * bytes(input)) and (softcap != 0 or spare == 0)"""

[requires]
"R > 0" = "there must be a row"
"R * cluster < 2147483648 and C < 2147483648 - 1048576" = "rows, classes and blocks are counted in 32 bits"
"softcap == 0 or bytes(input) == 2 and softcap <= 70 and softcap * 1000000 >= 1" = "logits are bounded to what 16 bits show, between -70 and 70 at most"
"softcap == 0 or C >= 1024" = "of few classes the loss shows what the short way of bounding leaves off"

[config]
pieces  = 4
ahead   = 0
threads = 512
cluster = 1
blocks  = 2
spare   = 0
*/
#include <math_constants.h>

#include "pdl.cuh"
#include "packs.cuh"
#include "cluster_slices.cuh"

constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;

// The identity of the maximum. With -inf, a part of a row that has only -inf would give -inf - -inf = NaN, also in rows that have finite
// elements; with the lowest finite number such a part adds 0, and a row of only -inf has the sum 0.
constexpr float LOWEST = -3.402823466e38f;

/// 2^v, 0 if that is subnormal.
__device__ inline float exp2_of(float v) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(v));
    return y;
}

/// 2^v for |v| < 126 with a relative error of 3e-6, without the special function unit: the exponent from v's integer part, a polynomial for the rest, -1/2 to
/// 1/2. Does not keep NaN.
__device__ inline float exp2_by_polynomial(float v) {
    const float whole = v + 12582912.0f, r = v - (whole - 12582912.0f);  // 1.5 · 2^23: the last bit of `whole` is 1
    float q = fmaf(0.00957010143404371f, r, 0.05591786028196694f);
    q = fmaf(q, r, 0.24024744839646245f);
    q = fmaf(q, r, 0.6931218147436675f);
    q = fmaf(q, r, 0.9999992614421658f);
    return __int_as_float(__float_as_int(q) + (__float_as_int(whole) << 23));
}

/// 1 / v for 1 <= v <= 2^121.
__device__ inline float reciprocal(float v) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(v));
    return y;
}

/// The elementwise minimum of two words of 16-bit elements; NaN if one is NaN.
template <typename T>
__device__ unsigned smaller(unsigned a, unsigned b) {
    if constexpr (sizeof(T) == 4) return a;  // float32 is not bounded here
    else return Word<T>::word(__hmin2_nan(Word<T>::both(a), Word<T>::both(b)));
}

/// Online softmax: the maximum m of the elements that a thread, warp, block or cluster has processed, the sum of the exponentials relative
/// to it, and the sum of the elements.
struct alignas(16) Part {
    float m, s, total, unused;
};

/// Combines the parts of LANES lanes; all of them get the result.
template <int LANES>
__device__ Part fold(Part p) {
    float most = p.m;
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    return {most, lanes_sum<LANES>(p.s * exp2_of((p.m - most) * LOG2E)), lanes_sum<LANES>(p.total), 0};
}

/// A thread's part of a row. BOUND: 0, or how many of four bounded (soft-capped) logits get their exponential from the special function
/// unit. Bounded logits are in units of 1 / log2(e), the maximum is 0, and `cap` is the bound.
template <typename T, int BOUND, bool SMOOTH>
struct Seen {
    using P = Pack<T>;
    static constexpr int N = P::N, SUMS = 4;
    const float most, rate;  // for bounded logits; a logit v times `rate` is 2 v / cap in those units
    unsigned high;  // the logit from which the tanh is 1 - 2e-9 (argument 30), twice in a word
    float m = BOUND ? 0 : LOWEST, sums[SUMS] = {}, total = 0;

    __device__ explicit Seen(float cap) : most(cap * LOG2E), rate(2 * LOG2E / cap) {
        float f[Word<T>::N];
        for (float& v : f) v = 30 / rate;
        high = Word<T>::narrow(f);
    }

    __device__ void raise(float top) {
        if (top <= m) return;  // true for most packs of a long row
        const float by = exp2_of((m - top) * LOG2E);
#pragma unroll
        for (int j = 0; j < SUMS; ++j) sums[j] *= by;
        m = top;
    }
    /// Processes COUNT packs, those for which `has` is true; `meanwhile` is called once the loads have arrived.
    template <int COUNT, typename Has, typename Meanwhile>
    __device__ void add(const uint4 (&p)[COUNT], const Has& has, const Meanwhile& meanwhile) {
        float f[N];
        if (BOUND == 0) {
            constexpr int WORDS = Word<T>::N;
            unsigned top = 0;
            bool any = false;
            float two[WORDS];
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                if (!has(i)) continue;
                const unsigned of_pack = Word<T>::larger(Word<T>::larger(p[i].x, p[i].y), Word<T>::larger(p[i].z, p[i].w));
                top = any ? Word<T>::larger(top, of_pack) : of_pack;
                any = true;
            }
            if (any) {
                Word<T>::widen(top, two);
                raise(WORDS == 1 ? two[0] : fmaxf(two[0], two[WORDS - 1]));
            }
        }
        meanwhile();
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            if (!has(i)) continue;
            if (BOUND) {
                P::widen(make_uint4(smaller<T>(p[i].x, high), smaller<T>(p[i].y, high), smaller<T>(p[i].z, high), smaller<T>(p[i].w, high)),
                    f);
#pragma unroll
                for (int q = 0; q < N; q += 4) bounded(f[q], f[q + 1], f[q + 2], f[q + 3]);
            } else {
                P::widen(p[i], f);
            }
#pragma unroll
            for (int j = 0; j < N; ++j) {
                if (SMOOTH) total += f[j];
                sums[j % SUMS] += BOUND == 0 ? exp2_of((f[j] - m) * LOG2E) : j % 4 < BOUND ? exp2_of(f[j]) : exp2_by_polynomial(f[j]);
            }
        }
    }
    /// cap · tanh(v / cap) · log2(e) of four elements with one reciprocal, because the special function unit is the bottleneck. A NaN in
    /// one makes all four NaN.
    __device__ void bounded(float& a, float& b, float& c, float& d) const {
        a = 1 + exp2_of(a * rate), b = 1 + exp2_of(b * rate), c = 1 + exp2_of(c * rate), d = 1 + exp2_of(d * rate);
        const float p = a * b, q = c * d, part = -2 * most * reciprocal(p * q), first = part * q, second = part * p, was_a = a, was_c = c;
        a = fmaf(first, b, most), b = fmaf(first, was_a, most), c = fmaf(second, d, most), d = fmaf(second, was_c, most);
    }
    /// One element.
    __device__ void add(float v) {
        if (BOUND) {
            v = most - 2 * most / (1 + exp2_of(v * rate));
        } else {
            raise(v);
        }
        if (SMOOTH) total += v;
        sums[0] += exp2_of(BOUND ? v : (v - m) * LOG2E);
    }
    __device__ Part part() const { return {m, (sums[0] + sums[1]) + (sums[2] + sums[3]), total, 0}; }
};

/// *p, read at this point and not earlier.
template <typename T>
__device__ T now_from(const T* p) {
    T v;
    if (sizeof(T) == 2) {
        *reinterpret_cast<unsigned short*>(&v) = *reinterpret_cast<const volatile unsigned short*>(p);
    } else {
        *reinterpret_cast<unsigned*>(&v) = *reinterpret_cast<const volatile unsigned*>(p);
    }
    return v;
}

/// The loss and the normaliser (shift, and sum of the exponentials relative to it) of each row, one cluster a row. AHEAD: the next packs
/// are prefetched before the current ones are used. SOON: the target's logit is loaded at the start, not after the first packs have
/// arrived. ADDED: another launch adds the losses and counts those that are not -0.0, which an ignored row stores; else this launch writes
/// the divisor, 1.
template <typename T, int PIECES, bool AHEAD, int THREADS, int CLUSTER, int BLOCKS, int BOUND, bool SMOOTH, bool SOON, bool ADDED>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    cross_entropy_rows(int C, const T* __restrict__ x, long long xs, const long long* __restrict__ target, float* __restrict__ loss,
                       float2* __restrict__ normaliser, float* __restrict__ divisor, long long ignore, float smoothing, float scale,
                       float cap) {
    using Parts = Exchange<Part, THREADS, CLUSTER>;
    __shared__ typename Parts::Shared shared;
    constexpr int STEP = PIECES * THREADS, N = Pack<T>::N;
    const int tid = threadIdx.x, lane = tid % 32, rank = CLUSTER == 1 ? 0 : blockIdx.x % CLUSTER;
    const long long row = blockIdx.x / CLUSTER;
    gdc_wait();
    if (ADDED) gdc_launch_dependents();
    x += row * xs;
    // Packs are counted from the last 128-byte boundary, so that a warp reads whole lines; packs `lo` to `hi` are completely inside the
    // row.
    const int before = static_cast<int>(reinterpret_cast<unsigned long long>(x) % 128 / sizeof(T)), first = (before + N - 1) / N;
    const int packs = max(first, (before + C) / N), each = CLUSTER == 1 ? packs : (packs + 8 * CLUSTER - 1) / (8 * CLUSTER) * 8;
    const int lo = max(first - rank * each, 0), hi = max(lo, min(packs - rank * each, each));
    const T* const from = x - before + (rank * static_cast<long long>(each) + tid) * N;
    const auto has = [&](int at) { return static_cast<unsigned>(at + tid - lo) < static_cast<unsigned>(hi - lo); };
    const auto ask = [&](uint4 (&p)[PIECES], int at) {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            if (has(at + i * THREADS)) p[i] = __ldg(reinterpret_cast<const uint4*>(from + (at + i * THREADS) * N));
        }
    };
    const bool last = rank == 0 && tid == 0;  // this thread writes the row's loss
    long long t = 0;
    T picked = T(0.0f);
    const auto known = [&] { return last && t >= 0 && t < C; };
    if (SOON && last) t = target[row];  // before the packs, so that its logit can be loaded directly after them
    uint4 now[PIECES], next[AHEAD ? PIECES : 1];
    ask(now, 0);
    if (SOON && known()) picked = now_from(x + t);
    // what is in no such pack: fewer than 16
    const int head = min(first * N - before, C), singles = rank == 0 ? C - (packs - first) * N : 0;
    const bool has_single = tid < singles;
    const float single = has_single ? static_cast<float>(x[tid < head ? tid : tid + (packs - first) * N]) : 0;
    if (!SOON && last) t = target[row];
    if (!SOON && known() && hi == 0) picked = x[t];
    Parts parts(shared, rank);

    Seen<T, BOUND, SMOOTH> seen(cap);
#pragma unroll(AHEAD ? 2 : 1)
    for (int at = 0; at < hi; at += STEP) {
        if constexpr (AHEAD) ask(next, at + STEP);
        // With many rows the target's logit is loaded after the row's first packs have arrived: if it were loaded earlier, the packs would
        // wait for the target.
        const auto meanwhile = [&] {
            if (!SOON && at == 0 && known()) picked = now_from(x + t);
        };
        if (at >= lo && at + STEP <= hi) {
            seen.add(now, [](int) { return true; }, meanwhile);
        } else {
            seen.add(now, [&](int i) { return has(at + i * THREADS); }, meanwhile);
        }
        if constexpr (AHEAD) {
#pragma unroll
            for (int i = 0; i < PIECES; ++i) now[i] = next[i];
        } else {
            ask(now, at + STEP);
        }
    }
    if (has_single) seen.add(single);
    const Part empty = {LOWEST, 0, 0, 0};
    parts.post(0, fold<32>(seen.part()), [&](const Part& p) { return fold<32>(lane < Parts::WARPS ? p : empty); });
    Part all = parts.wait(0);
    if (tid >= 32 || rank > 0) return;
    all = CLUSTER == 1 ? fold<32>(lane < Parts::WARPS ? all : empty) : fold<CLUSTER>(all);
    if (!last) return;
    float hit = static_cast<float>(picked);
    if (BOUND) hit = cap * tanhf(hit / cap), all.total *= LN2;
    if (all.s == 0) all.s = CUDART_NAN_F;  // only -inf
    const float above = logf(all.s), z = all.m + above;
    const float off = SMOOTH ? (1 - smoothing) * (all.m - hit) + smoothing * (all.m - all.total / static_cast<float>(C)) : all.m - hit;
    const float found = above + off + scale * z * z;
    normaliser[row] = {all.m, all.s};
    loss[row] = t == ignore ? (ADDED ? -0.0f : 0.0f) : known() ? found + 0.0f : CUDART_NAN_F;
    if (!ADDED && row == 0) *divisor = 1;
}

/// A sum of losses, in double except for the few that one thread adds (in float the mean of a thousand has an error of units in the last
/// place), and their number.
struct Total {
    double sum;
    int count;
};

__device__ inline Total over_lanes(Total v) {
    v.count = __reduce_add_sync(~0u, v.count);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) v.sum += __shfl_xor_sync(~0u, v.sum, step);
    return v;
}

/// The sum of the rows' losses, with MEAN divided by the number of those that are not -0.0: one cluster of BLOCKS blocks, always in the
/// same order.
template <int BLOCKS, bool MEAN>
__global__ void __launch_bounds__(1024) cross_entropy_total(int R, const float* __restrict__ found, float* __restrict__ loss,
    float* __restrict__ divisor) {
    __shared__ Total of_warps[32], of_blocks[BLOCKS];
    const int tid = threadIdx.x, threads = blockDim.x, lane = tid % 32, rank = BLOCKS == 1 ? 0 : blockIdx.x, whole = R / 4;
    const Total none = {0, 0};
    float4 sums = {0, 0, 0, 0};
    int count = 0;
    const auto add = [&](float& sum, float v) { sum += v, count += __float_as_uint(v) != 0x80000000u; };
    if (BLOCKS > 1) cooperative_groups::this_cluster().barrier_arrive();  // after the matching wait all blocks are known to have started
    gdc_wait();
#pragma unroll 4
    for (int k = rank * threads + tid; k < whole; k += BLOCKS * threads) {
        const float4 v = reinterpret_cast<const float4*>(found)[k];
        add(sums.x, v.x), add(sums.y, v.y), add(sums.z, v.z), add(sums.w, v.w);
    }
    if (rank == 0 && tid < R % 4) add(sums.x, found[whole * 4 + tid]);
    Total all = over_lanes({static_cast<double>(sums.x) + sums.y + (static_cast<double>(sums.z) + sums.w), count});
    if (lane == 0) of_warps[tid / 32] = all;
    __syncthreads();
    if (BLOCKS > 1) cooperative_groups::this_cluster().barrier_wait();
    if (tid < 32) {
        all = over_lanes(lane < threads / 32 ? of_warps[lane] : none);
        if (BLOCKS > 1 && lane == 0) *cooperative_groups::this_cluster().map_shared_rank(&of_blocks[rank], 0) = all;
    }
    if (BLOCKS > 1) cooperative_groups::this_cluster().sync();
    if (rank > 0 || tid >= 32) return;
    if (BLOCKS > 1) all = over_lanes(lane < BLOCKS ? of_blocks[lane] : none);
    if (tid > 0) return;
    *divisor = MEAN ? all.count : 1;
    *loss = static_cast<float>(MEAN ? all.sum / all.count : all.sum);
}
