/* rooftop
idea    = """Any granularity, in two passes. The first writes the maximum of absolute values of each group to scratch memory with atomic \
  maxima of the bits (non-negative floats order as integers do). The second divides and encodes, from the end backwards, where L2 still \
  holds what the first pass read last."""
limit   = "two reads from memory for tensors larger than L2"
dtypes  = ["f32", "f16", "bf16"]
args    = ["over: f32[1]?", "seed: i32"]
python  = ["supports", "choose", "launches", "scratch", "zeroed"]
demands = { spills = 0 }

[config]
vec     = 8
whole   = true
threads = 128
tall    = 32
down    = 32
*/
#include "pdl.cuh"
#include "_registers.cuh"

__device__ inline void raise(unsigned* at, float v) {
    if (v > 0) atomicMax(at, __float_as_uint(v));
}

/// Rows [r0, r0 + TALL) of V columns a thread; each row is grouped separately. NARROW: a thread's V columns may be in several groups.
template <typename T, bool SYMMETRIC, int V, int TALL, int THREADS, bool WHOLE, bool NARROW>
__global__ void __launch_bounds__(THREADS)
quantize_largest(int R, int C, long long xa, long long xs, const T* __restrict__ x, int rows, int columns, int down, int across, int tiles,
    unsigned* __restrict__ largest,
                 unsigned* __restrict__ lowest, unsigned* __restrict__ unclean) {
    const int tile = blockIdx.x % tiles, r0 = blockIdx.x / tiles * TALL;
    const int c = (tile * THREADS + threadIdx.x) * V;
    gdc_wait();
    x += blockIdx.y * xa;
    largest += static_cast<long long>(blockIdx.y) * down * across;
    if (!SYMMETRIC) lowest += static_cast<long long>(blockIdx.y) * down * across;
    constexpr int M = NARROW ? V : 1, MINE = NARROW ? Held<T, V>::WORDS : 1;
    const int last = min(R, r0 + TALL);
    for (int r = r0; r < last;) {
        const int group = r / rows, end = min(last, (group + 1) * rows);
        float most[M], least[M];
        const int from = r;
        for (int again = 0; again < 2; ++again) {  // a second pass without infinities and NaN, if there are any
            Most<T> above[MINE], below[MINE];
#pragma unroll 8
            for (r = from; r < end; ++r) {
                Held<T, V> held;
                if (c >= C) continue;
                if (WHOLE) held.load_kept(x + r * xs + c);
                else held.load(x + r * xs + c, C - c);
                if (again) held.drop_unclean();
#pragma unroll
                for (int i = 0; i < Held<T, V>::WORDS; ++i) {
                    if (SYMMETRIC) above[i % MINE].over_size(held.w[i]);
                    else above[i % MINE].over(held.w[i]), below[i % MINE].over_negative(held.w[i]);
                }
            }
            bool found = false;
            if constexpr (NARROW) {
#pragma unroll
                for (int i = 0; i < MINE; ++i) {
                    unsigned up[Held<T, V>::PER], down[Held<T, V>::PER];
                    above[i].bits(up), below[i].bits(down);
#pragma unroll
                    for (int j = 0; j < Held<T, V>::PER; ++j) {
                        most[i * Held<T, V>::PER + j] = __uint_as_float(up[j]), least[i * Held<T, V>::PER + j] = __uint_as_float(down[j]);
                        found |= up[j] >= INFINITE_BITS || down[j] >= INFINITE_BITS;
                    }
                }
            } else {
                const unsigned up = above[0].all(), down = below[0].all();
                most[0] = __uint_as_float(up), least[0] = __uint_as_float(down);
                found = up >= INFINITE_BITS || down >= INFINITE_BITS;
            }
            if (!found) break;
            atomicOr(unclean, 1u);
        }
        const long long base = static_cast<long long>(group) * across;
        if (NARROW) {
#pragma unroll
            for (int i = 0; i < M; ++i) {
                if (c + i >= C) continue;
                raise(largest + base + (c + i) / columns, most[i]);
                if (!SYMMETRIC) raise(lowest + base + (c + i) / columns, least[i]);
            }
        } else {  // one group a thread; if the whole warp has one group, one lane does the atomic maximum
            const int mine = min(c, C - 1) / columns, warp_first = __shfl_sync(~0u, mine, 0), warp_last = __shfl_sync(~0u, mine, 31);
            if (warp_first == warp_last) {
                const unsigned m = __reduce_max_sync(~0u, __float_as_uint(most[0])),
                    l = SYMMETRIC ? 0 : __reduce_max_sync(~0u, __float_as_uint(least[0]));
                if (threadIdx.x % 32 == 0) {
                    if (m) atomicMax(largest + base + mine, m);
                    if (!SYMMETRIC && l) atomicMax(lowest + base + mine, l);
                }
            } else if (c < C) {
                raise(largest + base + mine, most[0]);
                if (!SYMMETRIC) raise(lowest + base + mine, least[0]);
            }
        }
    }
}

