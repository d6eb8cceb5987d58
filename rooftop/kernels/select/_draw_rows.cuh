// One draw from each row, one block a row: from a sorted list of the most likely elements, by prefix sums over chunks of the row, or by a
// search digit by digit of the keys.
#pragma once
#include "words.cuh"
#include "_sort_keys.cuh"
#include "_top_k.cuh"

// The weights of the elements of a row of logits, and their sums: integer multiples of 2^-32, so that the result does not depend on the
// order of summation.

using Sum = unsigned long long;

/// Inclusive prefix sum of v over the threads; `all`: the total of the block. `warps`: shared, THREADS / 32.
template <int THREADS>
__device__ Sum sum_upto(Sum v, Sum* warps, Sum& all) {
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const Sum o = __shfl_up_sync(~0u, v, step);
        if (lane >= step) v += o;
    }
    __syncthreads();
    if (lane == 31) warps[threadIdx.x / 32] = v;
    __syncthreads();
    all = 0;
    Sum before = 0;
#pragma unroll
    for (int w = 0; w < THREADS / 32; ++w) {
        if (w == threadIdx.x / 32) before = all;
        all += warps[w];
    }
    return before + v;
}

/// The weight of an element. Keys: those of the order with the largest first, NaN last.
template <typename T>
struct Weigh {
    unsigned masked;  // the key of -infinity: it and everything below it is never drawn
    float most, inverse, least;  // the largest logit; 1 / temperature; min_p

    __device__ Weigh(unsigned top_key, float temperature, float min_p)
        : masked(to_key<T>(last_value<T>(0), NAN_SMALLEST)), most(number<T>(Order<T>::down(top_key))), inverse(1.0f / temperature),
            least(min_p) { }
    /// (logit - largest) / temperature: 0 for the largest, NaN where masked.
    __device__ float scaled(float x) const { return x == most ? 0.0f : (x - most) * inverse; }
    /// The weight in units of 2^-32 for a share w of the largest one's, rounded down.
    __device__ static Sum units(float w) { return static_cast<Sum>(__float2uint_rz(w * 4294967296.0f)) + (w >= 1.0f); }
    /// Without min_p.
    __device__ Sum all(unsigned key) const { return key <= masked ? 0 : units(expf(scaled(number<T>(Order<T>::down(key))))); }
    __device__ Sum operator()(unsigned key) const {
        const float w = key <= masked ? 0.0f : expf(scaled(number<T>(Order<T>::down(key))));
        return w >= least ? units(w) : 0;
    }
    /// The weight of a logit that is not masked.
    __device__ float share(float x) const { return expf(scaled(x)); }
};

