// Chunks of the codecs `fast` and `shuffle`: 128 rows of 32 numbers, where a row has its own bit width. A block has 8 warps of 16 rows.
// docs/codecs.md defines the words of a chunk.
#pragma once
#include "_elements.cuh"

constexpr int ROWS = 128, MINE = 16, THREADS = 256;

template <typename U>
__device__ U zigzag(U d) { return (d << 1) ^ (U(0) - (d >> (8 * sizeof(U) - 1))); }
template <typename U>
__device__ U unzigzag(U z) { return (z >> 1) ^ (U(0) - (z & 1)); }

__device__ inline int bit_length(unsigned v) { return 32 - __clz(static_cast<int>(v)); }
/// The bit width of the widest number of a row, in all lanes.
__device__ inline int row_width(unsigned z) { return bit_length(__reduce_or_sync(~0u, z)); }
__device__ inline int row_width(unsigned long long z) {
    const unsigned high = __reduce_or_sync(~0u, static_cast<unsigned>(z >> 32)), low = __reduce_or_sync(~0u, static_cast<unsigned>(z));
    return high ? 32 + bit_length(high) : bit_length(low);
}

/// The position of a chunk's values in x [B, Z, Y, X]. RANK 1: 4096 neighbours; 2: 128 rows of 32; 3: 8 planes of 16 rows of 32. Warp w has
/// rows 16 w to 16 w + 15.
template <int RANK>
struct Place {
    long long first;  // element of the thread's row 0
    long long step;   // elements from a row to the next
    int mine;  // rows in which the thread's value is inside the array
    int vz, vy, vx;   // extents of the chunk within the array

    __device__ Place(long long chunk, long long Z, long long Y, long long X, unsigned nz, unsigned ny, unsigned nx) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        if (RANK == 1) {
            const long long x0 = chunk * 4096;
            first = x0 + warp * 512 + lane, step = 32;
            vz = vy = 1, vx = static_cast<int>(min(4096ll, X - x0));
            mine = max(0, min(MINE, (vx - warp * 512 - lane + 31) / 32));
        } else {
            const unsigned row = static_cast<unsigned>(chunk) / nx, plane = row / ny, b = plane / nz;  // chunks are fewer than 2^31
            const long long x0 = (static_cast<unsigned>(chunk) - row * nx) * 32ll, y0 = (row - plane * ny) * (RANK == 2 ? 128ll : 16ll),
                z0 = (plane - b * nz) * 8ll;
            vx = static_cast<int>(min(32ll, X - x0)), vy = static_cast<int>(min(RANK == 2 ? 128ll : 16ll, Y - y0));
            vz = RANK == 2 ? 1 : static_cast<int>(min(8ll, Z - z0));
            const long long z = RANK == 2 ? static_cast<long long>(b) : b * Z + z0 + warp, y = RANK == 2 ? y0 + warp * MINE : y0;
            first = (z * Y + y) * X + x0 + lane, step = X;
            mine = lane >= vx || (RANK == 3 && warp >= vz) ? 0 : max(0, min(MINE, RANK == 2 ? vy - warp * MINE : vy));
        }
    }
    __device__ int values() const { return vz * vy * vx; }
    /// The index, among the chunk's values, of the thread's value of row i.
    __device__ int number_of(int i) const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        return RANK == 1 ? warp * 512 + i * 32 + lane : RANK == 2 ? (warp * MINE + i) * vx + lane : (warp * vy + i) * vx + lane;
    }
};

/// The bit widths of a chunk's rows: lane l of every warp has rows 4 l to 4 l + 3.
struct Widths {
    int own[4], before[4];  // words of the row, words of the rows before it
    int total;

    __device__ void scan() {
        const int lane = threadIdx.x % 32, sum = own[0] + own[1] + own[2] + own[3];
        int up_to = sum;
#pragma unroll
        for (int j = 1; j < 32; j *= 2) {
            const int other = __shfl_up_sync(~0u, up_to, j);
            if (lane >= j) up_to += other;
        }
        total = __shfl_sync(~0u, up_to, 31);
        before[0] = up_to - sum;
#pragma unroll
        for (int j = 1; j < 4; ++j) before[j] = before[j - 1] + own[j - 1];
    }
    /// The width of the warp's row i, in all lanes.
    __device__ int width(int warp, int i) const { return __shfl_sync(~0u, own[i % 4], warp * 4 + i / 4); }
    __device__ int offset(int warp, int i) const { return __shfl_sync(~0u, before[i % 4], warp * 4 + i / 4); }
};

