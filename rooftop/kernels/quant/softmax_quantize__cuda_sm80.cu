/* rooftop
idea    = """A row stays in registers while its maximum, its sum and its codes are computed: it is read once, and the probabilities are \
  written as codes only."""
limit   = "the copy of the same bytes; rows of more than 32768 elements"
dtypes  = ["f32", "f16", "bf16"]
args    = ["N: i64", "L: i32", "x: T[N, L]", "over: f32[1]?", "seed: i32"]
python  = ["choose", "launches"]
demands = { spills = 0 }

[config]
vec     = 8
lanes   = 256
pieces  = 4
threads = 256
group   = 0
whole   = true
*/
#include <math_constants.h>

#include "pdl.cuh"
#include "_fused_rows.cuh"

/// 2^v; zero below 2^-126.
__device__ inline float power_of_two(float v) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(v));
    return y;
}

template <typename T, int F, int S, int ROUND, int V, int PIECES, int LANES, int THREADS, int GROUP, bool WHOLE>
__global__ void __launch_bounds__(THREADS, GROUP ? 1 : 1024 / THREADS)
softmax_quantize(long long N, int L, const T* __restrict__ x, long long xs, const float* __restrict__ over,
                 unsigned char* __restrict__ codes, typename ScaleType<S>::Stored* __restrict__ scale, int seed) {
    __shared__ unsigned shared[32];
    gdc_wait();
    const int lane = threadIdx.x % LANES;
    const long long row = static_cast<long long>(blockIdx.x) * (THREADS / LANES) + threadIdx.x / LANES;
    const bool there = row < N;
    constexpr bool PAIRS = WHOLE && Word<T>::N == 2;
    Held<T, V> given[PIECES];
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {  // all loads are issued before any value is used
        const int at = (p * LANES + lane) * V;
        given[p].template load_where<WHOLE>(there && at < L, x + row * xs + at, L - at);
    }
    float above = -CUDART_INF_F;
    if constexpr (PAIRS) {
        Most<T> highest;
        highest.w = Held<T, V>::infinite(static_cast<const T*>(nullptr)) * 0x10001u | 0x80008000u;
#pragma unroll
        for (int p = 0; p < PIECES; ++p) {
            if (!there || (p * LANES + lane) * V >= L) continue;
#pragma unroll
            for (int i = 0; i < Held<T, V>::WORDS; ++i) highest.over(given[p].w[i]);
        }
        float ends[2];
        Held<T, V>::widen(highest.w, ends, static_cast<const T*>(nullptr));
        above = ends[1] > ends[0] || ends[1] != ends[1] ? ends[1] : ends[0];
    }
    Held<float, V> y[PIECES];
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {
        const int at = (p * LANES + lane) * V;
        given[p].widen(y[p]);
        if (PAIRS || !there || at >= L) continue;
#pragma unroll
        for (int i = 0; i < V; ++i) {
            if (WHOLE || at + i < L) above = y[p][i] > above || y[p][i] != y[p][i] ? y[p][i] : above;
        }
    }
    above = largest_over_lanes<LANES, THREADS>(above, shared);
    float sum = 0;
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {
        const int at = (p * LANES + lane) * V;
#pragma unroll
        for (int i = 0; i < V; ++i) {
            const float e = there && (WHOLE ? at : at + i) < L ? power_of_two((y[p][i] - above) * 1.4426950408889634f) : 0.f;
            y[p].w[i] = __float_as_uint(e);
            sum += e;
        }
    }
    sum = sum_over_lanes<LANES, THREADS>(sum, reinterpret_cast<float*>(shared));
    const float part = __frcp_rn(sum);
    write_row<F, S, ROUND, V, PIECES, LANES, THREADS, GROUP, WHOLE, true>(y, there, row, L, over, codes, scale, seed, shared, part,
        __float_as_uint(part));
}