namespace draws {

constexpr int THREADS = 256, WARPS = THREADS / 32, LIST = 1024, CHUNKS = 1024;

/// The shared memory of a block, besides the entries of its selection.
struct Sampling {
    Selecting selecting;
    Sum sums[CHUNKS], warps[WARPS], found[4];
    alignas(16) unsigned keys[LIST], indices[LIST];
    Sum histogram[256];
};

/// Of n <= EACH · THREADS numbers `of(i)`, the first i whose inclusive prefix sum exceeds a fraction `u` (in units of 2^-64) of the total;
/// `rest`: that bound less the sum before i. NOBODY if all numbers are 0.
template <int EACH, typename Of>
__device__ unsigned past(Of of, Sum u, Sum& rest, Sampling& s) {
    Sum own[EACH], sum = 0, all;
#pragma unroll
    for (int j = 0; j < EACH; ++j) own[j] = of(threadIdx.x * EACH + j), sum += own[j];
    Sum upto = sum_upto<THREADS>(sum, s.warps, all);
    if (threadIdx.x == 0) s.found[0] = NOBODY;
    __syncthreads();
    const Sum bar = __umul64hi(u, all);
    if (upto - sum <= bar && bar < upto) {
        upto -= sum;
        bool open = true;
#pragma unroll
        for (int j = 0; j < EACH; ++j) {
            if (open && bar < upto + own[j]) s.found[0] = threadIdx.x * EACH + j, s.found[1] = bar - upto, open = false;
            upto += own[j];
        }
    }
    __syncthreads();
    rest = s.found[1];
    return static_cast<unsigned>(s.found[0]);
}

/// Calls `look` for the row's elements, ITEMS a thread at a time, with the next loads in flight.
template <typename From, typename Look>
__device__ void stream(From from, Look look) {
    const unsigned rounds = from.rounds();
#pragma unroll 1
    for (unsigned next = 0; next <= rounds; ++next) {
        const From now = from;
        if (next < rounds) from.fetch(next);
        if (next > 0) look(now, next - 1);
    }
}

/// The entry at which the cumulated measure of the entries in order reaches `need`, digit by digit of the key and then of the index; (key,
/// index) as in kth_entry. 1 <= need <= the total measure.
template <typename T, typename From, typename Of>
__device__ void bound(const From& from, Of of, Sum need, unsigned after_key, unsigned after_index, Sampling& s, unsigned& key,
    unsigned& index) {
    key = 0, index = 0;
    for (int level = 0; level < key_bits<T> / 8 + 4; ++level) {
        const bool by_key = level < key_bits<T> / 8;
        const int shift = by_key ? key_bits<T> - 8 - 8 * level : 24 - 8 * (level - key_bits<T> / 8);
        for (unsigned i = threadIdx.x; i < 256; i += THREADS) s.histogram[i] = 0;
        __syncthreads();
        stream(from, [&](const From& now, unsigned) {
#pragma unroll
            for (int j = 0; j < From::ITEMS; ++j) {
                const unsigned k = now.key(j), i = now.index(j);
                if (i == NOBODY || before(after_key, after_index, k, i)) continue;  // none, or excluded before
                const bool there = by_key ? level == 0 || k >> (shift + 8) == key >> (shift + 8) : k == key
                    && (shift == 24 || i >> (shift + 8) == index >> (shift + 8));
                const Sum v = there ? of(k) : 0;
                if (v != 0) atomicAdd(&s.histogram[by_key ? 255 - (k >> shift & 255) : i >> shift & 255], v);
            }
        });
        __syncthreads();
        Sum all;
        const Sum own = s.histogram[threadIdx.x], upto = sum_upto<THREADS>(own, s.warps, all);  // one thread a digit
        if (upto - own < need && need <= upto) s.found[0] = threadIdx.x, s.found[1] = upto - own, s.found[2] = own;
        __syncthreads();
        const unsigned digit = static_cast<unsigned>(s.found[0]);
        need -= s.found[1];
        if (by_key) key |= (255 - digit) << shift;
        else index |= digit << shift;
        const bool whole = need == s.found[2];
        __syncthreads();
        if (whole) {  // all elements with these digits are included
            index = by_key ? NOBODY : index | ((1u << shift) - 1);
            return;
        }
    }
}

/// Draws one of the first `m` of the list, in the order of their indices, with the weights in s.sums.
__device__ unsigned from_list(unsigned m, Sum u, Sampling& s) {
    constexpr int EACH = LIST / THREADS;
    unsigned own[EACH];
#pragma unroll
    for (int j = 0; j < EACH; ++j) own[j] = s.indices[j * THREADS + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        const unsigned i = j * THREADS + threadIdx.x;
        // reuse the list for entries: the lowest index first, and the position of its weight
        if (i < m) s.keys[i] = ~own[j], s.indices[i] = i;
    }
    sort_entries<unsigned, THREADS>(s.keys, s.indices, m);
    Sum rest;
    const unsigned at = past<EACH>([&](unsigned i) { return i < m ? s.sums[s.indices[i]] : Sum(0); }, u, rest, s);
    return at == NOBODY ? NOBODY : ~s.keys[at];
}

/// The weight of a logit, like Weigh, by the hardware's exp2: relative error 2^-21 compared with expf. For draws from all elements of a
/// row.
struct Shares {
    float most, scale, least;  // the largest logit; log2(e) / temperature; min_p

    __device__ Sum operator()(float x) const {
        const float y = x == most ? 0.0f : (x - most) * scale;
        float w;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(w) : "f"(y));
        return w >= least ? Weigh<float>::units(w) : 0;  // 0 for NaN
    }
};

/// The largest logit of a row, and the lowest index at which it occurs; -infinity if all are masked.
template <typename T, typename From>
__device__ float largest(const From& from, unsigned& index, Sampling& s) {
    float best = __int_as_float(0xff800000);
    unsigned at = 0;  // the first iteration in which this thread saw it
    stream(from, [&](const From& now, unsigned round) {
        float most = best;
#pragma unroll
        for (int j = 0; j < From::ITEMS; ++j) most = fmaxf(most, number<T>(now.bits(j)));  // fmaxf returns the other one if one is NaN
        if (most > best) best = most, at = round;
    });
    float top = best;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
    float* warps = reinterpret_cast<float*>(s.warps);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = top;
    if (threadIdx.x == 0) s.indices[0] = NOBODY;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < WARPS; ++w) top = fmaxf(top, warps[w]);
    if (best == top && top > __int_as_float(0xff800000)) {
        // of that iteration; wraps around before the first element
        const unsigned first = at * From::ROUND - from.off() + threadIdx.x * From::N;
#pragma unroll 1
        for (int j = 0; j < From::ITEMS; ++j) {
            const unsigned p = first + j / From::N * THREADS * From::N + j % From::N;
            if (p < from.count && number<T>(from.x[p]) == top) {
                atomicMin(&s.indices[0], p);
                break;
            }
        }
    }
    __syncthreads();
    index = s.indices[0];
    return top;
}

