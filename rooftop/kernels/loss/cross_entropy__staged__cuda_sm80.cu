/* rooftop
idea    = """Short rows that are adjacent in memory are one contiguous range, divided into stretches of whole rows. A persistent block \
  copies a stretch to shared memory in vectors of 16 bytes while it processes the one before. Teams of a few lanes, so few that a row's \
  length keeps all of them busy, compute each row's maximum and sum from there. The work done once a row (its logarithm, the target's \
  logit, which is already in shared memory, the outputs) is done by one thread a row, for a full warp of rows at a time. So the cost of a \
  row is that of its elements, whatever its length and alignment. Each block adds the losses of its rows in double; a second launch of one \
  block adds the sums of the few hundred blocks in order."""
predict = { registers = 56 }
limit   = """On an H200 0.79 to 0.91 of the read of the logits at 64 to 1088 classes, 6 to 28 times as fast as torch. 16-bit rows of 64 to \
  600 classes take 8 to 11 instructions an element; the time of a read from device memory has room for 13."""
dtypes  = ["f32", "f16", "bf16"]
args    = ["R: i32", "C: i32", "rows: i32", "input: T[R, C]", "target: i64[R]"]
tensors = ["normaliser: f32[R, 2]"]
demands = { has = ["LDGSTS.E.128", "LDS.128"], spills = 0 }
python  = ["supports", "choose", "configs", "scratch", "launches"]
valid   = "rows * lanes % 256 == 0 and rows <= 256 and pieces == ceil(ceil((C * bytes(input) + 16 - gcd(16, C * bytes(input))) / 16) / lanes)"

[config]
lanes  = 8
pieces = 4
rows   = 32
*/
#include <math_constants.h>

#include "pdl.cuh"
#include "packs.cuh"
#include "contiguous_rows.cuh"

constexpr int THREADS = 256;
constexpr float LOG2E = 1.4426950408889634f;

/// 2^v, 0 if that is subnormal.
__device__ inline float exp2_of(float v) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(v));
    return y;
}

// The identity of the maximum. With -inf, lanes that have only -inf would give -inf - -inf = NaN, also in rows that have finite elements;
// with the lowest finite number such lanes add exp(-inf) = 0, and a row of only -inf has the sum 0.
constexpr float LOWEST = -3.402823466e38f;

/// A sum of losses, and the number of rows.
struct alignas(16) Total {
    double sum;
    long long count;
};

__device__ inline Total over_lanes(Total v) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        v.sum += __shfl_xor_sync(~0u, v.sum, step), v.count += __shfl_xor_sync(~0u, v.count, step);
    }
    return v;
}

/// The sum over all threads of a block (up to 32 warps), in thread 0.
__device__ inline Total over_block(Total v) {
    __shared__ Total of_warps[32];
    v = over_lanes(v);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = v;
    __syncthreads();
    return over_lanes(threadIdx.x < blockDim.x / 32 ? of_warps[threadIdx.x] : Total{0, 0});
}

/// A row's maximum m, the sum s of e^(z - m), and the sum of its logits.
struct OfRow {
    float m, s, total;
};

/// A stretch is `rows` rows, a whole number of vectors; two are in shared memory. Writes the rows' normalisers and their losses, one by one
/// (`loss`) or, with ADDED, summed over the block (`found`).
template <typename T, int LANES, int PIECES, bool WHOLE, bool FULL, bool SMOOTH, bool ADDED>
__global__ void __launch_bounds__(THREADS, PIECES <= 8 ? 4 : 2)
    cross_entropy_staged(int R, int C, int rows, const T* __restrict__ x, const long long* __restrict__ target, float* __restrict__ loss,
                         Total* __restrict__ found, float2* __restrict__ normaliser, float* __restrict__ divisor, long long ignore,
                         float smoothing,
                         float scale) {
    extern __shared__ __align__(128) uint4 stretches[];
    __shared__ OfRow found_of[THREADS];
    constexpr int TEAMS = THREADS / LANES, N = 16 / sizeof(T);
    const int tid = threadIdx.x, team = tid / LANES, lane = tid % LANES, last = (R - 1) / rows, vectors = rows * C / N;
    // This thread's first vector of the next stretch, and its target there.
    const char* from = reinterpret_cast<const char*>(x) + (static_cast<long long>(blockIdx.x) * vectors + tid) * 16;
    const long long* of_row = target + static_cast<long long>(blockIdx.x) * rows + tid;
    long long coming = 0;
    unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(stretches + tid));
    const auto fetch = [&](int s, int stage) {
        if (s < last) {
            fetch_vectors<THREADS>(to + stage * vectors * 16, from, (vectors - tid) * 16);
            if (tid < rows) coming = *of_row;
        } else if (s == last) {  // the last stretch may end within a vector
            const int left = (R - last * rows) * C, whole = left / N;
            fetch_vectors<THREADS>(to + stage * vectors * 16, from, (whole - tid) * 16);
            const T* const rest = x + static_cast<long long>(last) * rows * C + whole * N;
            if (tid < left % N) reinterpret_cast<T*>(stretches + stage * vectors + whole)[tid] = rest[tid];
            if (tid < R - last * rows) coming = *of_row;
        }
        __pipeline_commit();
        from += static_cast<long long>(gridDim.x) * vectors * 16, of_row += static_cast<long long>(gridDim.x) * rows;
        asm volatile("" : "+r"(to), "+l"(from));  // kept in registers: otherwise the compiler recomputes them
    };
    Total total = {0, 0};
    gdc_wait();
    if (ADDED) gdc_launch_dependents();
    int stage = 0;
    fetch(blockIdx.x, 0);
