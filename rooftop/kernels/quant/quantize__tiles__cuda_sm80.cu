/* rooftop
idea    = "A 2-D block, or a group of rows of some columns, is held in the registers of one block of threads between its maxima and its codes: read once, written once."
limit   = "the copy; columns that are whole go by quantize__two_passes"
dtypes  = ["f32", "f16", "bf16"]
args    = ["over: f32[1]?", "seed: i32"]
python  = ["supports", "choose", "launches"]
demands = { spills = 0 }

[config]
vec     = 8
packs   = 16
steps   = 8
threads = 256
*/
#include "chain.cuh"
#include "quantised.cuh"
#include "quantised_held.cuh"

/// PACKS packs of V columns by STEPS * THREADS / PACKS rows. COLUMNS: each column is a group by itself; else all is one.
template <typename T, int F, int S, int ROUND, bool SYMMETRIC, int V, int PACKS, int STEPS, int THREADS, bool COLUMNS>
__global__ void __launch_bounds__(THREADS)
quantize_tiles(int R, int C, long long xa, long long xs, const T* __restrict__ x, int rows, int down, int across, const float* __restrict__ over,
               unsigned char* __restrict__ codes, typename ScaleType<S>::Stored* __restrict__ scale, unsigned char* __restrict__ zero, int seed) {
    using X = Format<F>;
    constexpr int BYTES = V * X::BITS / 8, WORDS = Held<T, V>::WORDS, HIGH = THREADS / PACKS, M = COLUMNS ? V : 1;
    constexpr float INFINITE = 3.402823466e38f;
    __shared__ float maxima[COLUMNS ? (HIGH > 1 ? THREADS * V : 1) : 32];
    const int wide = (C + PACKS * V - 1) / (PACKS * V), group = blockIdx.x / wide, tile = blockIdx.x % wide;
    const int c = (tile * PACKS + threadIdx.x % PACKS) * V, r0 = group * rows + threadIdx.x / PACKS, last = min(R, (group + 1) * rows);
    wait_for_before();
    x += blockIdx.y * xa + c;
    Held<T, V> held[STEPS];
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
        const int r = r0 + k * HIGH;
        if (r < last && c < C) held[k].load(x + r * xs);
        else held[k].clear();
    }
    float most[M], least[M];
#pragma unroll
    for (int i = 0; i < M; ++i) most[i] = least[i] = 0;
    if (SYMMETRIC && !COLUMNS) {
        unsigned m = 0;
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
#pragma unroll
            for (int i = 0; i < WORDS; ++i) m = Word<T>::larger(m, sizes(held[k].w[i], x));
        }
        float f[Held<T, V>::PER];
        Word<T>::widen(m, f);
        most[0] = fmaxf(f[0], f[Held<T, V>::PER - 1]);
    } else {
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
#pragma unroll
            for (int i = 0; i < V; ++i) {
                const float v = held[k][i];
                most[i % M] = fmaxf(most[i % M], SYMMETRIC ? fabsf(v) : v);
                if (!SYMMETRIC) least[i % M] = fmaxf(least[i % M], -v);
            }
        }
    }
    bool infinite = false;
#pragma unroll
    for (int i = 0; i < M; ++i) infinite |= most[i] > INFINITE || least[i] > INFINITE;
    infinite = __syncthreads_or(infinite);
    if (infinite) {  // once more, without them
#pragma unroll
        for (int i = 0; i < M; ++i) most[i] = least[i] = 0;
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
#pragma unroll
            for (int i = 0; i < V; ++i) {
                const float v = held[k][i];
                if (fabsf(v) <= INFINITE) {
                    most[i % M] = fmaxf(most[i % M], SYMMETRIC ? fabsf(v) : v);
                    if (!SYMMETRIC) least[i % M] = fmaxf(least[i % M], -v);
                }
            }
        }
    }
    if constexpr (!COLUMNS) {
        most[0] = over_lanes<(THREADS > 32 ? THREADS : 32), THREADS>(most[0], maxima);
        if (!SYMMETRIC) least[0] = over_lanes<(THREADS > 32 ? THREADS : 32), THREADS>(least[0], maxima);
    } else if constexpr (HIGH > 1) {
#pragma unroll
        for (int side = 0; side < (SYMMETRIC ? 1 : 2); ++side) {
            float* mine = side ? least : most;
#pragma unroll
            for (int i = 0; i < V; ++i) maxima[i * THREADS + threadIdx.x] = mine[i];
            __syncthreads();
            for (int half = HIGH / 2; half > 0; half /= 2) {
                if (threadIdx.x < half * PACKS) {
#pragma unroll
                    for (int i = 0; i < V; ++i) {
                        float* at = maxima + i * THREADS + threadIdx.x;
                        *at = fmaxf(*at, at[half * PACKS]);
                    }
                }
                __syncthreads();
            }
#pragma unroll
            for (int i = 0; i < V; ++i) mine[i] = maxima[i * THREADS + threadIdx.x % PACKS];
            __syncthreads();
        }
    }
    DividedBy<S == SCALE_E8M0> divided[M];
    int offset[M];
    bool careful = infinite;
#pragma unroll
    for (int i = 0; i < M; ++i) {
        typename ScaleType<S>::Stored stored;
        offset[i] = X::MIDDLE;
        if constexpr (SYMMETRIC) stored = scale_of<F, S>(most[i], over);
        else stored = store_scale<S>(__fadd_rn(__fdiv_rn(most[i], X::STEPS), __fdiv_rn(least[i], X::STEPS)));
        const float s = effective<S>(stored, over);
        divided[i] = DividedBy<S == SCALE_E8M0>(s, infinite);
        careful |= divided[i].careful;
        if constexpr (!SYMMETRIC) {
            const float t = fminf(fmaxf(__fdiv_rn(-least[i], s), -X::STEPS - 1.f), X::STEPS + 1.f);
            offset[i] = min(max(X::LOW - __float2int_rn(t), X::LOW), X::LOW + X::STEPS);
        }
        if (COLUMNS ? threadIdx.x < PACKS && c < C : threadIdx.x == 0) {
            const long long at = (static_cast<long long>(blockIdx.y) * down + group) * across + (COLUMNS ? c + i : tile);
            scale[at] = stored;
            if (!SYMMETRIC) zero[at] = static_cast<unsigned char>(offset[i]);
        }
    }
    if (c >= C) return;
    const long long row_bytes = static_cast<long long>(C) * X::BITS / 8, above = static_cast<long long>(blockIdx.y) * R;
    codes += static_cast<long long>(c / V) * BYTES;
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
        const int r = r0 + k * HIGH;
        if (r >= last) continue;
        const Drawn<V, true> random(seed, static_cast<unsigned long long>(above + r) * C + c);
        const auto element = [&](int i) { return held[k][i]; };
        const auto by = [&](int i) -> const DividedBy<S == SCALE_E8M0>& { return divided[i % M]; };
        const auto zeros = [&](int i) { return offset[i % M]; };
        unsigned out[(V * X::BITS + 31) / 32];
        if (careful) encode<F, ROUND, SYMMETRIC, V, true>(out, element, random, by, zeros);
        else encode<F, ROUND, SYMMETRIC, V, false>(out, element, random, by, zeros);
        store_codes<X::BITS, V, true>(codes + (above + r) * row_bytes, out, V);
    }
}
