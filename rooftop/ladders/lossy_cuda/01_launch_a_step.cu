/* rooftop
idea    = "One launch per step, with memory between the steps. One thread per value converts it to a code and back and compares it with the bound; one thread per row of 32 computes the differences and the row's width; one block computes the prefix sum of the chunks' sizes; one thread per row packs the bits."
limit   = "Codes are written once and read twice, a value's bits once more. A thread with a row of its own reads shared memory at a stride of 32 words, which are all in one bank, and gathers each word from 32 numbers bit by bit."
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
codes  = "u32[C * 4096]"
outs   = "u32[C * 128]"
sizes  = "i64[C]"
chosen = "i32[C]"

[[launch]]
kernel = "quantise<{rank}>"
grid   = ["C"]
block  = [256]
args   = ["x: i32[B, Z, Y, X]", "bound: f64[1]", "Z: i64", "Y: i64", "X: i64", "nz: i32 = nz", "ny: i32 = ny", "nx: i32 = nx", "codes: u32[S]", "outs: u32[Q]"]

[[launch]]
kernel = "measure<{rank}>"
grid   = ["C"]
block  = [128]
args   = ["codes: u32[S]", "outs: u32[Q]", "Z: i64", "Y: i64", "X: i64", "nz: i32 = nz", "ny: i32 = ny", "nx: i32 = nx", "sizes: i64[C]", "chosen: i32[C]"]

[[launch]]
kernel = "sum_up"
grid   = ["1"]
block  = [1024]
args   = ["C: i64", "sizes: i64[C]", "total: i64[1]"]

[[launch]]
kernel = "pack<{rank}>"
grid   = ["C"]
block  = [128]
args   = ["x: i32[B, Z, Y, X]", "codes: u32[S]", "outs: u32[Q]", "Z: i64", "Y: i64", "X: i64", "nz: i32 = nz", "ny: i32 = ny", "nx: i32 = nx", "sizes: i64[C]", "chosen: i32[C]", "words: i32[W]", "table: i32[C, 2]"]
*/
#include "_chunks.cuh"

/// The code of each place of a chunk, row by row, 0 outside the array; a bit for each value without a code (an exception).
template <int RANK>
__global__ void __launch_bounds__(256) quantise(const unsigned* x, const double* bound, long long Z, long long Y, long long X, int nz, int ny, int nx, unsigned* codes, unsigned* outs) {
    const Place<RANK> place(blockIdx.x, Z, Y, X, nz, ny, nx);
    const Step<F32> step(*bound);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int i = 0; i < MINE; ++i) {
        const bool inside = i < place.mine;
        unsigned code;
        const bool out = quantised<F32>(inside ? x[place.first + i * place.step] : 0u, step, code) && inside;
        const unsigned all = __ballot_sync(~0u, out);
        codes[blockIdx.x * 4096ll + (warp * MINE + i) * 32 + lane] = code;
        if (lane == 0) outs[blockIdx.x * 128ll + warp * MINE + i] = all;
    }
}

/// Extents of a chunk within the array.
struct Extent {
    int z, y, x;
    template <int RANK>
    __device__ static Extent of(long long Z, long long Y, long long X, int nz, int ny, int nx) {
        const Place<RANK> place(blockIdx.x, Z, Y, X, nz, ny, nx);
        return {place.vz, place.vy, place.vx};
    }
};

/// A chunk in shared memory, less its base; one row a thread.
template <int RANK>
struct Chunk {
    const unsigned (*held)[32];
    Extent extent;