#pragma unroll 1
    for (int s = blockIdx.x; s <= last; s += gridDim.x, stage ^= 1) {
        const long long t = coming;
        fetch(s + gridDim.x, stage ^ 1);
        __pipeline_wait_prior(1);
        __syncthreads();
        const uint4* const stretch = stretches + stage * vectors;
        const int count = s < last ? rows : R - last * rows;
        const bool known = tid < count && t >= 0 && t < C;
        const float hit = known ? static_cast<float>(reinterpret_cast<const T*>(stretch)[tid * C + static_cast<int>(t)]) : 0;
#pragma unroll 1
        for (int k = 0; k < count; k += TEAMS) {  // all lanes of a warp take part in the shuffles
            const int at = min(k + team, count - 1) * C;
            StretchRow<T, LANES, PIECES, WHOLE, FULL> row(stretch, at, at + C, lane);
            float sums[2] = {0, 0}, whole = 0;
            if (SMOOTH) {
                row.mask(0);
                row.each([&](float v, int) { whole += v; });
                whole = lanes_sum<LANES>(whole);
            }
            row.mask(lowest_word<T>());
            float most = row.most();
#pragma unroll
            for (int step = LANES / 2; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
            most = fmaxf(most, LOWEST);
            // 16-bit types: the exponent in one instruction. The rounding error of `scaled` is the same factor in all terms.
            const bool in_one = sizeof(T) == 2 && fabsf(most) < 1e38f;
            const float scaled = most * LOG2E, rest = fmaf(most, LOG2E, -scaled);
            if (in_one) {
                row.each([&](float v, int j) { sums[j % 2] += exp2_of(fmaf(v, LOG2E, -scaled)); });
            } else {
                row.each([&](float v, int j) { sums[j % 2] += exponential<T>(v - most); });
            }
            float sum = lanes_sum<LANES>(sums[0] + sums[1]);
            if (in_one) sum = 1 + (sum - exp2_of(rest)) * exp2_of(-rest);  // the largest term, which is in the sum, is exactly 1
            if (k + team < count && lane == 0) found_of[k + team] = {most, sum, whole};
        }
        __syncthreads();
        if (tid >= count) continue;
        const long long row = static_cast<long long>(s) * rows + tid;
        const OfRow p = found_of[tid];
        const bool counts = t != ignore;
        const float sum = p.s == 0 ? CUDART_NAN_F : p.s;  // only -inf
        const float above = logf(sum), z = p.m + above;
        const float off = SMOOTH ? (1 - smoothing) * (p.m - hit) + smoothing * (p.m - p.total / static_cast<float>(C)) : p.m - hit;
        const float one = !counts ? 0 : known ? above + off + scale * z * z : CUDART_NAN_F;
        normaliser[row] = {p.m, sum};
        total.sum += one, total.count += counts;
        if (!ADDED) loss[row] = one;
    }
    __pipeline_wait_prior(0);
    if (!ADDED) {
        if (blockIdx.x == 0 && tid == 0) *divisor = 1;
        return;
    }
    total = over_block(total);
    if (tid == 0) found[blockIdx.x] = total;
}

/// The sum of the partial sums of `count` blocks, with MEAN divided by the number of rows, always in the same order. One block.
template <bool MEAN>
__global__ void __launch_bounds__(1024) cross_entropy_blocks(int count, const Total* __restrict__ found, float* __restrict__ loss,
    float* __restrict__ divisor) {
    Total total = {0, 0};
    gdc_wait();
#pragma unroll 4
    for (int k = threadIdx.x; k < count; k += blockDim.x) total.sum += found[k].sum, total.count += found[k].count;
    total = over_block(total);
    if (threadIdx.x > 0) return;
    *divisor = MEAN ? static_cast<float>(total.count) : 1;
    *loss = static_cast<float>(MEAN ? total.sum / static_cast<double>(total.count) : total.sum);
}
