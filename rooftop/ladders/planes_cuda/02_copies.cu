/* rooftop
idea    = "Eight copies of a block's histogram, in different banks: neighbouring lanes add to different ones, and only 4 of 32 meet."
predict = { speedup = 1.7 }
limit   = "The coder: about 60 instructions a step of 32 values, a third of them for the division. Measured on an H200: 0.98 instead of 1.7. Only the count differs from the rung before, so its atomics took next to nothing of the time: the coder's instructions bound that rung too."
tensors = ["table: i32[C, 2]", "words: i32[W]", "frequencies: i16[S]", "total: i64[1]"]
args    = ["x: i16[n]"]

[requires]
"element == 'bf16'" = "this rung takes bfloat16"
"n > 0" = "there are no values"

[scratch]
counts = "u64[256] = 0"
ticket = "u32[1] = 0"
states = "u64[C] = 0"

[[launch]]
kernel = "count_symbols<4>"
grid   = ["min(ceil(n / 4096), 1056)"]
block  = [256]
args   = ["x: u16[n]", "n: i64", "vectors: bool = aligned(x, 16)", "counts: u64[K]"]

[[launch]]
kernel = "share_out"
grid   = ["1"]
block  = [32]
args   = ["counts: u64[K]", "frequencies: u16[S]"]

[[launch]]
kernel = "compress_planes<4>"
grid   = ["min(ceil(C / 4), 792)"]
block  = [128]
args   = ["x: u16[n]", "n: i64", "vectors: bool = aligned(x, 16)", "frequencies: u16[S]", "C: i64", "words: u32[W]", "table: u32[V, 2]", "total: i64[1]", "ticket: u32[1]", "states: u64[Q]"]
*/
#include "_look_back.cuh"
#include "_planes.cuh"

constexpr int COPIES = 8, APART = 257;  // copies of the histogram of a block: neighbouring lanes use different copies, in different banks

template <int F>
__global__ void __launch_bounds__(256)
count_symbols(const typename Element<F>::Bits* __restrict__ x, long long n, bool vectors, unsigned long long* __restrict__ counts) {
    constexpr int BYTES = Element<F>::BYTES;
    __shared__ unsigned held[COPIES * APART];
    for (int i = threadIdx.x; i < COPIES * APART; i += 256) held[i] = 0;
    __syncthreads();
    unsigned* mine = held + threadIdx.x % COPIES * APART;
    const long long packs = (n + 3) / 4;
    for (long long i = blockIdx.x * 256ll + threadIdx.x; i < packs; i += gridDim.x * 256ll) {
        const int here = static_cast<int>(min(4ll, n - 4 * i));
        const Pack<BYTES> p = load_four<BYTES>(x + 4 * i, 0, here, vectors);
#pragma unroll
        for (int j = 0; j < 4; ++j)
            if (j < here) atomicAdd(mine + Split<F>::symbol(p.v[j]), 1u);
    }
    __syncthreads();
    unsigned sum = 0;
    for (int c = 0; c < COPIES; ++c) sum += held[c * APART + threadIdx.x];
    if (sum) atomicAdd(counts + threadIdx.x, static_cast<unsigned long long>(sum));
}

