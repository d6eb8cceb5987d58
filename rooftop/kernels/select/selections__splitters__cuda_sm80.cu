/* rooftop
ops     = ["kthvalue", "topk_mask"]
idea    = """The k-th element of a row for any k, with one read of the row. A sample of the row gives a bracket: two keys between which the \
  k-th element lies (four standard deviations to either side). While the row is read, elements above the bracket are counted, and the few \
  inside it are kept in shared memory, where a radix select (digits of 8 bits) finds the k-th. Elements equal to an end of the bracket are \
  counted too, so that rows with few distinct values need no memory. If the bracket misses the k-th, which never happened with random data, \
  the row is read again once for each digit. With few rows, several blocks share a row and write the elements inside the bracket to a list, \
  which one block reads. topk_mask: the mask of the first k elements of a row for any k. A sample of the row gives a bracket around the \
  k-th element; one read counts the elements above the bracket and keeps those inside, among which a radix select (digits of 8 bits) finds \
  the k-th. A second read, which hits the L1 for short rows, writes the mask four elements at a time. Nothing is sorted, and no byte of the \
  mask is written twice."""
limit   = """On an H200, 1024x131072 float32, whose read takes 118 us: 178 us for k = 64, 262 for k = 65536 (190 were predicted for any k); \
  128 rows 46, one row of 2^24 113. Not profiled. Eight instructions an element and about forty for each of the 6 % inside the bracket; \
  together they take about as long as the read, with which they overlap. And the time in which a block processes its sample and its list, \
  while only the other block of the multiprocessor reads. topk_mask: on an H200, float32: 4096x8192 k=2048 takes 215 us; 80 were predicted \
  and the copy takes 41, so the other kernels are as fast there. Not profiled. If few elements of long rows are selected, the other \
  kernels, which do not read the row twice, are 1.6 to 1.9 times as fast; this one is not chosen for them."""
dtypes  = ["f32", "f16", "bf16", "i64", "i32"]
args    = ["x: T[R, N]"]
demands = { has = ["LDG.128"], spills = 0 }
python  = ["supports", "choose", "launches", "scratch", "zeroed"]
*/
// Kernels that select by a bracket (_splitters.cuh) the k-th element of a row, or a mask of its first k: one block a row, or several
// blocks, which write lists.
#include "_splitters.cuh"
#include "pdl.cuh"

/// The result requested for a row: its k-th element or, if `mask` is given, a mask of the first k.
template <typename T>
struct Asked {
    bits_of<T>* value;
    long long* index;
    unsigned char* mask;
    unsigned row, n, sense;

    /// Result of a row with fewer than k elements: all are selected, and there is no k-th.
    template <int THREADS>
    __device__ void all(unsigned length) const {
        if (mask == nullptr) {
            if (threadIdx.x == 0) value[row] = last_value<T>(sense), index[row] = -1;
            return;
        }
        for (unsigned i = threadIdx.x; i < n; i += THREADS) mask[static_cast<long long>(row) * n + i] = i < length;
    }
    /// Result of a row whose k-th element is (key, at).
    template <int THREADS>
    __device__ void upto(const bits_of<T>* r, unsigned length, key_of<T> key, unsigned at) const {
        using B = bits_of<T>;
        if (mask == nullptr) {
            if (threadIdx.x == 0) value[row] = r[at], index[row] = at;
            return;
        }
        struct alignas(sizeof(B) == 2 ? 8 : 16) Four { B v[4]; };
        unsigned char* to = mask + static_cast<long long>(row) * n;
        const unsigned head = min(n, static_cast<unsigned>(-reinterpret_cast<unsigned long long>(to) % 4)), fours = (n - head) / 4,
            tail = head + 4 * fours;
        const bool aligned = reinterpret_cast<unsigned long long>(r + head) % alignof(Four) == 0;
        const auto in = [&](unsigned i, B b) -> unsigned {
            const key_of<T> v = to_key<T>(b, sense);
            return i < length && (v > key || (v == key && i <= at));
        };
        if (threadIdx.x < head) to[threadIdx.x] = in(threadIdx.x, r[threadIdx.x]);
        if (threadIdx.x < n - tail) to[tail + threadIdx.x] = in(tail + threadIdx.x, r[tail + threadIdx.x]);
#pragma unroll 4
        for (unsigned f = threadIdx.x; f < fours; f += THREADS) {
            const unsigned i = head + 4 * f;
            Four v;
            if (aligned) {
                v = *reinterpret_cast<const Four*>(r + i);
            } else {
#pragma unroll
                for (unsigned j = 0; j < 4; ++j) v.v[j] = r[i + j];
            }
            unsigned word = 0;
#pragma unroll
            for (unsigned j = 0; j < 4; ++j) word |= in(i + j, v.v[j]) << 8 * j;
            *reinterpret_cast<unsigned*>(to + i) = word;
        }
    }
};

