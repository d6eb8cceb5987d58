/* rooftop
idea    = """Groups are runs of rows in single columns. A block holds a strip of columns, 128 bytes of each row or more, in shared memory, \
  filled by cp.async. Blocks use few registers, so that several of them share a multiprocessor: some read while others divide and write. \
  Columns taller than the strip of one block are divided among the blocks of a cluster."""
limit   = "columns whose strip of 128 bytes does not fit the shared memory of a cluster of eight blocks use quantize__panels"
dtypes  = ["f32", "f16", "bf16"]
args    = ["over: f32[1]?", "seed: i32"]
python  = ["choose", "launches"]
demands = { spills = 0 }

[config]
vec     = 8
packs   = 8
threads = 128
share   = 128
cluster = 1
blocks  = 8
*/
#include "pdl.cuh"
#include "_column_strips.cuh"

/// CLUSTER blocks along the rows, each with `share` rows of a group of `rows`. BLOCKS: resident a multiprocessor, at least.
template <typename T, int F, int S, int ROUND, bool SYMMETRIC, int V, int PACKS, int THREADS, int CLUSTER, int BLOCKS>
__global__ void __launch_bounds__(THREADS, BLOCKS)
quantize_columns(int R, int C, long long xa, long long xs, const T* __restrict__ x, int rows, int share, int down, int across,
    const float* __restrict__ over,
                 unsigned char* __restrict__ codes, typename ScaleType<S>::Stored* __restrict__ scale, unsigned char* __restrict__ zero,
                 int seed) {
    using X = Format<F>;
    using By = DividedBy<F, S, ROUND>;
    using Mine = Strip<T, V, PACKS, THREADS>;
    constexpr int PER = Held<T, V>::PER, ABREAST = Mine::ABREAST, WIDE = Mine::WIDE, SIDES = SYMMETRIC ? 1 : 2;
    __shared__ unsigned maxima[SIDES * Mine::FOLDED * ABREAST], of_blocks[SIDES * CLUSTER * ABREAST];
    __shared__ float2 of_columns[V][PACKS];  // the divisor of each column and its reciprocal
    __shared__ float lifts[V][PACKS];
    __shared__ int offsets[SYMMETRIC ? 1 : V][PACKS];
    const Mine strip;
    const int block = CLUSTER == 1 ? blockIdx.x : blockIdx.x / CLUSTER, rank = CLUSTER == 1 ? 0 : blockIdx.x % CLUSTER;
    const int wide = (C + WIDE - 1) / WIDE, group = block / wide, tile = block % wide;
    const int c = tile * WIDE + strip.pack * V;
    const int r0 = group * rows + rank * share, count = c < C ? min(min(R, (group + 1) * rows) - r0, share) : 0;
#if __CUDA_ARCH__ >= 900
    if (CLUSTER > 1) cooperative_groups::this_cluster().barrier_arrive();
#endif
    gdc_wait();
    strip.ask(x + blockIdx.y * xa + r0 * xs + c, xs, count);
    strip.arrived();

    bool careful = false;
#pragma unroll 1
    for (int again = 0; again < 2; ++again) {  // a second pass without infinities and NaN, if there are any
        strip.template maxima<SYMMETRIC>(maxima, count, again);
        __syncthreads();
#if __CUDA_ARCH__ >= 900
        if (CLUSTER > 1 && again == 0) cooperative_groups::this_cluster().barrier_wait();
#endif
#pragma unroll 1
        // one word of columns a thread, reduced over the rows and over the cluster
        for (int t = threadIdx.x; t < SIDES * ABREAST; t += THREADS) {
            Most<T> m;
            const unsigned* from = maxima + t / ABREAST * (Mine::FOLDED * ABREAST) + t % ABREAST;
#pragma unroll
            for (int i = 0; i < Mine::FOLDED; ++i) m.over(from[i * ABREAST]);
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
        bool found = false, alarm = false;
#pragma unroll 1
        for (int t = threadIdx.x; t < WIDE; t += THREADS) {  // one column a thread
            unsigned side[2] = {0, 0};
#pragma unroll
            for (int k = 0; k < SIDES; ++k) {
                Most<T> m;
#pragma unroll
                for (int i = 0; i < CLUSTER; ++i) m.over(of_blocks[(i * SIDES + k) * ABREAST + t / PER]);
                unsigned b[PER];
                m.bits(b);
                side[k] = t % PER ? b[PER - 1] : b[0];
            }
            found |= side[0] >= INFINITE_BITS || side[1] >= INFINITE_BITS;
            const float up = __uint_as_float(side[0]), lower = __uint_as_float(side[1]);
            typename ScaleType<S>::Stored stored;
            if constexpr (SYMMETRIC) stored = scale_of<F, S>(up, over);
            else stored = store_scale<S>(__fadd_rn(__fdiv_rn(up, X::STEPS), __fdiv_rn(lower, X::STEPS)));
            const float s = effective<S>(stored, over);
            const By by(s, fmaxf(up, lower), again);
            of_columns[t % V][t / V] = make_float2(by.s, by.part);
            lifts[t % V][t / V] = by.lift;
            alarm |= by.careful;
            const int offset = SYMMETRIC ? 0 : zero_point<F>(lower, s);
            if constexpr (!SYMMETRIC) offsets[t % V][t / V] = offset;
            if (rank == 0 && tile * WIDE + t < C) {
                const long long at = (static_cast<long long>(blockIdx.y) * down + group) * across + tile * WIDE + t;
                scale[at] = stored;
                if (!SYMMETRIC) zero[at] = static_cast<unsigned char>(offset);
            }
        }
        found = __syncthreads_or(found);
        careful = __syncthreads_or(alarm);
        if (!found) break;
#if __CUDA_ARCH__ >= 900
        if (CLUSTER > 1) cooperative_groups::this_cluster().sync();  // all blocks have read what the second pass overwrites
#endif
    }

    By divided[V];
    int offset[SYMMETRIC ? 1 : V];
#pragma unroll
    for (int i = 0; i < V; ++i) {
        const float2 of = of_columns[i][strip.pack];
        divided[i].s = of.x, divided[i].part = of.y;
        if constexpr (!SYMMETRIC) offset[i] = offsets[i][strip.pack];
    }
    const long long row_bytes = static_cast<long long>(C) * X::BITS / 8, top = static_cast<long long>(blockIdx.y) * R + r0;
    codes += static_cast<long long>(c / V) * (V * X::BITS / 8);
    const auto zeros = [&](int i) { return SYMMETRIC ? X::MIDDLE : offset[SYMMETRIC ? 0 : i]; };
    if (careful) {
#pragma unroll 1
        for (int r = strip.row; r < count; r += Mine::HIGH) {
            Held<T, V> held;
            strip.get(held, r);
            const Drawn<V, true> random(seed, static_cast<unsigned long long>(top + r) * C + c);
            unsigned out[(V * X::BITS + 31) / 32];
            const auto by = [&](int i) {
                By one = divided[i];
                one.lift = lifts[i][strip.pack];
                return one;
            };
            encode<F, ROUND, SYMMETRIC, V>(out, [&](int i) { return held[i]; }, random, by, zeros);
            store_codes<X::BITS, V, true>(codes + (top + r) * row_bytes, out, V);
        }
        return;
    }
    const auto by = [&](int i) -> const By& { return divided[i]; };
#pragma unroll 2
    for (int r = strip.row; r < count; r += Mine::HIGH) {
        Held<T, V> held;
        strip.get(held, r);
        const Drawn<V, true> random(seed, static_cast<unsigned long long>(top + r) * C + c);
        unsigned out[(V * X::BITS + 31) / 32];
        encode_clean<F, S, ROUND, SYMMETRIC>(out, held, random, by, zeros);
        store_codes<X::BITS, V, true>(codes + (top + r) * row_bytes, out, V);
    }
}
