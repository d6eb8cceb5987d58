/* rooftop
idea    = "A thread keeps the angles of one token and one pack of a head in registers and rotates that pack in several heads, of Q and of K, with all its loads in flight before the first store. The strides decide whether neighbouring lanes of a warp process neighbouring heads or neighbouring tokens, so both memory orders are read and written in whole lines. If the two halves of the rotated part are not aligned to 16 bytes, one thread rotates all of it in whole packs, and other threads copy the rest."
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
part   = 0
*/
#include "chain.cuh"
#include "rotate.cuh"

/// The increment of angle i of COUNT from one position to the next, in half turns: theta^(-i / COUNT) / π. One thread a number, for the whole block.
template <bool MADE, int COUNT>
__device__ void make_steps(double (&steps)[MADE ? COUNT : 1], double log2_theta) {
    if (!MADE) return;
    gdc_wait();  // before the call: `rooftop inspect` cannot tell that a call accesses no memory
    for (int i = threadIdx.x; i < COUNT; i += blockDim.x) steps[i] = exp2(-log2_theta * i / COUNT) / 3.14159265358979323846;
    __syncthreads();
}

/// Cosine and sine of an angle at a position: in double until the angle is reduced to a fraction of a turn, so that large positions are as accurate as small
/// ones.
__device__ inline void make_angle(double position, double step, float& c, float& s) {
    const double x = position * step;
    const float left = static_cast<float>(x - 2 * rint(x / 2));
    c = cospif(left), s = sinpif(left);
}

// lanes × HEADS × rows threads: `rows` tokens, HEADS heads of them at once, REPS times. Heads are counted through q, then k. Strides in elements.
template <typename T, typename C, bool MADE, bool HALF, int V, int ROT, int COPY, int HEADS, int REPS>
__global__ void __launch_bounds__(256) rope(
    const T* q, long long qb, long long qs, long long qh, T* out_q, long long ob, long long os, long long oh,
    const T* k, long long kb, long long ks, long long kh, T* out_k, long long lb, long long ls, long long lh,
    int tokens, int S, int H, int offset, bool inverse,
    int J, int rows, int chunks, bool heads_first, double log2_theta,
    const C* cos, const C* sin, long long tb, long long tr, long long step, int table_rows, const void* positions, long long pb, long long ps, bool wide) {
    using P = Places<HALF, V, ROT, COPY>;
    __shared__ double steps[MADE ? ROT * V : 1];
    make_steps<MADE, ROT * V>(steps, log2_theta);
    const int lane = threadIdx.x % P::N, unit = threadIdx.x / P::N, groups = (tokens + rows - 1) / rows;
    const int chunk = heads_first ? blockIdx.x % chunks : blockIdx.x / groups, group = heads_first ? blockIdx.x / chunks : blockIdx.x % groups;
    const int token = group * rows + unit / HEADS, head = chunk * HEADS * REPS + unit % HEADS;
    if (token >= tokens || unit / HEADS >= rows) {
        gdc_wait();
        return;
    }
    const int b = token / S, at = token % S, first = P::first(lane), second = P::second(lane);
    const bool pair = P::pair(lane), turns = lane < ROT;
    gdc_wait();

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
#pragma unroll
            for (int i = 0; i < V; ++i) make_angle(static_cast<double>(row), steps[angle_of<HALF, V, ROT>(lane, i)], c[i], s[i]);
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
        } else if (from == to) {  // in place: elements that are not rotated stay
            continue;
        }
        x[u].store(to + first);
        if (pair) y[u].store(to + second);
    }
}