    __device__ bool inside(int row, int l) const {
        if (RANK == 1) return row * 32 + l < extent.x;
        if (RANK == 2) return row < extent.y && l < extent.x;
        return row / 16 < extent.z && row % 16 < extent.y && l < extent.x;
    }
    __device__ unsigned above(int row, int l) const { return row % 16 || (RANK == 2 && row) ? held[row - 1][l] : 0; }
    __device__ unsigned in_plane(int row, int l) const { return held[row][l] - above(row, l); }
    __device__ unsigned in_space(int row, int l) const {
        if (RANK != 3 || row < 16) return in_plane(row, l);
        return in_plane(row, l) - (held[row - 16][l] - (row % 16 ? held[row - 17][l] : 0));
    }
    /// The difference along p dimensions; of a row's first value along more.
    __device__ unsigned difference(int p, int row, int l) const {
        if (p == 0) return held[row][l];
        if (RANK == 1) return l ? held[row][l] - held[row][l - 1] : row ? held[row][0] - held[row - 1][31] : held[0][0];
        const bool plane_first = p == 2 && (RANK == 2 || row % 16);
        if (l == 0) return plane_first ? in_plane(row, 0) : in_space(row, 0);
        return p == 1 ? held[row][l] - held[row][l - 1] : p == 2 ? in_plane(row, l) - in_plane(row, l - 1) : in_space(row, l) - in_space(row, l - 1);
    }
    __device__ unsigned number(int p, int row, int l) const { return inside(row, l) ? zigzag(difference(p, row, l)) : 0; }
    __device__ int width(int p, int row) const {
        unsigned all = 0;
        for (int l = 0; l < 32; ++l) all |= number(p, row, l);
        return bit_length(all);
    }
};

/// The codes of a chunk, less the base, in shared memory; an exception has the code of its nearest neighbour to the left.
__device__ unsigned fill(const unsigned* codes, const unsigned* outs, unsigned (*held)[32]) {
    const unsigned base = outs[blockIdx.x * 128ll] & 1 ? 0 : codes[blockIdx.x * 4096ll], bad = outs[blockIdx.x * 128ll + threadIdx.x];
    unsigned last = base;
    for (int l = 0; l < 32; ++l) {
        const unsigned code = codes[blockIdx.x * 4096ll + threadIdx.x * 32 + l];
        last = bad >> l & 1 ? last : code;
        held[threadIdx.x][l] = last - base;
    }
    __syncthreads();
    return base;
}

struct Sizes {
    int front, payload, exact, least, planes, marked;
    bool any;
};

/// By one thread, from the widths and exceptions of the rows.
__device__ Sizes sizes_of(const int* widths, const unsigned* outs) {
    int most = 0, found = 0;
    Sizes s{0, 0, 0, 255, 0, 0, false};
    for (int r = 0; r < 128; ++r) {
        s.payload += widths[r], s.least = min(s.least, widths[r]), most = max(most, widths[r]);
        found += __popc(outs[r]), s.marked += outs[r] != 0;
    }
    s.any = found > 0, s.planes = bit_length(most - s.least), s.exact = found;
    s.front = 2 + 4 * s.planes + (s.any ? 4 + s.marked : 0);
    return s;
}

template <int RANK>
__global__ void __launch_bounds__(128)
    measure(const unsigned* codes, const unsigned* outs, long long Z, long long Y, long long X, int nz, int ny, int nx, long long* sizes, int* chosen) {
    __shared__ unsigned held[128][32];
    __shared__ int widths[RANK + 1][128];
    fill(codes, outs, held);
    const Chunk<RANK> chunk{held, Extent::of<RANK>(Z, Y, X, nz, ny, nx)};
    for (int p = 0; p <= RANK; ++p) widths[p][threadIdx.x] = chunk.width(p, threadIdx.x);
    __syncthreads();
    if (threadIdx.x != 0) return;
    int best = 0, cost = 1 << 30;
    for (int p = 0; p <= RANK; ++p) {  // among equally good ones the one with the most dimensions
        int sum = 0;
        for (int r = 0; r < 128; ++r) sum += widths[p][r];
        if (sum <= cost) cost = sum, best = p;
    }
    const Sizes s = sizes_of(widths[best], outs + blockIdx.x * 128ll);
    const int coded = s.front + s.payload + s.exact, raw = 1 + chunk.extent.z * chunk.extent.y * chunk.extent.x;
    sizes[blockIdx.x] = min(coded, raw), chosen[blockIdx.x] = coded >= raw ? -1 : best;
}

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

