/* rooftop
idea    = """As decompress_blocks__cuda_sm80, but a thread has a whole row of 32 values up to the sums along X: bit planes become numbers \
  between registers, of narrow rows in an eighth or a quarter of the steps, and the sums along X are one addition a value, without \
  shuffles. What is summed of first values alone is one number a row. The rows change sides in shared memory, from where lanes sum \
  columns along Y and Z and store rows."""
predict = { registers = 80 }
limit   = """instructions: about 40 per row of 32 values (copy and checksum 3, transpose 4 to 13, zigzag and sums along X 5, columns 8, product \
  and store 10), less than half of those of a lane a value"""
args    = ["bound: f64[1]?"]
python  = ["supports", "launches"]
demands = { spills = 0 }
*/
#include "pdl.cuh"
#include "_chunks.cuh"

template <int F>
constexpr int MOST = 1 + 1024 * Element<F>::BYTES;  // words of a chunk that is stored raw: the longest

/// The numbers of a row from its bit planes at `from`: the reverse of a transpose of numbers of at most N bits.
template <int N>
__device__ void numbers(const unsigned* from, int width, unsigned (&a)[32]) {
#pragma unroll
    for (int k = 0; k < N; ++k) a[k] = k < width ? from[k] : 0;
    exchanged<N, 1>(a), exchanged<N, 2>(a), exchanged<N, 4>(a);
    if constexpr (N <= 8) {
#pragma unroll
        for (int k = 0; k < 8; ++k) a[k + 8] = a[k] >> 8 & 0x00FF00FFu, a[k] &= 0x00FF00FFu;
    }
    if constexpr (N >= 16) exchanged<N, 8>(a);
    if constexpr (N <= 16) {
#pragma unroll
        for (int k = 0; k < 16; ++k) a[k + 16] = a[k] >> 16, a[k] &= 0xFFFFu;
    }
    if constexpr (N == 32) exchanged<32, 16>(a);
}