/// The same if R / 2 elements are not whole packs: the first thread of a head has the P packs of 16 bytes that hold the R elements to be rotated, and each
/// other thread up to P of the COPY packs after them.
template <typename T, typename C, bool MADE, bool HALF, int R, int P, int COPY, int HEADS, int REPS>
__global__ void __launch_bounds__(256) rope_part(
    const T* q, long long qb, long long qs, long long qh, T* out_q, long long ob, long long os, long long oh,
    const T* k, long long kb, long long ks, long long kh, T* out_k, long long lb, long long ls, long long lh,
    int tokens, int S, int H, int offset, bool inverse,
    int J, int rows, int chunks, bool heads_first, double log2_theta,
    const C* cos, const C* sin, long long tb, long long tr, long long step, int table_rows, const void* positions, long long pb, long long ps, bool wide) {
    constexpr int V = 16 / sizeof(T), SIDE = (COPY + P - 1) / P, N = 1 + SIDE, HALVES = R / 2;
    __shared__ double steps[MADE ? HALVES : 1];
    make_steps<MADE, HALVES>(steps, log2_theta);
    const int lane = threadIdx.x % N, unit = threadIdx.x / N, groups = (tokens + rows - 1) / rows;
    const int chunk = heads_first ? blockIdx.x % chunks : blockIdx.x / groups, group = heads_first ? blockIdx.x / chunks : blockIdx.x % groups;
    const int token = group * rows + unit / HEADS, head = chunk * HEADS * REPS + unit % HEADS;
    if (token >= tokens || unit / HEADS >= rows) {
        gdc_wait();
        return;
    }
    const int b = token / S, at = token % S;
    const bool turns = lane == 0;
    gdc_wait();

    const auto place = [&](int i) { return (turns ? i : P + lane - 1 + i * SIDE) * V; };
    const auto there = [&](int i) { return turns || lane - 1 + i * SIDE < COPY; };
    Row<T, V> x[REPS][P];
#pragma unroll
    for (int u = 0; u < REPS; ++u) {
        const int h = head + u * HEADS;
        if (h >= H + J) continue;
        const T* from = h < H ? q + b * qb + at * qs + h * qh : k + b * kb + at * ks + (h - H) * kh;
        if (!turns && from == (h < H ? out_q + b * ob + at * os + h * oh : out_k + b * lb + at * ls + (h - H) * lh)) continue;
#pragma unroll
        for (int i = 0; i < P; ++i) {
            if (there(i)) x[u][i].load(from + place(i));
        }
    }
    float c[HALVES], s[HALVES];
    if (turns) {
        const long long row = offset + (positions ? whole(positions, wide, b * pb + at * ps) : static_cast<long long>(at));
        const bool inside = MADE || (row >= 0 && row < table_rows);
#pragma unroll
        for (int i = 0; i < HALVES; ++i) {
            c[i] = s[i] = __int_as_float(0x7fc00000);
            if (MADE) make_angle(static_cast<double>(row), steps[MADE ? i : 0], c[i], s[i]);
            else if (inside) c[i] = static_cast<float>(cos[b * tb + row * tr + i * step]), s[i] = static_cast<float>(sin[b * tb + row * tr + i * step]);
            if (inverse) s[i] = -s[i];
        }
    }
#pragma unroll
    for (int u = 0; u < REPS; ++u) {
        const int h = head + u * HEADS;
        if (h >= H + J) continue;
        const T* from = h < H ? q + b * qb + at * qs + h * qh : k + b * kb + at * ks + (h - H) * kh;
        T* to = h < H ? out_q + b * ob + at * os + h * oh : out_k + b * lb + at * ls + (h - H) * lh;
        if (turns) {
            T* e = reinterpret_cast<T*>(x[u]);
            float f[R];
#pragma unroll
            for (int i = 0; i < R; ++i) f[i] = static_cast<float>(e[i]);
#pragma unroll
            for (int i = 0; i < HALVES; ++i) turn(f[HALF ? i : 2 * i], f[HALF ? i + HALVES : 2 * i + 1], c[i], s[i]);
#pragma unroll
            for (int i = 0; i < R; ++i) e[i] = T(f[i]);
        } else if (from == to) {  // in place: elements that are not rotated stay
            continue;
        }
#pragma unroll
        for (int i = 0; i < P; ++i) {
            if (there(i)) x[u][i].store(to + place(i));
        }
    }
}
