/* rooftop
idea    = """A 2-D block, or a group of rows of some columns, is held in the registers of one thread block while its maxima and its codes \
  are computed: read once, written once."""
limit   = "the copy of the same bytes; columns that do not fit the registers of a cluster of eight blocks use quantize__two_passes"
dtypes  = ["f32", "f16", "bf16"]
args    = ["over: f32[1]?", "seed: i32"]
python  = ["choose", "launches"]
demands = { spills = 0 }

[config]
vec     = 8
packs   = 16
steps   = 8
threads = 256
cluster = 1
*/
#include "pdl.cuh"
#include "_registers.cuh"

/// A block has PACKS packs of V columns by STEPS * THREADS / PACKS rows; CLUSTER blocks along the rows share groups. COLUMNS: each column
/// is a group of its own; else the tile is one group (and CLUSTER is 1).
template <typename T, int F, int S, int ROUND, bool SYMMETRIC, int V, int PACKS, int STEPS, int THREADS, bool COLUMNS, int CLUSTER>
__global__ void __launch_bounds__(THREADS)
quantize_tiles(int R, int C, long long xa, long long xs, const T* __restrict__ x, int rows, int down, int across,
    const float* __restrict__ over,
               unsigned char* __restrict__ codes, typename ScaleType<S>::Stored* __restrict__ scale, unsigned char* __restrict__ zero,
               int seed) {
    using X = Format<F>;
    constexpr int PER = Held<T, V>::PER, WORDS = Held<T, V>::WORDS, HIGH = THREADS / PACKS, SIDES = SYMMETRIC ? 1 : 2;
    constexpr int M = COLUMNS ? V : 1, WIDE = PACKS * V, ABREAST = PACKS * WORDS;  // columns of a block, and words of them
    using By = DividedBy<F, S, ROUND>;
    __shared__ unsigned maxima[COLUMNS ? SIDES * THREADS * WORDS : 32];
    __shared__ unsigned of_blocks[COLUMNS ? SIDES * CLUSTER * ABREAST : 1];
    __shared__ By of_columns[COLUMNS ? WIDE : 1];
    __shared__ int offsets[COLUMNS ? WIDE : 1];
    const int block = CLUSTER == 1 ? blockIdx.x : blockIdx.x / CLUSTER, rank = CLUSTER == 1 ? 0 : blockIdx.x % CLUSTER;
    const int wide = (C + WIDE - 1) / WIDE, group = block / wide, tile = block % wide;
    int c = (tile * PACKS + threadIdx.x % PACKS) * V, last = min(R, (group + 1) * rows);
    int r0 = group * rows + rank * (STEPS * HIGH) + threadIdx.x / PACKS;
#if __CUDA_ARCH__ >= 900
    if (CLUSTER > 1) cooperative_groups::this_cluster().barrier_arrive();
#endif
    gdc_wait();
    x += blockIdx.y * xa + c;
    Held<T, V> held[STEPS];
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
        const int r = r0 + k * HIGH;
        if (r < last && c < C) held[k].load(x + r * xs);
        else held[k].clear();
    }

    bool unclean = false;
    unsigned most = 0, least = 0;  // of the block's one group, or of a thread's words of columns as T
