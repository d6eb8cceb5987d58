/* rooftop
idea    = """One launch serves a prefill and a decode step. Each thread computes the slot of one token itself and moves two packs of a key \
  and two of a value there; all its loads are in flight before the slot is known. Keys are rotated and codes are computed in registers, \
  between load and store."""
predict = { speedup = 1.0 }
limit   = "The copy of the same bytes; for a decode step two dependent loads, the length and the page."
dtypes  = ["f32", "f16", "bf16"]
python  = ["supports", "choose", "launches"]
args    = [
    "k: T[B, N, H, D]", "kb: i64 = stride(k, 0)", "ks: i64 = stride(k, 1)", "kh: i64 = stride(k, 2)",
    "v: T[B, N, H, D]", "vb: i64 = stride(v, 0)", "vs: i64 = stride(v, 1)", "vh: i64 = stride(v, 2)",
    "kcp: i64 = stride(k_cache, 0)", "kcr: i64 = stride(k_cache, 1)", "kch: i64 = stride(k_cache, 2)",
    "vcp: i64 = stride(v_cache, 0)", "vcr: i64 = stride(v_cache, 1)", "vch: i64 = stride(v_cache, 2)",
    "tokens: i32 = B * N", "N: i32", "H: i32",
]
demands = { spills = 0 }

[config]
vector  = 8
threads = 256
*/
#include <cuda_fp8.h>

#include "pdl.cuh"
#include "_rope.cuh"

enum { SAME, E4M3, E5M2 };  // the elements of the cache: T, or 8-bit codes

template <typename T, int CACHE>
struct Cached { using type = unsigned char; };
template <typename T>
struct Cached<T, SAME> { using type = T; };

/// A scale and its reciprocal, correctly rounded. `plain`: neither is near the ends of float32's range.
struct Scale {
    float n, part;
    bool plain;
    __device__ explicit Scale(float s) : n(s), part(__frcp_rn(s)), plain(fabsf(s) >= 0x1p-60f && fabsf(s) <= 0x1p60f) {}
    /// v / n for plain scales, correctly rounded (Markstein 1990): three instructions, __fdiv_rn takes ten. Quotients too small for the
    /// residual to be exact are smaller than any code. The product is returned where it is infinite, which makes the residual NaN, or a
    /// zero, whose sign would be lost.
    __device__ float quotient(float v) const {
        const float q = v * part, found = fmaf(fmaf(-q, n, v), part, q);
        return fabsf(found) > 0 ? found : q;
    }
};

/// Stores a pack at `to` in the format of the cache.
template <typename T, int CACHE, int V>
__device__ void keep(typename Cached<T, CACHE>::type* to, Row<T, V>& x, const float (&f)[V], bool changed, const Scale& scale) {
    if constexpr (CACHE == SAME) {
        if (changed) x.narrow(f);
        x.store(to);
    } else {
        constexpr __nv_fp8_interpretation_t KIND = CACHE == E4M3 ? __NV_E4M3 : __NV_E5M2;
        Row<unsigned char, V> codes;
        unsigned char* out = reinterpret_cast<unsigned char*>(codes.w);
        float q[V];
        if (scale.plain) {
#pragma unroll
            for (int i = 0; i < V; ++i) q[i] = scale.quotient(f[i]);
        } else {
#pragma unroll
            for (int i = 0; i < V; ++i) q[i] = __fdiv_rn(f[i], scale.n);
        }
#pragma unroll
        for (int i = 0; i < V / 2; ++i) {
            reinterpret_cast<unsigned short*>(out)[i] = __nv_cvt_float2_to_fp8x2(make_float2(q[2 * i], q[2 * i + 1]), __NV_SATFINITE, KIND);
        }
        if (V == 1) out[0] = __nv_cvt_float_to_fp8(q[0], __NV_SATFINITE, KIND);
        codes.store(to);
    }
}

