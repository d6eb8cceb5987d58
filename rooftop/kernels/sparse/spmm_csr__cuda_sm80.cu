/* rooftop
idea    = """LANES neighbouring lanes read a row of b, 16 bytes each. If N is small, DEEP such groups divide the elements of a row among \
  them, and a warp processes several rows if rows are short. Rows longer than `most` elements are skipped and cut into pieces of `most`, \
  one warp each; a second launch adds their sums in order. So no long row delays the others, and the row lengths need not be known \
  beforehand."""
limit   = """L2 bandwidth: a row of b is read for each element (4 bytes for one FMA). For small N or low density, the bytes of the elements \
  themselves, or the latency of three dependent loads for each row: offsets, columns, b"""
dtypes  = ["f32", "f16", "bf16"]
args    = ["values: T[Z]", "columns: i32[Z]", "offsets: i32[P]", "b: T[K, N]", "out: T[M, N]"]
python  = ["supports", "choose", "configs", "launches", "scratch"]
demands = { spills = 0 }
*/
#include "pdl.cuh"
#include "_epilogue.cuh"
#include "_csr_rows.cuh"

/// sum += the products of elements begin + first, begin + first + DEEP, ... below end with the columns from b on: PIECES vectors of W,
/// LANES vectors apart. UNROLL loads are in flight, and their products are added pairwise, which makes the chain of roundings shorter. S:
/// the type of products and sums. With few
/// columns float64: a block of results then has few values, and the rounding error of plain float32 may be large relative to their norm.
template <typename T, typename S, int W, int PIECES, int LANES, int DEEP, int UNROLL>
__device__ inline void add_up(S (&sum)[PIECES][W], int begin, int end, int first, const T* __restrict__ values,
    const int* __restrict__ columns, int K,
                              const T* __restrict__ b, long long bs, int left) {
    const auto some = [&](int i, bool whole) {
        float v[UNROLL];
        Vector<T, W> row[UNROLL][PIECES];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int at = i + u * DEEP;
            const bool here = whole || at < end;
            v[u] = here ? static_cast<float>(values[at]) : 0.f;
            const T* from = b + (here ? min(static_cast<unsigned>(columns[at]), static_cast<unsigned>(K - 1)) : 0) * bs;
#pragma unroll
            for (int p = 0; p < PIECES; ++p) {
                if (here && p * LANES * W < left) row[u][p] = Vector<T, W>::load(from + p * LANES * W);
                else {
#pragma unroll
                    for (int w = 0; w < W; ++w) row[u][p].v[w] = T(0.f);
                }
            }
        }
#pragma unroll
        for (int p = 0; p < PIECES; ++p) {
#pragma unroll
            for (int w = 0; w < W; ++w) {
                S part[UNROLL];
#pragma unroll
                for (int u = 0; u < UNROLL; u += 2) {
                    const S x = static_cast<float>(row[u][p].v[w]), y = static_cast<float>(row[u + 1][p].v[w]);
                    part[u] = fma(static_cast<S>(v[u]), x, static_cast<S>(v[u + 1]) * y);
                }
#pragma unroll
                for (int step = 2; step < UNROLL; step *= 2) {
#pragma unroll
                    for (int u = 0; u < UNROLL; u += 2 * step) part[u] += part[u + step];
                }
                sum[p][w] += part[0];
            }
        }
    };
    int i = begin + first;
    for (; i + (UNROLL - 1) * DEEP < end; i += UNROLL * DEEP) some(i, true);
    if (i < end) some(i, false);
}

/// Adds the groups of LANES lanes that share a row; all of them get the sum.
template <typename S, int W, int PIECES, int LANES, int DEEP>
__device__ inline void join_groups(S (&sum)[PIECES][W]) {
#pragma unroll
    for (int step = LANES; step < LANES * DEEP; step *= 2) {
#pragma unroll
        for (int p = 0; p < PIECES; ++p) {
#pragma unroll
            for (int w = 0; w < W; ++w) sum[p][w] += __shfl_xor_sync(~0u, sum[p][w], step);
        }
    }
}

