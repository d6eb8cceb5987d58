/* rooftop
idea    = """Symbols are counted, counts shared out, chunks coded by a warp each (as rung 3 of planes_cuda). The count here needs no \
  atomics in its loop: every lane has a byte a symbol in shared memory, in a bank of its own, and a warp adds its lanes' up before one \
  could overflow. The coder's table holds what a step needs without arithmetic (the limit, the reciprocal with its shift, 4096 less the \
  frequency, the start: 16 bytes), the room of the stream is looked at once a group, and four values are one access."""
predict = { registers = 48 }
limit   = """the count: memory, 8 instructions a value. The coder: issue slots, about 30 per step of 32 values (16 for the step, 5 for the \
  kept bits' second read, 9 for their words, the stream's and the checksum): 1.1 TB/s of bfloat16 both together at 0.7 of them"""
args    = ["total: i64[1]"]
python  = ["supports", "launches", "scratch", "zeroed"]
demands = { spills = 0 }
*/
#include "pdl.cuh"
#include "_look_back.cuh"
#include "_fours.cuh"

constexpr int COUNTERS = 4;  // warps of a block that counts: 8 KiB each
constexpr int AHEAD = 4;     // loads in flight: 24 warps of a multiprocessor with one each leave half of the bandwidth unused

template <int F>
__global__ void __launch_bounds__(32 * COUNTERS)
count_symbols(const typename Element<F>::Bits* __restrict__ x, long long n, bool vectors, unsigned long long* __restrict__ counts) {
    constexpr int BYTES = Element<F>::BYTES, PACKS = BYTES == 1 ? 4 : BYTES == 2 ? 2 : 1, EACH = 4 * PACKS;  // values a lane takes at once
    __shared__ __align__(16) unsigned held[COUNTERS][64][32];  // byte b of word r, lane l: symbol 64 b + r of lane l
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned char* mine = reinterpret_cast<unsigned char*>(&held[warp][0][lane]);
    gdc_wait();
    for (int r = 0; r < 64; ++r) held[warp][r][lane] = 0;
    unsigned sums[8] = {};  // of symbols 64 b + lane, 64 b + lane + 32
    const auto emptied = [&] {
        __syncwarp();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            unsigned even = 0, odd = 0;  // 16 bits each: at most 32 * 255
#pragma unroll 8
            for (int i = 0; i < 32; ++i) {
                unsigned& w = held[warp][32 * half + lane][(i + lane) % 32];
                even += w & 0x00FF00FFu, odd += w >> 8 & 0x00FF00FFu;
                w = 0;
            }
            sums[4 * half] += even & 0xFFFF, sums[4 * half + 1] += odd & 0xFFFF;
            sums[4 * half + 2] += even >> 16, sums[4 * half + 3] += odd >> 16;
        }
        __syncwarp();
    };
    const auto add = [&](unsigned symbol) { ++mine[symbol % 64 * 128 + symbol / 64]; };
    const long long packs = vectors ? n / EACH : 0, step = gridDim.x * 32ll * COUNTERS;
    const long long rounds = (packs + AHEAD * step - 1) / (AHEAD * step);
    long long at = blockIdx.x * 32ll * COUNTERS + threadIdx.x;
    int left = 255;
    for (long long round = 0; round < rounds; ++round, at += AHEAD * step) {
        if (left < AHEAD * EACH) emptied(), left = 255;
        left -= AHEAD * EACH;
        Four<BYTES> f[AHEAD][PACKS];
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) {
            if (at + a * step >= packs) continue;
            if constexpr (BYTES <= 2) {
                const uint4 v = reinterpret_cast<const uint4*>(x)[at + a * step];
                const unsigned w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                for (int i = 0; i < 4; ++i) f[a][i / BYTES].w[i % BYTES] = w[i];
            } else {
                f[a][0] = load_whole<BYTES>(x + (at + a * step) * 4, 0);
            }
        }
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) {
            if (at + a * step >= packs) continue;
#pragma unroll
            for (int i = 0; i < PACKS; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) add(symbol_of<F>(f[a][i], j));
        }
    }
    emptied();
    // what is left of the vectors, or all of unaligned values; no lane takes more than 255 before a warp empties
    const long long first = packs * EACH, others = n - first, turns = (others + step - 1) / step;
    left = 255;
    for (long long turn = 0; turn < turns; ++turn) {
        const long long i = turn * step + blockIdx.x * 32ll * COUNTERS + threadIdx.x;
        if (i < others) add(static_cast<unsigned>(x[first + i] >> Split<F>::SHIFT) & 255);
        if (--left == 0) emptied(), left = 255;
    }
    emptied();
    __syncthreads();
    unsigned* all = &held[0][0][0];  // a warp's sums, by symbol
