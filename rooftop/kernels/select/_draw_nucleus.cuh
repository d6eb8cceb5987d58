// A draw from the nucleus (top_p) without a histogram of the row. A sample of the row gives two weights between which the nucleus ends. The
// elements below its end weigh (1 - top_p) of the row together, and the weight of the row is known exactly; none of them is heavier than
// the element at the end. So a sample estimates their sum well, however few elements carry most of the weight. One more read adds up what
// is heavier than both weights, and lists the elements between them.
#pragma once
#include "_draw_chunks.cuh"

namespace draws {

constexpr unsigned LOOKED = 8192, RUN = 8;  // elements of the sample; consecutive ones in a run
constexpr unsigned GRADES = 2048;           // bins of weights, 64 to a factor of two
constexpr float PER_OCTAVE = 64.0f;
constexpr unsigned BEHIND = 1024;           // candidates that do not fit the slots of their thread

/// Elements near the end of the nucleus: thread t has slots t, THREADS + t, ... of the first `slots` * THREADS.
struct Candidates {
    float* weights;
    unsigned* at;
    unsigned slots, mine, *over;

    __device__ void add(float w, unsigned index) {
        const unsigned to = mine < slots ? mine * THREADS + threadIdx.x : slots * THREADS + atomicAdd(over, 1u);
        if (to < slots * THREADS + BEHIND) weights[to] = w, at[to] = index;
        ++mine;
    }
    /// Calls `look(weight, index)` for this thread's share.
    template <typename Look>
    __device__ void each(Look look) const {
        for (unsigned i = 0; i < min(mine, slots); ++i) look(weights[i * THREADS + threadIdx.x], at[i * THREADS + threadIdx.x]);
        for (unsigned i = slots * THREADS + threadIdx.x; i < slots * THREADS + *over; i += THREADS) look(weights[i], at[i]);
    }
};

/// Two weights between which the nucleus almost certainly ends: it has all elements of at least `high`, and some of those of at least
/// `low`. `whole`: the row's weight in units of 2^-32. `grades`: shared memory for GRADES bins. Requires LOOKED <= row.n.
template <typename T>
__device__ void ends_of_nucleus(const Chunks<T>& row, const Scaled& scaled, float most, Sum whole, float top_p, unsigned* grades,
    float& high, float& low, Sampling& s) {
    constexpr int EACH = GRADES / THREADS;
    for (unsigned b = threadIdx.x; b < GRADES; b += THREADS) grades[b] = 0;
    __syncthreads();
    const unsigned apart = row.n / (LOOKED / RUN);
#pragma unroll 8
    for (unsigned i = threadIdx.x; i < LOOKED; i += THREADS) {
        const unsigned run = i / RUN, at = run * apart + __umulhi(random_mix(run + 1), apart - RUN + 1) + i % RUN;
        const float octaves = (most - number<T>(row.r[at])) * scaled.scale;
        if (octaves < GRADES / PER_OCTAVE) atomicAdd(&grades[static_cast<unsigned>(octaves * PER_OCTAVE)], 1u);
    }
    __syncthreads();
    // This thread's bins, the heaviest first: number of elements, sum of their weights, sum of the squares of their weights.
    const auto weight = [&](unsigned b) { return power_of_two(-(static_cast<float>(b) + 0.5f) / PER_OCTAVE); };
    Sum count = 0, mass = 0, squares = 0, counts, masses, all_squares;
    unsigned own[EACH];
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        const unsigned b = threadIdx.x * EACH + j;
        const float w = weight(b);
        own[j] = grades[b], count += own[j], mass += own[j] * to_units(w), squares += own[j] * to_units(w * w);
    }
    const Sum upto = sum_upto<THREADS>(count, s.warps, counts) - count, mass_upto = sum_upto<THREADS>(mass, s.warps, masses) - mass;
    const Sum squares_upto = sum_upto<THREADS>(squares, s.warps, all_squares) - squares;
    // The weight below the end of the nucleus, as a part of the sample's.
    const Sum below = static_cast<Sum>((1.0 - static_cast<double>(top_p)) * static_cast<double>(whole) * LOOKED / row.n);
    if (threadIdx.x == 0) s.found[0] = 0, s.found[1] = 4;  // how many elements of the sample are before the end; how wrong that may be
    __syncthreads();
    {
        Sum n = upto, m = mass_upto, q = squares_upto;
#pragma unroll
        for (int j = 0; j < EACH; ++j) {
            const unsigned b = threadIdx.x * EACH + j;
            const float w = weight(b);
            const Sum from_here = masses - m, after = from_here - own[j] * to_units(w);
            // true for one bin. 4.5 standard deviations, and half a bin of error in every weight
            if (from_here >= below && after < below) {
                const float lower = static_cast<float>(all_squares - q) / (4294967296.0f * w * w),
                    elements = static_cast<float>(from_here) / (4294967296.0f * w);
                s.found[0] = n, s.found[1] = static_cast<Sum>(4.5f * sqrtf(lower) + 0.006f * elements) + own[j] + 8;
            }
            n += own[j], m += own[j] * to_units(w), q += own[j] * to_units(w * w);
        }
    }
    __syncthreads();
    const Sum place = s.found[0], spread = s.found[1];
    __syncthreads();
    if (threadIdx.x == 0) s.found[2] = 0, s.found[3] = GRADES;
    __syncthreads();
    Sum n = upto;
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        const unsigned b = threadIdx.x * EACH + j;
        const Sum with = n + own[j];
        if (n + spread <= place && with + spread > place) s.found[2] = b;       // bins before b are certainly in the nucleus
        if (n < place + spread && with >= place + spread) s.found[3] = b + 1;   // bins from b + 1 on are certainly not
        n = with;
    }
    __syncthreads();
    const unsigned in = static_cast<unsigned>(s.found[2]), out = static_cast<unsigned>(s.found[3]);
    high = in == 0 ? 2.0f : power_of_two(-static_cast<float>(in) / PER_OCTAVE);
    low = out >= GRADES ? LIGHTEST : fmaxf(LIGHTEST, power_of_two(-static_cast<float>(out) / PER_OCTAVE));
    __syncthreads();
}

