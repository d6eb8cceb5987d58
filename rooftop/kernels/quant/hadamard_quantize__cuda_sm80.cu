/* rooftop
idea    = """SIZE neighbours are multiplied by a Hadamard matrix in registers and by shuffles between the lanes of a warp, then quantised: \
  read once, written once."""
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
#include "pdl.cuh"
#include "_fused_rows.cuh"

template <typename T, int F, int S, int ROUND, int V, int PIECES, int LANES, int THREADS, int GROUP, bool WHOLE, int SIZE>
__global__ void __launch_bounds__(THREADS)
hadamard_quantize(long long N, int L, const T* __restrict__ x, long long xs, const float* __restrict__ over,
                  unsigned char* __restrict__ codes, typename ScaleType<S>::Stored* __restrict__ scale, int seed) {
    __shared__ unsigned shared[32];
    gdc_wait();
    const int lane = threadIdx.x % LANES;
    const long long row = static_cast<long long>(blockIdx.x) * (THREADS / LANES) + threadIdx.x / LANES;
    const bool there = row < N;
    Held<float, V> y[PIECES];
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {
        const int at = (p * LANES + lane) * V;
        y[p].clear();
        if (there && at < L) load_floats<WHOLE, T, V>(y[p], x + row * xs + at, L - at);
        rotate_pack<SIZE, V>(y[p]);
    }
    write_row<F, S, ROUND, V, PIECES, LANES, THREADS, GROUP, WHOLE, false, true>(y, there, row, L, over, codes, scale, seed, shared);
}
