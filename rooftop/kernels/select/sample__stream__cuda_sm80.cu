/* rooftop
idea    = """One block a row, two blocks a multiprocessor, which stream the row. A plain draw reads it once: each chunk's weights are \
  summed relative to the largest logit that the thread has seen so far, and at the end all sums are rescaled to the row's largest; then the \
  chunk that contains the draw is read again. min_p: one read for the largest logit, one for the sums. top_k up to 1024: a sample gives a \
  pivot, and one read keeps the few elements that reach it. top_p: in addition to the read of a plain draw, a second one adds up the \
  weights that are certainly in the nucleus and lists the elements near its end, which a sample estimates. So there is no histogram of the \
  row, and no atomic addition an element. If the sample was misleading, and for +infinity or a larger top_k, the end is found by a search \
  digit by digit of the keys."""
limit   = """On an H200, 256x128256 bfloat16, whose read takes 15 us: plain 21.6, min_p 36, top_k 51, top_p 210; 1024x128256 float32 plain \
  136, top_k 208. For top_p 48 was predicted: with normally distributed logits more elements lie near the end of the nucleus than the \
  sample can separate, and the search digit by digit follows. With 256 rows there is a single wave of blocks, in which nothing overlaps \
  with the sample and the last steps."""
dtypes  = ["f32", "f16", "bf16"]
args    = ["logits: T[R, N]"]
demands = { has = ["LDG.128", "MUFU"], spills = 0 }
python  = ["supports", "choose", "for_any_rows", "launches"]
*/
#include <math_constants.h>

#include "_threshold_rows.cuh"
#include "_draw_rows.cuh"
#include "_draw_nucleus.cuh"

// A draw from the first top_k elements of a row, top_k <= LIST. A sample of the row gives a pivot (_threshold_rows.cuh); one read keeps the
// elements that reach it.
namespace draws {

/// Selects the first `limit` <= LIST of n elements, with a sample of m of them, and draws. `keys`, `at`: `capacity` entries of shared
/// memory.
template <typename T>
__device__ void draw_from_first(const bits_of<T>* r, unsigned n, unsigned limit, unsigned m, unsigned capacity, int index_bits,
    float temperature, float top_p,
                                float min_p, Sum u, unsigned* keys, unsigned* at, long long* out, Sampling& s) {
    constexpr int EACH = LIST / THREADS;
    unsigned held = EVERYTHING;
    if (n >= 4 * m) {
        take_sample<T, THREADS>(r, n, m, NAN_SMALLEST, keys);
        const unsigned low = pivot_of<unsigned, key_bits<T>, THREADS>(keys, m, pivot_place(limit, n, m), s.selecting);
        held = gather<T, THREADS>(r, 0, n, low, NAN_SMALLEST, 0, capacity, keys, at, s.selecting);
    }
    if (held > capacity || held < limit) {
        using From = FromRow<T, THREADS>;
        const From from{r, 0, n, NAN_SMALLEST, 0};
        held = select<T, THREADS, false>(from, from.rounds(), limit, capacity, index_bits, keys, at, s.selecting);
    } else if (held > limit) {
        unsigned key, index;
        keep_first<unsigned, key_bits<T>, THREADS>(keys, at, held, limit, index_bits, s.selecting, key, index);
        held = limit;
    }
    sort_entries<unsigned, THREADS>(keys, at, held);
    const Weigh<T> weigh(keys[0], temperature, min_p);
    if (keys[0] <= weigh.masked) {
        if (threadIdx.x == 0) *out = -1;
        return;
    }
    Sum own[EACH], sum = 0, whole;
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        const unsigned i = threadIdx.x * EACH + j;
        own[j] = i < held ? weigh.all(keys[i]) : 0, sum += own[j];
    }
    Sum upto = sum_upto<THREADS>(sum, s.warps, whole) - sum;
    const Sum share = top_p < 1.0f ? static_cast<Sum>(ceil(static_cast<double>(whole) * top_p)) : whole, need = share > 0 ? share : 1;
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        const unsigned i = threadIdx.x * EACH + j;
        s.sums[i] = i < held && upto < need ? weigh(keys[i]) : 0;
        s.indices[i] = i < held ? at[i] : NOBODY;
        upto += own[j];
    }
    __syncthreads();
    const unsigned found = from_list(held, u, s);
    if (threadIdx.x == 0) *out = found;
}

}  // namespace draws

