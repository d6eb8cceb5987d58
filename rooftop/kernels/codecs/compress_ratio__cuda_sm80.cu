/* rooftop
idea    = """Two launches, a block a chunk in each. The first predicts a chunk level by level by interpolation, a value a thread, and leaves a \
  symbol and a number for each. The second counts the symbols of each group, shares out frequencies, decides by whole-number logarithms \
  whether groups pay, codes the streams by a warp each from their ends, and sums up where low bits and exact values lie; a decoupled \
  look-back gives the chunk its place."""
predict = { registers = 64 }
limit   = """the streams: at most 9 warps a chunk code 65536 symbols each, 2048 steps of about 60 instructions and a division; and the \
  loads of interpolation"""
args    = ["total: i64[1]"]
python  = ["supports", "launches", "scratch", "zeroed"]
demands = { spills = 0 }
*/
#include "pdl.cuh"
#include "_look_back.cuh"
#include "_ratio_values.cuh"

constexpr int CODERS = 256, PACKERS = 256, WARPS = PACKERS / 32, STREAMS_MOST = 16;

/// Symbols and numbers of every chunk: of a symbol 0 the number is the value's bits.
template <int F, int RANK>
__global__ void __launch_bounds__(CODERS, 2)
predict(const unsigned* __restrict__ x, const double* __restrict__ bound, long long Z, long long Y, long long X, int nz, int ny, int nx,
        unsigned char* __restrict__ symbols, unsigned* __restrict__ numbers, double* known) {
    const long long chunk = blockIdx.x;
    gdc_wait();
    const Cube<RANK> cube(chunk, Z, Y, X, nz, ny, nx);
    const int (&n)[3] = cube.n;
    const int plane = n[1] * n[2], rows = n[2], ay = (n[1] + LARGEST - 1) / LARGEST, ax = (n[2] + LARGEST - 1) / LARGEST;
    double* r = known + chunk * VALUES;
    for (int i = threadIdx.x; i < cube.anchors(); i += CODERS) {
        const int z = i / (ay * ax) * LARGEST, y = i / ax % ay * LARGEST, c = i % ax * LARGEST;
        const float v = __uint_as_float(x[cube.element(z, y, c)]);
        r[z * plane + y * rows + c] = plain(v) ? static_cast<double>(v) : 0.0;
    }
    const double eb = *bound;
    int at = 0;
    for (int level = LEVELS - 1; level >= 0; --level) {
        const double step = step_of_level(eb, level);
        for (int k = 0; k < 7; ++k) {
            const Set set(level, k, n);
            if (set.size() == 0) continue;
            __syncthreads();  // the set before is complete
            for (int i = threadIdx.x; i < set.size(); i += CODERS) {
                const Spot spot(set, i, n, r, plane, rows);
                const unsigned bits = x[cube.element(spot.c[0], spot.c[1], spot.c[2])];
                const float value = __uint_as_float(bits);
                const double v = value, number = rint(__ddiv_rn(__dadd_rn(v, -spot.p), step));
                const float stored = __double2float_rn(__dadd_rn(spot.p, __dmul_rn(number, step)));
                const double got = stored;
                const bool there = plain(value), good = there && fabs(__dadd_rn(v, -got)) < eb && fabs(number) < 1073741824.0 && plain(stored);
                unsigned symbol = 0, z = bits;
                if (good) {
                    const int whole = static_cast<int>(number);
                    z = whole < 0 ? -2 * whole - 1 : 2 * whole;
                    const int length = 32 - __clz(static_cast<int>(z));
                    symbol = z < DIRECT ? z + 1 : DIRECT + 1 + 2 * (length - 8) + (z >> (length - 2) & 1);
                }
                r[spot.here] = good ? got : there ? v : spot.p;
                symbols[chunk * VALUES + at + i] = static_cast<unsigned char>(symbol);
                numbers[chunk * VALUES + at + i] = z;
            }
            at += set.size();
        }
    }
}

__device__ inline int low_bits(unsigned symbol) { return symbol > DIRECT ? static_cast<int>(symbol - DIRECT - 1) / 2 + 6 : 0; }

/// n log2 n, times 2^16, as rooftop/formats/ratio_symbols.py has it.
__device__ inline long long n_log_n(unsigned n) {
    if (!n) return 0;
    const int length = 32 - __clz(static_cast<int>(n));
    long long found = length - 1;
    unsigned long long m = static_cast<unsigned long long>(n) << (32 - length);
    for (int i = 0; i < 16; ++i) {
        m = m * m >> 31;
        found = 2 * found + static_cast<long long>(m >> 32);
        m >>= m >> 32;
    }
    return found * n;
}

