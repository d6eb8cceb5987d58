/* rooftop
idea    = """The largest magnitude of each block of threads, then that of all blocks. Pieces of 32 KiB are read from the end of the tensor \
  backwards, so that what follows from its beginning finds in the L2 what was read last."""
limit   = "the read of the tensor"
dtypes  = ["f32", "f16", "bf16"]
args    = ["x: T[N, L]", "scale: f32[1]"]
python  = ["supports", "choose", "launches", "scratch"]
demands = { spills = 0 }

[config]
whole  = true
blocks = 1
*/
#include "pdl.cuh"
#include "_registers.cuh"

constexpr int THREADS = 256, DEEP = 8;

/// A piece: DEEP packs a thread of one row. WHOLE: rows are whole packs on 16-byte boundaries; else element by element.
template <typename T, bool WHOLE>
__global__ void __launch_bounds__(THREADS)
largest_of_pieces(long long pieces, long long across, long long L, long long xs, const T* __restrict__ x, unsigned* __restrict__ parts) {
    constexpr int V = 16 / sizeof(T);
    __shared__ unsigned shared[32];
    gdc_wait();
    unsigned most = 0;
    for (long long piece = pieces - 1 - blockIdx.x; piece >= 0; piece -= gridDim.x) {
        const long long row = piece / across, column = (piece - row * across) * (THREADS * DEEP * V) + threadIdx.x * V;
        const T* from = x + row * xs;
        Held<T, V> held[DEEP];
#pragma unroll
        for (int i = 0; i < DEEP; ++i) {
            const long long at = column + i * (THREADS * V);
            if (WHOLE) {
                if (at < L) held[i].load_kept(from + at);
                else held[i].clear();
            } else held[i].load(from + at, at < L ? static_cast<int>(min(L - at, static_cast<long long>(V))) : 0);
        }
        Most<T> here;
#pragma unroll
        for (int i = 0; i < DEEP; ++i) {
#pragma unroll
            for (int j = 0; j < Held<T, V>::WORDS; ++j) here.over_size(held[i].w[j]);
        }
        if (here.all() >= INFINITE_BITS) {
            here.w = 0;
#pragma unroll
            for (int i = 0; i < DEEP; ++i) {
                held[i].drop_unclean();
#pragma unroll
                for (int j = 0; j < Held<T, V>::WORDS; ++j) here.over_size(held[i].w[j]);
            }
        }
        most = max(most, here.all());
    }
    most = over_lanes<THREADS, THREADS>(most, shared);
    if (threadIdx.x == 0) parts[blockIdx.x] = most;
}

__global__ void __launch_bounds__(THREADS) largest_of_all(int count, float largest, const unsigned* __restrict__ parts, float* __restrict__ scale) {
    __shared__ unsigned shared[32];
    gdc_wait();
    unsigned most = 0;
    for (int i = threadIdx.x; i < count; i += THREADS) most = max(most, parts[i]);
    most = over_lanes<THREADS, THREADS>(most, shared);
    if (threadIdx.x == 0) *scale = fmaxf(__fdiv_rn(__uint_as_float(most), largest), 0x1p-126f);
}
