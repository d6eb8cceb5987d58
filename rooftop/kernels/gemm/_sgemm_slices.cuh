/// How the float32 product copies slices of K to shared memory.
#pragma once
#include <cuda_pipeline.h>

constexpr int ALONG = 8;  // the mode of both operands that stay along K; the others are those of Slices

/// V neighbouring floats, one access.
template <int V>
struct alignas(4 * V) Floats {
    float v[V];
};

template <int BYTES>
__device__ inline void copy(float* to, const float* from) {
    __pipeline_memcpy_async(to, from, BYTES);
}

/// How the threads of a block copy slices of one operand to shared memory: [BK][ROW], EXT neighbouring rows (of a) or columns (of b). MODE
/// 0: the operand is contiguous along K, and copies of 4 bytes transpose it, 8 lanes per row; ROW is 4 more than EXT, so that the 8 k of a
/// transposed row are in different banks. MODE 1,
/// 2 and 4: it is contiguous along EXT, in copies of 1, 2 or 4 floats.
template <int EXT, int BK, int THREADS, int MODE>
struct Slices {
    static constexpr int VEC = MODE == 0 ? 1 : MODE, ROW = EXT + (MODE == 0 ? 4 : 0), FLOATS = BK * ROW, SPAN = THREADS * VEC;
    static constexpr int ACROSS = MODE != 0 && EXT > SPAN ? EXT / SPAN : 1;  // copies of a thread in one row of a slice
    static constexpr int DEEP = EXT > SPAN ? 1 : SPAN / EXT;  // rows of a slice that all threads copy in one round
    static constexpr int ROUNDS = MODE == 0 ? EXT * BK / THREADS : (BK + DEEP - 1) / DEEP;
    static constexpr bool MANY = MODE == 0 && ROUNDS > 8;                  // a pointer for each copy would take too many registers
    static constexpr int POINTERS = MODE != 0 ? ACROSS : MANY ? 1 : ROUNDS;
    static_assert(MODE != 0 || EXT * BK % THREADS == 0, "the copies of what lies along K come out even");
    static_assert(MODE == 0 || SPAN % EXT == 0 || EXT % SPAN == 0, "a round of copies is whole rows, or a row whole rounds");
    static_assert(BK == 8, "a slice of what lies along K is 8 lanes wide");

    const float* from[POINTERS];
    long long pitch;  // floats from one k to the next, or from one row of MANY to its next
    int k, to, limit;

    /// extent: the number of rows or columns from x on; ld: floats from one row of the operand in memory to the next.
    __device__ Slices(const float* x, long long ld, long long k0, int extent, float* shared, int stages, int stage) {
        const int tid = threadIdx.x;
        if constexpr (MODE == 0) {
            k = tid % 8;
            to = k * ROW + tid / 8;
            if constexpr (MANY) {
                pitch = THREADS / 8 * ld;
                limit = (extent - tid / 8 + THREADS / 8 - 1) / (THREADS / 8);
                from[0] = x + min(tid / 8, extent - 1) * ld + k0 + k;
                if (extent < EXT) {  // what is not copied is never stored, but multiplied
                    for (int s = 0; s < stages; ++s)
                        for (int i = tid; i < FLOATS; i += THREADS) shared[s * stage + i] = 0;
                    __syncthreads();
                }
            } else {
#pragma unroll
                for (int i = 0; i < ROUNDS; ++i) from[i] = x + min((tid + i * THREADS) / 8, extent - 1) * ld + k0 + k;
            }
        } else {
            k = tid / (EXT / VEC);
            const int n = tid % (EXT / VEC) * VEC;
            to = k * ROW + n;
            pitch = ld;
#pragma unroll
            for (int i = 0; i < ACROSS; ++i) from[i] = x + (k0 + k) * ld + min(n + i * SPAN, extent - VEC);
        }
    }

