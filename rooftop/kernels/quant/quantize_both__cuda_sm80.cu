/* rooftop
idea    = """A tile of 128 by 128 is held in shared memory. Threads read it by packs of rows for the codes of x, then by runs of 32 rows of \
  one word of columns for the codes of its transpose: x is read once, and both results are written along their rows."""
limit   = "the instructions that compute both results"
dtypes  = ["f32", "f16", "bf16"]
args    = ["R: i32", "C: i32", "x: T[R, C]", "xs: i64 = stride(x, 0)", "over: f32[1]?", "seed: i32"]
python  = ["supports", "choose", "launches"]
demands = { spills = 0 }

[config]
vec     = 8
threads = 256
*/
#include <cuda_pipeline.h>

#include "pdl.cuh"
#include "_registers.cuh"

constexpr int TILE = 128;
extern __shared__ __align__(128) unsigned char tile_memory[];

/// V codes of one group from `held`.
template <int F, int S, int ROUND, typename T, int V, typename By>
__device__ inline void codes_of(unsigned (&out)[(V * Format<F>::BITS + 31) / 32], const Held<T, V>& held, const By& divided, int seed,
    unsigned long long index) {
    const Drawn<V, true> random(seed, index);
    const auto by = [&](int) -> const By& { return divided; };
    const auto zeros = [](int) { return Format<F>::MIDDLE; };
    if (divided.careful) encode<F, ROUND, true, V>(out, [&](int i) { return held[i]; }, random, by, zeros);
    else encode_clean<F, S, ROUND, true>(out, held, random, by, zeros);
}