/// The first `cut` blocks along x handle long rows: one warp for each piece of `most` elements, which works only if a row longer than
/// `most` has elements in it. It writes parts[piece][i] and rows[piece][i], that row or -1: i = 0 for the row of the piece's first element,
/// 1 for that of its last if it is another.
/// The other blocks: one row for each LANES · DEEP lanes. Along y: columns, LANES · W · PIECES at a time.
template <typename T, typename S, int W, int PIECES, int LANES, int DEEP, int UNROLL, int ACT, int BIAS>
__global__ void __launch_bounds__(256, 4)
rows_split(int M, int N, int K, int nnz, int cut, int most, const T* __restrict__ values, const int* __restrict__ columns,
    const int* __restrict__ offsets,
           const T* __restrict__ b, long long bs, const T* __restrict__ bias, long long bias_step, float alpha, T* __restrict__ out,
           S* __restrict__ parts,
           int* __restrict__ rows) {
    constexpr int TILE = LANES * W * PIECES;
    gdc_wait();
    const int lane = threadIdx.x % 32, column = blockIdx.y * TILE + lane % LANES * W, left = N - column;
    S sum[PIECES][W] = {};
    if (blockIdx.x < cut) {
        const int piece = blockIdx.x * 8 + threadIdx.x / 32;
        const long long start = static_cast<long long>(piece) * most;
        if (start >= nnz) return;
        const int begin = static_cast<int>(start), end = static_cast<int>(min(start + most, static_cast<long long>(nnz)));
        const int first = row_of(offsets, M, begin), last = row_of(offsets, M, end - 1);
#pragma unroll 1
        for (int i = 0; i < 2; ++i) {
            const int row = i ? last : first, from = max(offsets[row], 0), to = min(offsets[row + 1], nnz);
            const bool mine = to - from > most && (i == 0 || last != first);
            if (lane == 0 && blockIdx.y == 0) rows[piece * 2 + i] = mine ? row : -1;
            if (!mine) continue;
#pragma unroll
            for (int p = 0; p < PIECES; ++p) {
#pragma unroll
                for (int w = 0; w < W; ++w) sum[p][w] = 0;
            }
            if (left > 0) add_up<T, S, W, PIECES, LANES, 32 / LANES, UNROLL>(sum, max(from, begin), min(to, end), lane / LANES, values,
                columns, K, b + column, bs, left);
            join_groups<S, W, PIECES, LANES, 32 / LANES>(sum);
            if (lane >= LANES) continue;
#pragma unroll
            for (int p = 0; p < PIECES; ++p) {
#pragma unroll
                for (int w = 0; w < W; ++w) {
                    const int c = column + p * LANES * W + w;
                    if (c < N) parts[(static_cast<long long>(piece) * 2 + i) * N + c] = sum[p][w];
                }
            }
        }
        return;
    }
    constexpr int GROUP = LANES * DEEP;
    const int row = (blockIdx.x - cut) * (256 / GROUP) + threadIdx.x / GROUP;
    int begin = 0, end = 0;
    if (row < M) begin = max(offsets[row], 0), end = min(offsets[row + 1], nnz);
    const bool mine = row < M && end - begin <= most;
    if (mine && left > 0) add_up<T, S, W, PIECES, LANES, DEEP, UNROLL>(sum, begin, end, lane % GROUP / LANES, values, columns, K,
        b + column, bs, left);
    join_groups<S, W, PIECES, LANES, DEEP>(sum);
    if (!mine || lane % GROUP >= LANES) return;
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {
        const int c = column + p * LANES * W;
        if (c >= N) break;
        Vector<T, W> y;
#pragma unroll
        for (int w = 0; w < W; ++w) y.v[w] = T(finished<ACT, BIAS>(static_cast<float>(sum[p][w]), alpha, bias, bias_step, row, c + w));
        y.store(out + static_cast<long long>(row) * N + c);
    }
}

/// Long rows: the sum of their parts, in order. A block looks at 32 pieces; a row is finished in the piece where it starts, by 8 warps that
/// take every 8th part.
template <typename T, typename S, int ACT, int BIAS>
__global__ void __launch_bounds__(256)
join_rows(int N, int nnz, int pieces, int most, const int* __restrict__ offsets, const T* __restrict__ bias, long long bias_step,
    float alpha, T* __restrict__ out,
          const S* __restrict__ parts, const int* __restrict__ rows) {
    __shared__ int found[32][2];
    __shared__ double sums[8][32];
    gdc_wait();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.x * 32;
    if (threadIdx.x < 64) found[threadIdx.x / 2][threadIdx.x % 2] = first + static_cast<int>(threadIdx.x) / 2 < pieces
        ? rows[first * 2 + threadIdx.x] : -1;
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < 64; ++i) {
        const int piece = first + i / 2, row = found[i / 2][i % 2];
        if (row < 0) continue;
        const int begin = max(offsets[row], 0), end = min(offsets[row + 1], nnz);
        if (begin / most != piece) continue;  // it starts in an earlier piece
        const int count = (end - 1) / most - piece + 1;
        for (int c0 = blockIdx.y * 32; c0 < N; c0 += gridDim.y * 32) {
            const int c = c0 + lane;
            double sum = 0.;
            if (c < N) {
                for (int j = warp; j < count; j += 8) sum += parts[(static_cast<long long>(piece + j) * 2 + (j == 0 ? i % 2 : 0)) * N + c];
            }
            sums[warp][lane] = sum;
            __syncthreads();
            if (warp == 0 && c < N) {
#pragma unroll
                for (int w = 1; w < 8; ++w) sum += sums[w][lane];
                out[static_cast<long long>(row) * N + c] = T(finished<ACT, BIAS>(static_cast<float>(sum), alpha, bias, bias_step, row, c));
            }
            __syncthreads();
        }
    }
}