template <int RANK>
__global__ void __launch_bounds__(128)
    pack(const unsigned* x, const unsigned* codes, const unsigned* outs, long long Z, long long Y, long long X, int nz, int ny, int nx, const long long* starts, const int* chosen,
         unsigned* words, unsigned* table) {
    __shared__ unsigned held[128][32], sum;
    __shared__ int widths[128];
    if (threadIdx.x == 0) sum = 0;
    const unsigned base = fill(codes, outs, held);
    outs += blockIdx.x * 128ll, words += starts[blockIdx.x];
    const Chunk<RANK> chunk{held, Extent::of<RANK>(Z, Y, X, nz, ny, nx)};
    const int p = chosen[blockIdx.x], row = threadIdx.x, plane = blockIdx.x / nx / ny;
    // the first value of this thread's row
    const long long x0 = RANK == 1 ? blockIdx.x * 4096ll + row * 32 : (blockIdx.x % nx) * 32ll, y0 = blockIdx.x / nx % ny * (RANK == 2 ? 128ll : 16ll) + (RANK == 2 ? row : row % 16);
    const long long z = RANK == 2 ? plane : plane / nz * Z + plane % nz * 8ll + row / 16, first = RANK == 1 ? x0 : (z * Y + y0) * X + x0;
    unsigned check = 0;
    const auto write = [&](int at, unsigned word) { words[at] = word, check += mixed(word, at); };
    int size;
    if (p < 0) {
        const Extent e = chunk.extent;
        const int before = RANK == 1 ? row * 32 : RANK == 2 ? row * e.x : (row / 16 * e.y + row % 16) * e.x;
        size = 1 + e.z * e.y * e.x;
        if (row == 0) write(0, 0);
        for (int l = 0; l < 32; ++l)
            if (chunk.inside(row, l)) write(1 + before + l, x[first + l]);
    } else {
        widths[row] = chunk.width(p, row);
        __syncthreads();
        const Sizes s = sizes_of(widths, outs);
        size = s.front + s.payload + s.exact;
        int before = 0, exact = 0, marks = 0;
        for (int r = 0; r < row; ++r) before += widths[r], exact += __popc(outs[r]), marks += outs[r] != 0;
        if (row == 0) {
            write(0, 1 | p << 4 | s.least << 8 | s.planes << 16 | static_cast<unsigned>(s.any) << 24);
            write(1, base);
            for (int j = 0; j < 4 * s.planes; ++j) {
                unsigned word = 0;
                for (int b = 0; b < 32; ++b) word |= ((widths[j % 4 * 32 + b] - s.least) >> j / 4 & 1u) << b;
                write(2 + j, word);
            }
            for (int j = 0; s.any && j < 4; ++j) {
                unsigned word = 0;
                for (int b = 0; b < 32; ++b) word |= static_cast<unsigned>(outs[j * 32 + b] != 0) << b;
                write(2 + 4 * s.planes + j, word);
            }
        }
        if (outs[row] != 0) write(2 + 4 * s.planes + 4 + marks, outs[row]);
        for (int j = 0; j < widths[row]; ++j) {
            unsigned word = 0;
            for (int l = 0; l < 32; ++l) word |= (chunk.number(p, row, l) >> j & 1u) << l;
            write(s.front + before + j, word);
        }
        for (int l = 0; l < 32; ++l)
            if (outs[row] >> l & 1) write(s.front + s.payload + exact++, x[first + l]);
    }
    atomicAdd(&sum, check);
    __syncthreads();
    if (row == 0) table[2 * blockIdx.x] = size, table[2 * blockIdx.x + 1] = sum;
}
