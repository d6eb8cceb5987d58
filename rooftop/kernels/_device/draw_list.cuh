// A draw from the first top_k elements of a row, top_k <= LIST. A sample of the row gives a pivot (pivot_rows.cuh); one read keeps the elements that reach it.
#pragma once
#include "pivot_rows.cuh"
#include "sample_rows.cuh"

namespace draws {

/// Selects the first `limit` <= LIST of n elements, with a sample of m of them, and draws. `keys`, `at`: `capacity` entries of shared memory.
template <typename T>
__device__ void draw_from_first(const bits_of<T>* r, unsigned n, unsigned limit, unsigned m, unsigned capacity, int index_bits, float temperature, float top_p,
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
