/* rooftop
idea    = """Merge path: rows and elements form one list, each row's end after its elements, and every block gets an equal share of it, \
  whatever the row lengths. A block processes 2048 elements per step: while it sums one step, the elements of the next one and their \
  gathers of b are in flight. A thread sums eight neighbours in float64 and starts a new sum at each row end. A scan carries the sums of \
  unfinished rows from thread to thread; a second launch carries them from block to block, in order."""
limit   = "predicted: the gathers of b, a sector of L2 or L1 for each element"
dtypes  = ["f32", "f16", "bf16"]
args    = ["values: T[Z]", "columns: i32[Z]", "offsets: i32[P]", "b: T[K, N]", "out: T[M, N]"]
python  = ["supports", "choose", "configs", "launches", "scratch"]
demands = { has = ["DADD"], spills = 0 }
*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "pdl.cuh"
#include "_epilogue.cuh"

constexpr int ITEMS = 8, STEP = 256 * ITEMS;  // elements of a thread and of a block at a time
constexpr int NEVER = 0x7fffffff;

/// The number of rows that end within the first d items (merge path). By a whole warp.
__device__ inline int rows_within(const int* __restrict__ offsets, int M, int nnz, int d) {
    int low = max(d - nnz, 0), high = min(d, M);
    while (low < high) {
        const int step = (high - low + 31) / 32, probe = low + (static_cast<int>(threadIdx.x % 32) + 1) * step - 1;
        const int count = __popc(__ballot_sync(~0u, probe < high && min(max(offsets[probe + 1], 0), nnz) < d - probe));
        high = min(high, low + (count + 1) * step - 1);
        low = min(low + count * step, high);
    }
    return low;
}

/// A block has `each` items, of column blockIdx.y of b, and processes 256 ROWS rows at a time. carry[block]: the sum of the row that
/// continues past the block's end. rows[block]: the row, or -1, that starts before the block and ends in it; head[block]: the block's part
/// of its sum.
template <typename T, int ROWS, int ACT, int BIAS>
__global__ void __launch_bounds__(256, 4)
merged(int M, int N, int K, int nnz, int each, const T* __restrict__ values, const int* __restrict__ columns,
    const int* __restrict__ offsets, const T* __restrict__ b,
       long long bs, const T* __restrict__ bias, long long bias_step, float alpha, T* __restrict__ out, double* __restrict__ carry,
       double* __restrict__ head,
       int* __restrict__ rows) {
    __shared__ double sums_to[STEP + STEP / ITEMS];  // products, then segmented prefix sums: element i at i + i / ITEMS
    __shared__ unsigned begins[STEP / 32];  // bit i: a row starts with element i
    __shared__ double of_warp[8], running;  // running: of the row that continues from the step before
    __shared__ int begun[8], found[2], ended;
    gdc_wait();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = blockIdx.y;
    const long long from = static_cast<long long>(blockIdx.x) * each;
    const int first = static_cast<int>(from), last = static_cast<int>(min(from + each, static_cast<long long>(M) + nnz));
    if (warp < 2) {
        const int x = rows_within(offsets, M, nnz, warp ? last : first);
        if (lane == 0) found[warp] = x;
    }
    if (threadIdx.x < STEP / 32) begins[threadIdx.x] = 0;
    if (threadIdx.x == 0) running = 0., ended = 0;
    __syncthreads();
    const int x0 = found[0], x1 = max(found[1], x0), y0 = first - x0, y1 = max(min(last - x1, nnz), y0);
    T v[ITEMS], x[ITEMS];
    int at[ITEMS];
    const auto read = [&](int y) {
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const int j = y + static_cast<int>(threadIdx.x) + i * 256;
            if (j < y1) v[i] = values[j], at[i] = static_cast<int>(min(static_cast<unsigned>(columns[j]), static_cast<unsigned>(K - 1)));
        }
    };
    const auto gather = [&](int y) {
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            if (y + static_cast<int>(threadIdx.x) + i * 256 < y1) x[i] = b[at[i] * bs + n];
        }
    };
    int begin[ROWS], end[ROWS];  // of rows top + threadIdx.x + 256 i
    const auto look = [&](int top) {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            const int r = top + static_cast<int>(threadIdx.x) + i * 256;
            begin[i] = r <= x1 && r < M ? min(max(offsets[r], 0), nnz) : NEVER;
            end[i] = r < x1 ? min(max(offsets[r + 1], 0), nnz) : NEVER;  // row x1 does not end here
        }
    };
    read(y0);
    look(x0);
    gather(y0);
    const bool open = x1 > x0 && min(max(offsets[x0], 0), nnz) < y0;  // row x0 starts before the block
    int row = x0;  // the first row that has not ended
    double whole;
#pragma unroll 1
    for (int y = y0;; y += STEP) {
        const int stop = min(y + STEP, y1), count = stop - y;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const int j = threadIdx.x + i * 256;
            sums_to[j + j / ITEMS] = j < count
                ? static_cast<double>(static_cast<float>(v[i])) * static_cast<double>(static_cast<float>(x[i])) : 0.;
        }
        read(y + STEP);
        int top = row, next;
#pragma unroll 1
        while (true) {
            int here = 0;
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                if (begin[i] >= y && begin[i] < stop) atomicOr(begins + (begin[i] - y) / 32, 1u << (begin[i] - y) % 32);
                here += __popc(__ballot_sync(~0u, end[i] <= stop));
            }
            if (lane == 0 && here) atomicAdd(&ended, here);
            __syncthreads();
            next = x0 + ended;
            if (next != top + 256 * ROWS || next > x1) break;
            top = next;
            look(top);
            __syncthreads();
        }
        const unsigned bits = begins[threadIdx.x / 4] >> threadIdx.x % 4 * 8 & 255;
        double* const mine = sums_to + threadIdx.x * (ITEMS + 1);
        double sum = 0., opened = 0.;  // sum of the current row; of the row within which this thread starts
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            if (bits >> i & 1) {
                if ((bits & ((1u << i) - 1)) == 0) opened = sum;
                else mine[i - 1] = sum;
                sum = 0.;
            }
            sum += mine[i];
        }
        double all = sum;
        bool ends = bits != 0;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const double other = __shfl_up_sync(~0u, all, step);
            const bool before = __shfl_up_sync(~0u, static_cast<int>(ends), step);
            if (lane >= step) {
                if (!ends) all += other;
                ends |= before;
            }
        }
        if (lane == 31) of_warp[warp] = all, begun[warp] = ends;
        __syncthreads();
        double before = running;  // the earlier warps' part of the row that this warp starts within
        for (int w = 0; w < warp; ++w) before = begun[w] ? of_warp[w] : before + of_warp[w];
        const double beside = __shfl_up_sync(~0u, all, 1);
        const bool over = __shfl_up_sync(~0u, static_cast<int>(ends), 1);
        const double carried = lane == 0 ? before : over ? beside : before + beside;
        whole = ends ? all : before + all;
        const int own = threadIdx.x * ITEMS, final = min(own + ITEMS, count) - 1 - own;  // its last element
        if (bits > 1 && (bits & 1) == 0) mine[__ffs(static_cast<int>(bits)) - 2] = carried + opened;
        if (final >= 0) mine[final] = bits ? sum : carried + sum;
        gather(y + STEP);
        __syncthreads();
        if (threadIdx.x == 255) running = whole;
        if (threadIdx.x < STEP / 32) begins[threadIdx.x] = 0;
#pragma unroll 1
        for (int f = row; f < next; f += 256 * ROWS) {
            if (row != top) look(f);
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                const int r = f + static_cast<int>(threadIdx.x) + i * 256, e = end[i] - 1 - y;
                if (r >= next) break;
                const double of_row = end[i] > begin[i] && e >= 0 && e < STEP ? sums_to[e + e / ITEMS] : 0.;
                if (r == x0 && open) head[static_cast<long long>(blockIdx.x) * N + n] = of_row;
                else out[static_cast<long long>(r) * N + n] =
                    T(finished<ACT, BIAS>(static_cast<float>(of_row), alpha, bias, bias_step, r, n));
            }
        }
        if (stop == y1) break;
        row = next;
        look(row);
        __syncthreads();
    }
    if (threadIdx.x == 255) carry[static_cast<long long>(blockIdx.x) * N + n] = whole;
    if (threadIdx.x == 0 && n == 0) rows[blockIdx.x] = open ? x0 : -1;
}

/// Rows that span several blocks: one warp each, at the block where the row ends.
template <typename T, int ACT, int BIAS>
__global__ void __launch_bounds__(256)
join_blocks(int N, int nnz, int each, int blocks, const int* __restrict__ offsets, const T* __restrict__ bias, long long bias_step,
    float alpha, T* __restrict__ out,
            const double* __restrict__ carry, const double* __restrict__ head, const int* __restrict__ rows) {
    gdc_wait();
    const int block = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32, n = blockIdx.y;
    if (block >= blocks) return;
    const int row = rows[block];
    if (row < 0) return;
    double sum = 0.;
    const long long items = static_cast<long long>(row) + min(max(offsets[row], 0), nnz);
    for (int i = static_cast<int>(items / each) + lane; i < block; i += 32) sum += carry[static_cast<long long>(i) * N + n];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane == 0) {
        sum += head[static_cast<long long>(block) * N + n];
        out[static_cast<long long>(row) * N + n] = T(finished<ACT, BIAS>(static_cast<float>(sum), alpha, bias, bias_step, row, n));
    }
}
