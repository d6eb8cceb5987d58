/* rooftop
idea    = "One launch: each chunk publishes its size and reads the sizes of the chunks before it, until it finds one that has published the sum of all up to it (decoupled look-back, Merrill and Garland 2016). Blocks get their chunks from an atomic counter, so that none waits for a chunk that has not started. Values are read once, words written once."
predict = { speedup = 1.5 }
limit   = "Instructions: a lane has a value, so that every shuffle, vote and reduction serves one row of 32: about 220 a row in a volume, of which the candidates for the differences take 80, the transpose 20, quantising and verifying 25. Measured: 1.19 instead of 1.5. The second write and read of the words were in part hidden: the instructions of the coder bind, as the next rung shows."
tensors = ["words: i32[W]", "table: i32[C, 2]", "total: i64[1]"]
args    = ["bound: f64[1]", "x: i32[B, Z, Y, X]"]

[requires]
"element == 'f32'" = "this rung takes float32"
"Z * Y * X * B > 0" = "there are no values"

[let]
nx = "ceil(X / 4096) if rank == 1 else ceil(X / 32)"
ny = "1 if rank == 1 else ceil(Y / 128) if rank == 2 else ceil(Y / 16)"
nz = "ceil(Z / 8) if rank == 3 else 1"

[scratch]
ticket = "u32[1] = 0"
states = "u64[C] = 0"

[[launch]]
kernel = "compress_blocks<2, {rank}, true>"
grid   = ["C"]
block  = [256]
args   = ["x: u32[B, Z, Y, X]", "bound: f64[1]", "Z: i64", "Y: i64", "X: i64", "nz: i32 = nz", "ny: i32 = ny", "nx: i32 = nx", "C: i64", "words: u32[W]", "table: u32[C, 2]", "total: i64[1]", "ticket: u32[1]", "states: u64[Q]"]
*/
#include "_chunks.cuh"
#include "_look_back.cuh"

#if __CUDA_ARCH__ >= 900
constexpr int RESIDENT = 3;  // resident blocks a multiprocessor: 80 registers a thread
#else
constexpr int RESIDENT = 2;  // 80 registers would spill
#endif

template <int F, int RANK, bool LOSSY>
__global__ void __launch_bounds__(THREADS, Element<F>::WIDE ? 1 : RESIDENT)
compress_blocks(const typename Element<F>::Bits* __restrict__ x, const double* __restrict__ bound, long long Z, long long Y, long long X,
    int nz, int ny, int nx,
                long long chunks, unsigned* __restrict__ words, unsigned* __restrict__ table, long long* __restrict__ total,
                unsigned* ticket,
                volatile unsigned long long* states) {
    using E = Element<F>;
    using U = typename E::Code;
    using Bits = typename E::Bits;
    constexpr int PER = E::WIDE ? 2 : 1;
    __shared__ __align__(16) U held[ROWS * 32];
    __shared__ __align__(16) unsigned widths_of[ROWS];  // one byte for each predictor
    __shared__ unsigned exceptions_of[ROWS];
    __shared__ unsigned long long start;
    __shared__ unsigned mine_is, sum;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) mine_is = atomicAdd(ticket, 1u), sum = 0;
    __syncthreads();
    const long long chunk = mine_is;
    const Place<RANK> place(chunk, Z, Y, X, nz, ny, nx);
    const Step<F> step(LOSSY ? *bound : 1.0);

    const auto code_of = [&](Bits bits, U& code) {
        if constexpr (LOSSY) return quantised<F>(bits, step, code);
        code = ordered<F>(bits);
        return false;
    };
    Bits first[1], bits[MINE];
    first[0] = x[place.first - (RANK == 1 ? warp * 512 + lane : RANK == 2 ? warp * MINE * X + lane : warp * Y * X + lane)];
#pragma unroll
    for (int i = 0; i < MINE; ++i) bits[i] = i < place.mine ? x[place.first + i * place.step] : 0;
    U base;
    code_of(first[0], base);
    bool any = false;
#pragma unroll
    for (int i = 0; i < MINE; ++i) {
        U v;
        const bool out = code_of(bits[i], v);
        if constexpr (LOSSY && E::FLOATING) {
            const unsigned bad = __ballot_sync(~0u, out && i < place.mine);
            if (bad) {  // an exception has the code of its nearest neighbour to the left
                const unsigned left = ~bad & ((1u << lane) - 1);
                const U other = __shfl_sync(~0u, v, left ? bit_length(left) - 1 : 0);
                if (bad >> lane & 1) v = left ? other : base;
                any = true;
            }
            if (lane == 0) exceptions_of[warp * MINE + i] = bad;
        }
        held[(warp * MINE + i) * 32 + lane] = v - base;
    }
    any = __syncthreads_or(any);

    // differences of the warp's row i along p dimensions, 0 outside the array; `first`: the row's first value, differenced along the other
    // dimensions
    const auto before_x = [&](U u, U first) {
        const U left = __shfl_up_sync(~0u, u, 1);
        return lane ? u - left : first;
    };
    const auto above = [&](int i) { return i || (RANK == 2 && warp) ? held[(warp * MINE + i - 1) * 32 + lane] : U(0); };
    const auto below = [&](int i) { return warp && i >= 0 ? held[(warp * MINE + i - MINE) * 32 + lane] : U(0); };
    const auto in_plane = [&](int i, U u) { return u - above(i); };
    const auto in_space = [&](int i, U u) { return u - (below(i) - (i ? below(i - 1) : U(0))); };
    const auto along_line = [&](int i) {
        const int at = (warp * MINE + i) * 32 + lane;
        return at ? held[at] - held[at - 1] : held[at];
    };
    unsigned kept = 0;