template <typename T, int F, int S, int ROUND, bool SYMMETRIC, int V, int TALL, int THREADS, bool WHOLE, bool NARROW>
__global__ void __launch_bounds__(THREADS)
quantize_encode(int R, int C, long long xa, long long xs, const T* __restrict__ x, int rows, int columns, int down, int across, int tiles,
                const unsigned* __restrict__ largest, const unsigned* __restrict__ lowest, const unsigned* __restrict__ unclean,
                const float* __restrict__ over, unsigned char* __restrict__ codes,
                typename ScaleType<S>::Stored* __restrict__ scale, unsigned char* __restrict__ zero, int seed) {
    using X = Format<F>;
    constexpr int BYTES = V * X::BITS / 8, M = NARROW ? V : 1;
    const int block = gridDim.x - 1 - blockIdx.x, a = gridDim.y - 1 - blockIdx.y;
    const int tile = block % tiles, r0 = block / tiles * TALL;
    const int c = (tile * THREADS + threadIdx.x) * V;
    gdc_wait();
    if (c >= C) return;
    const bool dirty = *unclean != 0;
    x += a * xa;
    const long long shared = static_cast<long long>(a) * down * across, row_bytes = (static_cast<long long>(C) * X::BITS + 7) / 8;
    codes += a * R * row_bytes;
    const int last = min(R, r0 + TALL);
    for (int r = r0; r < last;) {
        const int group = r / rows, end = min(last, (group + 1) * rows);
        DividedBy<F, S, ROUND> divided[M];
        int offset[M];
        bool careful = dirty;
#pragma unroll
        for (int i = 0; i < M; ++i) {
            const int column = min(c + i, C - 1);
            const long long at = shared + static_cast<long long>(group) * across + column / columns;
            const float most = __uint_as_float(largest[at]), least = SYMMETRIC ? 0 : __uint_as_float(lowest[at]);
            typename ScaleType<S>::Stored stored;
            offset[i] = X::MIDDLE;
            if constexpr (SYMMETRIC) stored = scale_of<F, S>(most, over);
            else stored = store_scale<S>(__fadd_rn(__fdiv_rn(most, X::STEPS), __fdiv_rn(least, X::STEPS)));
            const float s = effective<S>(stored, over);
            divided[i] = DividedBy<F, S, ROUND>(s, fmaxf(most, least), dirty);
            careful |= divided[i].careful;
            if constexpr (!SYMMETRIC) offset[i] = zero_point<F>(least, s);
            if (r == group * rows) {  // the thread that has the group's first column
                const bool first = NARROW ? c + i < C && (c + i) % columns == 0 : c % columns == 0;
                if (first) {
                    scale[at] = stored;
                    if (!SYMMETRIC) zero[at] = static_cast<unsigned char>(offset[i]);
                }
            }
        }
#pragma unroll 4
        for (; r < end; ++r) {
            Held<T, V> held;
            if (WHOLE) held.load(x + r * xs + c);
            else held.load(x + r * xs + c, C - c);
            const Drawn<V, WHOLE> random(seed, (static_cast<unsigned long long>(a) * R + r) * C + c);
            unsigned out[(V * X::BITS + 31) / 32];
            const auto by = [&](int i) -> const DividedBy<F, S, ROUND>& { return divided[i % M]; };
            const auto zeros = [&](int i) { return offset[i % M]; };
            if (careful) encode<F, ROUND, SYMMETRIC, V>(out, [&](int i) { return held[i]; }, random, by, zeros);
            else encode_clean<F, S, ROUND, SYMMETRIC>(out, held, random, by, zeros);
            store_codes<X::BITS, V, WHOLE>(codes + r * row_bytes + static_cast<long long>(c / V) * BYTES, out, C - c);
        }
    }
}