/// One block a row. `m`: size of the sample.
template <typename T, int THREADS>
__global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    bracket_rows(const bits_of<T>* __restrict__ x, long long xs, unsigned n, const void* __restrict__ lengths, int wide, unsigned k,
        unsigned m, unsigned slots,
                 unsigned capacity, int index_bits, unsigned sense, bits_of<T>* __restrict__ value, long long* __restrict__ index,
                 unsigned char* __restrict__ mask) {
    using K = key_of<T>;
    __shared__ Bracketing s;
    const Entries<K> to{reinterpret_cast<K*>(selecting_memory),
        reinterpret_cast<unsigned*>(reinterpret_cast<K*>(selecting_memory) + capacity), slots, capacity};
    const unsigned row = blockIdx.x;
    if (threadIdx.x == 0) s.over = 0;
    gdc_wait();
    const bits_of<T>* r = x + row * xs;
    const unsigned length = length_of(lengths, wide, row, n);
    const Asked<T> asked{value, index, mask, row, n, sense};
    if (length < k) {
        asked.template all<THREADS>(length);
        return;
    }
    K low = 0, high = ~K(0), key = 0;
    if (length > slots * THREADS) {
        bracket_of<K, key_bits<T>, THREADS>([&](unsigned i) { return to_key<T>(r[i], sense); }, length, k, m, to.keys, s, low, high);
    } else {
        __syncthreads();
    }
    Taking<K, THREADS> take(low, high, to);
    pass_row<T, THREADS>(r, 0, length, sense, take, s);
    add_up<THREADS>(take.above, take.at_high, take.at_low, take.inside, s);
    unsigned place = k, at = 0;
    const Lies lies = slots * THREADS + s.over > capacity ? LOST : where<K>(s.sums, low, high, ~0u, place, key);
    if (lies == AMONG) {
        const auto each = [&](auto look) { take.each(look, s); };
        exact_kth<K, key_bits<T>, THREADS>(each, place, index_bits, s, key, at);
    } else if (lies == EQUAL) {
        at = nth_equal<T, THREADS>(r, length, key, place, sense, s);
    } else {
        kth_by_digits<T, THREADS>(r, length, k, index_bits, sense, s, key, at);
    }
    asked.template upto<THREADS>(r, length, key, at);
}

/// The counts and brackets of each level of lists: [levels, rows, 4] as in where(), and [levels, rows, 2].
template <typename K>
struct Levels {
    unsigned* counts;
    K* ends;
    unsigned rows, room0, room1;  // room0, room1: capacity of a row's list at level 0 and 1

    /// Follows the k-th element of a row through the first `levels` lists.
    __device__ Lies follow(unsigned row, unsigned levels, unsigned& k, unsigned& held, K& key) const {
        for (unsigned l = 0; l < levels; ++l) {
            const unsigned* c = counts + (l * rows + row) * 4ull;
            const K* e = ends + (l * rows + row) * 2ull;
            const Lies lies = where<K>(c, e[0], e[1], l == 0 ? room0 : room1, k, key);
            held = c[3];
            if (lies != AMONG) return lies;
        }
        return AMONG;
    }
};

