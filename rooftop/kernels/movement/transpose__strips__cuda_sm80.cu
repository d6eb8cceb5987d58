/* rooftop
idea    = """Rows that start at any address, in x or in the output. A block walks down a strip of columns. Asynchronous copies of 16 bytes \
  bring whole packs of its rows to a ring in shared memory. There a row is as far from a multiple of 32 bytes as it is in memory, because \
  the pitch of the ring leaves the same remainder as the stride of the rows: else each sector would be requested twice. Each step writes \
  whole lines of the columns, from the last rows of the step before on, which the ring still holds: so no line is written twice, no row \
  read twice, and the next rows are on their way meanwhile. A pack of the output is gathered element by element. Which columns and which \
  elements the lanes of a warp take follows from the remainders, so that no two meet in a bank."""
predict = { speedup = 1.15 }
limit   = """The pattern of accesses to memory, as it seems. Where rows of x begin anywhere, transpose__shifted__cuda_sm80 takes as long on \
  an H200, with a quarter more requests to the L2 and up to four lanes a bank. Wider strips and fewer blocks are faster."""
dtypes  = ["i8", "i16", "i32", "i64"]
args    = ["x: T[B1, B2, B3, R, C]", "out: T[B1, B2, B3, R, C]"]
demands = { has = ["LDGSTS.E.128", "STG.E.128"], spills = 0 }
python  = ["choose", "configs", "launches"]
valid   = "step * bytes(x) >= line and step % 16 == 0"

[requires]
"stride(x, 4) == 1 and stride(out, 3) == 1" = "rows and columns must be exchanged: columns are neighbours in x, rows in the output"
"starts(x, 16) and starts(out, 16)" = "both must start on 16-byte boundaries"
"numel(x) > 0" = "there is nothing to copy"

[config]
wide  = 512
step  = 64
ahead = 2
line  = 128
steps = 6
*/
#include <cuda_pipeline.h>
#include "pdl.cuh"

template <int BYTES>
struct Raw;
template <>
struct Raw<1> { using type = unsigned char; };
template <>
struct Raw<2> { using type = unsigned short; };
template <>
struct Raw<4> { using type = unsigned; };
template <>
struct Raw<8> { using type = uint2; };
template <int BYTES>
using raw = typename Raw<BYTES>::type;

extern __shared__ __align__(128) char held[];