/// Decodes one chunk into y. Returns 0, or an error code: then nothing is written.
template <int F, int RANK, bool LOSSY>
__device__ __forceinline__ int decoded(const unsigned* __restrict__ words, long long count, const long long* __restrict__ starts,
    const unsigned* __restrict__ checks,
                                       const Step<F>& step, const Box<RANK>& box, typename Element<F>::Bits* __restrict__ y,
                                       unsigned* held,
                                       uint4* rows, unsigned* totals, unsigned* masks_of, unsigned& sum) {
    using E = Element<F>;
    using Bits = typename E::Bits;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = threadIdx.x;
    const long long chunk = blockIdx.x;
    const long long from = starts[chunk], size_of_it = starts[chunk + 1] - from;
    if (from < 0 || size_of_it < 1 || size_of_it > MOST<F> || from > count - size_of_it) return 1;
    const int size = static_cast<int>(size_of_it);
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    unsigned check = 0;
#pragma unroll 4
    for (int i = threadIdx.x; i < size; i += LINES) {
        const unsigned w = words[from + i];
        held[i] = w, check += mixed(w, i);
    }
    check = __reduce_add_sync(~0u, check);
    if (lane == 0) atomicAdd(&sum, check);
    __syncthreads();
    if (sum != checks[chunk]) return 2;

    const auto exact = [&](int at, int number) { return reinterpret_cast<const Bits*>(held + at)[number]; };
    // the last word, with something else than zeros
    const auto filled = [&](int bytes) { return bytes % 4 && held[size - 1] >> bytes % 4 * 8; };
    const unsigned head = held[0];
    if (head == 0) {
        if (size != 1 + (box.values() * E::BYTES + 3) / 4 || filled(box.values() * E::BYTES)) return 3;
        for (int half = 0; half < 2; ++half) {
            const auto strip = box.strip(2 * warp + half);
#pragma unroll 4
            for (int i = 0; i < strip.mine; ++i)
                y[strip.first + i * strip.step] = exact(1, box.number_of(warp * 32 + half * MINE + i) + lane);
        }
        return 0;
    }
    const int predictor = head >> 4 & 3, least = head >> 8 & 127, planes = head >> 16 & 7, any = head >> 24 & 1;
    if ((head & 0xFEF880CEu) || !(head & 1) || predictor > RANK || (any && !LOSSY)) return 3;
    int front = 2 + 4 * planes;
    if (size < front + 4 * any) return 3;
    Widths widths;
    int most = 0;
#pragma unroll
    for (int q = 0; q < 4; ++q) widths.own[q] = least;
    for (int j = 0; j < planes; ++j) {
        const unsigned four = held[2 + 4 * j + lane / 8] >> lane % 8 * 4;
#pragma unroll
        for (int q = 0; q < 4; ++q) widths.own[q] += static_cast<int>(four >> q & 1) << j;
    }
#pragma unroll
    for (int q = 0; q < 4; ++q) most = max(most, widths.own[q]);
    most = __reduce_max_sync(~0u, most);
    if (most > 32) return 3;
    widths.scan();

    Widths found;
    found.total = 0;
    bool wrong = false;
    if (any) {
        const unsigned flags = held[front + lane / 8] >> lane % 8 * 4 & 15;
        int next = __popc(flags);
#pragma unroll
        for (int j = 1; j < 32; j *= 2) {
            const int other = __shfl_up_sync(~0u, next, j);
            if (lane >= j) next += other;
        }
        const int marked = __shfl_sync(~0u, next, 31);
        next += front + 4 - __popc(flags), front += 4 + marked;
        if (size < front || !marked) return 3;
#pragma unroll
        for (int q = 0; q < 4; ++q) {
            unsigned mask = 0;
            if (flags >> q & 1) mask = held[next++], wrong |= mask == 0;
            found.own[q] = __popc(mask);
            if (warp == 0) masks_of[4 * lane + q] = mask;
        }
        found.scan();
    }
    const int after = front + widths.total;
    if (__any_sync(~0u, wrong) || size != after + (found.total * E::BYTES + 3) / 4 || filled(found.total * E::BYTES)) return 3;

    const unsigned base = held[1];
    const int inside = box.inside(row);
    const bool whole = box.whole();
    int width = 0, at = 0;  // of the thread's row
#pragma unroll
    for (int q = 0; q < 4; ++q) {
        const int w = __shfl_sync(~0u, widths.own[q], row / 4), b = __shfl_sync(~0u, widths.before[q], row / 4);
        if (row % 4 == q) width = w, at = b;
    }
    unsigned v[32];
    if (most <= 8) numbers<8>(held + front + at, width, v);
    else if (most <= 16) numbers<16>(held + front + at, width, v);
    else numbers<32>(held + front + at, width, v);
    wrong = false;
#pragma unroll
    for (int j = 0; j < 32; ++j) {
        wrong |= !whole && j >= inside && v[j];
        v[j] = unzigzag(v[j]);
    }
    if (any) {
        __syncthreads();
        wrong |= inside < 32 && masks_of[row] >> inside;
    }
    if (predictor) {
        totals[row] = v[0];
#pragma unroll
        for (int j = 1; j < 32; ++j) v[j] += v[j - 1];
        if (RANK == 1) totals[row] = v[31];
    }
    if (__syncthreads_or(wrong)) return 3;

    // what first values are summed along: of a line all rows; predictor 1: along Y and Z, 2: of a volume's planes along Z
    unsigned more = 0;
    if (RANK < 3 && predictor == 1) {
        const unsigned own = totals[row];
        unsigned up_to = own;
#pragma unroll
        for (int j = 1; j < 32; j *= 2) {
            const unsigned other = __shfl_up_sync(~0u, up_to, j);
            if (lane >= j) up_to += other;
        }
        if (lane == 31) masks_of[ROWS + warp] = up_to;
        __syncthreads();
        more = up_to - own;
        for (int w = 0; w < warp; ++w) more += masks_of[ROWS + w];
    }
    if (RANK == 3 && predictor == 1) {
        for (int z = 0; z < row / 16; ++z)  // of the planes before
            for (int i = 0; i <= row % 16; ++i) more += totals[16 * z + i];
        for (int i = row - row % 16; i < row; ++i) more += totals[i];
    }
    if (RANK == 3 && predictor == 2 && row % 16 == 0)
        for (int z = 0; z < row; z += 16) more += totals[z];
#pragma unroll
    for (int g = 0; g < 8; ++g)
        rows[granule(row, g)] = make_uint4(v[4 * g] + more, v[4 * g + 1] + more, v[4 * g + 2] + more, v[4 * g + 3] + more);
    __syncthreads();

    unsigned* number = reinterpret_cast<unsigned*>(rows);
    if (RANK == 3 && predictor == 3) {  // along Z: the warp's rows y of all planes
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            unsigned run = 0;
#pragma unroll
            for (int z = 0; z < 8; ++z) {
                const int here = place_of(16 * z + 4 * warp + i, lane);
                run += number[here];
                number[here] = run;
            }
        }
        __syncthreads();
    }
    const bool down = RANK >= 2 && predictor >= 2;  // along Y
    if (RANK == 2 && predictor == 2) {
        for (int half = 0; half < 2; ++half) {
            unsigned all = 0;
#pragma unroll
            for (int i = 0; i < MINE; ++i) all += number[place_of(warp * 32 + half * MINE + i, lane)];
            totals[(2 * warp + half) * 32 + lane] = all;
        }
        __syncthreads();
    }
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
        const int first = warp * 32 + half * MINE;
        const auto strip = box.strip(2 * warp + half);
        Bits* to = y + strip.first;
        unsigned run = 0;
        if (RANK == 2 && predictor == 2)
            for (int s = 0; s < 2 * warp + half; ++s) run += totals[s * 32 + lane];