/// Four bits from each lane, gathered into words: lanes 8 g to 8 g + 7 all get word g, which holds their bits.
__device__ inline unsigned gathered(unsigned four) {
    unsigned v = four << (threadIdx.x % 8 * 4);
#pragma unroll
    for (int j = 1; j < 8; j *= 2) v |= __shfl_xor_sync(~0u, v, j);
    return v;
}

// -- a thread a row: blocks of 128 threads, numbers of 32 bits ------------------------------------------------------

constexpr int LINES = 128;  // threads of such a block

/// Where a chunk of 128 rows of 32 values lies in x [B, Z, Y, X]: as Place, with 4 warps of 32 rows.
template <int RANK>
struct Box {
    long long first, Y, X;  // first: element of value 0
    int vz, vy, vx;         // extents within the array

    __device__ Box(long long chunk, long long Z, long long Y, long long X, unsigned nz, unsigned ny, unsigned nx) : Y(Y), X(X) {
        if (RANK == 1) {
            first = chunk * 4096, vz = vy = 1, vx = static_cast<int>(min(4096ll, X - first));
        } else {
            const unsigned row = static_cast<unsigned>(chunk) / nx, plane = row / ny, b = plane / nz;  // chunks are fewer than 2^31
            const long long x0 = (static_cast<unsigned>(chunk) - row * nx) * 32ll, y0 = (row - plane * ny) * (RANK == 2 ? 128ll : 16ll),
                z0 = (plane - b * nz) * 8ll;
            vx = static_cast<int>(min(32ll, X - x0)), vy = static_cast<int>(min(RANK == 2 ? 128ll : 16ll, Y - y0));
            vz = RANK == 2 ? 1 : static_cast<int>(min(8ll, Z - z0));
            first = (((RANK == 2 ? static_cast<long long>(b) : b * Z + z0)) * Y + y0) * X + x0;
        }
    }
    __device__ int values() const { return vz * vy * vx; }
    __device__ bool whole() const { return values() == 4096; }
    /// How many values of a row are inside the array: those from its first on.
    __device__ int inside(int row) const {
        if (RANK == 1) return max(0, min(32, vx - 32 * row));
        return (RANK == 2 ? row < vy : row % 16 < vy && row / 16 < vz) ? vx : 0;
    }
    /// Of rows 16 s to 16 s + 15 the lane's column: its first element, elements from a row to the next, rows in which it is inside.
    struct Strip {
        long long first, step;
        int mine;
    };
    __device__ Strip strip(int s) const {
        const int lane = threadIdx.x % 32;
        if (RANK == 1) return {first + 512 * s + lane, 32, max(0, min(MINE, (vx - 512 * s - lane + 31) / 32))};
        return {first + (RANK == 2 ? MINE : Y) * s * X + lane, X,
                lane >= vx || (RANK == 3 && s >= vz) ? 0 : max(0, min(MINE, RANK == 2 ? vy - MINE * s : vy))};
    }
    /// The index of a row's first value among the chunk's.
    __device__ int number_of(int row) const { return RANK == 1 ? 32 * row : RANK == 2 ? row * vx : ((row / 16) * vy + row % 16) * vx; }
};

/// Rows of 32 words in shared memory. 16 bytes of a row stand where its number turns them: neither a row of lanes nor eight rows' same
/// 16 bytes meet in a bank.
__device__ inline int granule(int row, int g) { return row * 8 + (g ^ row % 8); }
__device__ inline int place_of(int row, int column) { return 4 * granule(row, column / 4) + column % 4; }

/// One step of the transpose of a matrix of bits, a row a register: the halves of J bits and J rows change places.
template <int N, int J>
__device__ void exchanged(unsigned (&a)[32]) {
    constexpr unsigned MASK = J == 16 ? 0x0000FFFFu : J == 8 ? 0x00FF00FFu : J == 4 ? 0x0F0F0F0Fu : J == 2 ? 0x33333333u : 0x55555555u;
#pragma unroll
    for (int k = 0; k < N; ++k) {
        if (k & J) continue;
        const unsigned t = ((a[k] >> J) ^ a[k + J]) & MASK;
        a[k + J] ^= t, a[k] ^= t << J;
    }
}
