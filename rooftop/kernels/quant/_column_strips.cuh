// Groups of columns that share scales. A strip of them is held in shared memory, so that many bytes are in flight while registers stay
// free. A thread reads only what it copied itself, so the strip needs no barrier.
#pragma once
#include <cuda_pipeline.h>

#include "_registers.cuh"

extern __shared__ __align__(128) unsigned char strip_memory[];

/// A thread's position in a strip of PACKS packs of V columns: every HIGH-th row from `r` on, below `last`, of the pack that starts at
/// column `c`.
template <typename T, int V, int PACKS, int THREADS>
struct Strip {
    static constexpr int HIGH = THREADS / PACKS, WORDS = Held<T, V>::WORDS, ABREAST = PACKS * WORDS, WIDE = PACKS * V, QUADS = WORDS / 4;
    static constexpr int FOLDED = PACKS < 32 ? THREADS / 32 : HIGH;  // rows of maxima after the lanes of each warp have reduced theirs
    int pack = threadIdx.x % PACKS, row = threadIdx.x / PACKS;

    __device__ uint4* at(int r) const { return reinterpret_cast<uint4*>(strip_memory) + (r * PACKS + pack) * QUADS; }
    /// Rows of a matrix whose pack starts at `x`; `count` of them are in the strip.
    __device__ void ask(const T* x, long long xs, int count) const {
#pragma unroll 4
        for (int r = row; r < count; r += HIGH) {
#pragma unroll
            for (int i = 0; i < QUADS; ++i) __pipeline_memcpy_async(at(r) + i, reinterpret_cast<const uint4*>(x + r * xs) + i, 16);
        }
        __pipeline_commit();
    }
    __device__ void arrived() const { __pipeline_wait_prior(0); }
    __device__ void get(Held<T, V>& held, int r) const {
#pragma unroll
        for (int i = 0; i < QUADS; ++i) {
            const uint4 v = at(r)[i];
            held.w[4 * i] = v.x, held.w[4 * i + 1] = v.y, held.w[4 * i + 2] = v.z, held.w[4 * i + 3] = v.w;
        }
    }
    /// Writes this thread's maxima of its columns, reduced over the rows of the other threads of its warp, to `maxima`
    /// [side][FOLDED][ABREAST].
    template <bool SYMMETRIC>
    __device__ void maxima(unsigned* maxima, int count, bool cleaned) const {
        Most<T> above[WORDS], below[WORDS];
#pragma unroll 4
        for (int r = row; r < count; r += HIGH) {
            Held<T, V> seen;
            get(seen, r);
            if (cleaned) seen.drop_unclean();
#pragma unroll
            for (int i = 0; i < WORDS; ++i) {
                if (SYMMETRIC) above[i].over_size(seen.w[i]);
                else above[i].over(seen.w[i]), below[i].over_negative(seen.w[i]);
            }
        }
        fold<SYMMETRIC>(maxima, above, below);
    }
    template <bool SYMMETRIC>
    __device__ void fold(unsigned* maxima, Most<T> (&above)[WORDS], Most<T> (&below)[WORDS]) const {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) {
#pragma unroll
            for (int step = PACKS; step < 32; step *= 2) {
                above[i].over(__shfl_xor_sync(~0u, above[i].w, step));
                if (!SYMMETRIC) below[i].over(__shfl_xor_sync(~0u, below[i].w, step));
            }
            const int line = PACKS < 32 ? threadIdx.x / 32 : row, to = line * ABREAST + pack * WORDS + i;
            if (PACKS >= 32 || threadIdx.x % 32 < PACKS) {
                maxima[to] = above[i].w;
                if (!SYMMETRIC) maxima[FOLDED * ABREAST + to] = below[i].w;
            }
        }
    }
};