    /// Rows and columns past the edge are copied from the last one inside, or not at all: the outputs computed from them are not stored.
    /// From k = deep on zeros are copied.
    __device__ void ask(float* stage, int deep, bool full) const {
        if constexpr (MODE == 0) {
            const float* p = from[0];
#pragma unroll
            for (int i = 0; i < ROUNDS; ++i) {
                float* at = stage + to + i * (THREADS / 8);
                if (full || k < deep) {
                    if (!MANY || i < limit) copy<4>(at, MANY ? p : from[MANY ? 0 : i]);
                } else {
                    *at = 0;
                }
                if constexpr (MANY) p += pitch;
            }
        } else {
#pragma unroll
            for (int i = 0; i < ROUNDS; ++i) {
                const int row = k + i * DEEP;
                if (ROUNDS * DEEP > BK && row >= BK) continue;
#pragma unroll
                for (int j = 0; j < ACROSS; ++j) {
                    float* at = stage + to + i * DEEP * ROW + j * SPAN;
                    if (full || row < deep)
                        copy<4 * VEC>(at, from[j] + i * DEEP * pitch);
                    else
                        for (int v = 0; v < VEC; ++v) at[v] = 0;
                }
            }
        }
    }

    __device__ void advance(int deep) {
        if constexpr (MODE == 0) {
#pragma unroll
            for (int i = 0; i < POINTERS; ++i) from[i] += deep;
        } else {
#pragma unroll
            for (int i = 0; i < ACROSS; ++i) from[i] += deep * pitch;
        }
    }
};

/// Both operands along K, their rows on 16 bytes: copies of 4 floats that stay along K, [slot][BK]. Slot r LANES + l of each 4 LANES has
/// row 4 l + r: the lanes of a warp, 4 rows apart, read neighbouring slots. Halves of a slot change places every 4 slots, so that 8 lanes
/// that read 16 bytes each find all banks.
template <int EXT, int BK, int THREADS, int LANES>
struct Quads {
    static constexpr int FLOATS = EXT * BK, COPIES = FLOATS / 4, ROUNDS = (COPIES + THREADS - 1) / THREADS;
    static_assert(BK == 8 && (LANES == 4 || LANES == 8) && THREADS % 16 == 0, "halves change places as in `at`");

    const float* from[ROUNDS];
    int to, half;

    __device__ Quads(const float* x, long long ld, long long k0, int extent, float*, int, int) {
        const int first = threadIdx.x / 2;
        half = threadIdx.x % 2;
        to = first * BK + (half ^ (first / 4 & 1)) * 4;
#pragma unroll
        for (int i = 0; i < ROUNDS; ++i) {
            const int slot = first + i * (THREADS / 2), row = slot / (4 * LANES) * (4 * LANES) + slot % LANES * 4 + slot % (4 * LANES) / LANES;
            from[i] = x + min(row, extent - 1) * ld + k0 + half * 4;
        }
    }

    /// Rows past the edge are copied from the last one inside. From k = deep on zeros are copied.
    __device__ void ask(float* stage, int deep, bool full) const {
#pragma unroll
        for (int i = 0; i < ROUNDS; ++i) {
            if (COPIES % THREADS && static_cast<int>(threadIdx.x) + i * THREADS >= COPIES) continue;
            float* const here = stage + to + i * THREADS * 4;
            if (full || half * 4 < deep) copy<16>(here, from[i]);
            else *reinterpret_cast<float4*>(here) = make_float4(0, 0, 0, 0);
        }
    }

    __device__ void advance(int deep) {
#pragma unroll
        for (int i = 0; i < ROUNDS; ++i) from[i] += deep;
    }

    /// Where lane l of LANES begins, in a tile of a warp whose first row is `row`; and from there k = 4 q to 4 q + 3 of its row i.
    __device__ static int begin(int row, int l) { return (row + l) * BK + (LANES == 8 ? l / 4 * 4 : 0); }
    __device__ static int at(int begin, int i, int q) {
        return (LANES == 8 ? begin ^ q * 4 : begin + ((q ^ i) & 1) * 4) + (i / 4 * 4 + i % 4) * LANES * BK;
    }
};

template <bool FIRST, typename X, typename Y>
struct Either {
    using Of = X;
};
template <typename X, typename Y>
struct Either<false, X, Y> {
    using Of = Y;
};
