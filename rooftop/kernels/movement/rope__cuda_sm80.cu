/* rooftop
idea    = "A thread keeps the angles of one token and one pack of a head in registers and turns that pack in several heads, of Q and of K, with all its loads under way before the first store. Which neighbours a warp takes, heads or tokens, follows the strides, so both memory orders are read and written in whole lines."
predict = { speedup = 1.0 }
limit   = "The copy of the same bytes."
dtypes  = ["f32", "f16", "bf16"]
python  = ["supports", "choose", "launches"]
args    = [
    "q: T[B, S, H, D]", "qb: i64 = stride(q, 0)", "qs: i64 = stride(q, 1)", "qh: i64 = stride(q, 2)",
    "out_q: T[B, S, H, D]", "ob: i64 = stride(out_q, 0)", "os: i64 = stride(out_q, 1)", "oh: i64 = stride(out_q, 2)",
    "k: T[B, S, J, D]?", "kb: i64 = stride(k, 0)", "ks: i64 = stride(k, 1)", "kh: i64 = stride(k, 2)",
    "out_k: T[B, S, J, D]?", "lb: i64 = stride(out_k, 0)", "ls: i64 = stride(out_k, 1)", "lh: i64 = stride(out_k, 2)",
    "tokens: i32 = B * S", "S: i32", "H: i32", "offset: i32", "inverse: bool",
]
demands = { spills = 0 }

[config]
vector = 8
heads  = 1
reps   = 4
rows   = 8
*/
#include "chain.cuh"
#include "rotate.cuh"

// lanes × HEADS × rows threads: `rows` tokens, HEADS heads of them at once, REPS times. Heads count on from Q into K. Strides in elements.
template <typename T, typename C, bool MADE, bool HALF, int V, int ROT, int COPY, int HEADS, int REPS>
__global__ void __launch_bounds__(256) rope(
    const T* q, long long qb, long long qs, long long qh, T* out_q, long long ob, long long os, long long oh,
    const T* k, long long kb, long long ks, long long kh, T* out_k, long long lb, long long ls, long long lh,
    int tokens, int S, int H, int offset, bool inverse,
    int J, int rows, int chunks, bool heads_first, double log2_theta,
    const C* cos, const C* sin, long long tb, long long tr, long long step, int table_rows, const void* positions, long long pb, long long ps, bool wide) {
    using P = Places<HALF, V, ROT, COPY>;
    const int lane = threadIdx.x % P::N, unit = threadIdx.x / P::N, groups = (tokens + rows - 1) / rows;
    const int chunk = heads_first ? blockIdx.x % chunks : blockIdx.x / groups, group = heads_first ? blockIdx.x / chunks : blockIdx.x % groups;
    const int token = group * rows + unit / HEADS, head = chunk * HEADS * REPS + unit % HEADS;
    if (token >= tokens || unit / HEADS >= rows) {
        wait_for_before();
        return;
    }
    const int b = token / S, at = token % S, first = P::first(lane), second = P::second(lane);
    const bool pair = P::pair(lane), turns = lane < ROT;
    wait_for_before();

    Row<T, V> x[REPS], y[REPS];
#pragma unroll
    for (int u = 0; u < REPS; ++u) {
        const int h = head + u * HEADS;
        if (h >= H + J) continue;
        const T* from = h < H ? q + b * qb + at * qs + h * qh : k + b * kb + at * ks + (h - H) * kh;
        if (!turns && from == (h < H ? out_q + b * ob + at * os + h * oh : out_k + b * lb + at * ls + (h - H) * lh)) continue;
        x[u].load(from + first);
        if (pair) y[u].load(from + second);
    }
    float c[V], s[V];
    if (turns) {
        const long long row = offset + (positions ? whole(positions, wide, b * pb + at * ps) : static_cast<long long>(at));
        if (MADE) {
            make_angles<HALF, V, ROT>(static_cast<double>(row), log2_theta, lane, c, s);
        } else if (row >= 0 && row < table_rows) {
            read_angles<C, HALF, V, ROT>(cos + b * tb + row * tr, sin + b * tb + row * tr, step, lane, c, s);
        } else {
#pragma unroll
            for (int i = 0; i < V; ++i) c[i] = s[i] = __int_as_float(0x7fc00000);
        }
#pragma unroll
        for (int i = 0; i < V; ++i) s[i] = inverse ? -s[i] : s[i];
    }
#pragma unroll
    for (int u = 0; u < REPS; ++u) {
        const int h = head + u * HEADS;
        if (h >= H + J) continue;
        const T* from = h < H ? q + b * qb + at * qs + h * qh : k + b * kb + at * ks + (h - H) * kh;
        T* to = h < H ? out_q + b * ob + at * os + h * oh : out_k + b * lb + at * ls + (h - H) * lh;
        if (turns) {
            float f[V], g[V];
            x[u].widen(f);
            y[u].widen(g);
            rotate<HALF, V>(f, g, c, s);
            x[u].narrow(f);
            y[u].narrow(g);
        } else if (from == to) {  // in place: what is not rotated stays
            continue;
        }
        x[u].store(to + first);
        if (pair) y[u].store(to + second);
    }
}
