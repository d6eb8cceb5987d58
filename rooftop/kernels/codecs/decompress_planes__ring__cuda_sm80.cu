/* rooftop
idea    = """A warp decodes a chunk, 32 interleaved states, a table of 4096 slots in shared memory. Here no \
  step waits for global memory: the stream passes through a ring of 512 bytes a warp in shared memory, filled by whole lines a group of \
  steps ahead, and the kept bits of a group are loaded while the group before is decoded. Each word is read once: the checksum is of the \
  words as they pass, so the values of a damaged chunk are written and then taken back. Four values are one store."""
predict = { registers = 40 }
limit   = """issue slots: about 31 instructions per step of 32 values (table and state 9, votes and places 7, word 4, value 3, and a quarter \
  of a group's load, checksum and store 8), 1.3 TB/s of bfloat16 at 0.7 of them"""
args    = ["damaged: i32[N]"]
python  = ["supports", "launches"]
demands = { spills = 0 }
*/
#include "pdl.cuh"
#include "_fours.cuh"

constexpr unsigned RING = 256;  // 16-bit words

template <int F>
__global__ void __launch_bounds__(256, 5)
decompress_planes(const unsigned* __restrict__ words, long long count, const long long* __restrict__ starts,
    const unsigned* __restrict__ checks,
                  const unsigned short* __restrict__ frequencies, long long n, bool vectors, long long chunks,
                  typename Element<F>::Bits* __restrict__ y,
                  int* __restrict__ damaged) {
    using S = Split<F>;
    constexpr int BYTES = S::BYTES, MOST = 1 + CHUNK / 4 * BYTES;
    __shared__ unsigned slots[4096];  // symbol << 24 | frequency - 1 << 12 | slot - start
    __shared__ unsigned starts_of[257];
    __shared__ __align__(16) unsigned rings[8][RING / 2];
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
        if (lane == 31) starts_of[256] = at;
        at -= sum;
#pragma unroll
        for (int j = 0; j < 8; ++j) starts_of[8 * lane + j] = at, at += f[j];
    }
    __syncthreads();
    const bool fits = starts_of[256] == 4096;  // else every coded chunk is damaged
    for (unsigned slot = threadIdx.x; slot < 4096 && fits; slot += 256) {
        int low = 0;
#pragma unroll
        for (int j = 128; j > 0; j /= 2)
            if (starts_of[low + j] <= slot) low += j;
        slots[slot] = static_cast<unsigned>(low) << 24 | (starts_of[low + 1] - starts_of[low] - 1) << 12 | (slot - starts_of[low]);
    }
    __syncthreads();
    unsigned* ring = rings[warp];
    for (long long chunk = blockIdx.x * 8ll + warp; chunk < chunks; chunk += gridDim.x * 8ll) {
        typename S::Bits* to = y + chunk * CHUNK;
        const int values = static_cast<int>(min(static_cast<long long>(CHUNK), n - chunk * CHUNK)), groups = (values + 127) / 128;
        const bool whole = vectors && values == CHUNK;
        const auto store = [&](int g, const Four<BYTES>& f) {
            if (whole) store_whole<BYTES>(to, g * 128 + 4 * lane, f);
            else store_part<BYTES>(to, g * 128 + 4 * lane, values, f);
        };
        const long long first = starts[chunk], length = starts[chunk + 1] - first;
        int why = first < 0 || length < 1 || length > MOST || first > count - length;
        const unsigned* from = words + first;
        const int size = why ? 0 : static_cast<int>(length);
        const unsigned head = why ? 1 : from[0];
        unsigned check = lane == 0 ? mixed(head, 0) : 0;
        const auto taken = [&](int i, bool there) {  // word i of the chunk
            const unsigned w = there ? from[i] : 0;
            if (there) check += mixed(w, i);
            return w;
        };
        if (!why && head == 0) {
            const int tail = values * BYTES % 4;
            if (size != 1 + words_for(values, BYTES) || (tail && from[size - 1] >> 8 * tail)) why = 3;
            for (int g = 0; g < groups && !why; ++g) {
                Four<BYTES> f;
#pragma unroll
                for (int j = 0; j < BYTES; ++j) {
                    const int at = 1 + g * 32 * BYTES + lane * BYTES + j;
                    f.w[j] = taken(at, at < size);
                }
                store(g, f);
            }
        } else if (!why) {
            const int given = static_cast<int>(head >> 8), halves = (given + 1) / 2;
            if (!fits || (head & 255) != 1 || given > 2 * MOST || size != 33 + halves + kept_words(values, BYTES)) why = 3;
            else if (given % 2 && from[33 + halves - 1] >> 16) why = 3;
            unsigned state = why ? LOWEST : taken(1 + lane, true);
            if (__any_sync(~0u, state < LOWEST)) why = 3;
            // words of the stream: `ahead` is the lane's of the next 32, loaded and not in the ring
            unsigned at = 0, filled = 0;  // 16-bit words taken, put into the ring
            const auto stream = [&](unsigned i) { return taken(33 + static_cast<int>(i), static_cast<int>(i) < halves); };
            unsigned ahead = why ? 0 : stream(lane);
            const auto fill = [&] {
                ring[(filled / 2 + lane) % (RING / 2)] = ahead;
                filled += 64;
                ahead = stream(filled / 2 + lane);
            };
            const auto decode = [&](auto number) {
                constexpr bool ALL = decltype(number)::value;  // all values of the chunk are there
                const auto load_kept = [&](int g, unsigned (&k)[8]) {
                    int plane = 33 + halves, next = 0;
                    const auto one = [&](auto which) {
                        constexpr int K = decltype(which)::value, SIZE = plane_bytes(BYTES, K);
                        const int all = words_for(ALL ? CHUNK : values, SIZE);
#pragma unroll
                        for (int j = 0; j < SIZE; ++j, ++next) {
                            const int i = (g * 32 + lane) * SIZE + j;
                            k[next] = taken(plane + i, ALL || i < all);
                        }
                        plane += all;
                    };
                    if constexpr (BYTES >= 2) one(Number<0>());
                    if constexpr (BYTES >= 4) one(Number<1>());
                    if constexpr (BYTES >= 8) one(Number<2>());
                };
                unsigned kept[8] = {}, coming[8] = {};
                load_kept(0, coming);
#pragma unroll 1
                for (int g = 0; g < groups; ++g) {
#pragma unroll
                    for (int j = 0; j < 8; ++j) kept[j] = coming[j];
                    if (g + 1 < groups) load_kept(g + 1, coming);
                    __syncwarp();
#pragma unroll 1
                    while (filled < at + 128) fill();  // four steps take at most 128
                    __syncwarp();
                    unsigned tops[4];
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        const unsigned e = slots[state & 4095], above = state >> 12;
                        const unsigned next = (e >> 12 & 4095) * above + (above + (e & 4095));
                        const bool live = ALL || g * 128 + 4 * lane + j < values, low = live && next < LOWEST;
                        const unsigned vote = __ballot_sync(~0u, low);
                        const unsigned half = reinterpret_cast<const unsigned short*>(ring)[(at + __popc(vote & below)) % RING];
                        if (live) state = low ? next << 16 | half : next;
                        at += __popc(vote);
                        tops[j] = e;
                    }
                    const Four<BYTES> f = put_together<F>(tops, kept);
                    if constexpr (ALL) store_whole<BYTES>(to, g * 128 + 4 * lane, f);
                    else store_part<BYTES>(to, g * 128 + 4 * lane, values, f);
                }
            };
            if (!why) {
                if (whole) decode(Number<1>());
                else decode(Number<0>());
            }
            if (!why && (at != static_cast<unsigned>(given) || __any_sync(~0u, state != LOWEST))) why = 3;
        }
        if (why == 3) {  // not all words have been added up: a wrong checksum comes before any other reason
            check = 0;
            for (int i = lane; i < size; i += 32) check += mixed(from[i], i);
        }
        check = __reduce_add_sync(~0u, check);
        if (why != 1 && check != checks[chunk]) why = 2;
        if (why)  // damaged: zeros, and the reason
            for (int g = 0; g < groups; ++g) store(g, Four<BYTES>{});
        if (lane == 0) damaged[chunk] = why;
    }
}