/// Adds up, by chunk, the weights of at least `sure`, to s.sums; elements lighter than that but of at least `low` become candidates.
template <typename T>
__device__ void sum_above(const Chunks<T>& row, const Scaled& scaled, float most, float sure, float low, Candidates& near, Sampling& s) {
    float mass = 0.0f;
    for (unsigned c = threadIdx.x; c < CHUNKS; c += THREADS) s.sums[c] = 0;
    __syncthreads();
    row.walk(
        [&](const uint4 (&v)[Chunks<T>::U], unsigned p) {
#pragma unroll
            for (unsigned u = 0; u < Chunks<T>::U; ++u) {
                float sum = 0.0f;
                unsigned between = 0;
#pragma unroll
                for (unsigned j = 0; j < Chunks<T>::N; ++j) {
                    const float w = scaled(value_of<T>(v[u], j), most);
                    if (w >= sure) sum += w;
                    else if (w >= low) between |= 1u << j;
                }
                mass += sum;
                while (between != 0) {
                    const unsigned j = __ffs(between) - 1;
                    between &= between - 1;
                    near.add(scaled(number<T>(picked_bits<bits_of<T>>(v[u], j)), most), row.index(p + 32 * u) + j);
                }
            }
        },
        [&](unsigned chunk) {
#pragma unroll
            for (int step = 16; step > 0; step /= 2) mass += __shfl_xor_sync(~0u, mass, step);
            if (threadIdx.x % 32 == 0) s.sums[chunk] = to_units(mass);
            mass = 0.0f;
        });
    __syncthreads();
}

/// The last element of a nucleus: (key, index); the bits of its weight are from `base` to `base + span`.
struct LastOne {
    unsigned base, span, key, index;

    /// Whether an element with a weight between `high` and `low` is in the nucleus.
    template <typename T>
    __device__ bool holds(float w, bits_of<T> bits, unsigned i) const {
        const unsigned b = __float_as_uint(w);
        return b >= base && (b - base >= span || !before(key, index, to_key<T>(bits, NAN_SMALLEST), i));
    }
};