/// Draws one of all elements of a row that reach min_p, or (`greedy`) the largest: two reads of the row.
template <typename T>
__device__ void whole_row(const bits_of<T>* r, unsigned n, float temperature, float min_p, Sum u, bool greedy, long long* out,
    Sampling& s) {
    using From = FromRow<T, THREADS, 4>;
    const From from{r, 0, n, NAN_SMALLEST, 0};
    unsigned at = NOBODY;
    const float top = largest<T>(from, at, s);
    if (greedy || at == NOBODY) {
        if (threadIdx.x == 0) *out = at == NOBODY ? -1 : static_cast<long long>(at);
        return;
    }
    const Shares weight{top, 1.4426950408889634f / temperature, min_p};
    const unsigned each = (from.rounds() + CHUNKS - 1) / CHUNKS, lane = threadIdx.x % 32;  // iterations of a chunk
    for (unsigned c = threadIdx.x; c < CHUNKS; c += THREADS) s.sums[c] = 0;
    __syncthreads();
    stream(from, [&](const From& now, unsigned round) {
        Sum sum = 0;
#pragma unroll
        for (int j = 0; j < From::ITEMS; ++j) sum += weight(number<T>(now.bits(j)));
#pragma unroll
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
        if (lane == 0 && sum != 0) atomicAdd(&s.sums[round / each], sum);
    });
    __syncthreads();
    Sum rest, all;
    const unsigned c = past<CHUNKS / THREADS>([&](unsigned i) { return s.sums[i]; }, u, rest, s);
    const long long own_first = static_cast<long long>(c) * each * From::ROUND - from.off()
        + threadIdx.x * static_cast<long long>(each * From::ITEMS);
    const unsigned first = static_cast<unsigned>(max(0ll, own_first)),
        end = static_cast<unsigned>(max(0ll, min(static_cast<long long>(n), own_first + each * From::ITEMS)));
    Sum own = 0;
    for (unsigned i = first; i < end; ++i) own += weight(number<T>(r[i]));
    Sum upto = sum_upto<THREADS>(own, s.warps, all) - own;  // of the chunk, before this thread's part
    if (rest < upto || rest >= upto + own) return;
    for (unsigned i = first; i < end; ++i) {
        upto += weight(number<T>(r[i]));
        if (rest < upto) {
            *out = i;
            return;
        }
    }
}

/// The 64 random bits of a row: of elements 2 row and 2 row + 1 of the call's seed, or, if each row has its own, of 0 and 1 of that.
__device__ inline Sum bits_of_row(int seed, const int* seeds, long long row) {
    if (seeds != nullptr) seed = seeds[row], row = 0;
    return static_cast<Sum>(random_bits(seed, 2 * row)) << 32 | random_bits(seed, 2 * row + 1);
}

