/* rooftop
idea    = """Three launches, a block a chunk in each. The first validates a chunk's parts and decodes its symbols: a warp a stream, as \
  `planes`, with a table of 4096 symbols each; then the block sums up how many low bits and exact values come before each symbol, and puts \
  numbers together. The second refines a chunk level by level, a value a thread, the set before being complete at each barrier. The third \
  takes chunks that are predicted from previous values: those of equal z (r (r + 2) + 1) + y (r + 1) + x at once, from the last 27 such steps in \
  shared memory, in which neighbours in y are neighbours."""
predict = { registers = 64 }
limit   = """of interpolated chunks loads: 24 neighbours of 8 bytes at a stride, about 100 cycles of a multiprocessor for 32 values, 300 GB/s \
  of float32. Of the others FP64 and the barrier of each of 820 steps: 160 GB/s"""
args    = ["damaged: i32[N]"]
python  = ["supports", "launches", "scratch"]
demands = { spills = 0 }
*/
#include "pdl.cuh"
#include "_ratio_values.cuh"
#include "_ratio_words.cuh"

constexpr int THREADS = 256, WARPS = 8;  // of a block that reads words
constexpr int REFINERS = 512, WALKERS = 640;
constexpr int BACK = 27, ACROSS = 22, STEP = 29 * ACROSS;  // of walk: steps to the farthest neighbour, and places of a step: 29 z, 22 y of each

