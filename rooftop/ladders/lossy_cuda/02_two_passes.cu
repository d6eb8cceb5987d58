/* rooftop
idea    = "All steps of a chunk in one block: one warp per row of 32, codes in shared memory, words by a bit transpose with shuffles. Two passes: one for the sizes and, after their prefix sum, one for the words."
predict = { speedup = 6 }
limit   = "The values are read twice and everything is computed twice, since a chunk's offset is not known when its words are; one block computes the prefix sum of the sizes. Measured on an H200: 11 times instead of 6. The prediction counted the passes over memory that go; the launches before also spent most of their instructions on loads from shared memory, which the shuffles replace."
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
sizes  = "i64[C]"

[[launch]]
kernel = "chunks<{rank}, false>"
grid   = ["C"]
block  = [256]
args   = ["x: i32[B, Z, Y, X]", "bound: f64[1]", "Z: i64", "Y: i64", "X: i64", "nz: i32 = nz", "ny: i32 = ny", "nx: i32 = nx", "sizes: i64[C]", "words: i32[W]", "table: i32[C, 2]"]

[[launch]]
kernel = "sum_up"
grid   = ["1"]
block  = [1024]
args   = ["C: i64", "sizes: i64[C]", "total: i64[1]"]

[[launch]]
kernel = "chunks<{rank}, true>"
grid   = ["C"]
block  = [256]
args   = ["x: i32[B, Z, Y, X]", "bound: f64[1]", "Z: i64", "Y: i64", "X: i64", "nz: i32 = nz", "ny: i32 = ny", "nx: i32 = nx", "sizes: i64[C]", "words: i32[W]", "table: i32[C, 2]"]
*/
#include "_chunks.cuh"

/// Exclusive prefix sums of the sizes.
__global__ void __launch_bounds__(1024) sum_up(long long C, long long* sizes, long long* total) {
    __shared__ long long sums[1024];
    const long long each = (C + 1023) / 1024, begin = min(C, threadIdx.x * each), end = min(C, begin + each);
    long long own = 0;
    for (long long c = begin; c < end; ++c) own += sizes[c];
    sums[threadIdx.x] = own;
    __syncthreads();
    if (threadIdx.x == 0) {
        long long upto = 0;
        for (int t = 0; t < 1024; ++t) {
            const long long mine = sums[t];
            sums[t] = upto, upto += mine;
        }
        *total = upto;
    }
    __syncthreads();
    long long upto = sums[threadIdx.x];
    for (long long c = begin; c < end; ++c) {
        const long long mine = sizes[c];
        sizes[c] = upto, upto += mine;
    }
}

