/* rooftop
idea    = """8-bit codes and the result have no gaps between rows, whatever the length of a row: threads process aligned 16-byte pieces of \
  the whole result; a piece may span two rows and then loads two scales."""
limit   = "the copy of the same bytes"
dtypes  = ["f32", "f16", "bf16"]
args    = ["N: i64", "L: i32", "codes: u8[N, L]", "zero: u8[N]?", "over: f32[1]?", "x: T[N, L]", "seed: i32"]
python  = ["supports", "choose", "launches"]
demands = { spills = 0 }

[config]
pieces = 4
*/
#include "pdl.cuh"
#include "packs.cuh"
#include "_quantized.cuh"

/// The scale and zero point of a row's codes.
template <int F, int S>
struct OfRow {
    float s;
    int offset;
    __device__ OfRow(long long row, const typename ScaleType<S>::Stored* scale, const unsigned char* zero, const float* over) {
        s = effective<S>(scale[row], over);
        offset = zero ? (Format<F>::SIGNED ? static_cast<int>(static_cast<signed char>(zero[row])) : static_cast<int>(zero[row]))
            : Format<F>::MIDDLE;
    }
};

template <typename T, int F, int S, bool DITHERED, int PIECES>
__global__ void __launch_bounds__(256)
dequantize_flat(long long N, int L, const unsigned char* __restrict__ codes, const typename ScaleType<S>::Stored* __restrict__ scale,
                const unsigned char* __restrict__ zero, const float* __restrict__ over, T* __restrict__ x, int seed) {
    constexpr int V = Pack<T>::N, SPAN = 256 * PIECES * V;
    gdc_wait();
    const long long total = N * L, base = static_cast<long long>(blockIdx.x) * SPAN;
    const long long first_row = total < 1ll << 32 ? static_cast<unsigned>(base) / static_cast<unsigned>(L) : base / L;
    const unsigned into = static_cast<unsigned>(base - first_row * L);  // index of the block's first element in its row
    unsigned in[PIECES][(V + 3) / 4];
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {
        const long long at = base + (p * 256 + threadIdx.x) * V;
        if (at + V <= total) load_codes<8, V, true>(codes + at, in[p], V);
        else load_codes<8, V, false>(codes + at, in[p], at < total ? static_cast<int>(total - at) : 0);
    }
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {
        const unsigned local = (p * 256 + threadIdx.x) * V, down = (into + local) / static_cast<unsigned>(L);
        const long long at = base + local, row = first_row + down;
        if (at >= total) continue;
        const int until = static_cast<int>(L - (into + local - down * L));  // elements left in this row
        const OfRow<F, S> here(row, scale, zero, over), next(until < V && row + 1 < N ? row + 1 : row, scale, zero, over);
        const Drawn<V, true> random(seed, static_cast<unsigned long long>(at));
        float f[V];
#pragma unroll
        for (int i = 0; i < V; ++i) {
            const unsigned code = code_at<8>(in[p], i);
            f[i] = value_of<F>(code, i < until ? here.offset : next.offset);
            if (DITHERED) f[i] = without_noise<F>(f[i], code, random(i & ~1) >> (i % 2 * 16) & 0xffff);
            f[i] = __fmul_rn(f[i], i < until ? here.s : next.s);
        }
        if (at + V <= total) Pack<T>::store(x + at, true, Pack<T>::narrow(f));
        else {
#pragma unroll
            for (int i = 0; i < V; ++i) {
                if (at + i < total) x[at + i] = T(f[i]);
            }
        }
    }
}