/// rans.py's `normalised`, by one warp: lane l has symbols 8 l to 8 l + 7. counts: f, in place.
__device__ void share_out(unsigned* counts) {
    const int lane = threadIdx.x % 32;
    unsigned c[8], total = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) c[j] = counts[8 * lane + j], total += c[j];
    total = __reduce_add_sync(~0u, total);
    int f[8], sum = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        f[j] = c[j] ? max(1, static_cast<int>((c[j] * 4096ull + total / 2) / total)) : 0;
        sum += f[j];
    }
    int rest = 4096 - __reduce_add_sync(~0u, sum);
    while (total && rest) {
        unsigned key = 0;
#pragma unroll
        for (int j = 0; j < 8; ++j) key = max(key, static_cast<unsigned>(f[j]) << 8 | (255 - (8 * lane + j)));
        key = __reduce_max_sync(~0u, key);
        const int most = static_cast<int>(key >> 8), symbol = 255 - static_cast<int>(key & 255);
        const int change = rest > 0 ? rest : -min(-rest, max(1, most / 8));
#pragma unroll
        for (int j = 0; j < 8; ++j)
            if (8 * lane + j == symbol) f[j] += change;
        rest -= change;
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 8; ++j) counts[8 * lane + j] = static_cast<unsigned>(f[j]);
    __syncwarp();
}

/// A table's frequency and start of each symbol, f | start << 16, in place, by one warp.
__device__ void with_starts(unsigned* table) {
    const int lane = threadIdx.x % 32;
    unsigned f[8], sum = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) f[j] = table[8 * lane + j], sum += f[j];
    unsigned at = sum;
#pragma unroll
    for (int j = 1; j < 32; j *= 2) {
        const unsigned other = __shfl_up_sync(~0u, at, j);
        if (lane >= j) at += other;
    }
    at -= sum;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 8; ++j) table[8 * lane + j] = f[j] | at << 16, at += f[j];
    __syncwarp();
}

