/* rooftop
idea    = """As compress_blocks__cuda_sm80, but a thread has a whole row of 32 values from the differences on: neighbours along X are \
  registers, widths are an OR, and the bits are transposed between registers, of narrow rows in an eighth or a quarter of the steps. A \
  shuffle, a vote or a reduction of a warp then serves 32 rows, not one. The values come in by rows of lanes and change sides in shared \
  memory, whose rows are swizzled by 16 bytes. The words are put together there too, while the chunks before publish their sizes, and are \
  written as one range."""
predict = { registers = 72 }
limit   = """instructions: about 75 per row of 32 values (quantise and verify 25, differences of all candidates 20, of the chosen one and \
  zigzag 12, transpose 2 to 13, words and checksums 5), half of those of a lane a value"""
args    = ["bound: f64[1]?"]
python  = ["supports", "launches", "scratch", "zeroed"]
demands = { spills = 0 }
*/
#include "pdl.cuh"
#include "_chunks.cuh"
#include "_look_back.cuh"

/// Calls visit(column, u, plane, space) for the values of a row: as they are, less those above (RANK 2 and 3), and along Z too (RANK 3).
/// AT_ONCE: 16-byte pieces of the row that are loaded ahead.
template <int RANK, int AT_ONCE, typename Visit>
__device__ void over_row(const uint4* held, int row, Visit visit) {
    const bool up = RANK == 2 ? row > 0 : RANK == 3 && row % 16, back = RANK == 3 && row >= 16;
#pragma unroll AT_ONCE
    for (int g = 0; g < 8; ++g) {
        const uint4 none = make_uint4(0, 0, 0, 0), own = held[granule(row, g)];
        const uint4 above = up ? held[granule(row - 1, g)] : none, below = back ? held[granule(row - 16, g)] : none;
        const uint4 corner = back && up ? held[granule(row - 17, g)] : none;
        const unsigned u[4] = {own.x, own.y, own.z, own.w}, a[4] = {above.x, above.y, above.z, above.w},
            b[4] = {below.x, below.y, below.z, below.w}, c[4] = {corner.x, corner.y, corner.z, corner.w};
#pragma unroll
        for (int q = 0; q < 4; ++q) {
            const unsigned plane = RANK >= 2 ? u[q] - a[q] : u[q];
            visit(4 * g + q, u[q], plane, RANK == 3 ? plane - (b[q] - c[q]) : plane);
        }
    }
}

/// The bit planes of 32 numbers of at most N bits: word k holds bit k of all. What the steps above N would exchange is 0.
template <int N>
__device__ void transposed_rows(unsigned (&a)[32]) {
    if constexpr (N == 32) exchanged<32, 16>(a);
    if constexpr (N <= 16) {
#pragma unroll
        for (int k = 0; k < 16; ++k) a[k] |= a[k + 16] << 16;
    }
    if constexpr (N >= 16) exchanged<N, 8>(a);
    if constexpr (N <= 8) {
#pragma unroll
        for (int k = 0; k < 8; ++k) a[k] |= a[k + 8] << 8;
    }
    exchanged<N, 4>(a), exchanged<N, 2>(a), exchanged<N, 1>(a);
}
template <int N>
__device__ void put(unsigned (&a)[32], int width, unsigned* to) {
    transposed_rows<N>(a);
#pragma unroll
    for (int k = 0; k < N; ++k)
        if (k < width) to[k] = a[k];
}

/// `quantised` of a value whose code is below 2^22 and whose difference from it is below the bound: true, and the same code, by fewer
/// instructions. A sum with 1.5 2^23 rounds to a whole number, which stands in the sum's low bits.
template <int F>
__device__ bool near_code(typename Element<F>::Bits bits, const Step<F>& s, unsigned& code) {
    constexpr float SHIFT = 12582912.0f;
    const float x = number<F>(bits), steps = times(x, s.inverse), sum = plus(steps, SHIFT);
    const float d = plus(x, -number<F>(rounded<F>(times(plus(sum, -SHIFT), s.step))));
    code = __float_as_uint(sum) - __float_as_uint(SHIFT);
    using Bits = typename Element<F>::Bits;
    const bool normal = static_cast<Bits>(bits & static_cast<Bits>(~Element<F>::TOP)) >> Element<F>::MANTISSA || bits == 0;
    return size_of(d) < s.e && size_of(steps) < 4194304.0f && normal;
}