#pragma unroll
    for (int i = 0; i < 8; ++i) all[256 * warp + 64 * (i % 4) + 32 * (i / 4) + lane] = sums[i];
    __syncthreads();
    for (int s = threadIdx.x; s < 256; s += 32 * COUNTERS) {
        unsigned sum = 0;
#pragma unroll
        for (int w = 0; w < COUNTERS; ++w) sum += all[256 * w + s];
        if (sum) atomicAdd(counts + s, static_cast<unsigned long long>(sum));
    }
}

/// rans.py's `normalised`, by one warp: lane l has symbols 8 l to 8 l + 7.
__global__ void __launch_bounds__(32) share_out(const unsigned long long* __restrict__ counts, unsigned short* __restrict__ frequencies) {
    const int lane = threadIdx.x;
    gdc_wait();
    unsigned long long total = 0, c[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) c[j] = counts[8 * lane + j], total += c[j];
#pragma unroll
    for (int j = 16; j > 0; j /= 2) total += __shfl_xor_sync(~0u, total, j);
    int f[8], sum = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        f[j] = c[j] ? max(1, static_cast<int>((c[j] * 4096 + total / 2) / total)) : 0;
        sum += f[j];
    }
    int rest = 4096 - __reduce_add_sync(~0u, sum);
    while (total && rest) {  // the most frequent symbol first; of equally frequent ones the first
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
#pragma unroll
    for (int j = 0; j < 8; ++j) frequencies[8 * lane + j] = static_cast<unsigned short>(f[j]);
}

constexpr int ROOM = STREAM + 128;  // what is left of it is looked at once a group; a chunk that takes more than STREAM is stored raw

/// What a step of the coder needs of a symbol of frequency f: the largest state that gives nothing off, f 2^20 - 1; the reciprocal
/// ceil(2^(32 + s) / f); 4096 - f, with s above it; the start. The quotient of a state below f 2^20 is exact where e f 2^20 < 2^(32 + s),
/// e what the reciprocal's rounding adds; `sure` says so. Else it may be one too large.
__device__ inline uint4 entry(unsigned f, unsigned start, bool& sure) {
    if (!f) return make_uint4(0, 0, 0, 0);
    const int s = f > 1 ? 31 - __clz(static_cast<int>(f - 1)) : 0;  // 2^s < f, but for 1
    const unsigned long long over = 1ull << (32 + s), up = (over + f - 1) / f;
    sure &= f == 1 || ((up * f - over) * f >> 12 + s) == 0;
    return make_uint4((f << 20) - 1, f == 1 ? ~0u : static_cast<unsigned>(up), (4096 - f) | s << 16,
                      f == 1 ? start + 4095 : start);  // of 1 the quotient comes out one too small
}