/// Sums over the threads of a block; all get it.
__device__ inline unsigned long long block_sum(unsigned long long v, unsigned long long* held) {
#pragma unroll
    for (int j = 16; j > 0; j /= 2) v += __shfl_xor_sync(~0u, v, j);
    __syncthreads();
    if (threadIdx.x % 32 == 0) held[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
    for (int w = 0; w < WARPS; ++w) v += held[w];
    return v;
}

template <int F, int RANK>
__global__ void __launch_bounds__(PACKERS)
pack(const unsigned* __restrict__ x, long long Z, long long Y, long long X, int nz, int ny, int nx, long long chunks,
     const unsigned char* __restrict__ symbols, const unsigned* __restrict__ numbers, unsigned short* __restrict__ halves, unsigned* bits,
     unsigned* __restrict__ words, unsigned* __restrict__ table, long long* __restrict__ total, unsigned* ticket,
     volatile unsigned long long* states) {
    __shared__ unsigned counts[GROUPS_MOST + 1][256];  // of each group; the last of all
    __shared__ unsigned long long held[WARPS];
    __shared__ int ends[GROUPS_MOST], groups, lows[GROUPS_MOST + 1], highs[GROUPS_MOST + 1];
    __shared__ int group_of[STREAMS_MOST], begins[STREAMS_MOST], stops[STREAMS_MOST], given[STREAMS_MOST];
    __shared__ unsigned final_states[STREAMS_MOST][32];
    __shared__ long long costs[GROUPS_MOST + 1];
    __shared__ unsigned mine_is, sum;
    __shared__ unsigned long long start;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    gdc_wait();
    if (threadIdx.x == 0) mine_is = atomicAdd(ticket, 1u), sum = 0;
    for (int i = threadIdx.x; i < (GROUPS_MOST + 1) * 256; i += PACKERS) counts[0][i] = 0;
    __syncthreads();
    const long long chunk = mine_is;
    const Cube<RANK> cube(chunk, Z, Y, X, nz, ny, nx);
    const int (&n)[3] = cube.n;
    const int anchors = cube.anchors(), count = cube.values() - anchors;
    const unsigned char* mine = symbols + chunk * VALUES;
    const unsigned* number = numbers + chunk * VALUES;
    if (threadIdx.x == 0) {
        int end = 0, found = 0;
        for (int level = LEVELS - 1; level >= 0; --level)
            for (int k = 0; k < 7; ++k) {
                end += Set(level, k, n).size();
                const bool last = level == 0 || (k == 6 && level <= 2);  // level 1, and all above it, are a group each
                if (last && end > (found ? ends[found - 1] : 0)) ends[found++] = end;
            }
        groups = found;
    }
    __syncthreads();
    unsigned long long own = 0;  // low bits, and exact values above them
    for (int i = threadIdx.x; i < count; i += PACKERS) {
        const unsigned symbol = mine[i];
        int g = 0;
        while (i >= ends[g]) ++g;
        atomicAdd(&counts[g][symbol], 1u);
        own += low_bits(symbol) + (symbol == 0 ? 1ull << 32 : 0);
    }
    const unsigned long long all = block_sum(own, held);
    const int low_total = static_cast<int>(all & 0xFFFFFFFF), exact = static_cast<int>(all >> 32) + anchors, packed = (low_total + 7) / 8;
    for (int s = threadIdx.x; s < 256; s += PACKERS)
        for (int g = 0; g < groups; ++g) counts[GROUPS_MOST][s] += counts[g][s];
    __syncthreads();
    for (int g = warp; g < groups + 1; g += WARPS) {  // the cost of each table, its range, its frequencies
        const int t = g < groups ? g : GROUPS_MOST;
        long long cost = 0;
        unsigned c_all = 0;
        int low = 256, high = -1;
        for (int s = lane; s < 256; s += 32) {
            const unsigned c = counts[t][s];
            cost -= n_log_n(c), c_all += c;
            if (c) low = min(low, s), high = max(high, s);
        }
        c_all = __reduce_add_sync(~0u, c_all), low = __reduce_min_sync(~0u, low), high = __reduce_max_sync(~0u, high);
#pragma unroll
        for (int j = 16; j > 0; j /= 2) cost += __shfl_xor_sync(~0u, cost, j);
        if (lane == 0) costs[t] = cost + n_log_n(c_all), lows[t] = high < 0 ? 0 : low, highs[t] = max(high, 0);
        share_out(counts[t]);
    }
    __syncthreads();
    int streams = 0, table_halves = 0;
    bool apart;
    {
        long long saved = costs[GROUPS_MOST], entries = -(highs[GROUPS_MOST] - lows[GROUPS_MOST] + 1);
        int more = -((count + 65535) / 65536);
        for (int g = 0; g < groups; ++g) {
            saved -= costs[g], entries += highs[g] - lows[g] + 2;
            more += (ends[g] - (g ? ends[g - 1] : 0) + 65535) / 65536;
        }
        apart = groups > 1 && saved > (16 * entries + 33 * 32 * static_cast<long long>(more)) * 65536;
    }
    for (int g = 0; g < (apart ? groups : 1); ++g) {
        const int t = apart ? g : GROUPS_MOST, from = apart && g ? ends[g - 1] : 0, to = apart ? ends[g] : count;
        table_halves += highs[t] - lows[t] + 1 + apart;
        for (int i = from; i < to; i += 65536, ++streams)
            if (threadIdx.x == 0) group_of[streams] = t, begins[streams] = i, stops[streams] = min(i + 65536, to);
    }
    __syncthreads();
    // the tables' words, before starts join the frequencies
    const int at_tables = 3, at_streams = at_tables + (table_halves + 1) / 2, at_halves = at_streams + 33 * streams;
    unsigned short* tables = halves + chunk * 2 * VALUES + VALUES;
    {
        int at = 0;
        for (int g = 0; g < (apart ? groups : 1); ++g) {
            const int t = apart ? g : GROUPS_MOST;
            if (apart && threadIdx.x == 0) tables[at] = static_cast<unsigned short>(lows[t] | highs[t] << 8);
            at += apart;
            for (int i = threadIdx.x; i <= highs[t] - lows[t]; i += PACKERS) tables[at + i] = static_cast<unsigned short>(counts[t][lows[t] + i]);
            at += highs[t] - lows[t] + 1;
        }
        if (threadIdx.x == 0 && at % 2) tables[at] = 0;
    }
    __syncthreads();
    for (int g = warp; g < groups + 1; g += WARPS) with_starts(counts[g < groups ? g : GROUPS_MOST]);
    __syncthreads();
    for (int s = warp; s < streams; s += WARPS) {
        const unsigned* entry = counts[group_of[s]];
        unsigned short* to = halves + chunk * 2 * VALUES;
        const int first = begins[s], values = stops[s] - first;
        unsigned state = LOWEST_STATE;
        int at = stops[s];  // a symbol gives off at most one 16-bit word
        for (int i = (values - 1) / 32 * 32; i >= 0; i -= 32) {
            const bool live = i + lane < values;
            const unsigned e = live ? entry[mine[first + i + lane]] : 1, f = e & 0xFFFF;
            const bool off = live && state >> 20 >= f;
            const unsigned vote = __ballot_sync(~0u, off);
            at -= __popc(vote);
            if (off) to[at + __popc(vote & ((1u << lane) - 1))] = static_cast<unsigned short>(state), state >>= 16;
            if (live) state = (state / f << 12) + state % f + (e >> 16);
        }
        final_states[s][lane] = state;
        if (lane == 0) given[s] = stops[s] - at;
    }
    __syncthreads();
    int half_total = 0;
    for (int s = 0; s < streams; ++s) half_total += given[s];
    const int at_packed = at_halves + (half_total + 1) / 2, at_exact = at_packed + (packed + 3) / 4;
    const int coded_words = at_exact + exact, raw_words = 1 + cube.values();
    const bool raw = coded_words >= raw_words;
    const int size = raw ? raw_words : coded_words;
    if (threadIdx.x == 0) states[chunk] = (chunk ? SUM : ALL) | size;
    unsigned* low_words = bits + chunk * 2 * VALUES;
    unsigned* exact_values = low_words + VALUES;
    if (!raw) {
        for (int i = threadIdx.x; i < (packed + 3) / 4; i += PACKERS) low_words[i] = 0;
        __syncthreads();
        unsigned long long before = 0;
        for (int tile = 0; tile < count; tile += PACKERS) {
            const int i = tile + threadIdx.x;
            const unsigned symbol = i < count ? mine[i] : 1;
            const int length = low_bits(symbol);
            const unsigned long long one = length + (symbol == 0 ? 1ull << 32 : 0);
            unsigned long long up_to = one;
#pragma unroll
            for (int j = 1; j < 32; j *= 2) {
                const unsigned long long other = __shfl_up_sync(~0u, up_to, j);
                if (lane >= j) up_to += other;
            }
            __syncthreads();
            if (lane == 31) held[warp] = up_to;
            __syncthreads();
            unsigned long long here = before + up_to - one;
            for (int w = 0; w < WARPS; ++w) {
                if (w < warp) here += held[w];
                before += held[w];
            }
            if (symbol == 0) exact_values[here >> 32] = number[i];
            if (length) {
                const unsigned low = number[i] & ((1u << length) - 1);
                const int bit = static_cast<int>(here & 0xFFFFFFFF), shift = bit % 32;
                atomicOr(low_words + bit / 32, low << shift);
                if (shift + length > 32) atomicOr(low_words + bit / 32 + 1, low >> (32 - shift));
            }
        }
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
    if (raw) {
        if (threadIdx.x == 0) write(0, 0);
        for (int i = threadIdx.x; i < raw_words - 1; i += PACKERS) write(1 + i, x[cube.element(i)]);
    } else {
        const unsigned range = apart ? 4u : static_cast<unsigned>(lows[GROUPS_MOST] << 8 | highs[GROUPS_MOST] << 16);
        if (threadIdx.x == 0) write(0, 1 | range), write(1, exact), write(2, packed);
        for (int i = threadIdx.x; i < (table_halves + 1) / 2; i += PACKERS) write(at_tables + i, tables[2 * i] | static_cast<unsigned>(tables[2 * i + 1]) << 16);
        for (int s = threadIdx.x; s < streams; s += PACKERS) write(at_streams + s, given[s]);
        for (int i = threadIdx.x; i < 32 * streams; i += PACKERS) write(at_streams + streams + i, final_states[i / 32][i % 32]);
        const unsigned short* coded = halves + chunk * 2 * VALUES;
        for (int i = threadIdx.x; i < (half_total + 1) / 2; i += PACKERS) {
            unsigned w = 0;
            for (int part = 0; part < 2; ++part) {
                int j = 2 * i + part, s = 0;
                if (j >= half_total) continue;
                while (j >= given[s]) j -= given[s++];
                w |= static_cast<unsigned>(coded[stops[s] - given[s] + j]) << 16 * part;
            }
            write(at_halves + i, w);
        }
        for (int i = threadIdx.x; i < (packed + 3) / 4; i += PACKERS) write(at_packed + i, low_words[i]);
        const int ay = (n[1] + LARGEST - 1) / LARGEST, ax = (n[2] + LARGEST - 1) / LARGEST;
        for (int i = threadIdx.x; i < exact; i += PACKERS)
            write(at_exact + i, i < anchors ? x[cube.element(i / (ay * ax) * LARGEST, i / ax % ay * LARGEST, i % ax * LARGEST)]
                                            : exact_values[i - anchors]);
    }
    check = __reduce_add_sync(~0u, check);
    if (lane == 0) atomicAdd(&sum, check);
    __syncthreads();
    if (threadIdx.x == 0) table[2 * chunk] = size, table[2 * chunk + 1] = sum;
}