template <int F, int RANK, bool LOSSY>
__global__ void __launch_bounds__(LINES, 6)
compress_blocks(const typename Element<F>::Bits* __restrict__ x, const double* __restrict__ bound, long long Z, long long Y, long long X,
    int nz, int ny, int nx,
                long long chunks, unsigned* __restrict__ words, unsigned* __restrict__ table, long long* __restrict__ total,
                unsigned* ticket,
                volatile unsigned long long* states) {
    using E = Element<F>;
    using Bits = typename E::Bits;
    __shared__ __align__(16) unsigned held[ROWS * 32];
    __shared__ __align__(16) unsigned widths_of[ROWS];  // one byte for each predictor
    __shared__ unsigned exceptions_of[ROWS];
    __shared__ unsigned long long start;
    __shared__ unsigned mine_is, sum;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = threadIdx.x;
    gdc_wait();
    if (threadIdx.x == 0) mine_is = atomicAdd(ticket, 1u), sum = 0;
    __syncthreads();
    const long long chunk = mine_is;
    const Box<RANK> box(chunk, Z, Y, X, nz, ny, nx);
    const bool whole = box.whole();
    const Step<F> step(LOSSY ? *bound : 1.0);
    const auto code_of = [&](Bits bits, unsigned& code) {
        if constexpr (LOSSY) return quantised<F>(bits, step, code);
        code = ordered<F>(bits);
        return false;
    };

    unsigned base;
    code_of(x[box.first], base);
    bool any = false;
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
        const auto strip = box.strip(2 * warp + half);
        Bits bits[MINE];
#pragma unroll
        for (int i = 0; i < MINE; ++i) bits[i] = 0;
        const Bits* from = x + strip.first;
        if (whole) {
#pragma unroll
            for (int i = 0; i < MINE; ++i, from += strip.step) bits[i] = *from;
        } else {
#pragma unroll
            for (int i = 0; i < MINE; ++i, from += strip.step)
                if (i < strip.mine) bits[i] = *from;
        }
        bool easy = true;
#pragma unroll
        for (int i = 0; i < MINE; ++i) {
            unsigned v;
            if constexpr (LOSSY && E::FLOATING) easy &= near_code<F>(bits[i], step, v);
            else code_of(bits[i], v);
            held[place_of(warp * 32 + half * MINE + i, lane)] = v - base;
        }
        if constexpr (LOSSY && E::FLOATING) {
            if (__all_sync(~0u, easy)) {
                if (lane < MINE) exceptions_of[warp * 32 + half * MINE + lane] = 0;
                continue;
            }
#pragma unroll 1
            for (int i = 0; i < MINE; ++i) {
                const int r = warp * 32 + half * MINE + i;
                unsigned v;
                const bool out = code_of(i < strip.mine ? x[strip.first + i * strip.step] : Bits(0), v);
                const unsigned bad = __ballot_sync(~0u, out && i < strip.mine);
                if (bad) {  // an exception has the code of its nearest neighbour to the left
                    const unsigned left = ~bad & ((1u << lane) - 1);
                    const unsigned other = __shfl_sync(~0u, v, left ? bit_length(left) - 1 : 0);
                    if (bad >> lane & 1) v = left ? other : base;
                    any = true;
                }
                if (lane == 0) exceptions_of[r] = bad;
                held[place_of(r, lane)] = v - base;
            }
        }
    }
    any = __syncthreads_or(any);

    const uint4* rows = reinterpret_cast<const uint4*>(held);
    const int inside = box.inside(row);
    const bool lower = RANK == 3 && row % 16 == 0;  // the first row of a plane: its first value is differenced along Z too
    const unsigned line = RANK == 1 && row ? held[place_of(row - 1, 31)] : 0;  // what stands before the row
    {
        unsigned of[4] = {0, 0, 0, 0}, before_u = line, before_plane = 0, before_space = 0;
        over_row<RANK, 2>(rows, row, [&](int j, unsigned u, unsigned plane, unsigned space) {
            const unsigned keep = whole || j < inside ? ~0u : 0u;
            of[0] |= zigzag(u) & keep;
            of[1] |= zigzag(RANK > 1 && j == 0 ? space : u - before_u) & keep;
            if (RANK >= 2) of[2] |= zigzag(j == 0 && lower ? space : plane - before_plane) & keep;
            if (RANK == 3) of[3] |= zigzag(space - before_space) & keep;
            before_u = u, before_plane = plane, before_space = space;
        });
        unsigned packed = 0;
#pragma unroll
        for (int p = 0; p <= RANK; ++p) packed |= static_cast<unsigned>(bit_length(of[p])) << 8 * p;
        widths_of[row] = packed;
    }
    __syncthreads();

    const uint4 four = reinterpret_cast<const uint4*>(widths_of)[lane];
    const unsigned all[4] = {four.x, four.y, four.z, four.w};
    unsigned even = 0, odd = 0;  // sums over the rows, 16 bits each: at most 128 * 32
