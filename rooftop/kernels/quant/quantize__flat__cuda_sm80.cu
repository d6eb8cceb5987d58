/* rooftop
idea    = """Rows that are not a multiple of 16 bytes, quantised to 8 bits. Input and codes have no gaps between rows, so a block loads the \
  aligned 16-byte pieces that overlap its row, ignores the elements of neighbouring rows, and stores whole pieces of codes except for the \
  first and the last."""
limit   = "rows that do not fit the registers of one block"
dtypes  = ["f32", "f16", "bf16"]
args    = ["N: i64", "L: i32", "x: T[N, L]", "over: f32[1]?", "codes: u8[N, L]", "zero: u8[N]?", "seed: i32"]
python  = ["choose", "launches"]
demands = { spills = 0 }

[config]
threads = 256
pieces  = 4
*/
#include "pdl.cuh"
#include "_registers.cuh"

template <typename T, int F, int S, int ROUND, bool SYMMETRIC, int PIECES, int THREADS>
__global__ void __launch_bounds__(THREADS, PIECES <= 4 && ROUND == NEAREST && SYMMETRIC ? (THREADS > 768 ? 1 : 1536 / THREADS) : 1)
quantize_flat(long long N, int L, const T* __restrict__ x, const float* __restrict__ over, unsigned char* __restrict__ codes,
              typename ScaleType<S>::Stored* __restrict__ scale, unsigned char* __restrict__ zero, int seed) {
    using X = Format<F>;
    constexpr int V = 16 / sizeof(T), WORDS = 4, PER = Word<T>::N;
    __shared__ unsigned shared[32];
    const long long row = blockIdx.x, first = row * L, end = first + L, total = N * L, base = first - first % V;
    gdc_wait();
    Held<T, V> held[PIECES];
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {
        const long long at = base + (p * THREADS + static_cast<int>(threadIdx.x)) * V;
        held[p].clear();
        if (at >= end) continue;
        if (at + V <= total) held[p].load(x + at);
        else held[p].load(x + at, static_cast<int>(total - at));
        if (at < first || at + V > end) {  // part of the pack belongs to other rows
#pragma unroll
            for (int i = 0; i < WORDS; ++i) {
                const long long low = at + i * PER, high = low + PER - 1;
                if (low < first || low >= end) held[p].w[i] &= PER == 1 ? 0 : 0xffff0000u;
                if (high < first || high >= end) held[p].w[i] &= PER == 1 ? 0 : 0xffffu;
            }
        }
    }

    Most<T> above, below;  // symmetric: `above` is the largest magnitude
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) {
            if (SYMMETRIC) above.over_size(held[p].w[i]);
            else above.over(held[p].w[i]), below.over_negative(held[p].w[i]);
        }
    }
    constexpr int LANES = THREADS > 32 ? THREADS : 32;
    unsigned most = over_lanes<LANES, THREADS>(above.all(), shared);
    unsigned least = SYMMETRIC ? 0 : over_lanes<LANES, THREADS>(below.all(), shared);
    const bool unclean = most >= INFINITE_BITS || least >= INFINITE_BITS;
    if (unclean) {  // again, without infinities and NaN
        most = least = 0;
#pragma unroll
        for (int p = 0; p < PIECES; ++p) {
#pragma unroll
            for (int i = 0; i < V; ++i) {
                const unsigned v = __float_as_uint(held[p][i]), size = v & 0x7fffffffu;
                if (size < INFINITE_BITS) {
                    if (SYMMETRIC || size == v) most = max(most, size);
                    else least = max(least, size);
                }
            }
        }
        most = over_lanes<LANES, THREADS>(most, shared);
        if (!SYMMETRIC) least = over_lanes<LANES, THREADS>(least, shared);
    }
    const float up = __uint_as_float(most), down = __uint_as_float(least);
    typename ScaleType<S>::Stored stored;
    int offset = X::MIDDLE;
    if constexpr (SYMMETRIC) stored = scale_of<F, S>(up, over);
    else stored = store_scale<S>(__fadd_rn(__fdiv_rn(up, X::STEPS), __fdiv_rn(down, X::STEPS)));
    const float s = effective<S>(stored, over);
    const DividedBy<F, S, ROUND> divided(s, fmaxf(up, down), unclean);
    if constexpr (!SYMMETRIC) offset = zero_point<F>(down, s);
    if (threadIdx.x == 0) {
        scale[row] = stored;
        if (!SYMMETRIC) zero[row] = static_cast<unsigned char>(offset);
    }
    const auto by = [&](int) -> const DividedBy<F, S, ROUND>& { return divided; };
    const auto zeros = [&](int) { return offset; };
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {
        const long long at = base + (p * THREADS + static_cast<int>(threadIdx.x)) * V;
        if (at >= end) continue;
        const Drawn<V, true> random(seed, static_cast<unsigned long long>(at));
        unsigned out[V / 4];
        if (divided.careful) encode<F, ROUND, SYMMETRIC, V>(out, [&](int i) { return held[p][i]; }, random, by, zeros);
        else encode_clean<F, S, ROUND, SYMMETRIC>(out, held[p], random, by, zeros);
        if (at >= first && at + V <= end) store_codes<8, V, true>(codes + at, out, V);
        else {
#pragma unroll
            for (int i = 0; i < V; ++i) {
                if (at + i >= first && at + i < end) codes[at + i] = static_cast<unsigned char>(out[i / 4] >> (i % 4 * 8));
            }
        }
    }
}
