/* rooftop
ops     = ["rms_norm", "layer_norm"]
idea    = """A row that is too long for one block is divided among a group of persistent blocks, a slice each. A slice stays in a ring \
  buffer in shared memory while the blocks exchange its statistics through global memory; the row is finished a few rows later. So each row \
  is read once, as long as all blocks together can hold it. Up to `beside` blocks share a multiprocessor: while one computes or waits for \
  messages, another loads."""
limit   = "Rows longer than the shared memory of the whole card; blocks that do not make a whole group idle."
dtypes  = ["f32", "f16", "bf16"]
args    = [
    "R: i32", "C: i32", "x: T[R, C]", "xs: i64 = stride(x, 0)", "residual: T[R, C]?", "rs: i64 = stride(residual, 0)", "weight: T[C]?",
    "bias: T[C]?", "y: T[R, C]", "ys: i64 = stride(y, 0)", "s: T[R, C]?", "ss: i64 = stride(s, 0)", "eps: f32",
]
demands = { has = ["LDGSTS.E.128", "STG.E.128"], spills = 0 }
python  = ["supports", "choose", "configs", "scratch", "zeroed", "launches"]
valid   = "vectors > 0"

[config]
blocks  = 1
threads = 512
vectors = 0
stages  = 3
lag     = 1
beside  = 1
*/
// Forward of rms_norm and layer_norm for rows too long for a block's registers. A group of persistent blocks shares a row, one slice each.
// The blocks exchange the statistics of their slices and finish the row LAG rows later; until then its slices stay in a ring buffer in
// shared memory. So a row is read once.
//
//     y = (v - mean) / sqrt(mean of (v - mean)^2 + eps) * weight + bias     v = x, or v = s = x + residual, where s is an output too
//
// CENTRE is true for layer_norm: the mean is subtracted.
#include "packs.cuh"
#include "_ring.cuh"

/// Mean of some elements and the sum of squares about it; without CENTRE the mean is 0.
struct Moments {
    float mean, squares;
};

/// A thread's work on its slice of a row. The ring buffer holds x and, with RESIDUAL, the residual; weight and bias stay in shared memory.
template <typename T, int VECTORS, int STAGES, bool ALIGNED, bool CENTRE, bool RESIDUAL, bool WEIGHT, bool BIAS>
struct Slice : Ring<T, VECTORS, STAGES, RESIDUAL ? 2 : 1, WEIGHT + BIAS, ALIGNED, !ALIGNED> {
    using Base = Ring<T, VECTORS, STAGES, RESIDUAL ? 2 : 1, WEIGHT + BIAS, ALIGNED, !ALIGNED>;
    using Base::row, Base::at, Base::widen, Base::widen_kept, Base::single, Base::kept_single;
    using P = Pack<T>;
    static constexpr int N = P::N;

    /// s = x + residual, rounded; it is stored and replaces x in the ring buffer.
    __device__ void add_residual(T* s) {
        const bool together = ALIGNED || aligned(s + row.head);
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            if (!row.has(i)) continue;
            float a[N], b[N];
            widen(0, i, a), widen(1, i, b);
#pragma unroll
            for (int j = 0; j < N; ++j) a[j] += b[j];
            const uint4 sum = P::narrow(a);
            *at(0, i) = sum;
            P::store(s + row.column(i), together, sum);
        }
        if (!row.has_single()) return;
        const T sum = T(single(0) + single(1));
        single(0) = static_cast<float>(sum), s[row.single_column()] = sum;
    }
    /// The moments of the n elements of a warp, in two passes; the second also gives the rounding error of the mean.
    __device__ Moments of_warp(const Divisor& n) const {
        float sum = 0;
        if (!CENTRE) {
            Base::each([&](float v) { sum += v * v; });
            return {0, lanes_sum<32>(sum)};
        }
        Base::each([&](float v) { sum += v; });
        const float mean = over(lanes_sum<32>(sum), n);
        float both[2] = {0, 0};
        Base::each([&](float v) { both[0] += (v - mean) * (v - mean), both[1] += v - mean; });
        lanes_sums<32>(both);
        const float rest = over(both[1], n);
        return {mean + rest, fmaxf(both[0] - n.n * rest * rest, 0)};
    }
    __device__ void write(const Moments& m, const Divisor& C, float eps, T* y) const {
        const float scale = reciprocal_root(over(m.squares, C) + eps);
        const bool together = ALIGNED || aligned(y + row.head);
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            if (!row.has(i)) continue;
            float v[N], w[N], b[N];
            widen(0, i, v);
            if (WEIGHT) widen_kept(0, i, w);
            if (BIAS) widen_kept(WEIGHT, i, b);
#pragma unroll
            for (int j = 0; j < N; ++j) {
                v[j] = (v[j] - m.mean) * scale;
                if (WEIGHT) v[j] *= w[j];
                if (BIAS) v[j] += b[j];
            }
            P::store(y + row.column(i), together, P::narrow(v));
        }
        if (!row.has_single()) return;
        float v = (single(0) - m.mean) * scale;
        if (WEIGHT) v *= kept_single[0];
        if (BIAS) v += kept_single[WEIGHT];
        y[row.single_column()] = T(v);
    }
};