/// The last element of the nucleus, among the candidates: their weights, the heaviest first, add up to `need` there. `slack`: how much
/// rounding may have made `need` too large. Returns false if the candidates weigh less, or if too many have nearly the same weight.
template <typename T>
__device__ bool last_of_candidates(const Chunks<T>& row, const Scaled& scaled, float most, const Candidates& near, Sum need, Sum slack,
    float high, float low,
                                   LastOne& end, Sampling& s) {
    Sum mine = 0, all;
    near.each([&](float w, unsigned) { mine += to_units(w); });
    sum_upto<THREADS>(mine, s.warps, all);
    if (need > all) {
        if (low > LIGHTEST && need - all > slack) return false;
        end = {0, ~0u, 0, NOBODY};  // all candidates are in the nucleus
        return true;
    }
    unsigned base = __float_as_uint(low), span = __float_as_uint(fminf(high, 1.0f)) - base + 1;
    int shift = 0;
#pragma unroll 1
    for (;;) {
        shift = max(0, 32 - __clz(span - 1) - 8);
        __syncthreads();
        for (unsigned b = threadIdx.x; b < 256; b += THREADS) s.histogram[b] = 0, s.keys[b] = 0;
        __syncthreads();
        near.each([&](float w, unsigned) {
            const unsigned at = __float_as_uint(w) - base;
            if (at < span) atomicAdd(&s.histogram[255 - (at >> shift)], to_units(w)), atomicAdd(&s.keys[255 - (at >> shift)], 1u);
        });
        __syncthreads();
        Sum whole;
        const Sum own = s.histogram[threadIdx.x], upto = sum_upto<THREADS>(own, s.warps, whole);  // one thread a bin
        if (upto - own < need && need <= upto) s.found[0] = threadIdx.x, s.found[1] = upto - own;
        __syncthreads();
        const unsigned bin = static_cast<unsigned>(s.found[0]), many = s.keys[bin];
        need -= s.found[1];
        base += (255 - bin) << shift, span = 1u << shift;
        __syncthreads();
        if (many <= LIST) break;
        if (shift == 0) return false;
    }
    if (threadIdx.x == 0) s.selecting.kept = 0;
    __syncthreads();
    near.each([&](float w, unsigned i) {
        if (__float_as_uint(w) - base >= span) return;
        const unsigned to = atomicAdd(&s.selecting.kept, 1u);
        s.keys[to] = to_key<T>(row.r[i], NAN_SMALLEST), s.indices[to] = i;
    });
    __syncthreads();
    const unsigned listed = s.selecting.kept;
    sort_entries<unsigned, THREADS>(s.keys, s.indices, listed);
    constexpr int EACH = LIST / THREADS;
    Sum w[EACH], sum = 0, whole;
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        const unsigned i = threadIdx.x * EACH + j;
        w[j] = i < listed ? to_units(scaled(number<T>(row.r[s.indices[i]]), most)) : 0, sum += w[j];
    }
    Sum upto = sum_upto<THREADS>(sum, s.warps, whole) - sum;
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        if (upto < need && need <= upto + w[j]) s.found[0] = threadIdx.x * EACH + j;
        upto += w[j];
    }
    __syncthreads();
    const unsigned last = static_cast<unsigned>(s.found[0]);
    end = {base, span, s.keys[last], s.indices[last]};
    __syncthreads();
    return true;
}

/// One draw from the nucleus of a row, among its elements that reach min_p. `whole`: the row's weight, computed from LOOKED elements or
/// from no more than there is room for. `memory`: shared, for `slots` slots a thread and BEHIND more entries. Returns false, and another
/// method is needed, if too many elements are near the end of the nucleus or the sample was misleading.
template <typename T>
__device__ bool draw_from_nucleus(const Chunks<T>& row, const Scaled& scaled, float most, Sum whole, float top_p, float min_p,
    unsigned slots, float* memory, Sum u,
                                  long long* out, Sampling& s) {
    __shared__ unsigned over;
    if (threadIdx.x == 0) over = 0;
    float high = 2.0f, low = LIGHTEST;
    if (row.n > max(slots * THREADS, LOOKED)) ends_of_nucleus<T>(row, scaled, most, whole, top_p, reinterpret_cast<unsigned*>(memory), high,
        low, s);
    __syncthreads();
    const unsigned capacity = slots * THREADS + BEHIND;
    Candidates near{memory, reinterpret_cast<unsigned*>(memory + capacity), slots, 0, &over};
    const bool by_min_p = min_p >= high;  // all elements that may be drawn are certainly in the nucleus
    const float sure = by_min_p ? fmaxf(min_p, LIGHTEST) : high;
    sum_above<T>(row, scaled, most, sure, by_min_p ? sure : low, near, s);
    LastOne end{~0u, 0, 0, 0};
    if (!by_min_p) {
        if (slots * THREADS + over > capacity) return false;
        Sum mine = 0, above;
        for (unsigned c = threadIdx.x; c < CHUNKS; c += THREADS) mine += s.sums[c];
        sum_upto<THREADS>(mine, s.warps, above);
        const Sum share = static_cast<Sum>(ceil(static_cast<double>(whole) * top_p)), need = share == 0 ? 1 : share < whole ? share : whole;
        if (above >= need || !last_of_candidates<T>(row, scaled, most, near, need - above, (whole >> 18) + 1, high, low, end,
            s)) return false;
        near.each([&](float w, unsigned i) {
            if (w >= min_p && end.holds<T>(w, row.r[i], i)) atomicAdd(&s.sums[row.chunk_of(i)], to_units(w));
        });
    }
    const auto weight = [&](bits_of<T> bits, unsigned i) {
        const float w = scaled(number<T>(bits), most);
        return w >= sure || (!by_min_p && w >= low && w >= min_p && end.holds<T>(w, bits, i)) ? to_units(w) : Sum(0);
    };
    draw_from_chunks<T>(row, weight, u, out, s);
    return true;
}

}  // namespace draws
