/* rooftop
idea    = """y = silu(a) b is computed in registers, where its largest absolute value is found and its codes are computed: a and b are read \
  once, and no 16-bit y is written to memory and read again."""
limit   = "the copy of the same bytes; rows of more than 32768 elements"
dtypes  = ["f32", "f16", "bf16"]
args    = ["N: i64", "L: i32", "a: T[N, L]", "b: T[N, L]", "over: f32[1]?", "seed: i32"]
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

template <typename T, int F, int S, int ROUND, int V, int PIECES, int LANES, int THREADS, int GROUP, bool WHOLE>
__global__ void __launch_bounds__(THREADS)
swiglu_quantize(long long N, int L, const T* __restrict__ a, long long as, const T* __restrict__ b, long long bs,
    const float* __restrict__ over,
                unsigned char* __restrict__ codes, typename ScaleType<S>::Stored* __restrict__ scale, int seed) {
    __shared__ unsigned shared[32];
    gdc_wait();
    const int lane = threadIdx.x % LANES;
    const long long row = static_cast<long long>(blockIdx.x) * (THREADS / LANES) + threadIdx.x / LANES;
    const bool there = row < N;
    Held<T, V> gate[PIECES], value[PIECES];
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {  // all loads are issued before any value is used
        const int at = (p * LANES + lane) * V;
        gate[p].template load_where<WHOLE>(there && at < L, a + row * as + at, L - at);
        value[p].template load_where<WHOLE>(there && at < L, b + row * bs + at, L - at);
    }
    Held<float, V> y[PIECES];
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {
#pragma unroll
        for (int i = 0; i < V; ++i) y[p].w[i] = __float_as_uint(__fdividef(1.f, 1.f + __expf(-gate[p][i])) * gate[p][i] * value[p][i]);
    }
    write_row<F, S, ROUND, V, PIECES, LANES, THREADS, GROUP, WHOLE>(y, there, row, L, over, codes, scale, seed, shared);
}