#pragma unroll 4
    for (int again = 0; again < 2; ++again) {  // a second pass without infinities and NaN, if there are any
        Most<T> above[COLUMNS ? WORDS : 1], below[COLUMNS ? WORDS : 1];
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            Held<T, V> seen = held[k];
            if (again) seen.drop_unclean();
#pragma unroll
            for (int i = 0; i < WORDS; ++i) {
                const int j = COLUMNS ? i : 0;
                if (SYMMETRIC) above[j].over_size(seen.w[i]);
                else above[j].over(seen.w[i]), below[j].over_negative(seen.w[i]);
            }
        }
        if constexpr (!COLUMNS) {
            constexpr int LANES = THREADS > 32 ? THREADS : 32;
            most = over_lanes<LANES, THREADS>(above[0].all(), maxima);
            if (!SYMMETRIC) least = over_lanes<LANES, THREADS>(below[0].all(), maxima);
            unclean |= most >= INFINITE_BITS || least >= INFINITE_BITS;
            if (!unclean) break;
        } else {
            // [side][row of packs][word of columns]; then a thread reduces one word of columns, over the rows and over the cluster
#pragma unroll
            for (int i = 0; i < WORDS; ++i) {
                const int at = threadIdx.x / PACKS * ABREAST + threadIdx.x % PACKS * WORDS + i;
                maxima[at] = above[i].w;
                if (!SYMMETRIC) maxima[THREADS * WORDS + at] = below[i].w;
            }
            __syncthreads();
#if __CUDA_ARCH__ >= 900
            if (CLUSTER > 1 && again == 0) cooperative_groups::this_cluster().barrier_wait();
#endif
#pragma unroll 4
            for (int t = threadIdx.x; t < SIDES * ABREAST; t += THREADS) {
                Most<T> m;
                const unsigned* from = maxima + t / ABREAST * (THREADS * WORDS) + t % ABREAST;
#pragma unroll 4
                for (int i = 0; i < HIGH; ++i) m.over(from[i * ABREAST]);
#if __CUDA_ARCH__ >= 900
                if constexpr (CLUSTER > 1) {
#pragma unroll
                    for (int i = 0; i < CLUSTER; ++i) *cooperative_groups::this_cluster().map_shared_rank(&of_blocks[rank * SIDES * ABREAST
                        + t], i) = m.w;
                } else
#endif
                    of_blocks[t] = m.w;
            }
#if __CUDA_ARCH__ >= 900
            if (CLUSTER > 1) cooperative_groups::this_cluster().sync();
            else
#endif
                __syncthreads();
            bool found = false;
#pragma unroll 4
            for (int t = threadIdx.x; t < WIDE; t += THREADS) {  // one column a thread
                unsigned side[2] = {0, 0};
#pragma unroll
                for (int k = 0; k < SIDES; ++k) {
                    Most<T> m;
#pragma unroll
                    for (int i = 0; i < CLUSTER; ++i) m.over(of_blocks[(i * SIDES + k) * ABREAST + t / PER]);
                    unsigned b[PER];
                    m.bits(b);
                    side[k] = b[t % PER];
                }
                found |= side[0] >= INFINITE_BITS || side[1] >= INFINITE_BITS;
                const float up = __uint_as_float(side[0]), lower = __uint_as_float(side[1]);
                typename ScaleType<S>::Stored stored;
                if constexpr (SYMMETRIC) stored = scale_of<F, S>(up, over);
                else stored = store_scale<S>(__fadd_rn(__fdiv_rn(up, X::STEPS), __fdiv_rn(lower, X::STEPS)));
                const float s = effective<S>(stored, over);
                of_columns[t] = By(s, fmaxf(up, lower), unclean);
                if constexpr (!SYMMETRIC) offsets[t] = zero_point<F>(lower, s);
                if (rank == 0 && tile * WIDE + t < C) {
                    const long long at = (static_cast<long long>(blockIdx.y) * down + group) * across + tile * WIDE + t;
                    scale[at] = stored;
                    if (!SYMMETRIC) zero[at] = static_cast<unsigned char>(offsets[t]);
                }
            }
            found = __syncthreads_or(found);
            if (!found) break;
            unclean = true;
#if __CUDA_ARCH__ >= 900
            if (CLUSTER > 1) cooperative_groups::this_cluster().sync();  // all blocks have read what the second pass overwrites
#endif
        }
    }

    By divided[M];
    int offset[M];
    bool careful = unclean;
    if constexpr (COLUMNS) {
#pragma unroll
        for (int i = 0; i < M; ++i) {
            divided[i] = of_columns[threadIdx.x % PACKS * V + i];
            offset[i] = SYMMETRIC ? X::MIDDLE : offsets[threadIdx.x % PACKS * V + i];
            careful |= divided[i].careful;
        }
    } else {
        const float up = __uint_as_float(most), lower = __uint_as_float(least);
        typename ScaleType<S>::Stored stored;
        if constexpr (SYMMETRIC) stored = scale_of<F, S>(up, over);
        else stored = store_scale<S>(__fadd_rn(__fdiv_rn(up, X::STEPS), __fdiv_rn(lower, X::STEPS)));
        const float s = effective<S>(stored, over);
        divided[0] = By(s, fmaxf(up, lower), unclean);
        careful = divided[0].careful;
        offset[0] = SYMMETRIC ? X::MIDDLE : zero_point<F>(lower, s);
        if (threadIdx.x == 0) {
            const long long at = (static_cast<long long>(blockIdx.y) * down + group) * across + tile;
            scale[at] = stored;
            if (!SYMMETRIC) zero[at] = static_cast<unsigned char>(offset[0]);
        }
    }
    if constexpr (CLUSTER > 1) {  // recomputed, not kept in registers
        int thread = threadIdx.x, of_grid = blockIdx.x / CLUSTER;
        asm volatile("" : "+r"(thread), "+r"(of_grid));
        const int up = of_grid / wide;
        c = (of_grid % wide * PACKS + thread % PACKS) * V, last = min(R, (up + 1) * rows);
        r0 = up * rows + rank * (STEPS * HIGH) + thread / PACKS;
    }
    if (c >= C) return;
    const long long row_bytes = static_cast<long long>(C) * X::BITS / 8, top = static_cast<long long>(blockIdx.y) * R;
    codes += static_cast<long long>(c / V) * (V * X::BITS / 8);
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
        const int r = r0 + k * HIGH;
        if (r >= last) continue;
        const Drawn<V, true> random(seed, static_cast<unsigned long long>(top + r) * C + c);
        int place = threadIdx.x % PACKS * V;  // the divisors are read again, not kept in registers
        asm volatile("" : "+r"(place));
        const auto from_shared = [&](int i) -> const By& { return COLUMNS ? of_columns[place + i] : divided[0]; };
        const auto by = [&](int i) -> const By& { return CLUSTER > 1 ? of_columns[place + i] : divided[i % M]; };
        const auto zeros = [&](int i) { return offset[i % M]; };
        unsigned out[(V * X::BITS + 31) / 32];
        if (careful) encode<F, ROUND, SYMMETRIC, V>(out, [&](int i) { return held[k][i]; }, random, from_shared, zeros);
        else encode_clean<F, S, ROUND, SYMMETRIC>(out, held[k], random, by, zeros);
        store_codes<X::BITS, V, true>(codes + (top + r) * row_bytes, out, V);
    }
}
