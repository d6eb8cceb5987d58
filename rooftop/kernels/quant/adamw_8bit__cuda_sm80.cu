/* rooftop
idea    = """A warp updates a block of 256 elements, 8 neighbours per lane. The states are read as 8-bit codes, and the new maxima of \
  absolute values are reduced within the warp, so that every byte is read once and written once."""
limit   = "the copy of the same bytes"
dtypes  = ["f32", "f16", "bf16"]
args    = [
    "N: i64", "param: T[N]", "grad: T[N]", "m: u8[N]", "m_scale: f32[B]", "r: u8[N]", "r_scale: f32[B]", "size: f32", "root: f32",
    "keep: f32", "beta1: f32", "beta2: f32", "eps: f32", "bound: f32", "seed: i32",
]
demands = { spills = 0 }

[requires]
"stride(param, 0) == 1 and (N <= 1 or stride(grad, 0) == 1) and stride(m, 0) == 1 and stride(r, 0) == 1" = "neighbours must be neighbours in memory"

[[launch]]
kernel  = """adamw_8bit<{T}, {1 if rounding == 'stochastic' else 0}, \
  {1 if aligned(param, 16) and aligned(grad, 16) and aligned(m, 16) and aligned(r, 16) else 0}>"""
grid    = ["ceil(N / 2048)"]
block   = [256]
pdl = true
*/
#include "pdl.cuh"
#include "_fused_rows.cuh"

/// Encodes the new value of a state as codes of e4m3 and their scale; 8 neighbours a lane of a warp. FLOOR: what is above zero gets no code
/// of zero.
template <int ROUND, bool WHOLE, bool FLOOR>
__device__ inline void write_state(Held<float, 8> v, long long at, int left, unsigned char* codes, float* scale, int seed) {
    using By = DividedBy<E4M3, SCALE_F32, ROUND>;
    Most<float> largest;
#pragma unroll
    for (int i = 0; i < 8; ++i) largest.over_size(v.w[i]);
    unsigned most = __reduce_max_sync(~0u, largest.w);
    const bool unclean = most >= INFINITE_BITS;
    if (unclean) {  // again, without infinities and NaN
        most = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const unsigned size = v.w[i] & 0x7fffffffu;
            if (size < INFINITE_BITS) most = max(most, size);
        }
        most = __reduce_max_sync(~0u, most);
    }
    const float s = scale_of<E4M3, SCALE_F32>(__uint_as_float(most), nullptr);
    if (FLOOR) {
        const unsigned least = __float_as_uint(__fmul_rn(s, 0.001953125f));  // 2^-9, the smallest of e4m3 above zero
#pragma unroll
        for (int i = 0; i < 8; ++i) v.w[i] = v.w[i] ? max(v.w[i], least) : 0u;
    }
    const By divided(s, __uint_as_float(most), unclean);
    if (left <= 0) return;
    if (threadIdx.x % 32 == 0) *scale = s;
    const Drawn<8, true> random(seed, static_cast<unsigned long long>(at));
    const auto by = [&](int) -> const By& { return divided; };
    const auto zeros = [](int) { return 0; };
    unsigned out[2];
    if (divided.careful) encode<E4M3, ROUND, true, 8>(out, [&](int i) { return v[i]; }, random, by, zeros);
    else encode_clean<E4M3, SCALE_F32, ROUND, true>(out, v, random, by, zeros);
    if (WHOLE && left >= 8) store_codes<8, 8, true>(codes + at, out, 8);
    else store_codes<8, 8, false>(codes + at, out, left);
}

template <typename T, int ROUND, int ALIGNED>
__global__ void __launch_bounds__(256)
adamw_8bit(long long N, T* __restrict__ param, const T* __restrict__ grad, unsigned char* __restrict__ m, float* __restrict__ m_scale,
    unsigned char* __restrict__ r,
           float* __restrict__ r_scale, float size, float root, float keep, float beta1, float beta2, float eps, float bound, int seed) {
    constexpr bool WHOLE = ALIGNED;
    constexpr int WORDS = Held<T, 8>::WORDS, PER = Word<T>::N;
    gdc_wait();
    const long long at = (static_cast<long long>(blockIdx.x) * 256 + threadIdx.x) * 8, block = at / 256;
    const int left = static_cast<int>(N - at < 8 ? (N > at ? N - at : 0) : 8);
    const bool together = WHOLE && left == 8;
    Held<T, 8> p, g;
    unsigned codes[2] = {}, roots[2] = {};
    p.clear(), g.clear();
    if (together) {
        p.load(param + at), g.load(grad + at);
        load_codes<8, 8, true>(m + at, codes, 8), load_codes<8, 8, true>(r + at, roots, 8);
    } else if (left > 0) {
        p.load(param + at, left), g.load(grad + at, left);
        load_codes<8, 8, false>(m + at, codes, left), load_codes<8, 8, false>(r + at, roots, left);
    }
    const float by_first = left > 0 ? m_scale[block] : 0, by_second = left > 0 ? r_scale[block] : 0;
    const float rest1 = __fsub_rn(1.f, beta1), rest2 = __fsub_rn(1.f, beta2);
    Held<float, 8> first, second;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float m0 = __fmul_rn(value_of<E4M3>(code_at<8>(codes, i), 0), by_first),
            r0 = __fmul_rn(value_of<E4M3>(code_at<8>(roots, i), 0), by_second);
        const float d = g[i];
        const float m1 = __fadd_rn(__fmul_rn(beta1, m0), __fmul_rn(rest1, d));
        const float r1 = __fsqrt_rn(__fadd_rn(__fmul_rn(beta2, __fmul_rn(r0, r0)), __fmul_rn(rest2, __fmul_rn(d, d)))),
            most = __fmul_rn(bound, r1);
        first.w[i] = __float_as_uint(m1 > most ? most : m1 < -most ? -most : m1);
        second.w[i] = __float_as_uint(r1);
    }
    if (left > 0) {
        unsigned out[WORDS];
#pragma unroll
        for (int i = 0; i < WORDS; ++i) {
            float f[PER];
#pragma unroll
            for (int j = 0; j < PER; ++j) {
                const int k = i * PER + j;
                f[j] = __fsub_rn(__fmul_rn(p[k], keep), __fmul_rn(size, __fdiv_rn(first[k], __fadd_rn(__fmul_rn(second[k], root), eps))));
            }
            out[i] = Word<T>::narrow(f);
        }
        if (together) {
#pragma unroll
            for (int i = 0; i < WORDS; i += 4) __stcs(reinterpret_cast<uint4*>(param + at) + i / 4,
                make_uint4(out[i], out[i + 1], out[i + 2], out[i + 3]));
        } else {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                if (i < left) param[at + i] = reinterpret_cast<const T*>(out)[i];
            }
        }
    }
    write_state<ROUND, WHOLE, false>(first, at, left, m, m_scale + block, seed);
    write_state<ROUND, WHOLE, true>(second, at, left, r, r_scale + block, seed ^ 0x5BD1E995);
}