/// The slow path: draws from elements that are among the first `limit` and in the nucleus; both ends are found digit by digit.
template <typename T>
__device__ void draw_by_digits(const draws::Chunks<T>& row, unsigned limit, float temperature, float top_p, float min_p, Sum u,
    long long* out, draws::Sampling& s) {
    using From = FromRow<T, draws::THREADS>;
    const From from{row.r, 0, row.n, NAN_SMALLEST, 0};
    unsigned at, last_key = 0, last_index = NOBODY;  // the last element in order that may be drawn
    const float most = draws::largest<T>(from, at, s);
    if (at == NOBODY) {
        if (threadIdx.x == 0) *out = -1;
        return;
    }
    const Weigh<T> weigh(to_key<T>(row.r[at], NAN_SMALLEST), temperature, min_p);
    __syncthreads();
    if (limit < row.n) draws::bound<T>(from, [](unsigned) { return Sum(1); }, limit, 0, NOBODY, s, last_key, last_index);
    if (top_p < 1.0f) {
        const unsigned from_key = last_key, from_index = last_index;
        Sum mine = 0, whole;
        draws::stream(from, [&](const From& now, unsigned) {
#pragma unroll
            for (int j = 0; j < From::ITEMS; ++j) {
                const unsigned key = now.key(j), i = now.index(j);
                if (i != NOBODY && !before(from_key, from_index, key, i)) mine += weigh.all(key);
            }
        });
        sum_upto<draws::THREADS>(mine, s.warps, whole);
        const Sum share = static_cast<Sum>(ceil(static_cast<double>(whole) * top_p)), need = share == 0 ? 1 : share < whole ? share : whole;
        draws::bound<T>(from, [&](unsigned key) { return weigh.all(key); }, need, from_key, from_index, s, last_key, last_index);
    }
    const auto weight = [&](bits_of<T> bits, unsigned i) {
        const unsigned key = to_key<T>(bits, NAN_SMALLEST);
        return before(last_key, last_index, key, i) ? Sum(0) : weigh(key);
    };
    __syncthreads();
    for (unsigned c = threadIdx.x; c < draws::CHUNKS; c += draws::THREADS) s.sums[c] = 0;
    __syncthreads();
    Sum sum = 0;
    row.walk(
        [&](const uint4 (&v)[draws::Chunks<T>::U], unsigned p) {
#pragma unroll 1
            for (unsigned e = 0; e < draws::Chunks<T>::U * draws::Chunks<T>::N; ++e) {
                const unsigned i = row.index(p + e / draws::Chunks<T>::N * 32) + e % draws::Chunks<T>::N;
                if (i < row.n) sum += weight(row.r[i], i);
            }
        },
        [&](unsigned chunk) {
#pragma unroll
            for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
            if (threadIdx.x % 32 == 0) s.sums[chunk] = sum;
            sum = 0;
        });
    draws::draw_from_chunks<T>(row, weight, u, out, s);
}

/// One block a row. `slots`, `capacity`: entries of shared memory, as in _draw_nucleus.cuh and _draw_list.cuh; `m`: the sample of the
/// latter.
template <typename T>
__global__ void __launch_bounds__(draws::THREADS, 2)
    sample_stream(const bits_of<T>* __restrict__ logits, long long xs, unsigned n, unsigned slots, unsigned capacity, unsigned m,
        int index_bits, float temperature,
                  int top_k, float top_p, float min_p, int seed, const int* __restrict__ seeds, long long* __restrict__ out) {
    using namespace draws;
    __shared__ Sampling s;
    const long long number_of_row = blockIdx.x;
    gdc_wait();
    const bits_of<T>* r = logits + number_of_row * xs;
    out += number_of_row;
    const unsigned limit = top_k > 0 ? min(static_cast<unsigned>(top_k), n) : n;
    const Sum u = bits_of_row(seed, seeds, number_of_row);
    if (temperature == 0.0f) {
        whole_row<T>(r, n, temperature, min_p, u, true, out, s);
        return;
    }
    if (limit < n && limit <= LIST) {
        unsigned* keys = reinterpret_cast<unsigned*>(selecting_memory);
        draw_from_first<T>(r, n, limit, m, capacity, index_bits, temperature, top_p, min_p, u, keys, keys + capacity, out, s);
        return;
    }
    const Chunks<T> row(r, n);
    if (limit == n) {
        const Scaled scaled(temperature);
        const bool nucleus = top_p < 1.0f, plain = !(min_p > LIGHTEST);
        float* memory = reinterpret_cast<float*>(selecting_memory);
        const float most = sum_chunks<T>(row, scaled, nucleus || plain, memory, memory + CHUNKS, s);
        if (most < CUDART_INF_F) {
            if (nucleus) {
                Sum mine = 0, whole;
                for (unsigned c = threadIdx.x; c < CHUNKS; c += THREADS) mine += s.sums[c];
                sum_upto<THREADS>(mine, s.warps, whole);
                __syncthreads();
                if (whole == 0) {
                    if (threadIdx.x == 0) *out = -1;
                    return;
                }
                if (draw_from_nucleus<T>(row, scaled, most, whole, top_p, min_p, slots, memory, u, out, s)) return;
            } else {
                const float least = fmaxf(min_p, LIGHTEST);
                if (!plain) {
                    Candidates none{nullptr, nullptr, 0, 0, nullptr};
                    sum_above<T>(row, scaled, most, least, least, none, s);
                }
                const auto weight = [&](bits_of<T> bits, unsigned) {
                    const float w = scaled(number<T>(bits), most);
                    return w >= least ? to_units(w) : Sum(0);
                };
                draw_from_chunks<T>(row, weight, u, out, s);
                return;
            }
        }
        __syncthreads();
    }
    draw_by_digits<T>(row, limit, temperature, top_p, min_p, u, out, s);
}
