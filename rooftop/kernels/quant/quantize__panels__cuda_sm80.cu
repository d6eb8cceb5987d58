/* rooftop
idea    = """Tall columns are divided into panels of a few columns, each much smaller than L2. Blocks fetch work items in order from an \
  atomic counter. An item of the first kind reduces the maxima of absolute values of its columns into scratch memory with atomics; an item \
  of the second kind, a few panels later, reads the same rows again from L2, divides and encodes. Items of both kinds alternate, so that \
  memory is read and written all the time."""
limit   = "L2 bandwidth: every element is read from L2 twice"
dtypes  = ["f32", "f16", "bf16"]
args    = ["over: f32[1]?", "seed: i32"]
python  = ["choose", "launches", "scratch", "zeroed"]
demands = { spills = 0 }

[config]
vec     = 8
packs   = 16
threads = 128
steps   = 8
lag     = 3
blocks  = 6
*/
#include "pdl.cuh"
#include "_column_strips.cuh"

/// A panel is PACKS packs of V columns of one group of `rows` rows, in `items` items of STEPS * THREADS / PACKS rows. An item of the second
/// pass comes `lag` panels after those of the first pass, all of which have a lower ticket: they have started, so no block waits forever.
template <typename T, int F, int S, int ROUND, bool SYMMETRIC, int V, int PACKS, int STEPS, int THREADS, int BLOCKS>
__global__ void __launch_bounds__(THREADS, BLOCKS)
quantize_panels(int R, int C, long long xa, long long xs, const T* __restrict__ x, int rows, int down, int tiles, int panels, int items,
    int lag,
                unsigned* __restrict__ largest, unsigned* __restrict__ lowest, unsigned* done, unsigned* unclean, unsigned* ticket,
                const float* __restrict__ over, unsigned char* __restrict__ codes, typename ScaleType<S>::Stored* __restrict__ scale,
                unsigned char* __restrict__ zero, int seed) {
    using X = Format<F>;
    using By = DividedBy<F, S, ROUND>;
    using Mine = Strip<T, V, PACKS, THREADS>;
    constexpr int PER = Held<T, V>::PER, WORDS = Mine::WORDS, ABREAST = Mine::ABREAST, WIDE = Mine::WIDE, SIDES = SYMMETRIC ? 1 : 2;
    __shared__ unsigned maxima[SIDES * Mine::FOLDED * ABREAST], mine;
    __shared__ float2 of_columns[V][PACKS];
    __shared__ float lifts[V][PACKS];
    __shared__ int offsets[SYMMETRIC ? 1 : V][PACKS];
    gdc_wait();
    if (threadIdx.x == 0) mine = atomicAdd(ticket, 1u);
    __syncthreads();
    const unsigned at = mine, head = static_cast<unsigned>(lag) * items, both = 2u * static_cast<unsigned>(panels - lag) * items;
    bool second = false;
    unsigned panel, item;
    if (at < head) panel = at / items, item = at % items;
    else if (at < head + both) {
        const unsigned k = at - head, of = k % (2 * items);
        second = of % 2, item = of / 2, panel = k / (2 * items) + (second ? 0 : lag);
    } else {
        const unsigned k = at - head - both;
        second = true, panel = panels - lag + k / items, item = k % items;
    }
    const int tile = panel % tiles, group = panel / tiles % down, a = panel / tiles / down;
    const Mine strip;
    const int c = tile * WIDE + strip.pack * V;
    const int last = min(R, (group + 1) * rows), r0 = group * rows + item * (STEPS * Mine::HIGH) + strip.row;
    // index among the scales of the panel's first column
    const long long columns = (static_cast<long long>(a) * down + group) * C + tile * WIDE;
    x += a * xa + c;
    Held<T, V> held[STEPS];
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
        const int r = r0 + k * Mine::HIGH;
        held[k].clear();
        if (r >= last || c >= C) continue;
        if (second) held[k].load(x + r * xs);
        else held[k].load_kept(x + r * xs);
    }

    if (!second) {
#pragma unroll 1
        for (int again = 0; again < 2; ++again) {  // a second pass without infinities and NaN, if there are any
            Most<T> above[WORDS], below[WORDS];
#pragma unroll
            for (int k = 0; k < STEPS; ++k) {
#pragma unroll
                for (int i = 0; i < WORDS; ++i) {
                    if (SYMMETRIC) above[i].over_size(held[k].w[i]);
                    else above[i].over(held[k].w[i]), below[i].over_negative(held[k].w[i]);
                }
            }
            strip.template fold<SYMMETRIC>(maxima, above, below);
            __syncthreads();
            bool found = false;
            for (int t = threadIdx.x; t < SIDES * ABREAST; t += THREADS) {
                Most<T> m;
                const unsigned* from = maxima + t / ABREAST * (Mine::FOLDED * ABREAST) + t % ABREAST;
#pragma unroll
                for (int i = 0; i < Mine::FOLDED; ++i) m.over(from[i * ABREAST]);
                unsigned b[PER];
                m.bits(b);
#pragma unroll
                for (int i = 0; i < PER; ++i) {
                    const int column = t % ABREAST * PER + i;
                    found |= b[i] >= INFINITE_BITS;
                    if (b[i] > 0 && b[i] < INFINITE_BITS
                        && tile * WIDE + column < C) atomicMax((t < ABREAST ? largest : lowest) + columns + column, b[i]);
                }
            }
            if (!__syncthreads_or(found)) break;
            if (threadIdx.x == 0) atomicOr(unclean + panel, 1u);
#pragma unroll
            for (int k = 0; k < STEPS; ++k) held[k].drop_unclean();
        }
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) atomicAdd(done + panel, 1u);
        return;
    }

    if (threadIdx.x == 0) {
        while (*static_cast<volatile unsigned*>(done + panel) < static_cast<unsigned>(items)) { }
        __threadfence();
    }
    __syncthreads();
    const bool dirty = __ldcg(unclean + panel) != 0;
    bool alarm = false;
    for (int t = threadIdx.x; t < WIDE; t += THREADS) {  // one column a thread
        if (tile * WIDE + t >= C) continue;
        const float up = __uint_as_float(__ldcg(largest + columns + t)),
            lower = SYMMETRIC ? 0.f : __uint_as_float(__ldcg(lowest + columns + t));
        typename ScaleType<S>::Stored stored;
        if constexpr (SYMMETRIC) stored = scale_of<F, S>(up, over);
        else stored = store_scale<S>(__fadd_rn(__fdiv_rn(up, X::STEPS), __fdiv_rn(lower, X::STEPS)));
        const float s = effective<S>(stored, over);
        const By by(s, fmaxf(up, lower), dirty);
        of_columns[t % V][t / V] = make_float2(by.s, by.part);
        lifts[t % V][t / V] = by.lift;
        alarm |= by.careful;
        const int offset = SYMMETRIC ? 0 : zero_point<F>(lower, s);
        if constexpr (!SYMMETRIC) offsets[t % V][t / V] = offset;
        if (item == 0) {
            scale[columns + t] = stored;
            if (!SYMMETRIC) zero[columns + t] = static_cast<unsigned char>(offset);
        }
    }
    const bool careful = __syncthreads_or(alarm);
    if (c >= C) return;
    By divided[V];
    int offset[SYMMETRIC ? 1 : V];