/// `splits` blocks a row. At level 0 each reads `per` elements of the row; at level 1 its share of the list of level 0. Entries inside the
/// bracket are appended to the row's list, in any order.
template <typename T, int THREADS>
__global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    bracket_parts(const bits_of<T>* __restrict__ x, long long xs, unsigned n, const void* __restrict__ lengths, int wide,
        const key_of<T>* __restrict__ in_keys,
                  const unsigned* __restrict__ in_at, key_of<T>* __restrict__ out_keys, unsigned* __restrict__ out_at,
                  unsigned* __restrict__ counts,
                  key_of<T>* __restrict__ ends, unsigned rows, unsigned room0, unsigned room1, unsigned level, unsigned k, unsigned m,
                  unsigned splits, unsigned per,
                  unsigned slots, unsigned capacity, unsigned sense) {
    using K = key_of<T>;
    __shared__ Bracketing s;
    const Entries<K> to{reinterpret_cast<K*>(selecting_memory),
        reinterpret_cast<unsigned*>(reinterpret_cast<K*>(selecting_memory) + capacity), slots, capacity};
    const unsigned row = blockIdx.x / splits, split = blockIdx.x % splits, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) s.over = 0;
    gdc_wait();
    const bits_of<T>* r = x + row * xs;
    const unsigned length = length_of(lengths, wide, row, n);
    if (length < k) return;
    const Levels<K> levels{counts, ends, rows, room0, room1};
    K low = 0, high = ~K(0), key;
    unsigned held = length;
    if (levels.follow(row, level, k, held, key) != AMONG) return;
    const long long list = static_cast<long long>(row) * room0;
    if (level == 1) per = ((held + splits - 1) / splits + 31) / 32 * 32;
    const unsigned begin = min(held, split * per), end = split + 1 == splits ? held : min(held, begin + per);
    if (held > slots * THREADS) {
        const auto sample = [&](unsigned i) { return level == 0 ? to_key<T>(r[i], sense) : in_keys[list + i]; };
        bracket_of<K, key_bits<T>, THREADS>(sample, held, k, m, to.keys, s, low, high);
    } else {
        __syncthreads();
    }
    Taking<K, THREADS> take(low, high, to);
    if (level == 0) pass_row<T, THREADS>(r + begin, begin, end - begin, sense, take, s);
    else pass_list<K, THREADS>(in_keys + list, in_at + list, begin, end, take, s);
    add_up<THREADS>(take.above, take.at_high, take.at_low, take.inside, s);
    unsigned* c = counts + (level * rows + row) * 4ull;
    if (threadIdx.x < 3 && s.sums[threadIdx.x] != 0) atomicAdd(&c[threadIdx.x], s.sums[threadIdx.x]);
    const bool fits = slots * THREADS + s.over <= capacity;
    if (threadIdx.x == 0) {
        s.found = atomicAdd(&c[3], fits ? s.sums[3] : 1u << 30);  // larger than any list's capacity
        if (split == 0) ends[(level * rows + row) * 2ull] = low, ends[(level * rows + row) * 2ull + 1] = high;
    }
    const unsigned own = min(take.inside, slots);
    unsigned upto = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const unsigned v = __shfl_up_sync(~0u, upto, step);
        if (lane >= step) upto += v;
    }
    if (lane == 31) s.warps[warp] = upto;
    __syncthreads();
    const unsigned room = level == 0 ? room0 : room1;
    if (!fits || s.found + s.sums[3] > room) return;
    unsigned before_it = s.found, all = 0;
    for (unsigned w = 0; w < THREADS / 32; ++w) before_it += w < warp ? s.warps[w] : 0, all += s.warps[w];
    before_it += upto - own;
    const long long out = static_cast<long long>(row) * room;
    for (unsigned i = 0; i < own; ++i) out_keys[out + before_it + i] = to.keys[i * THREADS + threadIdx.x],
        out_at[out + before_it + i] = to.at[i * THREADS + threadIdx.x];
    for (unsigned i = threadIdx.x; i < s.over; i += THREADS) {
        const unsigned from = slots * THREADS + i, at = s.found + all + i;
        out_keys[out + at] = to.keys[from], out_at[out + at] = to.at[from];
    }
}

/// One block a row: the k-th element, from the last list.
template <typename T, int THREADS>
__global__ void __launch_bounds__(THREADS, 1)
    bracket_lists(const bits_of<T>* __restrict__ x, long long xs, unsigned n, const void* __restrict__ lengths, int wide,
        const key_of<T>* __restrict__ in_keys,
                  const unsigned* __restrict__ in_at, unsigned* __restrict__ counts, key_of<T>* __restrict__ ends, unsigned rows,
                  unsigned room0, unsigned room1,
                  unsigned level, unsigned k, unsigned m, unsigned slots, unsigned capacity, int index_bits, unsigned sense,
                  bits_of<T>* __restrict__ value,
                  long long* __restrict__ index, unsigned char* __restrict__ mask) {
    using K = key_of<T>;
    __shared__ Bracketing s;
    const Entries<K> to{reinterpret_cast<K*>(selecting_memory),
        reinterpret_cast<unsigned*>(reinterpret_cast<K*>(selecting_memory) + capacity), slots, capacity};
    const unsigned row = blockIdx.x;
    if (threadIdx.x == 0) s.over = 0;
    gdc_wait();
    const bits_of<T>* r = x + row * xs;
    const unsigned length = length_of(lengths, wide, row, n);
    const Asked<T> asked{value, index, mask, row, n, sense};
    if (length < k) {
        asked.template all<THREADS>(length);
        return;
    }
    const Levels<K> levels{counts, ends, rows, room0, room1};
    unsigned place = k, held = 0, at = 0;
    K key = 0;
    Lies lies = levels.follow(row, level, place, held, key);
    __syncthreads();
    if (lies == AMONG) {
        const long long list = static_cast<long long>(row) * (level == 1 ? room0 : room1);
        K low = 0, high = ~K(0);
        if (held > slots * THREADS) bracket_of<K, key_bits<T>, THREADS>([&](unsigned i) { return in_keys[list + i]; }, held, place, m,
            to.keys, s, low, high);
        Taking<K, THREADS> take(low, high, to);
        pass_list<K, THREADS>(in_keys + list, in_at + list, 0, held, take, s);
        add_up<THREADS>(take.above, take.at_high, take.at_low, take.inside, s);
        lies = slots * THREADS + s.over > capacity ? LOST : where<K>(s.sums, low, high, ~0u, place, key);
        const auto each = [&](auto look) { take.each(look, s); };
        if (lies == AMONG) exact_kth<K, key_bits<T>, THREADS>(each, place, index_bits, s, key, at);
    }
    if (lies == EQUAL) at = nth_equal<T, THREADS>(r, length, key, place, sense, s);
    if (lies == LOST) kth_by_digits<T, THREADS>(r, length, k, index_bits, sense, s, key, at);
    asked.template upto<THREADS>(r, length, key, at);
}
