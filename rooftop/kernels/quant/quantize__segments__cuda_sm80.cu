/* rooftop
idea    = """A group is a segment of contiguous elements (a row, or 16 to 256 elements of one). It is held in the registers of some lanes, \
  a warp, a block or a cluster while its maximum and its codes are computed, so that it is read once and its codes are written once."""
limit   = "segments that do not fit the registers of a cluster of eight blocks, or of one block before sm_90"
dtypes  = ["f32", "f16", "bf16"]
args    = ["N: i64", "L: i32", "x: T[N, L]", "xs: i64 = stride(x, 0)", "over: f32[1]?", "codes: u8[N, BYTES]", "zero: u8[N]?", "seed: i32"]
python  = ["choose", "launches"]
demands = { spills = 0 }

[config]
vec     = 8
lanes   = 32
pieces  = 1
units   = 1
threads = 256
whole   = true
cluster = 1
*/
#include "pdl.cuh"
#include "_registers.cuh"

/// CLUSTER > 1: so many blocks share a segment, PIECES * LANES packs each.
template <typename T, int F, int S, int ROUND, bool SYMMETRIC, int V, int LANES, int PIECES, int UNITS, int THREADS, bool WHOLE,
    int CLUSTER>
__global__ void __launch_bounds__(THREADS)
quantize_segments(long long N, int L, const T* __restrict__ x, long long xs, const float* __restrict__ over,
    unsigned char* __restrict__ codes,
                  typename ScaleType<S>::Stored* __restrict__ scale, unsigned char* __restrict__ zero, int seed) {
    using X = Format<F>;
    constexpr int PER_BLOCK = THREADS / LANES, BYTES = V * X::BITS / 8;
    __shared__ unsigned shared[32], of_blocks[CLUSTER * 4];
#if __CUDA_ARCH__ >= 900
    if (CLUSTER > 1) cooperative_groups::this_cluster().barrier_arrive();
#endif
    // in packs
    const int lane = threadIdx.x % LANES, start = CLUSTER == 1 ? lane : static_cast<int>(blockIdx.x % CLUSTER) * (PIECES * LANES) + lane;
    const long long first = static_cast<long long>(blockIdx.x / CLUSTER) * (PER_BLOCK * UNITS) + threadIdx.x / LANES;
    const long long row_bytes = (static_cast<long long>(L) * X::BITS + 7) / 8;

    gdc_wait();
    Held<T, V> held[UNITS][PIECES];
#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
        const long long unit = first + u * PER_BLOCK;
        const T* from = x + unit * xs;
#pragma unroll
        for (int p = 0; p < PIECES; ++p) {
            const int at = (p * LANES + start) * V;
            if (unit < N && at < L) {
                if (WHOLE) held[u][p].load(from + at);
                else held[u][p].load(from + at, L - at);
            } else held[u][p].clear();
        }
    }

#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
        const long long unit = first + u * PER_BLOCK;
        Most<T> above, below;  // symmetric: `above` is the largest magnitude
#pragma unroll
        for (int p = 0; p < PIECES; ++p) {
#pragma unroll
            for (int i = 0; i < Held<T, V>::WORDS; ++i) {
                if (SYMMETRIC) above.over_size(held[u][p].w[i]);
                else above.over(held[u][p].w[i]), below.over_negative(held[u][p].w[i]);
            }
        }
        unsigned most = over_lanes<LANES, THREADS, CLUSTER>(above.all(), shared, of_blocks);
        unsigned least = SYMMETRIC ? 0 : over_lanes<LANES, THREADS, CLUSTER>(below.all(), shared, of_blocks, 1);
        const bool unclean = most >= INFINITE_BITS || least >= INFINITE_BITS;  // the same in all lanes of the segment
        if (LANES > 32 ? unclean : __any_sync(~0u, unclean)) {  // again, without infinities and NaN
            most = least = 0;
#pragma unroll
            for (int p = 0; p < PIECES; ++p) {
#pragma unroll
                for (int i = 0; i < V; ++i) {
                    const unsigned v = __float_as_uint(held[u][p][i]), size = v & 0x7fffffffu;
                    if (size < INFINITE_BITS) {
                        if (SYMMETRIC || size == v) most = max(most, size);
                        else least = max(least, size);
                    }
                }
            }
            most = over_lanes<LANES, THREADS, CLUSTER>(most, shared, of_blocks, 2);
            if (!SYMMETRIC) least = over_lanes<LANES, THREADS, CLUSTER>(least, shared, of_blocks, 3);
        }

        const float up = __uint_as_float(most), down = __uint_as_float(least);
        typename ScaleType<S>::Stored stored;
        int offset = X::MIDDLE;
        float s;
        if constexpr (SYMMETRIC) s = scale_and_value<F, S>(up, over, stored);
        else stored = store_scale<S>(__fadd_rn(__fdiv_rn(up, X::STEPS), __fdiv_rn(down, X::STEPS))), s = effective<S>(stored, over);
        DividedBy<F, S, ROUND> divided(s, fmaxf(up, down), unclean);
        // A scale in e4m3 is off by at most a sixteenth, unless it is the largest: quotients stay below 7, which rounds to the largest code
        // without a clamp.
        constexpr bool WITHIN = F == E2M1 && S == SCALE_E4M3 && ROUND == NEAREST;
        if constexpr (WITHIN) divided.careful |= stored == 0x7e;
        if constexpr (!SYMMETRIC) offset = zero_point<F>(down, s);
        if (unit >= N) continue;
        if (lane == 0 && start == 0) {
            scale[unit] = stored;
            if (!SYMMETRIC) zero[unit] = static_cast<unsigned char>(offset);
        }
        unsigned char* to = codes + unit * row_bytes;
#pragma unroll
        for (int p = 0; p < PIECES; ++p) {
            const int at = (p * LANES + start) * V;
            if (at >= L) continue;
            const Drawn<V, WHOLE> random(seed, static_cast<unsigned long long>(unit) * L + at);
            const auto by = [&](int) -> const DividedBy<F, S, ROUND>& { return divided; };
            const auto zeros = [&](int) { return offset; };
            unsigned out[(V * X::BITS + 31) / 32];
            if (divided.careful) encode<F, ROUND, SYMMETRIC, V>(out, [&](int i) { return held[u][p][i]; }, random, by, zeros);
            else encode_clean<F, WITHIN ? SCALE_F32 : S, ROUND, SYMMETRIC>(out, held[u][p], random, by, zeros);
            store_codes<X::BITS, V, WHOLE>(to + static_cast<long long>(at / V) * BYTES, out, L - at);
        }
    }
}
