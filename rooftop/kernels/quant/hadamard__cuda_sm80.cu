/* rooftop
idea    = """A thread holds 8 neighbours in registers; larger distances are exchanged by shuffles between the lanes of a warp. Read once, \
  written once."""
limit   = "the copy of the same bytes"
dtypes  = ["f32", "f16", "bf16"]
args    = ["total: i64 = R * C // 8", "wide: i64 = C // 8", "x: T[R, C]", "xs: i64 = stride(x, 0)", "y: T[R, C]"]
demands = { spills = 0 }

[requires]
"stride(x, 1) == 1 or C == 1" = "neighbours of a row must be neighbours in memory"
"starts(x, 16) and stride(x, 0) * bytes(x) % 16 == 0 and starts(y, 16)" = "rows must start on 16-byte boundaries"

[[launch]]
kernel  = "hadamard<{T}, {size}, {4 // bytes(x)}>"
grid    = ["ceil(R * C // 8 / (256 * (4 // bytes(x))))"]
block   = [256]
pdl = true
*/
#include "pdl.cuh"
#include "_fused_rows.cuh"

template <typename T, int SIZE, int PIECES>
__global__ void __launch_bounds__(256) hadamard(long long total, long long wide, const T* __restrict__ x, long long xs, T* __restrict__ y) {
    constexpr int WORDS = Held<T, 8>::WORDS, N = Word<T>::N;
    gdc_wait();
    Held<float, 8> held[PIECES];
    const long long first = static_cast<long long>(blockIdx.x) * (256 * PIECES) + threadIdx.x;
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {
        const long long pack = first + p * 256,
            row = total < 1ll << 31 ? static_cast<unsigned>(pack) / static_cast<unsigned>(wide) : pack / wide;
        held[p].clear();
        if (pack < total) load_floats<true, T, 8>(held[p], x + row * xs + (pack - row * wide) * 8, 8);
    }
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {
        rotate_pack<SIZE, 8>(held[p]);
        const long long pack = first + p * 256;
        if (pack >= total) continue;
        unsigned out[WORDS];
#pragma unroll
        for (int i = 0; i < WORDS; ++i) {
            float f[N];
#pragma unroll
            for (int j = 0; j < N; ++j) f[j] = held[p][i * N + j];
            out[i] = Word<T>::narrow(f);
        }
#pragma unroll
        for (int i = 0; i < WORDS; i += 4) __stcs(reinterpret_cast<uint4*>(y + pack * 8) + i / 4,
            make_uint4(out[i], out[i + 1], out[i + 2], out[i + 3]));
    }
}