#pragma unroll
    for (int j = 0; j < 4; ++j) even += all[j] & 0x00FF00FFu, odd += all[j] >> 8 & 0x00FF00FFu;
    even = __reduce_add_sync(~0u, even), odd = __reduce_add_sync(~0u, odd);
    const unsigned costs[4] = {even & 0xFFFF, odd & 0xFFFF, even >> 16, odd >> 16};
    int predictor = 0;
    unsigned cost = costs[0];
#pragma unroll
    for (int p = 1; p <= RANK; ++p)
        if (costs[p] <= cost) cost = costs[p], predictor = p;
    Widths widths;
    unsigned least = 255, most = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const unsigned w = all[j] >> 8 * predictor & 255;
        widths.own[j] = static_cast<int>(w), least = min(least, w), most = max(most, w);
    }
    widths.scan();
    least = __reduce_min_sync(~0u, least), most = __reduce_max_sync(~0u, most);
    const int planes = bit_length(most - least);

    Widths found;  // the widths of the rows of exceptions
    int marked = 0;
    unsigned flags = 0;
    if (any) {
#pragma unroll
        for (int j = 0; j < 4; ++j) found.own[j] = __popc(exceptions_of[4 * lane + j]), flags |= (found.own[j] != 0) << j;
        found.scan();
        marked = static_cast<int>(__reduce_add_sync(~0u, __popc(flags)));
    } else {
        found.total = 0;
    }
    const int exact_words = (found.total * E::BYTES + 3) / 4, front = 2 + 4 * planes + (any ? 4 + marked : 0);
    const int coded_words = front + widths.total + exact_words, raw_words = 1 + (box.values() * E::BYTES + 3) / 4;
    const bool raw = coded_words >= raw_words;
    const int size = raw ? raw_words : coded_words;
    if (threadIdx.x == 0) states[chunk] = (chunk ? SUM : ALL) | size;

    if (!raw) {  // the bit planes, put together in shared memory
        unsigned z[32], before = predictor ? line : 0;
        over_row<RANK, 8>(rows, row, [&](int j, unsigned u, unsigned plane, unsigned space) {
            const unsigned v = RANK == 1 || predictor < 2 ? u : RANK == 2 || predictor == 2 ? plane : space;
            unsigned d = v - before;
            if (RANK > 1 && j == 0 && predictor) d = predictor == 2 && !lower ? plane : space;
            z[j] = whole || j < inside ? zigzag(d) : 0;
            before = predictor ? v : 0;
        });
        int at = 0;  // of the thread's row
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int other = __shfl_sync(~0u, widths.before[j], row / 4);
            if (row % 4 == j) at = other;
        }
        const int width = static_cast<int>(widths_of[row] >> 8 * predictor & 255);
        __syncthreads();  // all rows are read
        if (most <= 8) put<8>(z, width, held + at);
        else if (most <= 16) put<16>(z, width, held + at);
        else put<32>(z, width, held + at);
    }
    if (warp == 0) {
        const unsigned long long before = chunk ? words_before(states, chunk) : 0;
        if (lane == 0) {
            if (chunk) states[chunk] = ALL | (before + size);
            start = before;
            if (chunk == chunks - 1) *total = static_cast<long long>(before) + size;
        }
    }
    __syncthreads();

    unsigned* to = words + start;
    unsigned check = 0;
    const auto write = [&](int at, unsigned word) { to[at] = word, check += mixed(word, at); };
    const auto flush = [&](int at, int count) {  // writes the words in shared memory, to word `at` on
        for (int j = threadIdx.x; j < count; j += LINES) write(at + j, held[j]);
    };
    Bits* staged = reinterpret_cast<Bits*>(held);
    if (raw) {
        if (threadIdx.x == 0) held[raw_words - 2] = 0, write(0, 0);
        __syncthreads();
        for (int half = 0; half < 2; ++half) {
            const auto strip = box.strip(2 * warp + half);
#pragma unroll 4
            for (int i = 0; i < strip.mine; ++i)
                staged[box.number_of(warp * 32 + half * MINE + i) + lane] = x[strip.first + i * strip.step];
        }
        __syncthreads();
        flush(1, raw_words - 1);
    } else {
        if (warp == 0) {
            const unsigned head = 1 | predictor << 4 | least << 8 | planes << 16 | static_cast<unsigned>(any) << 24;
            if (lane == 0) write(0, head), write(1, base);
            for (int j = 0; j < planes; ++j) {
                unsigned bits_of = 0;
#pragma unroll
                for (int q = 0; q < 4; ++q) bits_of |= ((widths.own[q] - least) >> j & 1) << q;
                const unsigned plane = gathered(bits_of);
                if (lane % 8 == 0) write(2 + 4 * j + lane / 8, plane);
            }
            if (any) {
                const int at = 2 + 4 * planes;
                const unsigned marks = gathered(flags);
                if (lane % 8 == 0) write(at + lane / 8, marks);
                int next = __popc(flags);
#pragma unroll
                for (int j = 1; j < 32; j *= 2) {
                    const int other = __shfl_up_sync(~0u, next, j);
                    if (lane >= j) next += other;
                }
                next += at + 4 - __popc(flags);
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    if (flags >> j & 1) write(next++, exceptions_of[4 * lane + j]);
            }
        }
        flush(front, widths.total);
        if (any) {
            __syncthreads();
            if (threadIdx.x == 0) held[exact_words - 1] = 0;
            __syncthreads();
            for (int half = 0; half < 2; ++half) {
                const auto strip = box.strip(2 * warp + half);
#pragma unroll 4
                for (int i = 0; i < MINE; ++i) {
                    const unsigned bad = exceptions_of[warp * 32 + half * MINE + i];
                    const int at = found.offset(2 * warp + half, i) + __popc(bad & ((1u << lane) - 1));
                    if (bad >> lane & 1) staged[at] = x[strip.first + i * strip.step];
                }
            }
            __syncthreads();
            flush(front + widths.total, exact_words);
        }
    }
    check = __reduce_add_sync(~0u, check);
    if (lane == 0) atomicAdd(&sum, check);
    __syncthreads();
    if (threadIdx.x == 0) table[2 * chunk] = size, table[2 * chunk + 1] = sum;
}