template <typename T, int F, int S, int ROUND, int V, int G, int THREADS>
__global__ void __launch_bounds__(THREADS)
quantize_both(int R, int C, const T* __restrict__ x, long long xs, const float* __restrict__ over, unsigned char* __restrict__ codes,
              typename ScaleType<S>::Stored* __restrict__ scale, unsigned char* __restrict__ turned,
              typename ScaleType<S>::Stored* __restrict__ turned_scale, int seed) {
    using X = Format<F>;
    using By = DividedBy<F, S, ROUND>;
    constexpr int PITCH = TILE * sizeof(T) + 16, QUADS = V * sizeof(T) / 16, ABREAST = TILE / V, PER = Word<T>::N,
        WORDS = Held<T, V>::WORDS;
    constexpr int RUN = 32, SUB = G < RUN ? G : RUN, WIDE = TILE / PER, RUNS = TILE / RUN;
    // packs a lane, lanes a group
    constexpr int PIECES = G / V > 4 ? G / V / 4 : 1, OF = G / V / PIECES, EACH = V * X::BITS / 32, LINE = TILE * X::BITS / 8 + 16;
    __shared__ unsigned maxima[TILE / SUB][WIDE];  // of words of columns
    unsigned char* const line = tile_memory + TILE * PITCH;  // codes of the transpose, LINE bytes a column
    const int c0 = blockIdx.x * TILE, r0 = blockIdx.y * TILE;
    gdc_wait();
#pragma unroll 4
    for (int t = threadIdx.x; t < TILE * ABREAST; t += THREADS) {
        const int row = t / ABREAST, pack = t % ABREAST;
        uint4* const to = reinterpret_cast<uint4*>(tile_memory + row * PITCH) + pack * QUADS;
        const bool there = r0 + row < R && c0 + pack * V < C;
#pragma unroll
        for (int i = 0; i < QUADS; ++i) {
            if (there) __pipeline_memcpy_async(to + i, reinterpret_cast<const uint4*>(x + (r0 + row) * xs + c0 + pack * V) + i, 16);
            else to[i] = make_uint4(0, 0, 0, 0);
        }
    }
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();

    const long long row_bytes = static_cast<long long>(C) * X::BITS / 8, turned_bytes = static_cast<long long>(R) * X::BITS / 8;
    const int across = (C + G - 1) / G, down = (R + G - 1) / G;
    bool dirty = false;
#pragma unroll 1
    for (int t = threadIdx.x; t < TILE * (TILE / G) * OF; t += THREADS) {  // along rows
        const int lane = t % OF, row = t / OF / (TILE / G), g = t / OF % (TILE / G), r = r0 + row;
        Held<T, V> held[PIECES];
        Most<T> largest;
#pragma unroll
        for (int p = 0; p < PIECES; ++p) {
#pragma unroll
            for (int i = 0; i < QUADS; ++i) {
                const uint4 v = reinterpret_cast<const uint4*>(tile_memory + row * PITCH)[(g * (G / V) + p * OF + lane) * QUADS + i];
                held[p].w[4 * i] = v.x, held[p].w[4 * i + 1] = v.y, held[p].w[4 * i + 2] = v.z, held[p].w[4 * i + 3] = v.w;
            }
#pragma unroll
            for (int i = 0; i < WORDS; ++i) largest.over_size(held[p].w[i]);
        }
        unsigned most = over_lanes<OF, THREADS>(largest.all(), nullptr);
        const bool unclean = most >= INFINITE_BITS;
        if (__any_sync(~0u, unclean)) {  // again, without infinities and NaN
            Most<T> again;
#pragma unroll
            for (int p = 0; p < PIECES; ++p) {
                Held<T, V> clean = held[p];
                clean.drop_unclean();
#pragma unroll
                for (int i = 0; i < WORDS; ++i) again.over_size(clean.w[i]);
            }
            most = over_lanes<OF, THREADS>(again.all(), nullptr);
            dirty = true;
        }
        const typename ScaleType<S>::Stored stored = scale_of<F, S>(__uint_as_float(most), over);
        const By divided(effective<S>(stored, over), __uint_as_float(most), unclean);
        if (r >= R || c0 + g * G >= C) continue;
        if (lane == 0) scale[static_cast<long long>(r) * across + c0 / G + g] = stored;
#pragma unroll
        for (int p = 0; p < PIECES; ++p) {
            const int c = c0 + g * G + (p * OF + lane) * V;
            if (c >= C) continue;
            unsigned out[(V * X::BITS + 31) / 32];
            codes_of<F, S, ROUND>(out, held[p], divided, seed, static_cast<unsigned long long>(r) * C + c);
            store_codes<X::BITS, V, true>(codes + r * row_bytes + static_cast<long long>(c / V) * (V * X::BITS / 8), out, V);
        }
    }

    dirty = __syncthreads_or(dirty);
#pragma unroll 1
    for (int t = threadIdx.x; t < WIDE * RUNS; t += THREADS) {  // one run of rows of a word of columns a thread
        const int word = t % WIDE, run = t / WIDE;
        const unsigned char* const from = tile_memory + run * RUN * PITCH + word * 4;
#pragma unroll
        for (int sub = 0; sub < RUN / SUB; ++sub) {
            Most<T> m;
#pragma unroll
            for (int i = 0; i < SUB; ++i) {
                Held<T, PER> one;
                one.w[0] = *reinterpret_cast<const unsigned*>(from + (sub * SUB + i) * PITCH);
                if (dirty) one.drop_unclean();
                m.over_size(one.w[0]);
            }
            maxima[run * (RUN / SUB) + sub][word] = m.w;
        }
    }
    __syncthreads();
#pragma unroll 1
    for (int t = threadIdx.x; t < WIDE * RUNS; t += THREADS) {
        const int word = t % WIDE, run = t / WIDE, r = r0 + run * RUN;
        const unsigned char* const from = tile_memory + run * RUN * PITCH + word * 4;
#pragma unroll
        for (int part = 0; part < RUN / SUB; ++part) {
            Most<T> m;
            const int first = (run * RUN + part * SUB) / G * (G / SUB);
#pragma unroll
            for (int i = 0; i < G / SUB; ++i) m.over(maxima[first + i][word]);
            unsigned sizes[PER];
            m.bits(sizes);
#pragma unroll
            for (int j = 0; j < PER; ++j) {
                const int c = c0 + word * PER + j, at = r + part * SUB;
                if (c >= C || at >= R) continue;
                const typename ScaleType<S>::Stored stored = scale_of<F, S>(__uint_as_float(sizes[j]), over);
                const By divided(effective<S>(stored, over), __uint_as_float(sizes[j]), dirty);
                if (at % G == 0) turned_scale[static_cast<long long>(c) * down + at / G] = stored;
#pragma unroll
                for (int k = 0; k < SUB; k += V) {
                    if (at + k >= R) continue;
                    Held<T, V> held;
#pragma unroll
                    for (int i = 0; i < WORDS; ++i) {
                        const unsigned char* const place = from + (part * SUB + k + i * PER) * PITCH;
                        const unsigned w = *reinterpret_cast<const unsigned*>(place);
                        held.w[i] = PER == 1 ? w : __byte_perm(w, *reinterpret_cast<const unsigned*>(place + (PER - 1) * PITCH),
                            j ? 0x7632 : 0x5410);
                    }
                    unsigned out[(V * X::BITS + 31) / 32];
                    codes_of<F, S, ROUND>(out, held, divided, seed, static_cast<unsigned long long>(c) * R + at + k);
                    unsigned* const to = reinterpret_cast<unsigned*>(line + (word * PER + j) * LINE)
                        + (run * RUN + part * SUB + k) / V * EACH;
#pragma unroll
                    for (int i = 0; i < EACH; ++i) to[i] = out[i];
                }
            }
        }
    }
    __syncthreads();
    // writes the codes of the transpose in whole lines: V rows a thread
    constexpr int PACKS = TILE / V;
#pragma unroll 4
    for (int t = threadIdx.x; t < TILE * PACKS; t += THREADS) {
        const int column = t / PACKS, pack = t % PACKS;
        if (c0 + column >= C || r0 + pack * V >= R) continue;
        unsigned out[EACH];
#pragma unroll
        for (int i = 0; i < EACH; ++i) out[i] = reinterpret_cast<const unsigned*>(line + column * LINE)[pack * EACH + i];
        store_codes<X::BITS, V, true>(turned + (c0 + column) * turned_bytes + static_cast<long long>(r0 / V + pack) * (V * X::BITS / 8),
            out, V);
    }
}
