/* rooftop
idea    = """A group of lanes computes the range of visible keys of its row once and then writes the row in packs of 16 bytes. All but two \
  packs are one constant. Long rows are written by whole lines, wherever they start; the elements before the first and after the last pack \
  by one store of as many lanes. The kernel reads only two lengths."""
predict = { speedup = 1.0 }
limit   = "The write of the same bytes."
dtypes  = ["f32", "f16", "bf16", "bool"]
python  = ["supports", "choose", "launches"]
args    = [
    "mask: T[B, H, R, K]", "mb: i64 = stride(mask, 0)", "mh: i64 = stride(mask, 1)", "mr: i64 = stride(mask, 2)",
    "H: i32", "R: i32", "K: i32", "fill: f32 = 0 if T == 'bool' else fill",
]
demands = { has = ["STG.E.128"], spills = 0 }

[config]
lanes = 32
part  = 8192
*/
#include "pdl.cuh"
#include "_key_ranges.cuh"

/// The bits of the first n elements of SIZE bytes of a 32-bit word.
template <int SIZE>
__device__ unsigned leading(int n) {
    return n <= 0 ? 0 : n >= 4 / SIZE ? ~0u : (1u << 8 * SIZE * n) - 1;
}

/// One element's bits repeated over a word.
template <typename T>
__device__ unsigned repeated(T v) {
    if (sizeof(T) == 4) return __float_as_uint(static_cast<float>(v));
    if (sizeof(T) == 2) return *reinterpret_cast<const unsigned short*>(&v) * 0x10001u;
    return *reinterpret_cast<const unsigned char*>(&v) * 0x01010101u;
}

// A row has `parts` parts of PART bytes, LANES lanes a part. Elements of the range are true or 0; the others false or `fill`. Strides in
// elements.
template <typename T, bool BOOL, int LANES, int PART>
__global__ void __launch_bounds__(256) attention_mask(
    T* mask, long long mb, long long mh, long long mr, int H, int R, int K, float fill,
    int units, int parts, int group, int left, int right, const void* lengths, const void* q_lengths, int wide) {
    constexpr int SIZE = sizeof(T), V = 16 / SIZE, PER = PART / SIZE;
    const int lane = threadIdx.x % LANES;
    const int unit = blockIdx.x * (256 / LANES) + threadIdx.x / LANES, part = unit % parts, row = unit / parts % R,
        head = unit / parts / R % H, b = unit / parts / R / H;
    const T yes = BOOL ? T(true) : T(0.0f), no = BOOL ? T(false) : T(fill);
    const unsigned on = repeated(yes), off = repeated(no);
    gdc_wait();
    if (unit >= units) return;
    const Span span = span_of(b, row, R, K, group, left, right, lengths, q_lengths, wide);

    T* to = mask + b * mb + head * mh + row * mr;
    constexpr int LINE = LANES == 32 ? 128 : 16;  // bytes: the first pack of a part starts on a multiple, possibly before the row
    const unsigned long long address = reinterpret_cast<unsigned long long>(to);
    const int from = part * PER - static_cast<int>(address % LINE) / SIZE, end = min(K, from + PER);
    for (int at = from + lane * V; at + V <= end; at += LANES * V) {
        if (at < 0) continue;
        const int begin_here = span.begin - at, end_here = span.end - at;
        const unsigned all = begin_here <= 0 && end_here >= V ? on : off;
        unsigned w[4] = {all, all, all, all};
        if ((begin_here > 0 && begin_here < V) || (end_here > 0 && end_here < V)) {  // an end of the range is in this pack
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const unsigned m = leading<SIZE>(end_here - i * (4 / SIZE)) & ~leading<SIZE>(begin_here - i * (4 / SIZE));
                w[i] = (on & m) | (off & ~m);
            }
        }
        *reinterpret_cast<uint4*>(to + at) = make_uint4(w[0], w[1], w[2], w[3]);
    }
    // elements of the row's first pack before it, of its last pack in it
    const int skew = static_cast<int>(address % 16) / SIZE, rest = (skew + K) % V;
    if (skew == 0 && rest == 0) return;
    for (int i = lane; i < 2 * V; i += LANES) {
        const int k = i < V ? i - skew : K - rest + i - V;
        const bool mine = i < V ? skew > 0 && part == 0 : K >= rest && k >= from && k < from + PER;
        if (mine && k >= 0 && k < K) to[k] = k >= span.begin && k < span.end ? yes : no;
    }
}
