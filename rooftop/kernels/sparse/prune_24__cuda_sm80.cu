/* rooftop
idea    = "A block takes 128 rows by 64 columns, a thread 4 x 4 tiles of them. The 90 transposable patterns are gone through in registers, their sums of two rows shared; the greedy search sorts 16 keys by a network, of which the low four bits are the place. What is kept is put together in shared memory, so that both orientations go out in whole lines."
limit   = "predicted: instructions for the optimal search (some 430 a tile), device memory for the greedy one"
dtypes  = ["f16", "bf16"]
args    = ["M: i32", "K: i32", "w: T[M, K]", "ws: i64 = stride(w, 0)", "values: T[M, H]", "kept: i32 = H", "meta: i32[S, C, L, 4]", "stripes: i32 = S", "blocks: i32 = C", "values_t: T[K, G]", "kept_t: i32 = G", "meta_t: i32[U, V, L, 4]", "stripes_t: i32 = U", "blocks_t: i32 = V"]
demands = { spills = 0 }

[requires]
"M * K > 0" = "there is nothing to prune"
"M < 2147483392 and K < 2147483392" = "takes fewer than 2^31 rows and columns"

[[launch]]
kernel  = "prune<{T}, {algorithm == 'optimal'}>"
grid    = ["2 * V", "4 * C"]
block   = [256]
chained = true
*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "chain.cuh"

using Row = unsigned long long;  // four elements of 16 bits

__device__ inline float size_of(unsigned key, const __half*) {
    const unsigned short bits = static_cast<unsigned short>(key);
    return __half2float(*reinterpret_cast<const __half*>(&bits));
}
__device__ inline float size_of(unsigned key, const __nv_bfloat16*) { return __uint_as_float(key << 16); }
template <typename T>
constexpr unsigned INFINITE = 0x7f80;
template <>
constexpr unsigned INFINITE<__half> = 0x7c00;

/// The first of the 90 patterns whose sizes add up to most; bit 4 r + c: whether element (r, c) is kept.
template <typename T>
__device__ inline unsigned optimal(const unsigned (&key)[16]) {
    constexpr int FIRST[6] = {0, 0, 0, 1, 1, 2}, SECOND[6] = {1, 2, 3, 2, 3, 3};
    float pair[4][6];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int p = 0; p < 6; ++p) pair[r][p] = size_of(key[4 * r + FIRST[p]], static_cast<const T*>(nullptr)) + size_of(key[4 * r + SECOND[p]], static_cast<const T*>(nullptr));
    }
    float most = -1.f;
    unsigned best = 0;
#pragma unroll
    for (int a = 0; a < 6; ++a) {
#pragma unroll
        for (int b = 0; b < 6; ++b) {
#pragma unroll
            for (int c = 0; c < 6; ++c) {
#pragma unroll
                for (int d = 0; d < 6; ++d) {
                    const unsigned w = 1u << FIRST[a] | 1u << SECOND[a], x = 1u << FIRST[b] | 1u << SECOND[b], y = 1u << FIRST[c] | 1u << SECOND[c],
                                   z = 1u << FIRST[d] | 1u << SECOND[d];
                    if ((w ^ x ^ y ^ z) != 0 || (w & x & y & z) != 0) continue;  // a column that is not kept just twice
                    const float total = (pair[0][a] + pair[1][b]) + (pair[2][c] + pair[3][d]);
                    if (total > most) most = total, best = w | x << 4 | y << 8 | z << 12;
                }
            }
        }
    }
    return best;
}

/// The elements by size, the first of equals first, while their row and column have fewer than two.
__device__ inline unsigned greedy(const unsigned (&key)[16]) {
    unsigned order[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) order[i] = key[i] << 4 | (15 - i);
    // Batcher's odd-even merge sort, the largest first: the places that are compared, in turn.
    constexpr int LEFT[63] = {0, 2, 4, 6, 8, 10, 12, 14, 0, 1, 4, 5, 8, 9, 12, 13, 1, 5, 9, 13, 0, 1, 2, 3, 8, 9, 10, 11, 2, 3, 10, 11, 1, 3, 5, 9, 11, 13, 0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7, 2, 3, 6, 7, 10, 11, 1, 3, 5, 7, 9, 11, 13};
    constexpr int RIGHT[63] = {1, 3, 5, 7, 9, 11, 13, 15, 2, 3, 6, 7, 10, 11, 14, 15, 2, 6, 10, 14, 4, 5, 6, 7, 12, 13, 14, 15, 4, 5, 12, 13, 2, 4, 6, 10, 12, 14, 8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 8, 9, 12, 13, 2, 4, 6, 8, 10, 12, 14};
#pragma unroll
    for (int i = 0; i < 63; ++i) {
        const unsigned x = order[LEFT[i]], y = order[RIGHT[i]];
        order[LEFT[i]] = max(x, y), order[RIGHT[i]] = min(x, y);
    }
    unsigned found = 0, counts = 0;  // four bits a row, then four a column
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        const unsigned at = 15 - order[i] % 16, row = at / 4 * 4, column = 16 + at % 4 * 4;
        const bool fits = (counts >> row) % 16 < 2 && (counts >> column) % 16 < 2;
        found |= fits ? 1u << at : 0u;
        counts += fits ? 1u << row | 1u << column : 0u;
    }
    return found;
}

/// Of four elements the two that `bits` keeps, side by side, and their code; where fewer are kept, zeros from the first places.
__device__ inline unsigned two_of(Row row, unsigned bits, unsigned char& code) {
    unsigned chosen = bits;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        if (__popc(chosen) < 2) chosen |= ~chosen & (chosen + 1);
    }
    const int first = __ffs(chosen) - 1, second = 31 - __clz(chosen);
    const unsigned x = bits >> first & 1 ? static_cast<unsigned>(row >> 16 * first) & 0xffffu : 0u, y = bits >> second & 1 ? static_cast<unsigned>(row >> 16 * second) & 0xffffu : 0u;
    code = static_cast<unsigned char>(first | second << 2);
    return x | y << 16;
}

constexpr int HIGH = 128, WIDE = 64;  // of a block

/// kept, kept_t: values in a row; stripes, blocks: of the metadata.
template <typename T, bool OPTIMAL>
__global__ void __launch_bounds__(256, 4)
prune(int M, int K, const T* __restrict__ w, long long ws, T* __restrict__ values, int kept, int* __restrict__ meta, int stripes, int blocks, T* __restrict__ values_t,
      int kept_t, int* __restrict__ meta_t, int stripes_t, int blocks_t) {
    __shared__ unsigned rows[HIGH][WIDE / 4 + 1], columns[WIDE][HIGH / 4 + 1];
    __shared__ unsigned char row_codes[HIGH][WIDE / 4 + 4], column_codes[WIDE][HIGH / 4 + 4];
    wait_for_before();
    const int m0 = blockIdx.x * HIGH, k0 = blockIdx.y * WIDE;
    const bool together = ws % 4 == 0 && reinterpret_cast<unsigned long long>(w) % 8 == 0;
#pragma unroll
    for (int round = 0; round < 2; ++round) {
        const int tile = round * 256 + threadIdx.x, r0 = tile / 16 * 4, c0 = tile % 16 * 4, m = m0 + r0, k = k0 + c0;
        Row row[4];
        unsigned key[16];
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const T* from = w + (m + r) * ws + k;
            row[r] = 0;
            if (m + r < M) {
                if (together && k + 4 <= K) row[r] = *reinterpret_cast<const Row*>(from);
                else {
#pragma unroll
                    for (int c = 0; c < 4; ++c) {
                        if (k + c < K) row[r] |= static_cast<Row>(*reinterpret_cast<const unsigned short*>(from + c)) << 16 * c;
                    }
                }
            }
#pragma unroll
            for (int c = 0; c < 4; ++c) key[4 * r + c] = min(static_cast<unsigned>(row[r] >> 16 * c) & 0x7fffu, INFINITE<T>);
        }
        const unsigned found = OPTIMAL ? optimal<T>(key) : greedy(key);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            unsigned char code;
            rows[r0 + i][c0 / 4] = two_of(row[i], found >> 4 * i & 15, code);
            row_codes[r0 + i][c0 / 4] = m + i < M && k < K ? code : 4;
            Row column = 0;
#pragma unroll
            for (int r = 0; r < 4; ++r) column |= (row[r] >> 16 * i & 0xffff) << 16 * r;
            const unsigned bits = (found >> i & 1) | (found >> (i + 4) & 1) << 1 | (found >> (i + 8) & 1) << 2 | (found >> (i + 12) & 1) << 3;
            columns[c0 + i][r0 / 4] = two_of(column, bits, code);
            column_codes[c0 + i][r0 / 4] = k + i < K && m < M ? code : 4;
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < HIGH * WIDE / 4; i += 256) {
        const int r = i / (WIDE / 4), j = i % (WIDE / 4), at = k0 / 4 + j;
        if (m0 + r < M && at < kept / 2) reinterpret_cast<unsigned*>(values + static_cast<long long>(m0 + r) * kept)[at] = rows[r][j];
        const int c = i / (HIGH / 4), l = i % (HIGH / 4), to = m0 / 4 + l;
        if (k0 + c < K && to < kept_t / 2) reinterpret_cast<unsigned*>(values_t + static_cast<long long>(k0 + c) * kept_t)[to] = columns[c][l];
    }
    const auto word = [](const unsigned char* low, const unsigned char* high) {
        unsigned found = 0;
#pragma unroll
        for (int j = 0; j < 4; ++j) found |= (low[j] | static_cast<unsigned>(high[j]) << 16) << 4 * j;
        return static_cast<int>(found);
    };
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    if (m0 / 16 + warp < stripes && k0 / 256 < blocks) {
        const int r = warp * 16 + g;
        meta[((static_cast<long long>(m0 / 16 + warp) * blocks + k0 / 256) * 32 + lane) * 4 + k0 % 256 / 64] = word(&row_codes[r][t * 4], &row_codes[r + 8][t * 4]);
    }
    const int stripe = k0 / 16 + warp / 2, c = warp / 2 * 16 + g, half = warp % 2;
    if (stripe < stripes_t && m0 / 256 < blocks_t) {
        meta_t[((static_cast<long long>(stripe) * blocks_t + m0 / 256) * 32 + lane) * 4 + m0 % 256 / 64 + half] =
            word(&column_codes[c][half * 16 + t * 4], &column_codes[c + 8][half * 16 + t * 4]);
    }
}