/// One block a row. ALL: all kinds of draws; else those that a list decides (bit 0 of `only`) and those from whole rows (bit 1); other rows
/// are left to another launch.
template <typename T, bool ALL>
__global__ void __launch_bounds__(THREADS, 2)
    sample_rows(const bits_of<T>* __restrict__ logits, long long xs, unsigned n, unsigned capacity, int index_bits, float temperature,
        int top_k, float top_p, float min_p,
                int seed, const int* __restrict__ seeds, int only, long long* __restrict__ out) {
    constexpr int EACH = LIST / THREADS;
    __shared__ Sampling s;
    unsigned* keys = reinterpret_cast<unsigned*>(selecting_memory);
    unsigned* at = keys + capacity;
    const long long row = blockIdx.x;
    gdc_wait();
    const bits_of<T>* r = logits + row * xs;
    const unsigned limit = top_k > 0 ? min(static_cast<unsigned>(top_k), n) : n;
    const bool greedy = temperature == 0.0f, listed = !greedy && limit <= LIST && limit < n, nucleus = !greedy && top_p < 1.0f;
    const bool whole_rows = !listed && !nucleus && (greedy || limit == n);
    if (!ALL && !(listed && only & 1) && !(whole_rows && (greedy || only & 2))) return;
    const Sum u = bits_of_row(seed, seeds, row);
    if (whole_rows) {
        whole_row<T>(r, n, temperature, min_p, u, greedy, out + row, s);
        return;
    }
    const unsigned k = listed ? limit : nucleus ? min(LIST, n) : 1;
    using From = FromRow<T, THREADS>;
    const From from{r, 0, n, NAN_SMALLEST, 0};
    const unsigned held = select<T, THREADS, false>(from, from.rounds(), k, capacity, index_bits, keys, at, s.selecting);
    if (k > 1) sort_entries<unsigned, THREADS>(keys, at, held);
    const Weigh<T> weigh(keys[0], temperature, min_p);
    if (keys[0] <= weigh.masked) {
        if (threadIdx.x == 0) out[row] = -1;
        return;
    }
    if (k > 1 || limit == 1) {  // a list is enough
        Sum own[EACH], upto, sum = 0, total = 0;
#pragma unroll
        for (int j = 0; j < EACH; ++j) {
            const unsigned i = threadIdx.x * EACH + j;
            own[j] = i < held ? weigh.all(keys[i]) : 0, sum += own[j];
        }
        upto = sum_upto<THREADS>(sum, s.warps, total) - sum;
        Sum whole = total;
        if (ALL && !listed && held < n) {  // from the whole row, or from its top_k: a nucleus (top_p) may end beyond the list
            Sum more = 0;
            stream(from, [&](const From& now, unsigned) {
#pragma unroll
                for (int j = 0; j < From::ITEMS; ++j) more += now.index(j) == NOBODY ? 0 : weigh.all(now.key(j));
            });
            sum_upto<THREADS>(more, s.warps, whole);
        }
        const Sum share = nucleus ? static_cast<Sum>(ceil(static_cast<double>(whole) * top_p)) : whole;
        const Sum need = share > 0 ? share : 1;
        // if top_k exceeds the list, `whole` is not the total of the first top_k
        if (listed || ((total >= need || held == n) && !(limit < n && held < n))) {
#pragma unroll
            for (int j = 0; j < EACH; ++j) {
                const unsigned i = threadIdx.x * EACH + j;
                const bool in = i < held && (!nucleus || upto < need);
                s.sums[i] = in ? weigh(keys[i]) : 0;
                s.indices[i] = i < held ? at[i] : NOBODY;
                upto += own[j];
            }
            __syncthreads();
            const unsigned found = from_list(held, u, s);
            if (threadIdx.x == 0) out[row] = found;
            return;
        }
    }
    if constexpr (ALL) {
        unsigned last_key = 0, last_index = NOBODY;  // the last entry in order that may be drawn
        if (limit < n) bound<T>(from, [](unsigned) { return Sum(1); }, limit, 0, NOBODY, s, last_key, last_index);
        if (nucleus) {
            const unsigned from_key = last_key, from_index = last_index;
            Sum mine = 0, whole;
            stream(from, [&](const From& now, unsigned) {
#pragma unroll
                for (int j = 0; j < From::ITEMS; ++j) {
                    const unsigned key = now.key(j), i = now.index(j);
                    if (i != NOBODY && !before(from_key, from_index, key, i)) mine += weigh.all(key);
                }
            });
            sum_upto<THREADS>(mine, s.warps, whole);
            const Sum share = static_cast<Sum>(ceil(static_cast<double>(whole) * top_p));
            const Sum need = share == 0 ? 1 : share < whole ? share : whole;
            bound<T>(from, [&](unsigned key) { return weigh.all(key); }, need, from_key, from_index, s, last_key, last_index);
        }
        const auto weight = [&](unsigned key, unsigned i) { return before(last_key, last_index, key, i) ? Sum(0) : weigh(key); };
        const unsigned each = (from.rounds() + CHUNKS - 1) / CHUNKS, lane = threadIdx.x % 32;  // iterations of a chunk
        for (unsigned c = threadIdx.x; c < CHUNKS; c += THREADS) s.sums[c] = 0;
        __syncthreads();
        stream(from, [&](const From& now, unsigned round) {
            Sum sum = 0;
#pragma unroll
            for (int j = 0; j < From::ITEMS; ++j) sum += now.index(j) == NOBODY ? 0 : weight(now.key(j), now.index(j));
#pragma unroll
            for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
            if (lane == 0 && sum != 0) atomicAdd(&s.sums[round / each], sum);
        });
        __syncthreads();
        Sum rest, all;
        const unsigned c = past<CHUNKS / THREADS>([&](unsigned i) { return s.sums[i]; }, u, rest, s);
        const long long own_first = static_cast<long long>(c) * each * From::ROUND - from.off()
            + threadIdx.x * static_cast<long long>(each * From::ITEMS);
        const unsigned first = static_cast<unsigned>(max(0ll, own_first)),
            end = static_cast<unsigned>(max(0ll, min(static_cast<long long>(n), own_first + each * From::ITEMS)));
        Sum own = 0;
        for (unsigned i = first; i < end; ++i) own += weight(to_key<T>(r[i], NAN_SMALLEST), i);
        Sum upto = sum_upto<THREADS>(own, s.warps, all) - own;  // of the chunk, before this thread's part
        if (rest < upto || rest >= upto + own) return;
        for (unsigned i = first; i < end; ++i) {
            upto += weight(to_key<T>(r[i], NAN_SMALLEST), i);
            if (rest < upto) {
                out[row] = i;
                return;
            }
        }
    }
}

}  // namespace draws
