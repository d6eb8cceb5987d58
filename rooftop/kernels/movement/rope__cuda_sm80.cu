/* rooftop
idea    = """A thread keeps the angles of one token and one pack of a head in registers and rotates that pack in several heads, of Q and of \
  K, with all its loads in flight before the first store. The strides decide whether neighbouring lanes of a warp process neighbouring \
  heads or neighbouring tokens, so both memory orders are read and written in whole lines. If the two halves of the rotated part are not \
  aligned to 16 bytes, each thread moves one pack, and the packs with that part are rotated in shared memory."""
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
#include "pdl.cuh"
#include "_rope.cuh"

/// high + low: a number with twice the digits of a double.
struct Pair {
    double high, low;
    __device__ Pair times(Pair o) const {
        const double product = __dmul_rn(high, o.high);
        return {product, fma(high, o.low, fma(low, o.high, fma(high, o.high, -product)))};
    }
};

/// What angle i of COUNT grows by from one position to the next, ratio^i / 2π turns, in units of 2^-64 turns without the whole turns. One
/// thread a number, for the whole block. A double has 53 bits, whose last is radians at positions of 2^31 and more.
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
        steps[i] = static_cast<unsigned long long>((step.high - floor(step.high)) * 0x1p64)
            + static_cast<long long>(rint(step.low * 0x1p64));
    }
    __syncthreads();
}

/// Cosine and sine of an angle in units of 2^-64 turns, to about one unit in the last place. Integers wrap at a whole turn, so position ·
/// step is exact.
__device__ inline void make_angle(unsigned long long turns, float& c, float& s) {
    const unsigned quarters = (static_cast<unsigned>(turns >> 32) + 0x20000000u) >> 30;
    // quarter turns, -1/2 to 1/2
    const float x = static_cast<float>(static_cast<int>(static_cast<unsigned>(turns >> 30))) * 0x1p-32f, t = x * x;
    // minimax polynomials of sin(π/2 x) and cos(π/2 x), to 4e-9 and 6e-11; π/2 in two floats
    const float sine = fmaf(x, 1.5707964f, x * fmaf(t, fmaf(t, fmaf(t, -4.6053098e-3f, 7.9681579e-2f), -0.64596364f), -4.3711390e-8f));
    const float cosine = fmaf(t, fmaf(t, fmaf(t, fmaf(t, 9.0402167e-4f, -2.0860289e-2f), 0.25366924f), -1.2337005f), 1.0f);
    const bool odd = quarters & 1;
    s = __uint_as_float(__float_as_uint(odd ? cosine : sine) ^ (quarters & 2) << 30);
    c = __uint_as_float(__float_as_uint(odd ? sine : cosine) ^ ((quarters + 1) & 2) << 30);
}

/// n / d, 0 <= n < 2^31, with `part` and `bits` of d from the host: (n · (2^32 + part)) >> (32 + bits).
__device__ inline int quotient(int n, unsigned part, int bits) { return (__umulhi(n, part) + n) >> bits; }

/// One element of a token's head `head` in Q or in K, where it is read and written, and how far it is to the next head's. No head is
/// `heads` or more.
template <typename T>
struct Place {
    const T* from;
    T* to;
    long long from_step, to_step;
    int heads;
    __device__ Place(const T* x, long long xb, long long xs, long long xh, T* y, long long yb, long long ys, long long yh, int b, int at,
        int head, int heads)
        : from(x + b * xb + at * xs + head * xh), to(y + b * yb + at * ys + head * yh), from_step(xh), to_step(yh), heads(heads) {}
};

// lanes × HEADS × rows threads: `rows` tokens, HEADS heads of them at once, REPS times: one chunk of the heads of Q (the first q_chunks) or
// of K. Blocks are counted through chunks of one group of tokens (heads_first) or through groups, `inner` of them. Strides in elements.
template <typename T, typename C, bool MADE, bool HALF, int V, int ROT, int COPY, int HEADS, int REPS>
__global__ void __launch_bounds__(256) rope(
    const T* q, long long qb, long long qs, long long qh, T* out_q, long long ob, long long os, long long oh,
    const T* k, long long kb, long long ks, long long kh, T* out_k, long long lb, long long ls, long long lh,
    int tokens, int S, int H, int offset, bool inverse,
    int J, int rows, int q_chunks, bool heads_first, int inner, unsigned inner_part, int inner_bits, unsigned S_part, int S_bits,
    double ratio, double ratio_low,
    const C* cos, const C* sin, long long tb, long long tr, long long step, int table_rows, const void* positions, long long pb,
    long long ps, bool wide) {
    using P = Places<HALF, V, ROT, COPY>;
    __shared__ unsigned long long steps[MADE ? ROT * V : 1];
    make_steps<MADE, ROT * V>(steps, {ratio, ratio_low});
    const int lane = threadIdx.x % P::N, unit = threadIdx.x / P::N, outer = quotient(blockIdx.x, inner_part, inner_bits),
        left = blockIdx.x - outer * inner;
    const int chunk = heads_first ? left : outer, group = heads_first ? outer : left;
    const int token = group * rows + unit / HEADS;
    if (token >= tokens) {
        gdc_wait();
        return;
    }
    const int b = quotient(token, S_part, S_bits), at = token - b * S, first = P::first(lane), second = P::second(lane);
    const bool pair = P::pair(lane), turns = lane < ROT, keys = chunk >= q_chunks;
    const int head = (keys ? chunk - q_chunks : chunk) * HEADS * REPS + unit % HEADS;
    const Place<T> place = keys ? Place<T>(k, kb, ks, kh, out_k, lb, ls, lh, b, at, head, J)
        : Place<T>(q, qb, qs, qh, out_q, ob, os, oh, b, at, head, H);
    const int heads = turns || place.from != place.to ? place.heads : 0;  // in place: elements that are not rotated stay
    gdc_wait();

    Row<T, V> x[REPS], y[REPS];
    const T* from = place.from;
#pragma unroll
    for (int u = 0; u < REPS; ++u, from += HEADS * place.from_step) {
        if (head + u * HEADS >= heads) continue;
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
    T* to = place.to;
#pragma unroll
    for (int u = 0; u < REPS; ++u, to += HEADS * place.to_step) {
        if (head + u * HEADS >= heads) continue;
        if (turns) {
            float f[V], g[V];
            x[u].widen(f);
            y[u].widen(g);
            rotate<HALF, V>(f, g, c, s);
            x[u].narrow(f);
            y[u].narrow(g);
        }
        x[u].store(to + first);
        if (pair) y[u].store(to + second);
    }
}

/// The same if R / 2 elements are not whole packs. Each of the W packs of 16 bytes of a head has a thread, so that a warp reads and writes
/// whole sectors. The first P of them, which hold the R elements to be rotated, are rotated in shared memory, each pair of elements or two
/// by the next free thread.
template <typename T, typename C, bool MADE, bool HALF, int R, int P, int W, int HEADS, int REPS>
__global__ void __launch_bounds__(256) rope_part(
    const T* q, long long qb, long long qs, long long qh, T* out_q, long long ob, long long os, long long oh,
    const T* k, long long kb, long long ks, long long kh, T* out_k, long long lb, long long ls, long long lh,
    int tokens, int S, int H, int offset, bool inverse,
    int J, int rows, int q_chunks, bool heads_first, int inner, unsigned inner_part, int inner_bits, unsigned S_part, int S_bits,
    double ratio, double ratio_low,
    const C* cos, const C* sin, long long tb, long long tr, long long step, int table_rows, const void* positions, long long pb,
    long long ps, bool wide) {
    constexpr int V = 16 / sizeof(T), HALVES = R / 2, UNITS = 256 / W, SLOTS = HEADS * REPS;
    // a task: E angles, so that elements are read in words of 4 bytes
    constexpr int E = HALF && sizeof(T) == 2 && HALVES % 2 == 0 ? 2 : 1, TASKS = HALVES / E;
    __shared__ unsigned long long steps[MADE ? HALVES : 1];
    __shared__ uint4 packs[UNITS * REPS * P];
    __shared__ float2 angles[UNITS * HALVES];
    make_steps<MADE, HALVES>(steps, {ratio, ratio_low});
    const int pack = threadIdx.x % W, unit = threadIdx.x / W, outer = quotient(blockIdx.x, inner_part, inner_bits),
        left = blockIdx.x - outer * inner;
    const int chunk = heads_first ? left : outer, group = heads_first ? outer : left;
    const int token = group * rows + unit / HEADS, b = quotient(token, S_part, S_bits), at = token - b * S;
    const bool turns = pack < P, keys = chunk >= q_chunks;
    const int first = (keys ? chunk - q_chunks : chunk) * SLOTS, head = first + unit % HEADS;
    const Place<T> place = keys ? Place<T>(k, kb, ks, kh, out_k, lb, ls, lh, b, at, head, J)
        : Place<T>(q, qb, qs, qh, out_q, ob, os, oh, b, at, head, H);
    // in place: elements that are not rotated stay
    const int heads = token < tokens && (turns || place.from != place.to) ? place.heads : 0;
    uint4* const mine = packs + (unit / HEADS * SLOTS + unit % HEADS) * P + pack;
    gdc_wait();

    Row<T, V> x[REPS];
    const T* from = place.from + pack * V;
#pragma unroll
    for (int u = 0; u < REPS; ++u, from += HEADS * place.from_step) {
        if (head + u * HEADS < heads) x[u].load(from);
    }
    for (int i = threadIdx.x; i < rows * HALVES; i += blockDim.x) {
        const int t = group * rows + i / HALVES, angle = i % HALVES, sequence = quotient(t, S_part, S_bits), ts = t - sequence * S;
        if (t >= tokens) break;
        const long long row = offset + (positions ? whole(positions, wide, sequence * pb + ts * ps) : static_cast<long long>(ts));
        float c = __int_as_float(0x7fc00000), s = c;
        if (MADE) {
            make_angle(row * steps[MADE ? angle : 0], c, s);
        } else if (row >= 0 && row < table_rows) {
            const long long place = sequence * tb + row * tr + angle * step;
            c = static_cast<float>(cos[place]), s = static_cast<float>(sin[place]);
        }
        angles[i] = make_float2(c, inverse ? -s : s);
    }
#pragma unroll
    for (int u = 0; u < REPS; ++u) {
        if (turns && head + u * HEADS < heads) mine[u * HEADS * P] = x[u].w[0];
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < (REPS * TASKS + W - 1) / W; ++n) {
        const int task = threadIdx.x + n * blockDim.x, slot = task / TASKS, i = task % TASKS * E, row = slot / SLOTS;
        if (row >= rows || group * rows + row >= tokens || first + slot % SLOTS >= place.heads) continue;
        T* const e = reinterpret_cast<T*>(packs + slot * P);
        const float2* const angle = angles + row * HALVES + i;
        if constexpr (HALF) {
            Row<T, E> one, two;
            float f[E], g[E];
            one.load(e + i);
            two.load(e + HALVES + i);
            one.widen(f);
            two.widen(g);
#pragma unroll
            for (int j = 0; j < E; ++j) turn(f[j], g[j], angle[j].x, angle[j].y);
            one.narrow(f);
            two.narrow(g);
            one.store(e + i);
            two.store(e + HALVES + i);
        } else {
            Row<T, 2> both;
            float f[2];
            both.load(e + 2 * i);
            both.widen(f);
            turn(f[0], f[1], angle->x, angle->y);
            both.narrow(f);
            both.store(e + 2 * i);
        }
    }
    __syncthreads();
    T* to = place.to + pack * V;
#pragma unroll
    for (int u = 0; u < REPS; ++u, to += HEADS * place.to_step) {
        if (head + u * HEADS >= heads) continue;
        if (turns) x[u].w[0] = mine[u * HEADS * P];
        x[u].store(to);
    }
}