template <int F>
__global__ void __launch_bounds__(128)
compress_planes(const typename Element<F>::Bits* __restrict__ x, long long n, bool vectors, const unsigned short* __restrict__ frequencies,
    long long chunks,
                unsigned* __restrict__ words, unsigned* __restrict__ table, long long* __restrict__ total, unsigned* ticket,
                volatile unsigned long long* states) {
    using S = Split<F>;
    constexpr int BYTES = S::BYTES;
    __shared__ __align__(16) unsigned short streams[4][ROOM];
    __shared__ __align__(16) uint4 entries[256];
    __shared__ int unsure;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned below = (1u << lane) - 1;
    gdc_wait();
    if (warp == 0) {
        unsigned f[8], sum = 0;
#pragma unroll
        for (int j = 0; j < 8; ++j) f[j] = frequencies[8 * lane + j], sum += f[j];
        unsigned at = sum;
#pragma unroll
        for (int j = 1; j < 32; j *= 2) {
            const unsigned other = __shfl_up_sync(~0u, at, j);
            if (lane >= j) at += other;
        }
        at -= sum;
        bool sure = true;
#pragma unroll
        for (int j = 0; j < 8; ++j) entries[8 * lane + j] = entry(f[j], at, sure), at += f[j];
        if (!__all_sync(~0u, sure)) unsure = 1;
        else unsure = 0;
    }
    __syncthreads();
    const bool exact = !unsure;
    unsigned short* stream = streams[warp];
    for (;;) {
        unsigned mine = 0;
        if (lane == 0) mine = atomicAdd(ticket, 1u);
        const long long chunk = __shfl_sync(~0u, mine, 0);
        if (chunk >= chunks) return;
        const typename S::Bits* from = x + chunk * CHUNK;
        const int values = static_cast<int>(min(static_cast<long long>(CHUNK), n - chunk * CHUNK)), groups = (values + 127) / 128;
        const bool whole = vectors && values == CHUNK;
        unsigned state = LOWEST;
        int at = ROOM;
        const auto encode = [&](auto number) {
            constexpr bool ALL = decltype(number)::value;  // all values of the chunk are there, and quotients exact
            const auto load = [&](int g) {
                if constexpr (ALL) return load_whole<BYTES>(from, g * 128 + 4 * lane);
                else return whole ? load_whole<BYTES>(from, g * 128 + 4 * lane) : load_part<BYTES>(from, g * 128 + 4 * lane, values);
            };
            constexpr int DEEP = ALL && BYTES <= 4 ? AHEAD : 1;  // groups that are loaded ahead
            Four<BYTES> next[DEEP];
#pragma unroll
            for (int a = 0; a < DEEP; ++a) next[a] = load(groups - 1 - a);
            const auto group = [&](int g, Four<BYTES>& ahead) {
                const Four<BYTES> p = ahead;
                if (g >= DEEP) ahead = load(g - DEEP);
#pragma unroll
                for (int j = 3; j >= 0; --j) {
                    const bool live = ALL || g * 128 + 4 * lane + j < values;
                    const uint4 e = entries[symbol_of<F>(p, j)];
                    const bool off = live && state > e.x;
                    const unsigned vote = __ballot_sync(~0u, off);
                    at -= __popc(vote);
                    if (off) stream[at + __popc(vote & below)] = static_cast<unsigned short>(state), state >>= 16;
                    unsigned q = __umulhi(state, e.y) >> (e.z >> 16);
                    const unsigned less = e.z & 0xFFFF;
                    if (!ALL && static_cast<int>(state - q * (4096 - less)) < 0) --q;
                    if (live) state = q * less + (state + e.w);
                }
            };
#pragma unroll 1
            for (int g = groups - 1; g >= 0; g -= DEEP)
#pragma unroll
                for (int a = 0; a < DEEP; ++a)
                    if (at >= 128) group(g - a, next[a]);
        };
        if (whole && exact) encode(Number<1>());
        else encode(Number<0>());
        __syncwarp();
        const int given = ROOM - at, raw_words = 1 + words_for(values, BYTES);
        const int coded_words = 33 + (given + 1) / 2 + kept_words(values, BYTES);
        const bool raw = coded_words >= raw_words;  // so it is where the stream ran out of room
        const int size = raw ? raw_words : coded_words;
        if (lane == 0) states[chunk] = (chunk ? SUM : ALL) | size;
        const unsigned long long before = chunk ? words_before(states, chunk) : 0;
        if (lane == 0) {
            if (chunk) states[chunk] = ALL | (before + size);
            if (chunk == chunks - 1) *total = static_cast<long long>(before) + size;
        }
        unsigned* to = words + before;
        unsigned check = 0;
        const auto write = [&](int i, unsigned w) { to[i] = w, check += mixed(w, i); };
        const auto load = [&](int g) {
            return whole ? load_whole<BYTES>(from, g * 128 + 4 * lane) : load_part<BYTES>(from, g * 128 + 4 * lane, values);
        };
        if (raw) {
            if (lane == 0) write(0, 0);
            for (int g = 0; g < groups; ++g) {
                const Four<BYTES> p = load(g);
#pragma unroll
                for (int j = 0; j < BYTES; ++j) {
                    const int i = 1 + (g * 32 + lane) * BYTES + j;
                    if (i < raw_words) write(i, p.w[j]);
                }
            }
        } else {
            if (lane == 0) write(0, 1 | static_cast<unsigned>(given) << 8);
            write(1 + lane, state);
            const unsigned* pairs = reinterpret_cast<const unsigned*>(stream) + at / 2;
            for (int i = lane; i < (given + 1) / 2; i += 32) {
                unsigned w = pairs[i];
                if (at % 2) w = w >> 16 | (2 * i + 1 < given ? pairs[i + 1] << 16 : 0u);
                write(33 + i, w);
            }
            const auto keep_all = [&](auto number) {
                constexpr bool ALL = decltype(number)::value;
#pragma unroll BYTES <= 2 ? 8 : 2
                for (int g = 0; g < groups; ++g) {
                    const Four<BYTES> p = load(g);
                    int plane = 33 + (given + 1) / 2;
                    const auto keep = [&](auto which) {
                        constexpr int K = decltype(which)::value, SIZE = plane_bytes(BYTES, K);
                        unsigned w[SIZE];
                        kept_of<F, K>(p, w);
                        const int all = words_for(ALL ? CHUNK : values, SIZE);
#pragma unroll
                        for (int j = 0; j < SIZE; ++j) {
                            const int i = (g * 32 + lane) * SIZE + j;
                            if (ALL || i < all) write(plane + i, w[j]);
                        }
                        plane += all;
                    };
                    if constexpr (BYTES >= 2) keep(Number<0>());
                    if constexpr (BYTES >= 4) keep(Number<1>());
                    if constexpr (BYTES >= 8) keep(Number<2>());
                }
            };
            if (BYTES > 1 && whole) keep_all(Number<1>());
            else if (BYTES > 1) keep_all(Number<0>());
        }
        check = __reduce_add_sync(~0u, check);
        if (lane == 0) table[2 * chunk] = size, table[2 * chunk + 1] = check;
        __syncwarp();
    }
}