#pragma unroll
        for (int i = 0; i < MINE; ++i, to += strip.step) {
            unsigned code = number[place_of(first + i, lane)];
            if (down) code = run += code;
            code += base;
            Bits bits;
            if constexpr (LOSSY) bits = dequantised<F>(code, step);
            else bits = unordered<F>(code);
            if (any) {
                const unsigned mask = masks_of[first + i];
                const int number_of_it = found.offset(2 * warp + half, i) + __popc(mask & ((1u << lane) - 1));
                if (mask >> lane & 1) bits = exact(after, number_of_it);
            }
            if (i < strip.mine) *to = bits;
        }
    }
    return 0;
}

template <int F, int RANK, bool LOSSY>
__global__ void __launch_bounds__(LINES, 6)
decompress_blocks(const unsigned* __restrict__ words, long long count, const long long* __restrict__ starts,
    const unsigned* __restrict__ checks,
                  const double* __restrict__ bound, long long Z, long long Y, long long X, int nz, int ny, int nx,
                  typename Element<F>::Bits* __restrict__ y,
                  int* __restrict__ damaged) {
    __shared__ __align__(16) unsigned held[MOST<F> + 1];
    __shared__ __align__(16) uint4 rows[ROWS * 8];
    __shared__ unsigned totals[8 * 32], masks_of[ROWS + 4];  // of rows and columns; of exceptions, and sums of warps
    __shared__ unsigned sum;
    gdc_wait();
    const Box<RANK> box(blockIdx.x, Z, Y, X, nz, ny, nx);
    const Step<F> step(LOSSY ? *bound : 1.0);
    const int why = decoded<F, RANK, LOSSY>(words, count, starts, checks, step, box, y, held, rows, totals, masks_of, sum);
    if (why) {
        for (int half = 0; half < 2; ++half) {
            const auto strip = box.strip(2 * (threadIdx.x / 32) + half);
#pragma unroll 1
            for (int i = 0; i < strip.mine; ++i) y[strip.first + i * strip.step] = 0;
        }
    }
    if (threadIdx.x == 0) damaged[blockIdx.x] = why;
}
