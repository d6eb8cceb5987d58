/* rooftop
idea    = """A warp decodes a chunk: 32 interleaved states, one per lane, decode 32 symbols per step with a table of 4096 slots in shared \
  memory. Ballots tell each lane which of the next 16-bit words is its own. A block builds the table once and then decodes chunk after \
  chunk."""
predict = { registers = 48 }
limit   = """latency of a step: table, multiply-add, ballot, word, about 110 cycles. With 48 warps per multiprocessor 28 bytes of bfloat16 \
  per cycle, so that issue slots (25 instructions per step of 64 bytes) bound it at about 2 TB/s"""
args    = ["damaged: i32[N]"]
python  = ["supports", "launches"]
demands = { spills = 0 }
*/
#include "pdl.cuh"
#include "_planes.cuh"

template <int F>
__global__ void __launch_bounds__(256)
decompress_planes(const unsigned* __restrict__ words, long long count, const long long* __restrict__ starts,
    const unsigned* __restrict__ checks,
                  const unsigned short* __restrict__ frequencies, long long n, bool vectors, long long chunks,
                  typename Element<F>::Bits* __restrict__ y,
                  int* __restrict__ damaged) {
    using S = Split<F>;
    constexpr int BYTES = S::BYTES, MOST = 1 + CHUNK / 4 * BYTES;
    __shared__ unsigned slots[4096];  // symbol << 24 | frequency - 1 << 12 | slot - start
    __shared__ unsigned starts_of[257];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
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
    for (long long chunk = blockIdx.x * 8ll + warp; chunk < chunks; chunk += gridDim.x * 8ll) {
        typename S::Bits* to = y + chunk * CHUNK;
        const int values = static_cast<int>(min(static_cast<long long>(CHUNK), n - chunk * CHUNK)), groups = (values + 127) / 128;
        const long long first = starts[chunk], length = starts[chunk + 1] - first;
        int why = first < 0 || length < 1 || length > MOST || first > count - length;
        const unsigned* from = words + first;
        const int size = why ? 0 : static_cast<int>(length);
        unsigned check = 0;
#pragma unroll 4
        for (int i = lane; i < size; i += 32) check += mixed(from[i], i);
        check = __reduce_add_sync(~0u, check);
        if (!why && check != checks[chunk]) why = 2;
        const unsigned head = why ? 1 : from[0];
        if (!why && head == 0) {
            const int tail = values * BYTES % 4;
            if (size != 1 + words_for(values, BYTES) || (tail && from[size - 1] >> 8 * tail)) why = 3;
            for (int g = 0; g < groups && !why; ++g) {
                Pack<BYTES> p{};
                const int at = (g * 128 + 4 * lane) * BYTES / 4;
                if constexpr (BYTES == 8) {
#pragma unroll
                    for (int j = 0; j < 8; ++j) p.v[j / 2] |= static_cast<typename S::Bits>(at + j < size - 1 ? from[1 + at + j]
                        : 0u) << 32 * (j % 2) % (8 * BYTES);
                } else {
                    unsigned w[BYTES % 8];
#pragma unroll
                    for (int j = 0; j < BYTES; ++j) w[j] = at + j < size - 1 ? from[1 + at + j] : 0u;
                    unpacked<BYTES % 8, 0>(p, w);
                }
                store_four<BYTES>(to, p, g * 128 + 4 * lane, values, vectors);
            }
        } else if (!why) {
            const int given = static_cast<int>(head >> 8), halves = (given + 1) / 2;
            if (!fits || (head & 255) != 1 || given > 2 * MOST || size != 33 + halves + kept_words(values, BYTES)) why = 3;
            else if (given % 2 && from[33 + halves - 1] >> 16) why = 3;
            unsigned state = why ? LOWEST : from[1 + lane];
            if (__any_sync(~0u, state < LOWEST)) why = 3;
            const unsigned short* stream = reinterpret_cast<const unsigned short*>(from + 33);
            int at = 0;
            for (int g = 0; g < groups && !why; ++g) {
                Pack<BYTES> p{};
                if constexpr (BYTES > 1) {
                    int plane = 33 + halves;
                    const auto kept = [&](auto number) {
                        constexpr int K = decltype(number)::value, SIZE = plane_bytes(BYTES, K);
                        unsigned w[SIZE];
                        const int place = (g * 128 + 4 * lane) * SIZE / 4, all = words_for(values, SIZE);
#pragma unroll
                        for (int j = 0; j < SIZE; ++j) w[j] = place + j < all ? from[plane + place + j] : 0u;
                        unpacked<SIZE, plane_low(BYTES, K)>(p, w);
                        plane += all;
                    };
                    kept(Number<0>());
                    if constexpr (BYTES >= 4) kept(Number<1>());
                    if constexpr (BYTES >= 8) kept(Number<2>());
                }
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const bool live = g * 128 + 4 * lane + j < values;
                    const unsigned e = slots[state & 4095];
                    if (live) state = ((e >> 12 & 4095) + 1) * (state >> 12) + (e & 4095);
                    const bool low = live && state < LOWEST;
                    const unsigned vote = __ballot_sync(~0u, low);
                    const int mine = at + __popc(vote & ((1u << lane) - 1));
                    if (low) state = state << 16 | (mine < given ? stream[mine] : 0u);
                    at += __popc(vote);
                    p.v[j] = S::whole(e >> 24, p.v[j]);
                }
                store_four<BYTES>(to, p, g * 128 + 4 * lane, values, vectors);
            }
            if (!why && (at != given || __any_sync(~0u, state != LOWEST))) why = 3;
        }
        if (why)  // damaged: zeros, and the reason
            for (int g = 0; g < groups; ++g) store_four<BYTES>(to, Pack<BYTES>{}, g * 128 + 4 * lane, values, vectors);
        if (lane == 0) damaged[chunk] = why;
    }
}
