/* rooftop
idea    = """A block decodes a chunk. One coalesced copy brings its words to shared memory, and the checksum is computed from it. The bit \
  widths of its rows say where the bit planes of each row lie, and shuffles, sums and products turn bit planes into numbers. The lengths \
  are summed and checked before they are used as addresses, so that corrupt words cannot cause a read outside of the chunk."""
predict = { registers = 64 }
limit   = """instructions: about 90 per row of 32 values (copy and checksum 15, transpose 20, sums along three dimensions 25, product and \
  store 10); 1.8 TB/s of float32. Memory would allow 3.4 TB/s at ratio 4"""
args    = ["bound: f64[1]?"]
python  = ["supports", "launches"]
demands = { spills = 0 }
*/
#include "pdl.cuh"
#include "_chunks.cuh"

template <int F>
constexpr int MOST = 1 + 1024 * Element<F>::BYTES;  // words of a chunk that is stored raw: the longest
template <int F>
constexpr int HELD = MOST<F> > 4096 * (Element<F>::WIDE ? 2 : 1) ? MOST<F> + 1 : 4096 * (Element<F>::WIDE ? 2 : 1);

/// Decodes one chunk into y. Returns 0, or an error code: then nothing is written.
template <int F, int RANK, bool LOSSY>
__device__ __forceinline__ int decoded(const unsigned* __restrict__ words, long long count, const long long* __restrict__ starts,
    const unsigned* __restrict__ checks,
                                       const Step<F>& step, const Place<RANK>& place, typename Element<F>::Bits* __restrict__ y,
                                       unsigned* held,
                                       typename Element<F>::Code* totals, unsigned& sum) {
    using E = Element<F>;
    using U = typename E::Code;
    using Bits = typename E::Bits;
    constexpr int PER = E::WIDE ? 2 : 1;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long chunk = blockIdx.x;
    const long long from = starts[chunk], size_of_it = starts[chunk + 1] - from;
    if (from < 0 || size_of_it < 1 || size_of_it > MOST<F> || from > count - size_of_it) return 1;
    const int size = static_cast<int>(size_of_it);
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    unsigned check = 0;
#pragma unroll 4
    for (int i = threadIdx.x; i < size; i += THREADS) {
        const unsigned w = words[from + i];
        held[i] = w, check += mixed(w, i);
    }
    check = __reduce_add_sync(~0u, check);
    if (lane == 0) atomicAdd(&sum, check);
    __syncthreads();
    if (sum != checks[chunk]) return 2;

    const auto exact = [&](int at, int number) {  // element `number` of those packed from word `at` on
        if constexpr (E::WIDE) return static_cast<Bits>(held[at + 2 * number]) | static_cast<Bits>(held[at + 2 * number
            + 1]) << 32 % (8 * E::BYTES);
        else return reinterpret_cast<const Bits*>(held + at)[number];
    };
    // the last word, with something else than zeros
    const auto filled = [&](int bytes) { return bytes % 4 && held[size - 1] >> bytes % 4 * 8; };
    const unsigned head = held[0];
    if (head == 0) {
        if (size != 1 + (place.values() * E::BYTES + 3) / 4 || filled(place.values() * E::BYTES)) return 3;
#pragma unroll
        for (int i = 0; i < MINE; ++i)
            if (i < place.mine) y[place.first + i * place.step] = exact(1, place.number_of(i));
        return 0;
    }
    const int predictor = head >> 4 & 3, least = head >> 8 & 127, planes = head >> 16 & 7, any = head >> 24 & 1;
    if ((head & 0xFEF880CEu) || !(head & 1) || predictor > RANK || (any && !LOSSY)) return 3;
    int front = 1 + PER + 4 * planes;
    if (size < front + 4 * any) return 3;
    Widths widths;
    bool wide = false;
#pragma unroll
    for (int q = 0; q < 4; ++q) widths.own[q] = least;
    for (int j = 0; j < planes; ++j) {
        const unsigned four = held[1 + PER + 4 * j + lane / 8] >> lane % 8 * 4;
#pragma unroll
        for (int q = 0; q < 4; ++q) widths.own[q] += static_cast<int>(four >> q & 1) << j;
    }
#pragma unroll
    for (int q = 0; q < 4; ++q) wide |= widths.own[q] > 32 * PER;
    if (__any_sync(~0u, wide)) return 3;
    widths.scan();

    unsigned masks[4] = {0, 0, 0, 0};
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
            if (flags >> q & 1) masks[q] = held[next++], wrong |= masks[q] == 0;
            found.own[q] = __popc(masks[q]);
        }
        found.scan();
    }
    const int after = front + widths.total;
    if (__any_sync(~0u, wrong) || size != after + (found.total * E::BYTES + 3) / 4 || filled(found.total * E::BYTES)) return 3;

    U base = held[1];
    if constexpr (PER == 2) base |= static_cast<U>(held[2]) << 32 % (8 * sizeof(U));
    U v[MINE];
    wrong = false;