/// WRITE: writes the words of a chunk from offset `sizes[chunk]` on; else writes their number to sizes[chunk].
template <int RANK, bool WRITE>
__global__ void __launch_bounds__(THREADS, 2)
chunks(const unsigned* __restrict__ x, const double* __restrict__ bound, long long Z, long long Y, long long X, int nz, int ny, int nx, long long* sizes,
       unsigned* __restrict__ words, unsigned* __restrict__ table) {
    __shared__ __align__(16) unsigned held[ROWS * 32];
    __shared__ __align__(16) unsigned widths_of[ROWS];  // a byte for each predictor
    __shared__ unsigned exceptions_of[ROWS];
    __shared__ unsigned sum;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long chunk = blockIdx.x;
    if (threadIdx.x == 0) sum = 0;
    const Place<RANK> place(chunk, Z, Y, X, nz, ny, nx);
    const Step<F32> step(*bound);

    unsigned bits[MINE];
    const unsigned first = x[place.first - (RANK == 1 ? warp * 512 + lane : RANK == 2 ? warp * MINE * X + lane : warp * Y * X + lane)];
#pragma unroll
    for (int i = 0; i < MINE; ++i) bits[i] = i < place.mine ? x[place.first + i * place.step] : 0;
    unsigned base;
    quantised<F32>(first, step, base);
    bool any = false;
#pragma unroll
    for (int i = 0; i < MINE; ++i) {
        unsigned v;
        const bool out = quantised<F32>(bits[i], step, v);
        const unsigned bad = __ballot_sync(~0u, out && i < place.mine);
        if (bad) {  // an exception has the code of its nearest neighbour to the left
            const unsigned left = ~bad & ((1u << lane) - 1);
            const unsigned other = __shfl_sync(~0u, v, left ? bit_length(left) - 1 : 0);
            if (bad >> lane & 1) v = left ? other : base;
            any = true;
        }
        if (lane == 0) exceptions_of[warp * MINE + i] = bad;
        held[(warp * MINE + i) * 32 + lane] = v - base;
    }
    any = __syncthreads_or(any);

    // differences of the warp's row i along p dimensions, 0 outside the array; `first`: the row's first value, differenced along the other dimensions
    const auto before_x = [&](unsigned u, unsigned first) {
        const unsigned left = __shfl_up_sync(~0u, u, 1);
        return lane ? u - left : first;
    };
    const auto above = [&](int i) { return i || (RANK == 2 && warp) ? held[(warp * MINE + i - 1) * 32 + lane] : 0u; };
    const auto below = [&](int i) { return warp && i >= 0 ? held[(warp * MINE + i - MINE) * 32 + lane] : 0u; };
    const auto in_plane = [&](int i, unsigned u) { return u - above(i); };
    const auto in_space = [&](int i, unsigned u) { return u - (below(i) - (i ? below(i - 1) : 0u)); };
    const auto along_line = [&](int i) {
        const int at = (warp * MINE + i) * 32 + lane;
        return at ? held[at] - held[at - 1] : held[at];
    };
    unsigned kept = 0;
#pragma unroll 4
    for (int i = 0; i < MINE; ++i) {
        const unsigned u = held[(warp * MINE + i) * 32 + lane], plane = RANK >= 2 ? in_plane(i, u) : u, space = RANK == 3 ? in_space(i, plane) : plane;
        const bool inside = i < place.mine;
        const auto width = [&](unsigned r) { return static_cast<unsigned>(row_width(zigzag(inside ? r : 0u))); };
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

    Widths found;  // exceptions of the rows
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
    const int exact_words = found.total, front = 2 + 4 * planes + (any ? 4 + marked : 0);
    const int coded_words = front + widths.total + exact_words, raw_words = 1 + place.values();
    const bool raw = coded_words >= raw_words;
    const int size = raw ? raw_words : coded_words;
    if constexpr (!WRITE) {
        if (threadIdx.x == 0) sizes[chunk] = size;
        return;
    }

    unsigned* to = words + sizes[chunk];
    unsigned check = 0;
    const auto write = [&](int at, unsigned word) { to[at] = word, check += mixed(word, at); };
    unsigned* staged = held;
    const auto flush = [&](int at, int count) {  // writes the staged words, to word `at` on
        __syncthreads();
        for (int j = threadIdx.x; j < count; j += THREADS) write(at + j, held[j]);
    };
    if (raw) {
        if (threadIdx.x == 0) write(0, 0);
#pragma unroll
        for (int i = 0; i < MINE; ++i)
            if (i < place.mine) staged[place.number_of(i)] = x[place.first + i * place.step];
        flush(1, raw_words - 1);
    } else {
        if (warp == 0) {
            const unsigned head = 1 | predictor << 4 | least << 8 | planes << 16 | static_cast<unsigned>(any) << 24;
            if (lane == 0) write(0, head);
            if (lane == 0) write(1, base);
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
#pragma unroll 4
        for (int i = 0; i < MINE; ++i) {
            unsigned u = held[(warp * MINE + i) * 32 + lane];
            if (RANK == 1 && predictor) u = along_line(i);
            if (RANK >= 2 && predictor) {
                const unsigned plane = in_plane(i, u), space = RANK == 3 ? in_space(i, plane) : plane;
                u = predictor == 1 ? u : predictor == 2 ? plane : space;
                u = before_x(u, predictor == 2 && (RANK == 2 || i) ? plane : space);
            }
            const unsigned z = zigzag(i < place.mine ? u : 0u);
            const int width = widths.width(warp, i), at = front + widths.offset(warp, i);
            const unsigned plane = transposed(z);
            if (lane < width) write(at + lane, plane);
        }
        if (any) {
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
