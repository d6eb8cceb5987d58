/* rooftop
idea    = """A thread searches two neighbouring 4 x 4 tiles in registers, rows of 16 bytes; a block processes 128 x 128, or \
  64 x 128 where those are few. Optimal: the 90 \
  patterns fall into 19 kinds by how many elements the upper two rows keep in each column, so that the best upper and the best lower half \
  of each kind can be searched separately: 115 sums instead of 234. Greedy: 16 keys are sorted by a sorting network, then accepted in order \
  as long as a mask of full rows and columns allows. A table lookup by a row's four bits says which of its bytes are kept, and one PRMT \
  packs them. The transposed values are exchanged through shared memory and stored 16 bytes per thread."""
limit   = """On an H200 the optimal search takes 0.71 of a copy's speed at 4096 x 4096 bfloat16 (25.6 us), 0.81 at 8192, 0.84 at 16384: the time of the copy \
  by 1.18, and 4 us of first loads and last searches and stores. Blocks that walk down columns with the next rows in flight, and maxima by \
  multiplications beside the comparisons, were 1 to 18 % slower. Greedy 0.68, 0.75, 0.78: its 300 ALU instructions a tile."""
dtypes  = ["f16", "bf16"]
args    = [
    "M: i32", "K: i32", "w: T[M, K]", "ws: i64 = stride(w, 0)", "values: T[M, H]", "kept: i32 = H", "meta: i32[S, C, L, 4]",
    "stripes: i32 = S", "blocks: i32 = C", "values_t: T[K, G]", "kept_t: i32 = G", "meta_t: i32[U, V, L, 4]", "stripes_t: i32 = U",
    "blocks_t: i32 = V",
]
demands = { spills = 0 }
python  = ["choose", "configs"]

[requires]
"M * K > 0" = "there is nothing to prune"
"M < 2147483392 and K < 2147483392" = "takes fewer than 2^31 rows and columns"
"V < 32767 and C < 32767" = "takes fewer than 8 million rows and columns"

[config]
rounds = 2  # of 64 rows, of a block

[[launch]]
kernel  = "prune<{T}, {algorithm == 'optimal'}, {rounds}>"
grid    = ["2 * C", "4 // rounds * V"]
block   = [256]
pdl = true
*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cuda_pipeline.h>

#include "pdl.cuh"

/// Bytes of (x, y), eight from the lowest on, as the four nibbles of `select` name them.
__device__ inline unsigned bytes_of(unsigned x, unsigned y, unsigned select) {
    unsigned found;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(found) : "r"(x), "r"(y), "r"(select));
    return found;
}

__device__ inline float2 sizes(unsigned two, const __half*) {
    const float2 x = __half22float2(*reinterpret_cast<const __half2*>(&two));
    return make_float2(fabsf(x.x), fabsf(x.y));
}
__device__ inline float2 sizes(unsigned two, const __nv_bfloat16*) {
    return make_float2(fabsf(__uint_as_float(two << 16)), fabsf(__uint_as_float(two & 0xffff0000u)));
}
template <typename T>
constexpr unsigned INFINITE = 0x7f80;
template <>
constexpr unsigned INFINITE<__half> = 0x7c00;

/// Two rows of a tile, two kept columns each: the 36 combinations, ordered by how many elements of each column they keep; kinds and
/// combinations in the order in which they first occur.
struct Halves {
    int count[19], first[19][6], second[19][6];  // combinations of a kind; the column pairs of its rows
    int rest[19];  // the kind that completes two a column
};
constexpr int LEFT[6] = {0, 0, 0, 1, 1, 2}, RIGHT[6] = {1, 2, 3, 2, 3, 3};
constexpr int often(int a, int b) { return (1 << 4 * LEFT[a]) + (1 << 4 * RIGHT[a]) + (1 << 4 * LEFT[b]) + (1 << 4 * RIGHT[b]); }
constexpr Halves halves() {
    Halves h{};
    int keys[19] = {}, kinds = 0;
    for (int a = 0; a < 6; ++a) {
        for (int b = 0; b < 6; ++b) {
            int i = 0;
            while (i < kinds && keys[i] != often(a, b)) ++i;
            if (i == kinds) keys[kinds++] = often(a, b);
            h.first[i][h.count[i]] = a, h.second[i][h.count[i]++] = b;
        }
    }
    for (int i = 0; i < 19; ++i) {
        for (int j = 0; j < 19; ++j) {
            if (keys[i] + keys[j] == 0x2222) h.rest[i] = j;
        }
    }
    return h;
}
/// Of two rows from `row` on with the pairs a and b: bit 4 r + c for each element kept, and bit 16 + 4 c + r.
constexpr unsigned kept_by(int row, int a, int b) {
    unsigned found = 0;
    for (int i = 0; i < 2; ++i) {
        const int pair = i ? b : a, columns[2] = {LEFT[pair], RIGHT[pair]};
        for (int j = 0; j < 2; ++j) found |= 1u << (4 * (row + i) + columns[j]) | 1u << (16 + 4 * columns[j] + row + i);
    }
    return found;
}

constexpr Halves HALVES = halves();  // read in constant expressions only: as an array of the device it would lie in local memory

template <int I>
struct Index {
    static constexpr int VALUE = I;
};
/// f(0), ..., f(COUNT - 1), each a constant.
template <int COUNT, int I = 0, typename F>
__device__ inline void each(const F& f) {
    if constexpr (I < COUNT) f(Index<I>()), each<COUNT, I + 1>(f);
}

/// Two rows, from 2 SIDE on, that keep columns as kind K does: the largest sum of magnitudes, and what is kept. pair[r][p]: the sum of pair
/// p of row r.
template <int K, int SIDE>
__device__ inline void best_half(const float (&pair)[4][6], float& most, unsigned& kept) {
    each<HALVES.count[K]>([&](auto i) {
        constexpr int A = HALVES.first[K][decltype(i)::VALUE], B = HALVES.second[K][decltype(i)::VALUE];
        constexpr unsigned HERE = kept_by(2 * SIDE, A, B);
        const float total = pair[2 * SIDE][A] + pair[2 * SIDE + 1][B];
        if (decltype(i)::VALUE == 0 || total > most) most = total, kept = HERE;
    });
}

/// The pattern with the largest sum of magnitudes. Low half: bit 4 r + c, whether element (r, c) is kept; high half: bit 4 c + r.
template <typename T>
__device__ inline unsigned optimal(const unsigned (&low)[4], const unsigned (&high)[4]) {
    float size[4][4], pair[4][6];
    const auto add_up = [&] {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
#pragma unroll
            for (int p = 0; p < 6; ++p) pair[r][p] = size[r][LEFT[p]] + size[r][RIGHT[p]];
        }
    };
#pragma unroll
    for (int r = 0; r < 4; ++r) {
        const float2 x = sizes(low[r], static_cast<const T*>(nullptr)), y = sizes(high[r], static_cast<const T*>(nullptr));
        size[r][0] = x.x, size[r][1] = x.y, size[r][2] = y.x, size[r][3] = y.y;
    }
    add_up();
    const float every = ((pair[0][0] + pair[0][5]) + (pair[1][0] + pair[1][5])) + ((pair[2][0] + pair[2][5]) + (pair[3][0] + pair[3][5]));
    if (every != every) {  // a NaN counts as infinite
#pragma unroll
        for (int r = 0; r < 4; ++r) {
#pragma unroll
            for (int c = 0; c < 4; ++c) size[r][c] = fminf(size[r][c], __uint_as_float(0x7f800000u));
        }
        add_up();
    }
    float most = -1.f;
    unsigned best = 0;
    each<19>([&](auto kind) {
        float upper = 0, lower = 0;
        unsigned over = 0, under = 0;
        best_half<decltype(kind)::VALUE, 0>(pair, upper, over);
        best_half<HALVES.rest[decltype(kind)::VALUE], 1>(pair, lower, under);
        if (upper + lower > most) most = upper + lower, best = over | under;
    });
    return best;
}

/// if ((full & place) == 0) full |= some & place, some |= place: two predicated instructions; the compiler takes four and a select for each result.
__device__ inline void take(unsigned place, unsigned& some, unsigned& full) {
    asm("{ .reg .pred fits; .reg .b32 met;\n"
        "and.b32 met, %1, %2;\n"
        "setp.eq.u32 fits, met, 0;\n"
        "@fits lop3.b32 %1, %0, %2, %1, 0xea;\n"  // the first two and the third or
        "@fits or.b32 %0, %0, %2; }"
        : "+r"(some), "+r"(full) : "r"(place));
}

/// The elements by magnitude (of equals the first one first) that are kept while their row and column have fewer than two; result as in
/// `optimal`. places[15
/// - i]: for element i its row (bits 0 to 3), its column (4 to 7) and itself (8 to 23). A key is an integer as a float32: the magnitude,
/// then 15 - i. The minimum of two keys is their sum less the maximum, since additions have more units than minima.
template <typename T>
__device__ inline unsigned greedy(const unsigned (&low)[4], const unsigned (&high)[4], const unsigned* places) {
    // as bytes, the lowest first: 4 (15 - i), two of the magnitude, 0x4b: at least 2^23, where sums of two multiples of four are exact up
    // to 2^25
    float order[16];
    unsigned places_of[6];  // 0x4b, and in bytes 1 to 3 those of three elements
#pragma unroll
    for (int i = 0; i < 6; ++i) places_of[i] = 0x4bu | (i < 5 ? (60 - 12 * i) << 8 | (56 - 12 * i) << 16 | (52 - 12 * i) << 24 : 0u);
#pragma unroll
    for (int i = 0; i < 16; i += 2) {
        const unsigned two = (i % 4 ? high[i / 4] : low[i / 4]) & 0x7fff7fffu;
        order[i] = __uint_as_float(bytes_of(two, places_of[i / 3], 0x4105u + i % 3));
        order[i + 1] = __uint_as_float(bytes_of(two, places_of[(i + 1) / 3], 0x4325u + (i + 1) % 3));
    }
    // Batcher's odd-even merge sort, the largest first: the pairs of places that are compared, in order.
    constexpr int ABOVE[63] = {0, 2, 4, 6, 8, 10, 12, 14, 0, 1, 4, 5, 8, 9, 12, 13, 1, 5, 9, 13, 0, 1, 2, 3, 8, 9, 10, 11, 2, 3, 10, 11, 1,
        3, 5, 9, 11, 13, 0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7, 2, 3, 6, 7, 10, 11, 1, 3, 5, 7, 9, 11, 13};
    constexpr int BELOW[63] = {1, 3, 5, 7, 9, 11, 13, 15, 2, 3, 6, 7, 10, 11, 14, 15, 2, 6, 10, 14, 4, 5, 6, 7, 12, 13, 14, 15, 4, 5, 12,
        13, 2, 4, 6, 10, 12, 14, 8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 8, 9, 12, 13, 2, 4, 6, 8, 10, 12, 14};
#pragma unroll 1
    while (true) {
#pragma unroll
        for (int i = 0; i < 63; ++i) {
            const float x = order[ABOVE[i]], y = order[BELOW[i]], larger = fmaxf(x, y);
            order[ABOVE[i]] = larger, order[BELOW[i]] = (x + y) - larger;
        }
        constexpr unsigned NEXT = 0x4b000000u | (INFINITE<T> + 1) << 8;  // one more than infinity
        if (order[0] < __uint_as_float(NEXT)) break;
#pragma unroll
        for (int i = 0; i < 16; ++i) {  // a NaN counts as infinite: again
            if (order[i] >= __uint_as_float(NEXT)) order[i] = __uint_as_float((NEXT - 256) | (__float_as_uint(order[i]) & 0x3cu));
        }
    }
    const auto place = [&](int i) { return *reinterpret_cast<const unsigned*>(reinterpret_cast<const char*>(places)
        + (__float_as_uint(order[i]) & 0x3cu)); };
    const unsigned first = place(0), second = place(1);
    unsigned some = first | second, full = first & second;  // rows and columns with one or more kept; with two
#pragma unroll
    for (int i = 2; i < 16; ++i) take(place(i), some, full);
    const unsigned found = some >> 8;
    unsigned turned = found, moved = (turned ^ turned >> 3) & 0x0a0au;
    turned ^= moved ^ moved << 3;
    moved = (turned ^ turned >> 6) & 0x00ccu;
    return found | (turned ^ moved ^ moved << 6) << 16;
}

constexpr int SIDE = 128;  // columns of a block
#if __CUDA_ARCH__ >= 900
constexpr int BLOCKS = 4;  // of a multiprocessor, whose registers hold the search without spills; on sm_80 three
#else
constexpr int BLOCKS = 3;
#endif

/// 64 ROUNDS rows. kept, kept_t: values in a row; stripes, blocks: of the metadata.
template <typename T, bool OPTIMAL, int ROUNDS>
__global__ void __launch_bounds__(256, OPTIMAL ? BLOCKS : 4)
prune(int M, int K, const T* __restrict__ w, long long ws, T* __restrict__ values, int kept, int* __restrict__ meta, int stripes,
    int blocks, T* __restrict__ values_t,
      int kept_t, int* __restrict__ meta_t, int stripes_t, int blocks_t) {
    constexpr int TILES = 16 * ROUNDS, HEIGHT = 4 * TILES;
    // two values of a column of a tile; tile row t of column c at t ^ 2 (c / 8 % (TILES / 2))
    __shared__ __align__(16) unsigned columns[SIDE][TILES];
    __shared__ __align__(8) unsigned row_codes[TILES][SIDE / 8];     // of two tiles side by side: byte r the codes of row r
    __shared__ __align__(8) unsigned column_codes[TILES][SIDE / 8];  // nibble c the code of column c
    // by which of four are kept: the selector of PRMT and four times their code; a mask of the two values
    __shared__ __align__(8) uint2 lines[16];
    __shared__ unsigned places[16];
    __shared__ __align__(16) uint4 ahead[ROUNDS == 2 ? 4 : 1][256];  // rows of the second round, copied while the first is searched; of each thread its own
    if (threadIdx.x < 16) {
        const unsigned bits = threadIdx.x, at = 15 - bits;
        unsigned chosen = bits;  // if fewer than two are kept: zeros from the first places
        for (int i = 0; i < 2; ++i) {
            if (__popc(chosen) < 2) chosen |= ~chosen & (chosen + 1);
        }
        const unsigned first = __ffs(chosen) - 1, second = 31 - __clz(chosen);
        lines[bits] = make_uint2(0x1010u + first * 0x22u + second * 0x2200u | (first | second << 2) % 16 * 0x11110000u,
                                 (bits >> first & 1 ? 0xffffu : 0u) | (bits >> second & 1 ? 0xffff0000u : 0u));
        places[bits] = 1u << at / 4 | 16u << at % 4 | 256u << at;
    }
    gdc_wait();
    __syncthreads();
    const int m0 = blockIdx.y * HEIGHT, k0 = blockIdx.x * SIDE, across = threadIdx.x % 16, k = k0 + across * 8;
    const auto on = [](const void* p, int bytes) { return reinterpret_cast<unsigned long long>(p) % bytes == 0; };
    // The whole block is inside the matrix, and can be read, and written by rows and by columns, in vectors.
    const bool inside = m0 + HEIGHT <= M && k0 + SIDE <= K, whole = inside && ws % 8 == 0 && on(w, 16);
    const bool whole_rows = inside && kept % 4 == 0 && on(values, 8), whole_columns = inside && kept_t % 8 == 0 && on(values_t, 16);
    const bool eights = ws % 4 == 0 && on(w, 8);  // a row of a tile is 8 bytes, which one load reads
    const bool outside = m0 >= M || k0 >= K;      // nothing but metadata, which is padded to 256
#pragma unroll 1
    for (int round = 0; round < ROUNDS; ++round) {
        const int down = round * 16 + threadIdx.x / 16, m = m0 + down * 4;
        if (outside) {
            row_codes[down][across] = column_codes[down][across] = 0x44444444u;  // the first two places of each line
            continue;
        }
        uint4 row[4];
        const T* from = w + m * ws + k;
        if (whole && round == 0) {
#pragma unroll
            for (int r = 0; r < 4; ++r) row[r] = *reinterpret_cast<const uint4*>(from + r * ws);
            if constexpr (ROUNDS == 2) {
#pragma unroll
                for (int r = 0; r < 4; ++r) __pipeline_memcpy_async(&ahead[r][threadIdx.x], from + (64 + r) * ws, 16);
                __pipeline_commit();
            }
        } else if (whole) {
            __pipeline_wait_prior(0);
#pragma unroll
            for (int r = 0; r < 4; ++r) row[r] = ahead[ROUNDS == 2 ? r : 0][threadIdx.x];
        } else {
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                unsigned two[4] = {0, 0, 0, 0};
#pragma unroll
                for (int t = 0; t < 2; ++t) {
                    const T* tile = from + r * ws + 4 * t;
                    if (eights && m + r < M && k + 4 * t + 4 <= K) {
                        const uint2 four = *reinterpret_cast<const uint2*>(tile);
                        two[2 * t] = four.x, two[2 * t + 1] = four.y;
                        continue;
                    }
#pragma unroll
                    for (int c = 0; c < 4; ++c) {
                        if (m + r < M && k + 4 * t + c < K) two[2 * t + c / 2] |=
                            static_cast<unsigned>(*reinterpret_cast<const unsigned short*>(tile + c)) << 16 * (c % 2);
                    }
                }
                row[r] = make_uint4(two[0], two[1], two[2], two[3]);
            }
        }
        unsigned of_rows[2][4], codes[2], codes_t[2];
#pragma unroll
        for (int t = 0; t < 2; ++t) {
            unsigned low[4], high[4], line[4];
#pragma unroll
            for (int r = 0; r < 4; ++r) low[r] = t ? row[r].z : row[r].x, high[r] = t ? row[r].w : row[r].y;
            unsigned found = 0;  // outside of the matrix
            if (m < M && k + 4 * t < K) found = OPTIMAL ? optimal<T>(low, high) : greedy<T>(low, high, places);
            // Line i of the rows (bits 4 i of found), or of the columns (bits 16 + 4 i).
            const auto put_together = [&](unsigned x, unsigned y, int shift, bool there, unsigned& how) {
                const uint2 l = *reinterpret_cast<const uint2*>(reinterpret_cast<const char*>(lines)
                    + (shift > 3 ? found >> (shift - 3) : found << (3 - shift)) % 128 / 8 * 8);
                how = there ? l.x : 0x44440000u;
                return OPTIMAL ? bytes_of(x, y, l.x) : bytes_of(x, y, l.x) & l.y;
            };
#pragma unroll
            for (int r = 0; r < 4; ++r) of_rows[t][r] =
                put_together(low[r], high[r], 4 * r, inside || (m + r < M && k + 4 * t < K), line[r]);
            codes[t] = bytes_of(bytes_of(line[0], line[1], 0x0062), bytes_of(line[2], line[3], 0x0062), 0x5410);
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const unsigned half = c % 2 ? 0x7632 : 0x5410;
                const unsigned upper = c < 2 ? bytes_of(low[0], low[1], half) : bytes_of(high[0], high[1], half);
                const unsigned lower = c < 2 ? bytes_of(low[2], low[3], half) : bytes_of(high[2], high[3], half);
                columns[across * 8 + 4 * t + c][down ^ across % (TILES / 2) * 2] =
                    put_together(upper, lower, 16 + 4 * c, inside || (k + 4 * t + c < K && m < M), line[c]);
            }
            codes_t[t] = (line[0] & 0x000f0000u) | (line[1] & 0x00f00000u) | (line[2] & 0x0f000000u) | (line[3] & 0xf0000000u);
        }
        row_codes[down][across] = (codes[0] & 0x0f0f0f0fu) | (codes[1] & 0xf0f0f0f0u);
        column_codes[down][across] = bytes_of(codes_t[0], codes_t[1], 0x7632);
        unsigned* to = reinterpret_cast<unsigned*>(values + static_cast<long long>(m) * kept) + k / 4;
        if (whole_rows) {
#pragma unroll
            for (int r = 0; r < 4; ++r) *reinterpret_cast<uint2*>(to + r * static_cast<long long>(kept / 2)) =
                make_uint2(of_rows[0][r], of_rows[1][r]);
        } else {
#pragma unroll
            for (int r = 0; r < 4; ++r) {
#pragma unroll
                for (int t = 0; t < 2; ++t) {
                    if (m + r < M && k / 4 + t < kept / 2) to[r * static_cast<long long>(kept / 2) + t] = of_rows[t][r];
                }
            }
        }
    }
    __syncthreads();
    if (whole_columns) {
        constexpr int FOURS = TILES / 4, STEP = 256 / FOURS;
        const int c = threadIdx.x / FOURS, four = threadIdx.x % FOURS * 4;
        unsigned* to = reinterpret_cast<unsigned*>(values_t + static_cast<long long>(k0 + c) * kept_t) + m0 / 4 + four;
#pragma unroll
        for (int i = 0; i < SIDE / STEP; ++i) {
            const int turn = (c + i * STEP) / 8 % (TILES / 2) * 2;
            const uint4 held = *reinterpret_cast<const uint4*>(&columns[c + i * STEP][(four ^ turn) & ~3]);
            *reinterpret_cast<uint4*>(to + i * (STEP / 2ll) * kept_t) = turn & 2 ? make_uint4(held.z, held.w, held.x, held.y) : held;
        }
    } else if (!outside) {
#pragma unroll 8
        for (int i = threadIdx.x; i < SIDE * TILES; i += 256) {
            const int c = i / TILES, t = i % TILES;
            if (k0 + c < K && m0 / 4 + t < kept_t / 2) reinterpret_cast<unsigned*>(values_t
                + static_cast<long long>(k0 + c) * kept_t)[m0 / 4 + t] = columns[c][t ^ c / 8 % (TILES / 2) * 2];
        }
    }
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    if (warp < TILES / 4 && m0 / 16 + warp < stripes && k0 / 256 < blocks) {
        int word[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint2 x = *reinterpret_cast<const uint2*>(&row_codes[warp * 4 + g / 4][i * 8 + t * 2]);
            const uint2 y = *reinterpret_cast<const uint2*>(&row_codes[warp * 4 + g / 4 + 2][i * 8 + t * 2]);
            const unsigned select = g % 4 * 0x11 + 0x40;
            word[i] = static_cast<int>(bytes_of(bytes_of(x.x, x.y, select), bytes_of(y.x, y.y, select), 0x5410));
        }
        *reinterpret_cast<int2*>(meta + ((static_cast<long long>(m0 / 16 + warp) * blocks + k0 / 256) * 32 + lane) * 4 + k0 % 256 / 64) =
            make_int2(word[0], word[1]);
    }
    if (k0 / 16 + warp < stripes_t && m0 / 256 < blocks_t) {
        int word[ROUNDS];
#pragma unroll
        for (int i = 0; i < ROUNDS; ++i) {
            unsigned low = 0, high = 0;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const uint2 x = *reinterpret_cast<const uint2*>(&column_codes[i * 16 + t * 4 + j][warp * 2]);
                low |= (x.x >> 4 * g & 15) << 4 * j, high |= (x.y >> 4 * g & 15) << 4 * j;
            }
            word[i] = static_cast<int>(low | high << 16);
        }
        int* place = meta_t + ((static_cast<long long>(k0 / 16 + warp) * blocks_t + m0 / 256) * 32 + lane) * 4 + m0 % 256 / 64;
        if constexpr (ROUNDS == 2) *reinterpret_cast<int2*>(place) = make_int2(word[0], word[1]);
        else *place = word[0];
    }
}