/// Strips of WIDE bytes of columns, `segments` of `steps` steps each. A step loads STEP rows and writes STEP rows of each column, from the
/// last multiple of BYTES bytes (a *line*) that the step before reached; so rows of up to a line before the step are still in the ring, and
/// AHEAD steps after it are on their way.
/// LEFT: the stride of the rows in bytes, modulo 32. N rows of the ring, a pack of the output, are GAP bytes further apart than N pitches.
/// LANES of a warp take neighbouring packs of a column. Its columns are APART, and if TURNED, each begins with another word of its packs.
template <int SIZE, int LEFT, int GAP, int WIDE, int STEP, int AHEAD, int BYTES, int LANES, int APART, bool TURNED>
__global__ void __launch_bounds__(WIDE, 1024 / WIDE)
    strips(int R, int C, unsigned strips_c, unsigned segments, int steps, unsigned B2, unsigned B3, const void* __restrict__ x,
           void* __restrict__ out, long long span, long long x1, long long x2, long long x3, long long xr, long long o1, long long o2,
           long long o3, long long oc) {
    constexpr int N = 16 / SIZE, LINE = BYTES / SIZE, THREADS = WIDE, COLUMNS = WIDE / SIZE, CHUNKS = WIDE / 16, DOWN = 16;
    constexpr int PITCH = WIDE + LEFT + (LEFT < 16 ? 32 : 0), GROUP = N * PITCH + GAP;
    constexpr int KEPT = (LINE + DOWN - 1) / DOWN * DOWN, RING = KEPT + (1 + AHEAD) * STEP;
    constexpr int PACKS = STEP / N, EACH = 4 / SIZE > 0 ? 4 / SIZE : 1;  // packs of a column and step; elements of a word
    constexpr int OF_WARP = 32 / LANES;  // columns
    static_assert(STEP % LINE == 0 && RING * LEFT % 32 == 0 && PACKS % LANES == 0 && !(TURNED && GAP), "");
    using E = raw<SIZE>;
    const int tid = threadIdx.x;
    const unsigned strip = blockIdx.x % strips_c, segment = blockIdx.x / strips_c % segments, matrix = blockIdx.x / (strips_c * segments);
    const unsigned b3 = matrix % B3, b2 = matrix / B3 % B2, b1 = matrix / B3 / B2;
    const int begin_row = static_cast<int>(segment) * steps * STEP, c0 = static_cast<int>(strip) * COLUMNS, columns = min(COLUMNS, C - c0);
    const int top_row = begin_row - KEPT;  // row 0 of the ring; before the first row of x nothing is loaded
    const char* const end = static_cast<const char*>(x) + span * SIZE;
    const char* const first = static_cast<const char*>(x) + (b1 * x1 + b2 * x2 + b3 * x3 + top_row * xr + c0) * SIZE;
    const int lead = static_cast<int>(reinterpret_cast<unsigned long long>(first) % 32);
    char* const to = static_cast<char*>(out) + (b1 * o1 + b2 * o2 + b3 * o3 + c0 * oc) * SIZE;
    const auto place = [](int slot) { return slot / N * GROUP + slot % N * PITCH; };  // of a row of the ring, in bytes

    // a thread copies chunk `chunk` of every sixteenth row, which are all equally far from 16 bytes
    const int down = tid / CHUNKS, chunk = tid % CHUNKS;
    const int from_row = chunk * 16 - (lead + down * LEFT) % 16;  // bytes from the row's first element
    const bool has = from_row < columns * SIZE, has_last = chunk == 0 && from_row + WIDE < columns * SIZE;
    const auto copy = [&](char* slot, const char* from) {
        if (from + 16 <= end) {
            __pipeline_memcpy_async(slot, from, 16);
        } else {
#pragma unroll 1
            for (int i = 0; i < static_cast<int>(end - from); i += SIZE) {
                *reinterpret_cast<E*>(slot + i) = *reinterpret_cast<const E*>(from + i);
            }
        }
    };
    const auto copy_row = [&](int slot, const char* from) {
        char* const at = held + lead + place(slot) + from_row;
        if (has) copy(at, from);
        if (has_last) copy(at + WIDE, from + WIDE);
    };
    const auto fetch = [&](int row, int count) {  // rows of the strip, from the ring's row 0 on; both multiples of 16
        int slot = (row + down) % RING;
        const char* from = first + (row + down) * xr * SIZE + from_row;
#pragma unroll 4
        for (int j = 0; j < count; j += DOWN) {
            const int at = top_row + row + down + j;
            if (at >= 0 && at < R) {
                copy_row(slot, from);
                if (slot < N - 1) copy_row(slot + RING, from);  // a pack that begins in the last rows goes on in these
            }
            from += DOWN * xr * SIZE, slot += DOWN;
            if (slot >= RING) slot -= RING;
        }
    };

    gdc_wait();
    fetch(0, KEPT + STEP);
    __pipeline_commit();
#pragma unroll 1
    for (int k = 1; k < AHEAD; ++k) {
        if (k < steps) fetch(KEPT + k * STEP, STEP);
        __pipeline_commit();
    }
    const int turn = TURNED ? tid / LANES % 4 : 0;
    int of_step = KEPT;  // the slot of the step's first row
#pragma unroll 1
    for (int k = 0; k < steps; ++k) {
        const int row0 = begin_row + k * STEP;
        if (row0 - LINE >= R) break;
        __pipeline_wait_prior(AHEAD - 1);
        __syncthreads();
        if (k + AHEAD < steps) fetch(KEPT + (k + AHEAD) * STEP, STEP);
        __pipeline_commit();
#pragma unroll 2
        for (int s = tid; s < COLUMNS * PACKS; s += THREADS) {
            const int unit = s / LANES, mixed = unit % COLUMNS, pack = s % LANES + unit / COLUMNS * LANES;
            const int column = mixed % OF_WARP * APART + mixed / OF_WARP % APART + mixed / (OF_WARP * APART) * (OF_WARP * APART);
            if (column >= columns) continue;
            char* const top = to + column * oc * SIZE;
            const int at = pack * N - static_cast<int>(reinterpret_cast<unsigned long long>(top) % BYTES) / SIZE, row = row0 + at;
            if (row <= -N || row >= R) continue;
            int slot = of_step + at;
            slot += slot < 0 ? RING : slot >= RING ? -RING : 0;
            const char* const source = held + lead + place(slot) + column * SIZE;
            const int behind = N - slot % N;  // elements from which on a gap lies between
            uint4 v;
            if (TURNED) {
                unsigned w[4], u[4];
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const char* const word = source + (j + turn) % 4 * EACH * PITCH;
#pragma unroll
                    for (int i = 0; i < EACH; ++i) reinterpret_cast<E*>(&w[j])[i] = *reinterpret_cast<const E*>(word + i * PITCH);
                }
#pragma unroll
                for (int j = 0; j < 4; ++j) u[j] = turn & 1 ? w[(j + 3) % 4] : w[j];
                v = turn & 2 ? make_uint4(u[2], u[3], u[0], u[1]) : make_uint4(u[0], u[1], u[2], u[3]);
            } else {
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    reinterpret_cast<E*>(&v)[i] = *reinterpret_cast<const E*>(source + i * PITCH + (GAP > 0 && i >= behind ? GAP : 0));
                }
            }
            char* const target = top + static_cast<long long>(row) * SIZE;
            if (row >= 0 && row + N <= R) {
                *reinterpret_cast<uint4*>(target) = v;
            } else {
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    if (row + i >= 0 && row + i < R) reinterpret_cast<E*>(target)[i] = reinterpret_cast<const E*>(&v)[i];
                }
            }
        }
        of_step += STEP;
        if (of_step >= RING) of_step -= RING;
    }
}