/// rans.py's `normalised`, by one warp: lane l has symbols 8 l to 8 l + 7.
__global__ void __launch_bounds__(32) share_out(const unsigned long long* __restrict__ counts, unsigned short* __restrict__ frequencies) {
    const int lane = threadIdx.x;
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

template <int F>
__global__ void __launch_bounds__(128)
compress_planes(const typename Element<F>::Bits* __restrict__ x, long long n, bool vectors, const unsigned short* __restrict__ frequencies,
    long long chunks,
                unsigned* __restrict__ words, unsigned* __restrict__ table, long long* __restrict__ total, unsigned* ticket,
                volatile unsigned long long* states) {
    using S = Split<F>;
    constexpr int BYTES = S::BYTES;
    __shared__ __align__(16) unsigned short streams[4][STREAM];
    __shared__ unsigned entries[256];  // frequency | start << 16
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
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
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            entries[8 * lane + j] = f[j] | at << 16;
            at += f[j];
        }
    }
    __syncthreads();
    unsigned short* stream = streams[warp];
    for (;;) {
        unsigned mine = 0;
        if (lane == 0) mine = atomicAdd(ticket, 1u);
        const long long chunk = __shfl_sync(~0u, mine, 0);
        if (chunk >= chunks) return;
        const typename S::Bits* from = x + chunk * CHUNK;
        const int values = static_cast<int>(min(static_cast<long long>(CHUNK), n - chunk * CHUNK)), groups = (values + 127) / 128;
        unsigned state = LOWEST;
        int at = STREAM;
        bool full = false;
        Pack<BYTES> next = load_four<BYTES>(from, (groups - 1) * 128 + 4 * lane, values, vectors);
        for (int g = groups - 1; g >= 0 && !full; --g) {
            const Pack<BYTES> p = next;
            if (g) next = load_four<BYTES>(from, (g - 1) * 128 + 4 * lane, values, vectors);
#pragma unroll
            for (int j = 3; j >= 0; --j) {
                const bool live = g * 128 + 4 * lane + j < values;
                const unsigned e = entries[S::symbol(p.v[j])];
                const unsigned f = e & 0xFFFF;
                const bool off = live && state >> 20 >= f;
                const unsigned vote = __ballot_sync(~0u, off);
                const int gone = __popc(vote);
                full |= gone > at;
                at = max(at - gone, 0);
                if (off && !full) stream[at + __popc(vote & ((1u << lane) - 1))] = static_cast<unsigned short>(state);
                if (off) state >>= 16;
                if (live) state = (state / f << 12) + state % f + (e >> 16);
            }
        }
        __syncwarp();
        const int given = STREAM - at, raw_words = 1 + words_for(values, BYTES);
        const int coded_words = 33 + (given + 1) / 2 + kept_words(values, BYTES);
        const bool raw = full || coded_words >= raw_words;
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
        if (raw) {
            if (lane == 0) write(0, 0);
            for (int g = 0; g < groups; ++g) {
                const Pack<BYTES> p = load_four<BYTES>(from, g * 128 + 4 * lane, values, vectors);
                const int first = (g * 128 + 4 * lane) * BYTES / 4;
                if constexpr (BYTES == 8) {
#pragma unroll
                    for (int j = 0; j < 8; ++j)
                        if (first + j < raw_words - 1) write(1 + first + j, static_cast<unsigned>(p.v[j / 2] >> 32 * (j % 2)));
                } else {
                    unsigned w[BYTES % 8];
                    packed<BYTES % 8, 0>(p, w);
#pragma unroll
                    for (int j = 0; j < BYTES; ++j)
                        if (first + j < raw_words - 1) write(1 + first + j, w[j]);
                }
            }
        } else {
            if (lane == 0) write(0, 1 | static_cast<unsigned>(given) << 8);
            write(1 + lane, state);
            for (int i = lane; i < (given + 1) / 2; i += 32)
                write(33 + i, stream[at + 2 * i] | (2 * i + 1 < given
                    ? static_cast<unsigned>(stream[min(at + 2 * i + 1, STREAM - 1)]) << 16 : 0u));
            for (int g = 0; g < groups && BYTES > 1; ++g) {
                Pack<BYTES> p = load_four<BYTES>(from, g * 128 + 4 * lane, values, vectors);
#pragma unroll
                for (int j = 0; j < 4; ++j) p.v[j] = S::rest(p.v[j]);
                int plane = 33 + (given + 1) / 2;
                const auto keep = [&](auto number) {
                    constexpr int K = decltype(number)::value, SIZE = plane_bytes(BYTES, K);
                    unsigned w[SIZE];
                    packed<SIZE, plane_low(BYTES, K)>(p, w);
                    const int first = (g * 128 + 4 * lane) * SIZE / 4, all = words_for(values, SIZE);
#pragma unroll
                    for (int j = 0; j < SIZE; ++j)
                        if (first + j < all) write(plane + first + j, w[j]);
                    plane += all;
                };
                if constexpr (BYTES >= 2) keep(Number<0>());
                if constexpr (BYTES >= 4) keep(Number<1>());
                if constexpr (BYTES >= 8) keep(Number<2>());
            }
        }
        check = __reduce_add_sync(~0u, check);
        if (lane == 0) table[2 * chunk] = size, table[2 * chunk + 1] = check;
        __syncwarp();
    }
}