// A thread for each token, head and lane. Strides in elements; `room`: positions of a sequence; page_size: rows of a page. Without a page
// table a sequence is its page. Numbers are int32, or int64 where their bit of `wide` is set: lengths 1, pages 2, starts 4, new lengths 8.
template <typename T, typename C, int CACHE, bool ROTATES, bool HALF, int V, int ROT, int COPY>
__global__ void __launch_bounds__(256, ROTATES || CACHE != SAME ? 1 : 6) append_kv(
    const T* k, long long kb, long long ks, long long kh, const T* v, long long vb, long long vs, long long vh,
    long long kcp, long long kcr, long long kch, long long vcp, long long vcr, long long vch, int tokens, int N, int H,
    typename Cached<T, CACHE>::type* k_cache, typename Cached<T, CACHE>::type* v_cache, int sequences, int pages, int page_size, int room,
    int wide,
    const void* lengths, const void* page_table, long long tp, long long te, const void* starts, const void* new_lengths,
    const C* cos, const C* sin, long long tr, long long step, int table_rows, const float* k_scale, const float* v_scale, int k_scales,
    int v_scales) {
    using P = Places<HALF, V, ROT, COPY>;
    const unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
    const int lane = at % P::N, unit = at / P::N, head = unit % H, token = unit / H;
    const int first = P::first(lane), second = P::second(lane);
    const bool pair = P::pair(lane), turns = lane < ROT;
    gdc_wait();
    if (token >= tokens) return;

    int sequence = token / N;
    long long index = token - sequence * N;
    Row<T, V> k0, k1, v0, v1;
    const T* from_k = k + sequence * kb + index * ks + head * kh;
    const T* from_v = v + sequence * vb + index * vs + head * vh;
    k0.load(from_k + first);
    v0.load(from_v + first);
    if (pair) k1.load(from_k + second), v1.load(from_v + second);

    if (starts) {
        int low = 0, high = sequences;  // the last sequence that starts at or before the token (binary search)
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            (whole(starts, wide & 4, middle) <= token ? low : high) = middle;
        }
        sequence = low;
        index = token - whole(starts, wide & 4, low);
        if (index < 0 || token >= whole(starts, wide & 4, sequences)) return;
    } else if (new_lengths && index >= whole(new_lengths, wide & 8, sequence)) {
        return;
    }
    const long long position = whole(lengths, wide & 1, sequence) + index;
    if (position < 0 || position >= room || (ROTATES && position >= table_rows)) return;
    long long page = sequence;
    int row = static_cast<int>(position);
    if (page_table) {
        const int entry = row / page_size;
        row -= entry * page_size;
        page = whole(page_table, wide & 2, sequence * tp + entry * te);
        if (page < 0 || page >= pages) return;
    }

    const Scale k_unit(CACHE != SAME && k_scale ? k_scale[k_scales > 1 ? head : 0] : 1),
        v_unit(CACHE != SAME && v_scale ? v_scale[v_scales > 1 ? head : 0] : 1);
    const bool changed = ROTATES && turns;
    float f[V], g[V];
    k0.widen(f);
    if (pair) k1.widen(g);
    if (changed) {
        float c[V], s[V];
        read_angles<C, HALF, V, ROT>(cos + position * tr, sin + position * tr, step, lane, c, s);
        rotate<HALF, V>(f, g, c, s);
    }
    auto* to = k_cache + page * kcp + row * kcr + head * kch;
    keep<T, CACHE, V>(to + first, k0, f, changed, k_unit);
    if (pair) keep<T, CACHE, V>(to + second, k1, g, changed, k_unit);
    to = v_cache + page * vcp + row * vcr + head * vch;
    v0.widen(f);
    keep<T, CACHE, V>(to + first, v0, f, false, v_unit);
    if (!pair) return;
    v1.widen(g);
    keep<T, CACHE, V>(to + second, v1, g, false, v_unit);
}
