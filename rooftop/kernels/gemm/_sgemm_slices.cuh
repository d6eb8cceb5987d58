// How slices of the operands come to shared memory in the float32 product.
#pragma once
#include <cuda_pipeline.h>

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
    static constexpr bool HELD = false;
    static constexpr int VEC = MODE == 0 ? 1 : MODE, ROW = EXT + (MODE == 0 ? 4 : 0), FLOATS = BK * ROW, SPAN = THREADS * VEC;
    static constexpr int ACROSS = MODE != 0 && EXT > SPAN ? EXT / SPAN : 1;  // copies of a thread in one row of a slice
    static constexpr int DEEP = EXT > SPAN ? 1 : SPAN / EXT;  // rows of a slice that all threads copy in one round
    static constexpr int ROUNDS = MODE == 0 ? EXT * BK / THREADS : (BK + DEEP - 1) / DEEP;
    static constexpr bool MANY = MODE == 0 && ROUNDS > 8;                  // a pointer for each copy would take too many registers
    static constexpr int POINTERS = MODE != 0 ? ACROSS : MANY ? 1 : ROUNDS;
    static_assert(MODE != 0 || EXT * BK % THREADS == 0, "the copies of what lies along K come out even");
    static_assert(MODE == 0 || SPAN % EXT == 0 || EXT % SPAN == 0, "a round of copies is whole rows, or a row whole rounds");
    static_assert(BK == 8, "a slice of what lies along K is 8 lanes wide");

    struct Registers {};

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

/// The same through registers: a slice is loaded one slice before it is stored to its stage. -MODE floats a load along K, which are
/// transposed as they are stored, or MODE - 8 across. A load of 2 floats takes the place of two copies, and where rows do not start on the
/// 32 bytes of a sector, of four. ROW of what lies along K is 4 more than EXT, so that a warp stores to 32 banks.
template <int EXT, int BK, int THREADS, int MODE>
struct Loads {
    static constexpr bool HELD = true, ALONG = MODE < 0;
    static constexpr int VEC = ALONG ? -MODE : MODE - 8, ROW = EXT + (ALONG ? 4 : 0), FLOATS = BK * ROW, SPAN = THREADS * VEC;
    static constexpr int LANES = BK / VEC, TALL = THREADS / LANES;   // ALONG: lanes of a row, and rows of a round
    static constexpr int ACROSS = !ALONG && EXT > SPAN ? EXT / SPAN : 1;  // copies of a thread in one row of a slice
    static constexpr int DEEP = EXT > SPAN ? 1 : SPAN / EXT;  // rows of a slice that all threads copy in one round
    static constexpr int ROUNDS = ALONG ? (EXT + TALL - 1) / TALL : (BK + DEEP - 1) / DEEP;
    static constexpr bool MANY = ALONG && ROUNDS > 2;          // a pointer for each copy would take too many registers
    static constexpr int POINTERS = !ALONG ? ACROSS : MANY ? 1 : ROUNDS;
    static_assert(ALONG || SPAN % EXT == 0 || EXT % SPAN == 0, "a round of copies is whole rows, or a row whole rounds");
    static_assert(BK == 8, "a slice of what lies along K is 8 floats wide");
    using Registers = Floats<VEC>[ROUNDS * ACROSS];

    const float* from[POINTERS];
    long long pitch;  // floats from one k to the next, or from one row of MANY to its next
    int k, to, limit;

    /// extent: the number of rows or columns from x on; ld: floats from one row of the operand in memory to the next.
    __device__ Loads(const float* x, long long ld, long long k0, int extent, float*, int, int) {
        const int tid = threadIdx.x;
        if constexpr (ALONG) {
            const int row = tid / LANES;
            k = tid % LANES * VEC;
            to = k * ROW + row;
            pitch = TALL * ld;
            limit = (min(extent, EXT) - row + TALL - 1) / TALL;  // rounds in which this thread has a row
#pragma unroll
            for (int i = 0; i < POINTERS; ++i) from[i] = x + min(row + i * TALL, extent - 1) * ld + k0 + k;
        } else {
            k = tid / (EXT / VEC);
            const int n = tid % (EXT / VEC) * VEC;
            to = k * ROW + n;
            pitch = ld;
#pragma unroll
            for (int i = 0; i < ACROSS; ++i) from[i] = x + (k0 + k) * ld + min(n + i * SPAN, extent - VEC);
        }
    }

    /// Loads a slice of which `deep` k are there into registers; from k = deep on, and in rows past the edge of what lies along K, zeros.
    /// Columns past the edge are loaded from the last ones inside: the outputs computed from them are not stored.
    __device__ void load(Registers& held, int deep, bool full) const {
        if constexpr (ALONG) {
            const float* p = from[0];
#pragma unroll
            for (int i = 0; i < ROUNDS; ++i) {
                if (!full) held[i] = {};
                if ((full || k < deep) && i < limit) held[i] = *reinterpret_cast<const Floats<VEC>*>(MANY ? p : from[MANY ? 0 : i]);
                if constexpr (MANY) p += pitch;
            }
        } else {
#pragma unroll
            for (int i = 0; i < ROUNDS; ++i) {
                const int row = k + i * DEEP;
#pragma unroll
                for (int j = 0; j < ACROSS; ++j) {
                    Floats<VEC>& v = held[i * ACROSS + j];
                    if (!full) v = {};
                    if ((full ? ROUNDS * DEEP == BK || row < BK : row < deep))
                        v = *reinterpret_cast<const Floats<VEC>*>(from[j] + i * DEEP * pitch);
                }
            }
        }
    }
    __device__ void put(const Registers& held, float* stage) const {
        if constexpr (ALONG) {
#pragma unroll
            for (int i = 0; i < ROUNDS; ++i)
#pragma unroll
                for (int q = 0; q < VEC; ++q)
                    if (EXT % TALL == 0 || to - k * ROW + i * TALL < EXT) stage[to + q * ROW + i * TALL] = held[i].v[q];
        } else {
#pragma unroll
            for (int i = 0; i < ROUNDS; ++i)
#pragma unroll
                for (int j = 0; j < ACROSS; ++j)
                    if (ROUNDS * DEEP == BK || k + i * DEEP < BK)
                        *reinterpret_cast<Floats<VEC>*>(stage + to + i * DEEP * ROW + j * SPAN) = held[i * ACROSS + j];
        }
    }

    __device__ void advance(int deep) {
        if constexpr (ALONG) {
#pragma unroll
            for (int i = 0; i < POINTERS; ++i) from[i] += deep;
        } else {
#pragma unroll
            for (int i = 0; i < ACROSS; ++i) from[i] += deep * pitch;
        }
    }
};

template <bool HELD, class A, class B>
struct Either {
    using Of = A;
};
template <class A, class B>
struct Either<false, A, B> {
    using Of = B;
};
