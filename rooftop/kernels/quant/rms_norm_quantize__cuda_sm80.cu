/* rooftop
idea    = """A row stays in registers while its sum of squares, its largest absolute value and its codes are computed: it is read once, and \
  the normalised row is written as codes only."""
limit   = "the copy of the same bytes; rows of more than 32768 elements"
dtypes  = ["f32", "f16", "bf16"]
args    = ["N: i64", "L: i32", "x: T[N, L]", "residual: T[N, L]?", "over: f32[1]?", "eps: f32", "seed: i32"]
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
#include "pdl.cuh"
#include "_fused_rows.cuh"

#if __CUDA_ARCH__ >= 900
constexpr bool BEFORE_90 = false;
#else
constexpr bool BEFORE_90 = true;  // 64 registers are too few before sm_90
#endif

template <typename T, int F, int S, int ROUND, int V, int PIECES, int LANES, int THREADS, int GROUP, bool WHOLE, typename W, bool RESIDUAL,
    bool WEIGHT>
__global__ void __launch_bounds__(THREADS, RESIDUAL && GROUP && BEFORE_90 ? 1 : 1024 / THREADS)
rms_norm_quantize(long long N, int L, const T* __restrict__ x, long long xs, const T* __restrict__ residual, long long rs,
    const W* __restrict__ weight, float eps, T* __restrict__ s, const float* __restrict__ over,
                  unsigned char* __restrict__ codes, typename ScaleType<S>::Stored* __restrict__ scale, int seed) {
    __shared__ unsigned shared[96];
    gdc_wait();
    const int lane = threadIdx.x % LANES;
    const long long row = static_cast<long long>(blockIdx.x) * (THREADS / LANES) + threadIdx.x / LANES;
    const bool there = row < N;
    Held<T, V> given[PIECES], added[RESIDUAL ? PIECES : 1];
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {  // all loads are issued before any value is used
        const int at = (p * LANES + lane) * V;
        given[p].template load_where<WHOLE>(there && at < L, x + row * xs + at, L - at);
        if constexpr (RESIDUAL) added[p].template load_where<WHOLE>(there && at < L, residual + row * rs + at, L - at);
    }
    Held<float, V> y[PIECES];
    float squares = 0;
    Most<float> largest;
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {
        const int at = (p * LANES + lane) * V;
        given[p].widen(y[p]);
        if (!there || at >= L) continue;
        if constexpr (RESIDUAL) {
            Held<float, V> other;
            added[p].widen(other);
            Held<T, V> sum;
#pragma unroll
            for (int i = 0; i < Held<T, V>::WORDS; ++i) {
                float f[Word<T>::N];
#pragma unroll
                for (int j = 0; j < Word<T>::N; ++j) {
                    f[j] = y[p][i * Word<T>::N + j] + other[i * Word<T>::N + j];
                    y[p].w[i * Word<T>::N + j] = __float_as_uint(f[j]);
                }
                sum.w[i] = Word<T>::narrow(f);
            }
            T* const to = s + row * L + at;
            if (WHOLE) {
#pragma unroll
                for (int i = 0; i < Held<T, V>::WORDS; i += 4)
                    *reinterpret_cast<uint4*>(reinterpret_cast<unsigned*>(to) + i) =
                        make_uint4(sum.w[i], sum.w[i + 1], sum.w[i + 2], sum.w[i + 3]);
            } else {
#pragma unroll
                for (int i = 0; i < V; ++i) {
                    if (at + i < L) to[i] = reinterpret_cast<const T*>(sum.w)[i];
                }
            }
        }
#pragma unroll
        for (int i = 0; i < V; ++i) squares += y[p][i] * y[p][i];
        if constexpr (WEIGHT) {  // multiply by the weight now: the remaining factor is the same for the whole row
            float w[V];
            load_shared_floats<WHOLE, W, V>(w, weight + at, L - at);
#pragma unroll
            for (int i = 0; i < V; ++i) y[p].w[i] = __float_as_uint(y[p][i] * w[i]);
        }
#pragma unroll
        for (int i = 0; i < V; ++i) largest.over_size(y[p].w[i]);
    }
    unsigned most = largest.w;
    sum_and_largest<LANES, THREADS>(squares, most, shared + 32);
    const float part = rsqrtf(squares / static_cast<float>(L) + eps);
    most = __float_as_uint(fabsf(__uint_as_float(most) * part));
    write_row<F, S, ROUND, V, PIECES, LANES, THREADS, GROUP, WHOLE, true>(y, there, row, L, over, codes, scale, seed, shared, part, most);
}