#pragma unroll 4
    for (int i = 0; i < MINE; ++i) {
        const U u = held[(warp * MINE + i) * 32 + lane], plane = RANK >= 2 ? in_plane(i, u) : u,
            space = RANK == 3 ? in_space(i, plane) : plane;
        const bool inside = i < place.mine;
        const auto width = [&](U r) { return static_cast<unsigned>(row_width(zigzag(inside ? r : U(0)))); };
        unsigned packed = width(u) | width(RANK == 1 ? along_line(i) : before_x(u, space)) << 8;
        if constexpr (RANK >= 2) packed |= width(before_x(plane, RANK == 2 || i ? plane : space)) << 16;
        if constexpr (RANK == 3) packed |= width(before_x(space, space)) << 24;
        if (lane == i) kept = packed;
    }
    if (lane < MINE) widths_of[warp * MINE + lane] = kept;
    __syncthreads();

    const uint4 four = reinterpret_cast<const uint4*>(widths_of)[lane];
    const unsigned all[4] = {four.x, four.y, four.z, four.w};
    unsigned even = 0, odd = 0;  // sums over the rows, 16 bits each: at most 128 * 64
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
    const int exact_words = (found.total * E::BYTES + 3) / 4, front = 1 + PER + 4 * planes + (any ? 4 + marked : 0);
    const int coded_words = front + widths.total + exact_words, raw_words = 1 + (place.values() * E::BYTES + 3) / 4;
    const bool raw = coded_words >= raw_words;
    const int size = raw ? raw_words : coded_words;
    if (threadIdx.x == 0) states[chunk] = (chunk ? SUM : ALL) | size;

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
    Bits* staged = reinterpret_cast<Bits*>(held);
    const auto flush = [&](int at, int count) {  // writes the staged words, to word `at` on
        __syncthreads();
        for (int j = threadIdx.x; j < count; j += THREADS) write(at + j, reinterpret_cast<const unsigned*>(held)[j]);
    };
    if (raw) {
        if (threadIdx.x == 0) reinterpret_cast<unsigned*>(held)[raw_words - 2] = 0, write(0, 0);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < MINE; ++i)
            if (i < place.mine) staged[place.number_of(i)] = x[place.first + i * place.step];
        flush(1, raw_words - 1);
    } else {
        if (warp == 0) {
            const unsigned head = 1 | predictor << 4 | least << 8 | planes << 16 | static_cast<unsigned>(any) << 24;
            if (lane == 0) write(0, head);
            if (lane < PER) write(1 + lane, static_cast<unsigned>(lane ? static_cast<unsigned long long>(base) >> 32 : base));
            for (int j = 0; j < planes; ++j) {
                unsigned bits_of = 0;
#pragma unroll
                for (int q = 0; q < 4; ++q) bits_of |= ((widths.own[q] - least) >> j & 1) << q;
                const unsigned plane = gathered(bits_of);
                if (lane % 8 == 0) write(1 + PER + 4 * j + lane / 8, plane);
            }
            if (any) {
                const int at = 1 + PER + 4 * planes;
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
#pragma unroll 4
        for (int i = 0; i < MINE; ++i) {
            U u = held[(warp * MINE + i) * 32 + lane];
            if (RANK == 1 && predictor) u = along_line(i);
            if (RANK >= 2 && predictor) {
                const U plane = in_plane(i, u), space = RANK == 3 ? in_space(i, plane) : plane;
                u = predictor == 1 ? u : predictor == 2 ? plane : space;
                u = before_x(u, predictor == 2 && (RANK == 2 || i) ? plane : space);
            }
            const U z = zigzag(i < place.mine ? u : U(0));
            const int width = widths.width(warp, i), at = front + widths.offset(warp, i);
            const unsigned low = transposed(static_cast<unsigned>(z));
            if (lane < width) write(at + lane, low);
            if constexpr (PER == 2) {
                const unsigned high = transposed(static_cast<unsigned>(z >> 32));
                if (lane + 32 < width) write(at + 32 + lane, high);
            }
        }
        if (any) {
            __syncthreads();
            if (threadIdx.x == 0) reinterpret_cast<unsigned*>(held)[exact_words - 1] = 0;
            __syncthreads();
#pragma unroll
            for (int i = 0; i < MINE; ++i) {
                const unsigned bad = exceptions_of[warp * MINE + i];
                const int at = found.offset(warp, i) + __popc(bad & ((1u << lane) - 1));
                if (bad >> lane & 1) staged[at] = x[place.first + i * place.step];
            }
            flush(front + widths.total, exact_words);
        }
    }
    check = __reduce_add_sync(~0u, check);
    if (lane == 0) atomicAdd(&sum, check);
    __syncthreads();
    if (threadIdx.x == 0) table[2 * chunk] = size, table[2 * chunk + 1] = sum;
}