#pragma unroll
    for (int i = 0; i < MINE; ++i) {
        const int width = widths.width(warp, i), at = front + widths.offset(warp, i);
        const unsigned low = transposed(lane < width ? held[at + lane] : 0u);
        if constexpr (PER == 2) v[i] = static_cast<U>(transposed(lane + 32 < width ? held[at + 32 + lane]
            : 0u)) << 32 % (8 * sizeof(U)) | low;
        else v[i] = low;
        v[i] = unzigzag(v[i]);
        wrong |= i >= place.mine && v[i];
        if (any) {
            const unsigned mask = __shfl_sync(~0u, masks[i % 4], warp * 4 + i / 4);
            wrong |= i >= place.mine && (mask >> lane & 1);
        }
    }
    if (__syncthreads_or(wrong)) return 3;

    // exceptions first: the sums below reuse the shared memory
    Bits kept[MINE];
    if (any) {
#pragma unroll
        for (int i = 0; i < MINE; ++i) {
            const unsigned mask = __shfl_sync(~0u, masks[i % 4], warp * 4 + i / 4);
            const int at = found.offset(warp, i) + __popc(mask & ((1u << lane) - 1));
            kept[i] = mask >> lane & 1 ? exact(after, at) : Bits(0);
        }
        __syncthreads();
    }
    const auto scan_row = [&](U u) {
#pragma unroll
        for (int j = 1; j < 32; j *= 2) {
            const U other = __shfl_up_sync(~0u, u, j);
            if (lane >= j) u += other;
        }
        return u;
    };
    if (RANK == 1 && predictor == 1) {
        U run = 0;
#pragma unroll
        for (int i = 0; i < MINE; ++i) {
            v[i] = scan_row(v[i]) + run;
            run = __shfl_sync(~0u, v[i], 31);
        }
        if (lane == 0) totals[warp] = run;
        __syncthreads();
        U before = 0;
        for (int w = 0; w < warp; ++w) before += totals[w];
#pragma unroll
        for (int i = 0; i < MINE; ++i) v[i] += before;
    }
    // predictor 1: only the first value of each row is summed along Y and Z; 2: only that of each plane along Z
    const bool firsts = predictor >= 2 || lane == 0;
    if (RANK == 3 && predictor == 2) {
        if (lane == 0) totals[warp] = v[0];
        __syncthreads();
        for (int w = 0; w < warp && lane == 0; ++w) v[0] += totals[w];
    }
    if (RANK >= 2 && predictor >= 1) {
#pragma unroll
        for (int i = 1; i < MINE; ++i) v[i] += firsts ? v[i - 1] : U(0);
        if (RANK == 2) {
            totals[warp * 32 + lane] = v[MINE - 1];
            __syncthreads();
            U before = 0;
            for (int w = 0; w < warp; ++w) before += totals[w * 32 + lane];
#pragma unroll
            for (int i = 0; i < MINE; ++i) v[i] += firsts ? before : U(0);
        }
    }
    if (RANK == 3 && predictor % 2) {
        U* plane = reinterpret_cast<U*>(held);
#pragma unroll
        for (int i = 0; i < MINE; ++i) plane[(warp * MINE + i) * 32 + lane] = v[i];
        __syncthreads();
        for (int w = 0; w < warp && (lane == 0 || predictor == 3); ++w) {
#pragma unroll
            for (int i = 0; i < MINE; ++i) v[i] += plane[(w * MINE + i) * 32 + lane];
        }
    }
#pragma unroll
    for (int i = 0; i < MINE; ++i) {
        if (RANK >= 2 && predictor >= 1) v[i] = scan_row(v[i]);
        Bits bits;
        if constexpr (LOSSY) bits = dequantised<F>(v[i] + base, step);
        else bits = unordered<F>(v[i] + base);
        if (any && (__shfl_sync(~0u, masks[i % 4], warp * 4 + i / 4) >> lane & 1)) bits = kept[i];
        if (i < place.mine) y[place.first + i * place.step] = bits;
    }
    return 0;
}

template <int F, int RANK, bool LOSSY>
__global__ void __launch_bounds__(THREADS)
decompress_blocks(const unsigned* __restrict__ words, long long count, const long long* __restrict__ starts,
    const unsigned* __restrict__ checks,
                  const double* __restrict__ bound, long long Z, long long Y, long long X, int nz, int ny, int nx,
                  typename Element<F>::Bits* __restrict__ y,
                  int* __restrict__ damaged) {
    __shared__ __align__(16) unsigned held[HELD<F>];
    __shared__ __align__(16) typename Element<F>::Code totals[8 * 32];
    __shared__ unsigned sum;
    gdc_wait();
    const Place<RANK> place(blockIdx.x, Z, Y, X, nz, ny, nx);
    const Step<F> step(LOSSY ? *bound : 1.0);
    const int why = decoded<F, RANK, LOSSY>(words, count, starts, checks, step, place, y, held, totals, sum);
    if (why) {
#pragma unroll 1
        for (int i = 0; i < place.mine; ++i) y[place.first + i * place.step] = 0;
    }
    if (threadIdx.x == 0) damaged[blockIdx.x] = why;
}