/// Symbols and numbers of every chunk. `numbers`: z of docs/codecs.md, or which of the exact values a symbol 0 stands for.
template <int F, int RANK>
__global__ void __launch_bounds__(THREADS)
read_chunks(const unsigned* __restrict__ words, long long count, const long long* __restrict__ starts, const unsigned* __restrict__ checks,
            long long Z, long long Y, long long X, int nz, int ny, int nx,
            Parts* __restrict__ parts, unsigned char* symbols, unsigned* __restrict__ numbers, int* __restrict__ damaged) {
    constexpr int BYTES = Element<F>::BYTES;
    __shared__ Reading r;
    __shared__ Around around;
    __shared__ unsigned char symbol_of[WARPS][4096];
    __shared__ unsigned slots[WARPS][256];
    __shared__ unsigned long long sums[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long chunk = blockIdx.x;
    gdc_wait();
    const Cube<RANK> cube(chunk, Z, Y, X, nz, ny, nx);
    const int values = cube.values();
    const long long first = starts[chunk], length = starts[chunk + 1] - first;
    const int raw_words = 1 + (values * BYTES + 3) / 4;
    int why = first < 0 || length < 1 || length > raw_words || first > count - length;
    const unsigned* from = words + first;
    const int size = why ? 0 : static_cast<int>(length);
    if (threadIdx.x == 0) r.parts = {}, r.check = r.marks = 0, r.bits = 0, r.why = 0;
    __syncthreads();
    unsigned check = 0;
#pragma unroll 4
    for (int i = threadIdx.x; i < size; i += THREADS) check += mixed(from[i], i);
    check = __reduce_add_sync(~0u, check);
    if (lane == 0) atomicAdd(&r.check, check);
    __syncthreads();
    if (!why && r.check != checks[chunk]) why = 2;
    if (!why && from[0] == 0) {
        const int tail = values * BYTES % 4;
        if (size != raw_words || (tail && from[size - 1] >> 8 * tail)) why = 3;
        if (threadIdx.x == 0) r.parts.kind = RAW;
    } else if (!why) {
        if (warp == 0) {
            const int found = parsed(r, around, from, size, cube.n, BYTES);
            if (lane == 0) r.why = found;
        }
        __syncthreads();
        why = r.why;
    }
    __syncthreads();
    if (!why && r.parts.kind != RAW) {
        unsigned char* mine = symbols + chunk * VALUES;
        unsigned marks = 0, bits = 0;
        for (int stream = warp; stream < r.streams; stream += WARPS)
            if (!decoded(r, stream, from, symbol_of[warp], slots[warp], mine, marks, bits) && lane == 0) atomicOr(&r.why, 3);
        if (r.parts.total == 0) {  // no stream, and a table of nothing
            for (int i = threadIdx.x; i <= r.high[0] - r.low[0]; i += THREADS)
                if (!r.apart && reinterpret_cast<const unsigned short*>(from)[r.at[0] + i]) atomicOr(&r.why, 3);
        }
        if (threadIdx.x < -r.parts.total % 16u) mine[r.parts.total + threadIdx.x] = 0;  // the last 16 are loaded as one
        marks = __reduce_add_sync(~0u, marks), bits = __reduce_add_sync(~0u, bits);
        if (lane == 0) atomicAdd(&r.marks, marks), atomicAdd(&r.bits, static_cast<unsigned long long>(bits));
        __syncthreads();
        why = r.why;
        if (r.exact_count - static_cast<int>(r.marks) != r.parts.anchors || r.packed_count != static_cast<int>((r.bits + 7) / 8)) why = 3;
        const unsigned* packed = from + r.packed;
        const int packed_words = (r.packed_count + 3) / 4;
        unsigned long long before = 0;  // low bits, and exact values above them, of the symbols before a tile
        for (int tile = 0; tile < r.parts.total && !why; tile += THREADS * 16) {
            const int at = tile + 16 * threadIdx.x;
            unsigned held[4] = {};
            if (at < r.parts.total) *reinterpret_cast<uint4*>(held) = *reinterpret_cast<const uint4*>(mine + at);
            unsigned long long own = 0;
#pragma unroll
            for (int j = 0; j < 16; ++j) {
                const unsigned symbol = held[j / 4] >> 8 * (j % 4) & 255;
                if (at + j < r.parts.total) own += low_bits(symbol) + (symbol == 0 ? 1ull << 32 : 0);
            }
            unsigned long long up_to = own;
#pragma unroll
            for (int j = 1; j < 32; j *= 2) {
                const unsigned long long other = __shfl_up_sync(~0u, up_to, j);
                if (lane >= j) up_to += other;
            }
            if (lane == 31) sums[warp] = up_to;
            __syncthreads();
            unsigned long long here = before + up_to - own;
            for (int w = 0; w < WARPS; ++w) {
                if (w < warp) here += sums[w];
                before += sums[w];
            }
            __syncthreads();
#pragma unroll 1
            for (int j = 0; j < 16 && at + j < r.parts.total; ++j) {
                const unsigned symbol = mine[at + j];
                unsigned z = symbol - 1;
                if (symbol == 0) {
                    z = static_cast<unsigned>(here >> 32), here += 1ull << 32;
                } else if (symbol > DIRECT) {
                    const int length = low_bits(symbol), bit = static_cast<int>(here & 0xFFFFFFFF), word = bit / 32;
                    const unsigned a = packed[word], b = word + 1 < packed_words ? packed[word + 1] : 0;
                    z = (2 + (symbol - DIRECT - 1) % 2) << length | (__funnelshift_r(a, b, bit % 32) & ((1u << length) - 1));
                    here += length;
                }
                numbers[chunk * VALUES + at + j] = z;
            }
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        damaged[chunk] = why;
        r.parts.kind = why ? DAMAGED : r.parts.kind;
        parts[chunk] = r.parts;
    }
}

/// What all three kinds of chunks end with: the values, or zeros where it is damaged.
template <typename Bits, int RANK>
__device__ void filled(const Cube<RANK>& cube, Bits* y, const unsigned* raw) {
    const Bits* from = reinterpret_cast<const Bits*>(raw);
    for (int i = threadIdx.x; i < cube.values(); i += blockDim.x) y[cube.element(i)] = raw ? from[i] : 0;
}

template <int F, int RANK>
__global__ void __launch_bounds__(REFINERS, 1)
interpolate(const unsigned* __restrict__ words, const long long* __restrict__ starts, const double* __restrict__ bound, long long Z, long long Y,
            long long X, int nz, int ny, int nx, const Parts* __restrict__ parts, const unsigned char* __restrict__ symbols,
            const unsigned* __restrict__ numbers, double* known, unsigned* __restrict__ y, int* __restrict__ damaged) {
    __shared__ Around around;
    __shared__ double weights[TAPS];
    __shared__ int places[TAPS];
    const long long chunk = blockIdx.x;
    gdc_wait();
    const Cube<RANK> cube(chunk, Z, Y, X, nz, ny, nx);
    const Parts& part = parts[chunk];
    const unsigned* from = words + starts[chunk];
    if (part.kind == DAMAGED) return filled<unsigned, RANK>(cube, y, nullptr);
    if (part.kind == RAW) return filled<unsigned, RANK>(cube, y, from + 1);
    if (part.kind == CAUSAL) return;
    double* r = known + chunk * VALUES;
    const unsigned* exact = from + part.exact;
    const int (&n)[3] = cube.n;
    const int rows = n[2], plane = n[1] * n[2];
    const int ay = (n[1] + LARGEST - 1) / LARGEST, ax = (n[2] + LARGEST - 1) / LARGEST;
    for (int i = threadIdx.x; i < part.anchors; i += REFINERS) {
        const int cz = i / (ay * ax) * LARGEST, cy = i / ax % ay * LARGEST, cx = i % ax * LARGEST;
        const float v = __uint_as_float(exact[i]);
        r[cz * plane + cy * rows + cx] = plain(v) ? static_cast<double>(v) : 0.0;
        y[cube.element(cz, cy, cx)] = exact[i];
    }
    const double eb = *bound;
    bool good = true;
    int at = 0;  // symbols before the set
    for (int level = LEVELS - 1; level >= 0; --level) {
        const double step = step_of_level(eb, level);
        for (int k = 0; k < 7; ++k) {
            const Set set(level, k, n);
            if (set.size() == 0) continue;
            const bool fitted = level < FITTED && part.mask >> (7 * level + k) & 1;
            __syncthreads();  // the set before is complete
            if (fitted) {
                if (threadIdx.x < 32) around.find(set, n);
                __syncthreads();
                if (threadIdx.x < around.taps) {
                    const int (&d)[3] = around.offsets[threadIdx.x];
                    places[threadIdx.x] = (d[0] * plane + d[1] * rows + d[2]) * set.s;
                    const unsigned short half = reinterpret_cast<const unsigned short*>(from + 4)[part.begins[7 * level + k] + threadIdx.x];
                    weights[threadIdx.x] = __half2float(__ushort_as_half(half));
                }
                __syncthreads();
            }
            for (int i = threadIdx.x; i < set.size(); i += REFINERS) {
                const Spot spot(set, i, n, r, plane, rows);
                double p = spot.p;
                const int here = spot.here;
                const auto& [iz, iy, ix] = spot.at;
                if (fitted && iz >= around.from[0] && iz < around.to[0] && iy >= around.from[1] && iy < around.to[1] && ix >= around.from[2]
                    && ix < around.to[2]) {
                    double q = p;
                    for (int j = 0; j < around.taps; ++j)
                        q = __dadd_rn(q, __dmul_rn(__dadd_rn(r[here + places[j]], -p), weights[j]));
                    p = finite_or(q, p);
                }
                const unsigned z = numbers[chunk * VALUES + at + i];
                float v;
                if (symbols[chunk * VALUES + at + i]) {
                    v = __double2float_rn(__dadd_rn(p, __dmul_rn(number_of(z), step)));
                    good &= finite(v), p = v;
                } else {
                    v = __uint_as_float(exact[part.anchors + z]);
                    if (plain(v)) p = v;
                }
                r[here] = p;
                y[cube.element(spot.c[0], spot.c[1], spot.c[2])] = __float_as_uint(v);
            }
            at += set.size();
        }
    }
    if (__syncthreads_and(good)) return;
    filled<unsigned, RANK>(cube, y, nullptr);
    if (threadIdx.x == 0) damaged[chunk] = 3;
}

/// A chunk that is predicted from previous values. What the last 27 steps found lies in shared memory, a row a step: the values of a step
/// have places in the order of z, then y, counted from the first that it could have, so that a neighbour lies equally far for all.
template <int F, int RANK>
__global__ void __launch_bounds__(WALKERS)
walk(const unsigned* __restrict__ words, const long long* __restrict__ starts, const double* __restrict__ bound, long long Z, long long Y,
     long long X, int nz, int ny, int nx, const Parts* __restrict__ parts, const unsigned char* __restrict__ symbols,
     const unsigned* __restrict__ numbers, unsigned* __restrict__ y_, int* __restrict__ damaged) {
    extern __shared__ __align__(16) double ring[];  // [BACK][STEP]
    __shared__ Taps taps;
    __shared__ int offsets[2][76];  // of the neighbours within reach, then of those within 1: of a step, and of the next
    const long long chunk = blockIdx.x;
    gdc_wait();
    const Parts& part = parts[chunk];
    if (part.kind != CAUSAL) return;
    const Cube<RANK> cube(chunk, Z, Y, X, nz, ny, nx);
    const unsigned* from = words + starts[chunk];
    const int (&n)[3] = cube.n;
    taps.find(n);
    __syncthreads();
    for (int i = threadIdx.x; i < taps.weights; i += WALKERS) taps.w[i] = __uint_as_float(from[5 + i]);
    const double base = __longlong_as_double(static_cast<long long>(from[4] * 0x100000000ull | from[3])), step = __dmul_rn(2.0, *bound);
    const unsigned* exact = from + part.exact;
    const bool three = n[0] > 1;
    const int reach = three ? 2 : 3, dy = reach + 1, dz = three ? 9 : 0, last = dy * (n[1] - 1) + n[2] - 1;
    const int turns = dz * (n[0] - 1) + last + 1;
    const auto up = [](int a, int b) { return a >= 0 ? (a + b - 1) / b : -(-a / b); };  // a / b, rounded up
    const auto first_z = [&](int t) { return three ? up(t - last, dz) : 0; };
    const auto look = [&](int t) {
        const int j = threadIdx.x;
        if (j >= 75) return;
        const auto d = j < 62 ? taps.far[min(j, taps.all - 1)] : taps.near[j - 62];
        const int row = (t - d.back + BACK) % BACK, z = first_z(t) - first_z(t - d.back) + d.z;
        offsets[t % 2][j] = row * STEP + z * ACROSS + up(t - (n[2] - 1), dy) - up(t - (n[2] - 1) + d.x, dy);
    };
    look(0);
    bool good = true;
    const int zi = three ? threadIdx.x / ACROSS : 0, yi = three ? threadIdx.x % ACROSS : threadIdx.x;
    for (int t = 0; t < turns; ++t) {
        __syncthreads();  // the step before is complete
        const int z = first_z(t) + zi, left = t - dz * z, y = up(left - (n[2] - 1), dy) + yi, x = left - dy * y;
        if (threadIdx.x < STEP && z >= 0 && z < n[0] && y >= 0 && y < n[1] && x >= 0) {
            const int here = zi * ACROSS + yi, *offset = offsets[t % 2];
            double p = 0;
            if ((z >= reach || !three) && y >= reach && y < n[1] - reach && x >= reach && x < n[2] - reach) {
#pragma unroll 4
                for (int j = 0; j < taps.all; ++j) p = __dadd_rn(p, __dmul_rn(ring[here + offset[j]], taps.w[j]));
            } else {
                const int sides[3] = {z > 0, (y > 0) + (y == n[1] - 1), (x > 0) + (x == n[2] - 1)};
                int weight = taps.begins[(sides[0] * 3 + sides[1]) * 3 + sides[2]];
                for (int j = 0; j < 13; ++j) {
                    if (!taps.has(taps.near[j], sides)) continue;
                    p = __dadd_rn(p, __dmul_rn(ring[here + offset[62 + j]], taps.w[weight++]));
                }
            }
            p = finite_or(__dadd_rn(p, base), base);
            const int at = (z * n[1] + y) * n[2] + x;
            const unsigned number = numbers[chunk * VALUES + at];
            float v;
            if (symbols[chunk * VALUES + at]) {
                v = __double2float_rn(__dadd_rn(p, __dmul_rn(number_of(number), step)));
                good &= finite(v), p = v;
            } else {
                v = __uint_as_float(exact[number]);
            }
            ring[t % BACK * STEP + here] = __dadd_rn(p, -base);
            y_[cube.element(z, y, x)] = __float_as_uint(v);
        }
        look(t + 1);
    }
    if (__syncthreads_and(good)) return;
    filled<unsigned, RANK>(cube, y_, nullptr);
    if (threadIdx.x == 0) damaged[chunk] = 3;
}
