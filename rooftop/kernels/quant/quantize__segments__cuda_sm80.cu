/* rooftop
idea    = "A group is a segment of neighbours (a row, or 16 to 256 of one): it is held in the registers of some lanes, a warp or a block between its maximum and its codes, so that it is read once and its codes are written once."
limit   = "segments beyond the registers of one block"
dtypes  = ["f32", "f16", "bf16"]
args    = ["N: i64", "L: i32", "x: T[N, L]", "xs: i64 = stride(x, 0)", "over: f32[1]?", "codes: u8[N, BYTES]", "zero: u8[N]?", "seed: i32"]
python  = ["supports", "choose", "launches"]
demands = { spills = 0 }

[config]
vec     = 8
lanes   = 32
pieces  = 1
units   = 1
threads = 256
whole   = true
*/
#include "chain.cuh"
#include "quantised.cuh"
#include "quantised_held.cuh"

template <typename T, int F, int S, int ROUND, bool SYMMETRIC, int V, int LANES, int PIECES, int UNITS, int THREADS, bool WHOLE>
__global__ void __launch_bounds__(THREADS)
quantize_segments(long long N, int L, const T* __restrict__ x, long long xs, const float* __restrict__ over, unsigned char* __restrict__ codes,
                  typename ScaleType<S>::Stored* __restrict__ scale, unsigned char* __restrict__ zero, int seed) {
    using X = Format<F>;
    constexpr int PER_BLOCK = THREADS / LANES, BYTES = V * X::BITS / 8;
    constexpr float INFINITE = 3.402823466e38f;
    __shared__ float shared[32];
    const int lane = threadIdx.x % LANES;
    const long long first = static_cast<long long>(blockIdx.x) * (PER_BLOCK * UNITS) + threadIdx.x / LANES;
    const long long row_bytes = (static_cast<long long>(L) * X::BITS + 7) / 8;

    wait_for_before();
    Held<T, V> held[UNITS][PIECES];
#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
        const long long unit = first + u * PER_BLOCK;
        const T* from = x + unit * xs;
#pragma unroll
        for (int p = 0; p < PIECES; ++p) {
            const int at = (p * LANES + lane) * V;
            if (unit < N && at < L) {
                if (WHOLE) held[u][p].load(from + at);
                else held[u][p].load(from + at, L - at);
            } else held[u][p].clear();
        }
    }

#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
        const long long unit = first + u * PER_BLOCK;
        float most = 0, least = 0;  // symmetric: the largest size
        if (SYMMETRIC) {
            unsigned m = 0;
#pragma unroll
            for (int p = 0; p < PIECES; ++p) {
#pragma unroll
                for (int i = 0; i < Held<T, V>::WORDS; ++i) m = Word<T>::larger(m, sizes(held[u][p].w[i], x));
            }
            float f[Held<T, V>::PER];
            Word<T>::widen(m, f);
            most = fmaxf(f[0], f[Held<T, V>::PER - 1]);
        } else {
#pragma unroll
            for (int p = 0; p < PIECES; ++p) {
#pragma unroll
                for (int i = 0; i < V; ++i) most = fmaxf(most, held[u][p][i]), least = fminf(least, held[u][p][i]);
            }
        }
        most = over_lanes<LANES, THREADS>(most, shared);
        if (!SYMMETRIC) least = -over_lanes<LANES, THREADS>(-least, shared);
        const bool infinite = most > INFINITE || least < -INFINITE;
        if (infinite) {  // the same in all lanes of the segment; those of others wait at the shuffles below
            most = least = 0;
#pragma unroll
            for (int p = 0; p < PIECES; ++p) {
#pragma unroll
                for (int i = 0; i < V; ++i) {
                    const float v = held[u][p][i], size = fabsf(v);
                    if (size <= INFINITE) most = fmaxf(most, SYMMETRIC ? size : v), least = SYMMETRIC ? 0 : fminf(least, v);
                }
            }
        }
        if (LANES > 32 ? infinite : __any_sync(~0u, infinite)) {
            most = over_lanes<LANES, THREADS>(most, shared);
            if (!SYMMETRIC) least = -over_lanes<LANES, THREADS>(-least, shared);
        }

        typename ScaleType<S>::Stored stored;
        int offset = X::MIDDLE;
        if constexpr (SYMMETRIC) stored = scale_of<F, S>(most, over);
        else stored = store_scale<S>(__fsub_rn(__fdiv_rn(most, X::STEPS), __fdiv_rn(least, X::STEPS)));
        const float s = effective<S>(stored, over);
        const DividedBy<S == SCALE_E8M0> divided(s, infinite);
        if constexpr (!SYMMETRIC) {
            const float t = fminf(fmaxf(__fdiv_rn(least, s), -X::STEPS - 1.f), X::STEPS + 1.f);
            offset = min(max(X::LOW - __float2int_rn(t), X::LOW), X::LOW + X::STEPS);
        }
        if (unit >= N) continue;
        if (lane == 0) {
            scale[unit] = stored;
            if (!SYMMETRIC) zero[unit] = static_cast<unsigned char>(offset);
        }
        unsigned char* to = codes + unit * row_bytes;
#pragma unroll
        for (int p = 0; p < PIECES; ++p) {
            const int at = (p * LANES + lane) * V;
            if (at >= L) continue;
            const unsigned long long index = static_cast<unsigned long long>(unit) * L + at;
            const Drawn<V, WHOLE> random(seed, index);
            const auto element = [&](int i) { return held[u][p][i]; };
            const auto by = [&](int) { return divided; };
            const auto zeros = [&](int) { return offset; };
            unsigned out[(V * X::BITS + 31) / 32];
            if (divided.careful) encode<F, ROUND, SYMMETRIC, V, true>(out, element, random, by, zeros);
            else encode<F, ROUND, SYMMETRIC, V, false>(out, element, random, by, zeros);
            store_codes<X::BITS, V, WHOLE>(to + static_cast<long long>(at / V) * BYTES, out, L - at);
        }
    }
}
