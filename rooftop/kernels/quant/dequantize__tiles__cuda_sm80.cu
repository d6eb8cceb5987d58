/* rooftop
idea    = """Any granularity: a thread walks down some rows of a few columns and loads their scales once at the start of each group, not \
  for each element."""
limit   = "the copy of the same bytes"
dtypes  = ["f32", "f16", "bf16"]
args    = ["over: f32[1]?", "seed: i32"]
python  = ["supports", "choose", "launches"]
demands = { spills = 0 }

[config]
vec     = 8
whole   = true
threads = 128
tall    = 32
*/
#include "pdl.cuh"
#include "packs.cuh"
#include "_quantized.cuh"

constexpr int WIDE = 0, NARROW = 1, SINGLE = 2;
constexpr float ABOVE = 0x1p23f;  // its last bit counts 1

/// V elements, of which 16 bytes are loaded at a time.
template <typename E, int V>
struct alignas(V * sizeof(E) < 16 ? V * sizeof(E) : 16) Neighbours {
    E of[V];
};

/// GROUPS: WIDE where a pack of V columns has one scale; SINGLE where each column has its own and packs are whole; NARROW for what lies
/// between.
template <typename T, int F, int S, bool DITHERED, int V, int TALL, int THREADS, bool WHOLE, int GROUPS>
__global__ void __launch_bounds__(THREADS)
dequantize_tiles(int R, int C, int rows, int columns, int down, int across, int tiles, const unsigned char* __restrict__ codes,
                 const typename ScaleType<S>::Stored* __restrict__ scale, const unsigned char* __restrict__ zero,
                 const float* __restrict__ over, T* __restrict__ x,
                 int seed) {
    using X = Format<F>;
    constexpr int BYTES = V * X::BITS / 8, WORDS = (V * X::BITS + 31) / 32, M = GROUPS == WIDE ? 1 : V;
    const int tile = blockIdx.x % tiles, r0 = blockIdx.x / tiles * TALL, last = min(R, r0 + TALL);
    const int c = (tile * THREADS + threadIdx.x) * V;
    gdc_wait();
    if (c >= C) return;
    const long long shared = static_cast<long long>(blockIdx.y) * down * across, row_bytes = (static_cast<long long>(C) * X::BITS + 7) / 8;
    const long long above = static_cast<long long>(blockIdx.y) * R;
    for (int r = r0; r < last;) {
        const int group = r / rows, end = min(last, (group + 1) * rows);
        float s[M];
        int offset[M];
        float base[M];  // of integers: what is above the value in the float that has the code in its lowest bits
        const auto zero_of = [&](unsigned char z) { return X::SIGNED ? static_cast<int>(static_cast<signed char>(z)) : static_cast<int>(z); };
        if constexpr (GROUPS == SINGLE) {
            using Scale = typename ScaleType<S>::Stored;
            const long long at = shared + static_cast<long long>(group) * across + c;
            const auto scales = *reinterpret_cast<const Neighbours<Scale, V>*>(scale + at);
            Neighbours<unsigned char, V> zeros;
            if (zero) zeros = *reinterpret_cast<const Neighbours<unsigned char, V>*>(zero + at);
#pragma unroll
            for (int i = 0; i < M; ++i) {
                s[i] = effective<S>(scales.of[i], over);
                offset[i] = zero ? zero_of(zeros.of[i]) : X::MIDDLE;
            }
        } else {
#pragma unroll
            for (int i = 0; i < M; ++i) {
                const long long at = shared + static_cast<long long>(group) * across + min(c + i, C - 1) / columns;
                s[i] = effective<S>(scale[at], over);
                offset[i] = zero ? zero_of(zero[at]) : X::MIDDLE;
            }
        }
#pragma unroll
        for (int i = 0; i < M; ++i) base[i] = ABOVE + static_cast<float>((X::SIGNED ? 1 << (X::BITS - 1) : 0) + offset[i]);
#pragma unroll 4
        for (; r < end; ++r) {
            unsigned in[WORDS];
            load_codes<X::BITS, V, WHOLE>(codes + (above + r) * row_bytes + static_cast<long long>(c / V) * BYTES, in, C - c);
            const unsigned long long index = static_cast<unsigned long long>(above + r) * C + c;
            const Drawn<V, WHOLE> random(seed, index);
            float f[V];
#pragma unroll
            for (int i = 0; i < V; ++i) {
                const unsigned code = code_at<X::BITS>(in, i);
                if constexpr (X::INT) {
                    constexpr unsigned SIGN = X::SIGNED ? 1u << (X::BITS - 1) : 0;
                    f[i] = __fsub_rn(__uint_as_float(code ^ (__float_as_uint(ABOVE) | SIGN)), base[i % M]);
                } else f[i] = value_of<F>(code, 0);
                if (DITHERED) f[i] = without_noise<F>(f[i], code, random(i & ~1) >> (i % 2 * 16) & 0xffff);
                f[i] = __fmul_rn(f[i], s[i % M]);
            }
            T* to = x + index;
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
                    if (c + i < C) to[i] = T(f[i]);
                }
            }
        }
    }
}