#pragma unroll
    for (int i = 0; i < V; ++i) {
        const float2 of = of_columns[i][strip.pack];
        divided[i].s = of.x, divided[i].part = of.y;
        if constexpr (!SYMMETRIC) offset[i] = offsets[i][strip.pack];
    }
    const long long row_bytes = static_cast<long long>(C) * X::BITS / 8, top = static_cast<long long>(a) * R;
    codes += static_cast<long long>(c / V) * (V * X::BITS / 8);
    const auto zeros = [&](int i) { return SYMMETRIC ? X::MIDDLE : offset[SYMMETRIC ? 0 : i]; };
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
        const int r = r0 + k * Mine::HIGH;
        if (r >= last) continue;
        const Drawn<V, true> random(seed, static_cast<unsigned long long>(top + r) * C + c);
        unsigned out[(V * X::BITS + 31) / 32];
        if (careful) {
            const auto by = [&](int i) {
                By one = divided[i];
                one.lift = lifts[i][strip.pack];
                return one;
            };
            encode<F, ROUND, SYMMETRIC, V>(out, [&](int i) { return held[k][i]; }, random, by, zeros);
        } else {
            const auto by = [&](int i) -> const By& { return divided[i]; };
            encode_clean<F, S, ROUND, SYMMETRIC>(out, held[k], random, by, zeros);
        }
        store_codes<X::BITS, V, true>(codes + (top + r) * row_bytes, out, V);
    }
}
