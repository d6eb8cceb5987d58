/* rooftop
idea    = """A group is a segment of contiguous elements with one scale. Threads are mapped to segments as in quantize__segments, so that \
  no index is divided; each loads a few packed codes and stores 16 bytes or more of floats."""
limit   = "the copy of the same bytes"
dtypes  = ["f32", "f16", "bf16"]
args    = ["N: i64", "L: i32", "codes: u8[N, BYTES]", "x: T[N, L]", "zero: u8[N]?", "over: f32[1]?", "seed: i32"]
python  = ["choose", "launches"]
demands = { spills = 0 }

[config]
vec     = 8
lanes   = 32
pieces  = 1
units   = 1
threads = 256
chunks  = 1
whole   = true
*/
#include "pdl.cuh"
#include "packs.cuh"
#include "_quantized.cuh"

template <typename T, int F, int S, bool DITHERED, int V, int LANES, int PIECES, int UNITS, int THREADS, bool WHOLE>
__global__ void __launch_bounds__(THREADS)
dequantize_segments(long long N, int L, int chunks, const unsigned char* __restrict__ codes,
    const typename ScaleType<S>::Stored* __restrict__ scale,
                    const unsigned char* __restrict__ zero, const float* __restrict__ over, T* __restrict__ x, int seed) {
    using X = Format<F>;
    constexpr int PER_BLOCK = THREADS / LANES, BYTES = V * X::BITS / 8, WORDS = (V * X::BITS + 31) / 32;
    const int lane = threadIdx.x % LANES;
    const int block = blockIdx.x / chunks, chunk = blockIdx.x % chunks;
    const long long first = static_cast<long long>(block) * (PER_BLOCK * UNITS) + threadIdx.x / LANES;
    const long long row_bytes = (static_cast<long long>(L) * X::BITS + 7) / 8;

    gdc_wait();
    unsigned in[UNITS][PIECES][WORDS];
    float s[UNITS];
    int offset[UNITS];
#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
        const long long unit = first + u * PER_BLOCK;
        if (unit >= N) continue;
#pragma unroll
        for (int p = 0; p < PIECES; ++p) {
            const int pack = (chunk * PIECES + p) * LANES + lane;
            if (static_cast<long long>(pack) * V < L) load_codes<X::BITS, V,
                WHOLE>(codes + unit * row_bytes + static_cast<long long>(pack) * BYTES, in[u][p], L - pack * V);
        }
        s[u] = effective<S>(scale[unit], over);
        offset[u] = zero ? (X::SIGNED ? static_cast<int>(static_cast<signed char>(zero[unit])) : static_cast<int>(zero[unit])) : X::MIDDLE;
    }
#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
        const long long unit = first + u * PER_BLOCK;
        if (unit >= N) continue;
#pragma unroll
        for (int p = 0; p < PIECES; ++p) {
            const long long at = static_cast<long long>((chunk * PIECES + p) * LANES + lane) * V;
            if (at >= L) continue;
            const Drawn<V, WHOLE> random(seed, static_cast<unsigned long long>(unit) * L + at);
            float f[V];
#pragma unroll
            for (int i = 0; i < V; ++i) {
                const unsigned code = code_at<X::BITS>(in[u][p], i);
                f[i] = value_of<F>(code, offset[u]);
                if (DITHERED) f[i] = without_noise<F>(f[i], code, random(i & ~1) >> (i % 2 * 16) & 0xffff);
                f[i] = __fmul_rn(f[i], s[u]);
            }
            T* to = x + unit * L + at;
            if constexpr (WHOLE) {
                constexpr int PER = Pack<T>::N;
#pragma unroll
                for (int k = 0; k < V / PER; ++k) {
                    float g[PER];
#pragma unroll
                    for (int j = 0; j < PER; ++j) g[j] = f[k * PER + j];
                    Pack<T>::store(to + k * PER, true, Pack<T>::narrow(g));
                }
            } else {
#pragma unroll
                for (int i = 0; i < V; ++i) {
                    if (at + i < L) to[i] = T(f[i]);
                }
            }
        }
    }
}
