/* rooftop
idea    = """Rows that start at any address. Asynchronous copies of 16 bytes bring the packs that contain a tile's rows to shared memory. \
  There a row is as far from a multiple of 16 bytes as it is in memory, because the pitch of the tile leaves the same remainder as the \
  stride of the rows. Each pack of the output is gathered element by element, from addresses that differ by the constant pitch: no element \
  is shifted in registers. Eight lanes read packs of eight rows and four columns: in eight different groups of four banks if the stride is \
  odd; else the rows of each further pack lie 16 bytes further in shared memory. If a tile holds all rows (`flat`), its output is one \
  range of memory, written in whole packs although rows end amid them."""
predict = { speedup = 1.2 }
limit   = """On an H200 0.80 (11585x11585 bfloat16) and 0.84 (8191x8193 float32) of a copy, hardly more with a third of the instructions or with tiles of twice \
  the height: 1.3 times the bytes between L2 and shared memory, because tiles overlap and rows are read in whole vectors."""
dtypes  = ["i8", "i16", "i32", "i64"]
args    = [
    "R: i32", "C: i32", "tall: i32 = tall", "GROUP: u32 = group", "tiles_r: u32 = 1 if flat else ceil((R + 32 // bytes(x) - 1) / tall)", "tiles_c: u32 = ceil(C * bytes(x) / wide)", "B2: u32",
    "B3: u32", "x: T[B1, B2, B3, R, C]", "out: T[B1, B2, B3, R, C]",
    "span: i64 = (B1 - 1) * stride(x, 0) + (B2 - 1) * stride(x, 1) + (B3 - 1) * stride(x, 2) + (R - 1) * stride(x, 3) + C",
    "x1: i64 = stride(x, 0)", "x2: i64 = stride(x, 1)", "x3: i64 = stride(x, 2)", "xr: i64 = stride(x, 3)",
    "o1: i64 = stride(out, 0)", "o2: i64 = stride(out, 1)", "o3: i64 = stride(out, 2)", "oc: i64 = stride(out, 4)",
]
demands = { has = ["LDGSTS.128", "STG.128"], spills = 0 }
python  = ["choose", "configs"]

[requires]
"stride(x, 4) == 1 and stride(out, 3) == 1" = "rows and columns must be exchanged: columns are neighbours in x, rows in the output"
"starts(x, 16) and starts(out, 16)" = "both must start on 16-byte boundaries"
"numel(x) > 0" = "there is nothing to copy"

[config]
wide = 256  # bytes of a row of a tile
tall = 128  # rows that a tile writes: a multiple of eight packs
flat = 0
threads = 256
group = 16  # tiles along C before the next along R

# tiles of `tall` rows, which overlap by 32 bytes of a column, or of all rows
[[launch]]
kernel  = "shifted<{bytes(x)}, {stride(x, 3) * bytes(x) % 16}, {wide}, {flat}, {threads}>"
grid    = ["B1 * B2 * B3 * (1 if flat else ceil((R + 32 // bytes(x) - 1) / tall)) * ceil(C * bytes(x) / wide)"]
block   = ["threads"]
shared  = "(R if flat else tall + 32 // bytes(x)) * (wide + 16 + stride(x, 3) * bytes(x) % 16 + (0 if stride(x, 3) % 2 == 1 else bytes(x))) + 16"
pdl = true
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

/// A tile of `tall` + SKIP rows and TC columns of WIDE bytes. Of each column a block writes `tall` rows from the last multiple of 32 bytes at or before
/// row r0 + SKIP on, so that no two blocks write to one sector. FLAT: the tile holds all rows, at least N, and columns follow each
/// other in `out`. LEFT: the stride of the rows in bytes, modulo 16. Element (j, c) of the tile lies `lead`
/// + j · PITCH + j / N · GAP + c · SIZE bytes after the start of shared memory, where `lead` is the remainder of the address of element
/// (0, 0). GAP: so that N rows are an odd multiple of 16 bytes. With it, neighbouring lanes' columns are APART_C apart, in different words.
template <int SIZE, int LEFT, int WIDE, bool FLAT, int THREADS>
__global__ void __launch_bounds__(THREADS, 1536 / THREADS)
    shifted(int R, int C, int tall, unsigned GROUP, unsigned tiles_r, unsigned tiles_c, unsigned B2, unsigned B3, const void* __restrict__ x, void* __restrict__ out,
        long long span,
            long long x1, long long x2, long long x3, long long xr, long long o1, long long o2, long long o3, long long oc) {
    constexpr int N = 16 / SIZE, SKIP = FLAT ? 0 : 32 / SIZE, TC = WIDE / SIZE, PITCH = WIDE + 16 + LEFT;
    constexpr int CHUNKS = WIDE / 16 + 1;
    constexpr int GAP = N * PITCH % 32 == 16 ? 0 : 16, APART_C = GAP && SIZE < 4 ? 4 / SIZE : 1;
    using E = raw<SIZE>;
    const unsigned matrix = blockIdx.x / (tiles_c * tiles_r), b3 = matrix % B3, b2 = matrix / B3 % B2, b1 = matrix / B3 / B2;
    unsigned t = blockIdx.x % (tiles_c * tiles_r);
    const unsigned group = t / (GROUP * tiles_r), wide = min(GROUP, tiles_c - group * GROUP);
    t -= group * GROUP * tiles_r;
    const int r0 = static_cast<int>(t / wide) * tall - SKIP, c0 = static_cast<int>(group * GROUP + t % wide) * TC;
    const int held_rows = FLAT ? R : tall + SKIP, rows = min(held_rows, R - r0), columns = min(TC, C - c0);
    const char* begin = static_cast<const char*>(x);
    const char* end = begin + span * SIZE;
    // r0 may be negative: rows before the first are not read
    const char* first = begin + (b1 * x1 + b2 * x2 + b3 * x3 + r0 * xr + c0) * SIZE;
    const int lead = static_cast<int>(reinterpret_cast<unsigned long long>(first) % 16);
    char* to = static_cast<char*>(out) + (b1 * o1 + b2 * o2 + b3 * o3 + c0 * oc) * SIZE;

    gdc_wait();
    const auto start_of = [&](int j) { return lead + j * PITCH + j / N * GAP; };  // of element (j, 0) in shared memory
    if (first + (rows - 1) * xr * SIZE + columns * SIZE + 16 <= end) {
        // A thread copies the same pack of every STEP-th row, in which `start` has the same remainder; the packs behind them are one a row.
        constexpr int STEP = THREADS / (WIDE / 16) / N * N;
        int j = threadIdx.x / (WIDE / 16);
        const int before = threadIdx.x % (WIDE / 16) * 16 - start_of(j) % 16;
        const char* from = first + j * xr * SIZE + before;
        char* slot = held + start_of(j) + before;
        if (j >= STEP || before >= columns * SIZE) j = rows;
#pragma unroll 4
        for (; j < rows; j += STEP, from += STEP * xr * SIZE, slot += STEP * PITCH + STEP / N * GAP) {
            if (r0 + j >= 0) __pipeline_memcpy_async(slot, from, 16);
        }
        for (int i = threadIdx.x; i < rows; i += THREADS) {
            const int over = start_of(i) % 16;
            if (r0 + i >= 0 && WIDE - over < columns * SIZE) __pipeline_memcpy_async(held + start_of(i) + WIDE - over, first + i * xr * SIZE + WIDE - over, 16);
        }
    } else {
#pragma unroll 1
        for (int k = threadIdx.x; k < held_rows * CHUNKS; k += THREADS) {
            const int j = k / CHUNKS, chunk = k % CHUNKS, at = chunk * 16 - start_of(j) % 16;  // bytes from element (j, 0)
            if (r0 + j < 0 || j >= rows || at >= columns * SIZE) continue;
            const char* from = first + j * xr * SIZE + at;
            char* slot = held + start_of(j) + at;
            if (from + 16 <= end) {
                __pipeline_memcpy_async(slot, from, 16);
            } else {
#pragma unroll 1
                for (int i = 0; i < static_cast<int>(end - from); i += SIZE) *reinterpret_cast<E*>(slot + i) =
                    *reinterpret_cast<const E*>(from + i);
            }
        }
    }
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();

    if constexpr (FLAT) {
        const int elements = columns * R;
        const float inverse = 1.0f / R;
#pragma unroll 1
        for (int k = threadIdx.x * N; k < elements; k += THREADS * N) {
            // a quotient of less than 2^21 by half a unit more: exact
            const int column = static_cast<int>((k + 0.5f) * inverse), row = k - column * R;
            const int at = lead + row * PITCH + row / N * GAP + column * SIZE, next = lead + (column + 1) * SIZE - (R - row) * PITCH;
            uint4 v;
#pragma unroll
            for (int i = 0; i < N; ++i) {
                // the next column begins with row R - row of the pack, in its first N rows
                const int from = row + i < R ? at + (GAP && i >= N - row % N ? GAP : 0) : next;
                if (k + i < elements) reinterpret_cast<E*>(&v)[i] = *reinterpret_cast<const E*>(held + from + i * PITCH);
            }
            E* place = reinterpret_cast<E*>(to) + k;
            if (k + N <= elements) {
                *reinterpret_cast<uint4*>(place) = v;
            } else {
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    if (k + i < elements) place[i] = reinterpret_cast<const E*>(&v)[i];
                }
            }
        }
        return;
    }
#pragma unroll 1
    for (int turn = threadIdx.x / 8; turn < TC; turn += THREADS / 8) {
        const int column = turn % 4 * APART_C + turn / 4 % APART_C + turn / (4 * APART_C) * (4 * APART_C);
        if (column >= columns) continue;
        char* top = to + column * oc * SIZE;
        const int at = SKIP - static_cast<int>(reinterpret_cast<unsigned long long>(top) % 32) / SIZE + threadIdx.x % 8 * N;  // row of the tile
        const char* source = held + start_of(at) + column * SIZE;
        char* place = top + static_cast<long long>(r0 + at) * SIZE;
#pragma unroll 2
        for (int row = r0 + at; row < r0 + at + tall; row += 8 * N, source += 8 * N * PITCH + 8 * GAP, place += 128) {
            if (row <= -N || row >= R) continue;
            uint4 v;
#pragma unroll
            for (int i = 0; i < N; ++i) reinterpret_cast<E*>(&v)[i] = *reinterpret_cast<const E*>(source + i * PITCH + (GAP && i >= N - at % N ? GAP : 0));
            if (row >= 0 && row + N <= R) {
                *reinterpret_cast<uint4*>(place) = v;
            } else {
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    if (row + i >= 0 && row + i < R) reinterpret_cast<E*>(place)[i] = reinterpret_cast<const E*>(&v)[i];
                }
            }
        }
    }
}