/// The moments of `count` parts, n(part) elements each, combined into one, in all lanes of a warp (Chan, Golub & LeVeque 1979). Means are
/// summed as distances from the first part's: exact if all elements are equal.
template <bool CENTRE, typename Part, typename Elements>
__device__ Moments whole_of(int count, const Part& part, const Elements& n, const Divisor& total) {
    const int lane = threadIdx.x % 32;
    float squares = 0, shift = 0;
    const float base = CENTRE ? part(0).mean : 0;
    for (int p = lane; CENTRE && p < count; p += 32) shift += n(p) > 0 ? n(p) * total.part * (part(p).mean - base) : 0;
    const float mean = CENTRE ? base + lanes_sum<32>(shift) : 0;
    for (int p = lane; p < count; p += 32) {
        const float off = CENTRE && n(p) > 0 ? part(p).mean - mean : 0;
        squares += part(p).squares + n(p) * off * off;
    }
    return {mean, lanes_sum<32>(squares)};
}

template <typename T, int VECTORS, int STAGES, int LAG, bool ALIGNED, bool CENTRE, bool RESIDUAL, bool WEIGHT, bool BIAS>
__global__ void __launch_bounds__(512, 1)
    norm_long(int R, int C, const T* __restrict__ x, long long xs, const T* __restrict__ residual, long long rs,
        const T* __restrict__ weight,
              const T* __restrict__ bias, T* __restrict__ y, long long ys, T* __restrict__ s, long long ss, float eps, int period,
              int blocks,
              unsigned long long* all_mail) {
    constexpr int WORDS = CENTRE ? 2 : 1;
    __shared__ Moments parts[2][16], of_row;  // by warp, for this row and the next; of the row that is finished
    __shared__ float inbox[2][WORDS][GROUP_MOST], elements[GROUP_MOST], of_warps[16];  // by block; numbers of elements by block and by warp
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32, rank = blockIdx.x % blocks;
    const Walk walk(R, period, blockIdx.x / blocks, gridDim.x / blocks, 0, 1);
    const Mail<WORDS> mail(all_mail, blocks);
    Slice<T, VECTORS, STAGES, ALIGNED, CENTRE, RESIDUAL, WEIGHT, BIAS> slice;
    auto& row = slice.row;
    row.locate(x + walk.phase * xs, C, rank * blockDim.x + threadIdx.x, blocks * blockDim.x);
    if (threadIdx.x < blocks) elements[threadIdx.x] = elements_of_block(row, threadIdx.x);
    if (lane == 0) of_warps[warp] = row.elements_of_warp(rank * warps + warp);
    const Divisor n(C), of_warp(max(1, row.elements_of_warp(rank * warps + warp))), of_block(max(1, elements_of_block(row, rank)));
    const T* const tensors[2] = {x, residual};
    const long long strides[2] = {xs, rs};
    if (WEIGHT) slice.keep(0, weight);
    if (BIAS) slice.keep(WEIGHT, bias);
    slice.begin(walk, tensors, strides);
    for (int k = 0; k < walk.count + LAG; ++k) {
        const int back = k - LAG;  // the row that is finished in this iteration
        if (back >= 0) slice.fetch(back + STAGES - 1 < walk.count);
        const unsigned long long looked = back >= 0 ? mail.look(back) : 0;
        if (k < walk.count) {
            slice.now = k % STAGES;
            slice.take_singles(k + 1 < walk.count);
            __pipeline_wait_prior(STAGES - LAG - 1);
            if (RESIDUAL) slice.add_residual(s + (walk.first + static_cast<long long>(k) * walk.step) * ss);
            const Moments part = slice.of_warp(of_warp);
            if (lane == 0) parts[k % 2][warp] = part;
        }
        if (back >= 0) mail.take(back, looked, inbox[k % 2]);
        __syncthreads();
        if (k < walk.count && warp == 0) {
            const Moments p = whole_of<CENTRE>(warps, [&](int w) { return parts[k % 2][w]; }, [&](int w) { return of_warps[w]; }, of_block);
            if (lane == 0) mail.send(k, 0, CENTRE ? p.mean : p.squares);
            if (CENTRE && lane == 1) mail.send(k, 1, p.squares);
        }
        if (back < 0) continue;
        const auto part = [&](int b) { return Moments{CENTRE ? inbox[k % 2][0][b] : 0, inbox[k % 2][WORDS - 1][b]}; };
        if (warp == 1) {  // for all warps: these instructions are as many as those of two vectors
            const Moments all = whole_of<CENTRE>(blocks, part, [&](int b) { return elements[b]; }, n);
            if (lane == 0) of_row = all;
        }
        __syncthreads();
        slice.now = back % STAGES;
        slice.write(of_row, n, eps, y + (walk.first + static_cast<long long>(back) * walk.step) * ys);
    }
}
