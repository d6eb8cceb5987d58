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

/// high + low: a number with twice the digits of a double.
struct Pair {
    double high, low;
    __device__ Pair times(Pair o) const {
        const double product = __dmul_rn(high, o.high);
        return {product, fma(high, o.low, fma(low, o.high, fma(high, o.high, -product)))};
    }
};

/// What angle i of COUNT grows by from one position to the next, ratio^i / 2π turns, in units of 2^-64 turns without the whole turns. One thread a number,
/// for the whole block. A double has 53 bits, whose last is radians at positions of 2^31 and more.
template <bool MADE, int COUNT>
__device__ void make_steps(unsigned long long (&steps)[MADE ? COUNT : 1], Pair ratio) {
    if (!MADE) return;
    for (int i = threadIdx.x; i < COUNT; i += blockDim.x) {
        Pair step = {0.15915494309189535, -9.839338337591243e-18}, power = ratio;  // 1 / 2π
#pragma unroll
        for (int bit = 1; bit < COUNT; bit *= 2) {
            if (i & bit) step = step.times(power);
            power = power.times(power);
        }
        steps[i] = static_cast<unsigned long long>((step.high - floor(step.high)) * 0x1p64) + static_cast<long long>(rint(step.low * 0x1p64));
    }
    __syncthreads();
}

/// Cosine and sine of an angle in units of 2^-64 turns, to about one unit in the last place. Integers wrap at a whole turn, so position · step is exact.
__device__ inline void make_angle(unsigned long long turns, float& c, float& s) {
    const unsigned quarters = (static_cast<unsigned>(turns >> 32) + 0x20000000u) >> 30;
    const float x = static_cast<float>(static_cast<int>(static_cast<unsigned>(turns >> 30))) * 0x1p-32f, t = x * x;  // quarter turns, -1/2 to 1/2
    // minimax polynomials of sin(π/2 x) and cos(π/2 x), to 4e-9 and 6e-11; π/2 in two floats
    const float sine = fmaf(x, 1.5707964f, x * fmaf(t, fmaf(t, fmaf(t, -4.6053098e-3f, 7.9681579e-2f), -0.64596364f), -4.3711390e-8f));
    const float cosine = fmaf(t, fmaf(t, fmaf(t, fmaf(t, 9.0402167e-4f, -2.0860289e-2f), 0.25366924f), -1.2337005f), 1.0f);
    const bool odd = quarters & 1;
    s = __uint_as_float(__float_as_uint(odd ? cosine : sine) ^ (quarters & 2) << 30);
    c = __uint_as_float(__float_as_uint(odd ? sine : cosine) ^ ((quarters + 1) & 2) << 30);
}

// lanes × HEADS × rows threads: `rows` tokens, HEADS heads of them at once, REPS times. Heads are counted through q, then k. Strides in elements.
template <typename T, typename C, bool MADE, bool HALF, int V, int ROT, int COPY, int HEADS, int REPS>
__global__ void __launch_bounds__(256) rope(
    const T* q, long long qb, long long qs, long long qh, T* out_q, long long ob, long long os, long long oh,
    const T* k, long long kb, long long ks, long long kh, T* out_k, long long lb, long long ls, long long lh,
    int tokens, int S, int H, int offset, bool inverse,
    int J, int rows, int chunks, bool heads_first, double ratio, double ratio_low,
    const C* cos, const C* sin, long long tb, long long tr, long long step, int table_rows, const void* positions, long long pb, long long ps, bool wide) {
    using P = Places<HALF, V, ROT, COPY>;
    __shared__ unsigned long long steps[MADE ? ROT * V : 1];
    make_steps<MADE, ROT * V>(steps, {ratio, ratio_low});
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
            for (int i = 0; i < V; ++i) make_angle(row * steps[angle_of<HALF, V, ROT>(lane, i)], c[i], s[i]);
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
    int J, int rows, int chunks, bool heads_first, double ratio, double ratio_low,
    const C* cos, const C* sin, long long tb, long long tr, long long step, int table_rows, const void* positions, long long pb, long long ps, bool wide) {
    constexpr int V = 16 / sizeof(T), SIDE = (COPY + P - 1) / P, N = 1 + SIDE, HALVES = R / 2;
    __shared__ unsigned long long steps[MADE ? HALVES : 1];
    make_steps<MADE, HALVES>(steps, {ratio, ratio_low});
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
            if (MADE) make_angle(row * steps[MADE ? i : 0], c[i], s[i]);
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
