// Chunks of `fast` and `shuffle` whose rows are threads': a block has 128 threads, and each a row of 32 numbers of 32 bits.
#pragma once
#include "_chunks.cuh"

constexpr int LINES = 128;  // threads of a block

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
