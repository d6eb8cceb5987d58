/* rooftop
ops     = ["topk", "topk_mask", "kthvalue", "sort", "argsort"]
idea    = """Long rows are read once. A sample of 1024 to 8192 elements of a row gives a pivot that slightly more than k elements reach, so \
  that a short list of candidates remains in shared memory. The list is ranked by counting, or reduced to the first k by a radix select and \
  sorted in registers. A few long rows are divided among blocks, and a second launch merges their lists. If the pivot fails (many equal \
  elements, unusual rows), the row is read again by a selection without a pivot: shared memory collects the elements that are not behind \
  the k-th of those seen so far; when it is full, a radix select keeps the first k and updates this threshold. Shorter rows use this \
  selection too. For k up to 96, rows of at most 64 KiB are held in the registers of one block, with the k-th of the maxima of 128 groups \
  as threshold. A warp sorts a row of up to 256 elements in registers; k above 2048 is a radix sort. topk_mask: the selection without its \
  sort; the mask is filled with the value of most elements, then the selected ones are marked in it. kthvalue: the selection from the \
  nearer end, of which only the last element is written. Above 2048 elements from an end, and for sort and argsort: a \
  least-significant-digit radix sort with digits of 8 bits. A warp sorts rows of up to 256 in registers, one block sorts rows of up to \
  12288 through shared memory; longer rows are cut into tiles that count, scan and scatter each digit: 20 bytes of traffic per element of \
  float32 and digit. 64 registers per thread, so that 32 warps fit on a multiprocessor and hide latency."""
predict = { spills = 0 }
limit   = """On an H200, times the read of the same bytes, float32: 1024x131072 k=1 1.3, k=64 1.5, k=2048 2.4; 256x1Mi 1.1 to 1.2; \
  4096x8192 k=64 2.0, k=2048 8, where the sort of 2048 entries per row takes longer than the read of the row. One row of 131072 takes 11 to \
  32 us, of 16 Mi 38 to 73 us: its sample, two launches, and a list of 18000 entries. 16-bit floats (1024x131072 k=64 2.4) are bound by the \
  instructions per element. kthvalue: As topk, without its sort: 1024x131072 k=64 takes 1.5 times the read on an H200. The median of a long \
  row needs a sort of four digits: 5.7 ms for 1024x131072. sort: On an H200: 4096x8192 float32 965 us, arithmetic, 8 ballots per element \
  and digit; one row of 16 Mi float32 786 us, where its traffic is 0.4 ms; 1000x9999 float16 194 us; one row of 131072 36 us, twelve \
  launches. Not measured: long rows of int64, whose tiles are of 4608 elements, 384 threads."""
dtypes  = ["f32", "f16", "bf16", "i64", "i32"]
args    = ["x: T[R, N]"]
demands = { has = ["LDG"], spills = 0 }
python  = ["supports", "choose", "launches", "scratch"]
*/
#include "_threshold_rows.cuh"
#include "_radix_sort.cuh"
#include "_top_k.cuh"
#include "_top_k_short.cuh"

/// `splits` blocks a row with `per` elements each. One block a row writes results; several write lists [rows, splits, k] for select_lists.
template <typename T, int THREADS>
__global__ void __launch_bounds__(THREADS, THREADS == 64 ? 8 : RESIDENT / THREADS)
    select_rows(const bits_of<T>* __restrict__ x, long long xs, unsigned n, const void* __restrict__ lengths, int wide, unsigned k,
        unsigned splits, unsigned per,
                unsigned capacity, int index_bits, unsigned sense, unsigned tie, key_of<T>* __restrict__ list_keys,
                unsigned* __restrict__ list_indices, unsigned first,
                unsigned count, bits_of<T>* __restrict__ values, long long* __restrict__ indices, unsigned char* __restrict__ mask,
                int marks) {
    __shared__ Selecting s;
    key_of<T>* keys = reinterpret_cast<key_of<T>*>(selecting_memory);
    unsigned* at = reinterpret_cast<unsigned*>(keys + capacity);
    const unsigned row = blockIdx.x / splits, split = blockIdx.x % splits;
    gdc_wait();
    const bits_of<T>* r = x + row * xs;
    const unsigned length = length_of(lengths, wide, row, n);
    const unsigned begin = min(length, split * per), end = split + 1 == splits ? length : min(length, begin + per);
    const FromRow<T, THREADS> from{r + begin, begin, end - begin, sense, tie};
    const unsigned held = select<T, THREADS, true>(from, from.rounds(), k, capacity, index_bits, keys, at, s);
    if (splits > 1) {
        write_list<key_of<T>, THREADS>(keys, at, held, k, list_keys + static_cast<long long>(blockIdx.x) * k,
            list_indices + static_cast<long long>(blockIdx.x) * k);
        return;
    }
    const Results<T> results{r, values, indices, mask, row, n, first, count, sense, tie, marks != 0};
    write_results<T, THREADS>(results, keys, at, held, k);
}

/// Like select_rows, for lists: `n` entries of each row, `per` of them a block.
template <typename T, int THREADS>
__global__ void __launch_bounds__(THREADS, THREADS == 64 ? 8 : RESIDENT / THREADS)
    select_lists(const key_of<T>* __restrict__ in_keys, const unsigned* __restrict__ in_indices, unsigned n, unsigned k, unsigned splits,
        unsigned per, unsigned capacity,
                 int index_bits, unsigned sense, unsigned tie, key_of<T>* __restrict__ list_keys, unsigned* __restrict__ list_indices,
                 const bits_of<T>* __restrict__ x,
                 long long xs, unsigned columns, unsigned first, unsigned count, bits_of<T>* __restrict__ values,
                 long long* __restrict__ indices,
                 unsigned char* __restrict__ mask, int marks) {
    __shared__ Selecting s;
    key_of<T>* keys = reinterpret_cast<key_of<T>*>(selecting_memory);
    unsigned* at = reinterpret_cast<unsigned*>(keys + capacity);
    const unsigned row = blockIdx.x / splits, split = blockIdx.x % splits;
    gdc_wait();
    const long long lists = static_cast<long long>(row) * n;
    const unsigned begin = min(n, split * per), end = min(n, begin + per);
    FromLists<T, THREADS> from{in_keys + lists, in_indices + lists, begin, end};
    constexpr unsigned ROUND = THREADS * SELECT_ITEMS;
    const unsigned held = select<T, THREADS, true>(from, (end - begin + ROUND - 1) / ROUND, k, capacity, index_bits, keys, at, s);
    if (splits > 1) {
        write_list<key_of<T>, THREADS>(keys, at, held, k, list_keys + static_cast<long long>(blockIdx.x) * k,
            list_indices + static_cast<long long>(blockIdx.x) * k);
        return;
    }
    const Results<T> results{x + row * xs, values, indices, mask, row, columns, first, count, sense, tie, marks != 0};
    write_results<T, THREADS>(results, keys, at, held, k);
}

/// Rows of at most 32 R elements, one warp each: a bitonic network in registers. Lane l has places R l to R l + R - 1.
template <typename T, int R>
__global__ void __launch_bounds__(128)
    warp_rows(const bits_of<T>* __restrict__ x, long long xs, unsigned rows, unsigned n, const void* __restrict__ lengths, int wide,
        unsigned sense, unsigned tie,
              unsigned first, unsigned count, bits_of<T>* __restrict__ values, long long* __restrict__ indices,
              unsigned char* __restrict__ mask, int marks, int rest) {
    using K = key_of<T>;
    const unsigned lane = threadIdx.x % 32, row = blockIdx.x * 4 + threadIdx.x / 32;
    gdc_wait();
    if (row >= rows) return;
    const bits_of<T>* r = x + row * xs;
    const unsigned length = length_of(lengths, wide, row, n);
    K key[R];
    unsigned index[R];
#pragma unroll
    for (int j = 0; j < R; ++j) {
        const unsigned i = j * 32 + lane;
        key[j] = i < length ? to_key<T>(r[i], sense) : 0, index[j] = i < length ? i ^ tie : NOBODY;
    }
#pragma unroll
    for (int size = 2; size <= 32 * R; size *= 2) {
#pragma unroll
        for (int step = size / 2; step > 0; step /= 2) {
            if (step >= R) {
#pragma unroll
                for (int j = 0; j < R; ++j) {
                    const K other = __shfl_xor_sync(~0u, key[j], step / R);
                    const unsigned at = __shfl_xor_sync(~0u, index[j], step / R);
                    const unsigned place = lane * R + j;
                    // whether this place takes the entry that is first in order
                    const bool mine_first = ((place & size) == 0) == ((place & step) == 0);
                    if (before(other, at, key[j], index[j]) == mine_first) key[j] = other, index[j] = at;
                }
            } else {
#pragma unroll
                for (int j = 0; j < R; ++j) {
                    if (j & step) continue;
                    const bool falling = ((lane * R + j) & size) == 0;
                    const int o = j + step;
                    if (before(key[o], index[o], key[j], index[j]) == falling) {
                        const K k = key[j];
                        const unsigned i = index[j];
                        key[j] = key[o], index[j] = index[o], key[o] = k, index[o] = i;
                    }
                }
            }
        }
    }
    const Results<T> results{r, values, indices, mask, row, n, first, count, sense, tie, marks != 0};
#pragma unroll
    for (int j = 0; j < R; ++j) {
        const unsigned place = lane * R + j, i = j * 32 + lane;
        if (mask != nullptr) {  // every element has a place here, so the whole mask is written
            if (index[j] != NOBODY) mask[row * static_cast<long long>(n) + (index[j] ^ tie)] = (place - first < count) == (marks != 0);
            if (i >= length && i < n) mask[row * static_cast<long long>(n) + i] = 0;
        } else if (index[j] != NOBODY) {
            results.put(place, key[j], index[j]);
        } else if (place < n) {
            if (rest) results.rest(place);
            else results.none(place);
        }
    }
}

/// The mask of the other elements, written before the selected ones: `value` up to a row's length, 0 after it.
__global__ void __launch_bounds__(256) fill_mask(unsigned char* __restrict__ mask, long long rows, unsigned n,
    const void* __restrict__ lengths, int wide, int value) {
    gdc_wait();
    const long long bytes = rows * n, first = blockIdx.x * 256ll + threadIdx.x, all = gridDim.x * 256ll;
    if (lengths != nullptr) {
        for (long long i = first; i < bytes; i += all) {
            const long long row = i / n;
            mask[i] = value && i - row * n < length_of(lengths, wide, row, n);
        }
        return;
    }
    const long long head = min(bytes, static_cast<long long>(-reinterpret_cast<unsigned long long>(mask) % 16)),
        packs = (bytes - head) / 16;
    const unsigned word = value ? 0x01010101u : 0;
    for (long long i = first; i < packs; i += all) *reinterpret_cast<uint4*>(mask + head + i * 16) = make_uint4(word, word, word, word);
    if (first < head) mask[first] = value;
    if (first < bytes - head - packs * 16) mask[head + packs * 16 + first] = value;
}

/// One block a row. `m`: size of the sample. If fewer than k elements reach the pivot, or too many (many equal elements, an unusual
/// distribution), the row is read again as in select_rows.
template <typename T, int THREADS>
__global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    pivot_rows(const bits_of<T>* __restrict__ x, long long xs, unsigned n, const void* __restrict__ lengths, int wide, unsigned k,
        unsigned m, unsigned capacity,
               int index_bits, unsigned sense, unsigned tie, unsigned first, unsigned count, bits_of<T>* __restrict__ values,
               long long* __restrict__ indices,
               unsigned char* __restrict__ mask, int marks) {
    using K = key_of<T>;
    __shared__ Selecting s;
    K* keys = reinterpret_cast<K*>(selecting_memory);
    unsigned* at = reinterpret_cast<unsigned*>(keys + capacity);
    const unsigned row = blockIdx.x;
    gdc_wait();
    const bits_of<T>* r = x + row * xs;
    const unsigned length = length_of(lengths, wide, row, n), wanted = min(k, length);
    unsigned held = EVERYTHING;
    if (length >= m) {
        take_sample<T, THREADS>(r, length, m, sense, keys);
        const K low = pivot_of<K, key_bits<T>, THREADS>(keys, m, pivot_place(wanted, length, m), s);
        held = gather<T, THREADS>(r, 0, length, low, sense, tie, capacity, keys, at, s);
    }
    if (held > capacity || held < wanted) {
        const FromRow<T, THREADS, 1> from{r, 0, length, sense, tie};
        held = select<T, THREADS, true>(from, from.rounds(), k, capacity, index_bits, keys, at, s);
    }
    const Results<T> results{r, values, indices, mask, row, n, first, count, sense, tie, marks != 0};
    finish_row<T, THREADS>(results, keys, at, held, wanted, k, index_bits, s);
}

/// `splits` blocks a row, `per` elements each, all with the pivot of the whole row. They write lists [rows, splits, k] and the length of
/// each.
template <typename T, int THREADS>
__global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    pivot_parts(const bits_of<T>* __restrict__ x, long long xs, unsigned n, const void* __restrict__ lengths, int wide, unsigned k,
        unsigned m, unsigned splits,
                unsigned per, unsigned capacity, int index_bits, unsigned sense, unsigned tie, key_of<T>* __restrict__ list_keys,
                unsigned* __restrict__ list_indices, unsigned* __restrict__ counts) {
    using K = key_of<T>;
    __shared__ Selecting s;
    K* keys = reinterpret_cast<K*>(selecting_memory);
    unsigned* at = reinterpret_cast<unsigned*>(keys + capacity);
    const unsigned row = blockIdx.x / splits, split = blockIdx.x % splits;
    gdc_wait();
    const bits_of<T>* r = x + row * xs;
    const unsigned length = length_of(lengths, wide, row, n);
    const unsigned begin = min(length, split * per), end = split + 1 == splits ? length : min(length, begin + per);
    unsigned held = EVERYTHING;
    if (length >= m) {
        take_sample<T, THREADS>(r, length, m, sense, keys);
        const K low = pivot_of<K, key_bits<T>, THREADS>(keys, m, pivot_place(min(k, length), length, m), s);
        held = gather<T, THREADS>(r, begin, end - begin, low, sense, tie, capacity, keys, at, s);
    }
    if (held > capacity) {
        const FromRow<T, THREADS, 1> from{r + begin, begin, end - begin, sense, tie};
        held = select<T, THREADS, false>(from, from.rounds(), k, capacity, index_bits, keys, at, s);
    } else if (held > k) {
        K key;
        unsigned index;
        keep_first<K, key_bits<T>, THREADS>(keys, at, held, k, index_bits, s, key, index);
        held = k;
    }
    const long long to = static_cast<long long>(blockIdx.x) * k;
    for (unsigned i = threadIdx.x; i < held; i += THREADS) list_keys[to + i] = keys[i], list_indices[to + i] = at[i];
    if (threadIdx.x == 0) counts[blockIdx.x] = held;
}

/// The lists of a row as an input of select().
template <typename T, int THREADS>
struct FromParts {
    static constexpr int ITEMS = 2;
    using K = key_of<T>;
    const K* keys;
    const unsigned *indices, *counts;
    unsigned k, end;
    K v[ITEMS];
    unsigned at[ITEMS];

    __device__ void fetch(unsigned round) {
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const unsigned p = (round * ITEMS + i) * THREADS + threadIdx.x;
            const bool there = p < end && p % k < counts[p / k];
            v[i] = there ? keys[p] : 0, at[i] = there ? indices[p] : NOBODY;
        }
    }
    __device__ void forget() { }
    __device__ K key(int i) const { return v[i]; }
    __device__ unsigned index(int i) const { return at[i]; }
    __device__ unsigned near(K key) const { return static_cast<unsigned>(v[0] >= key) | static_cast<unsigned>(v[1] >= key) << 1; }
    __device__ void one(int i, K& key, unsigned& index) const { key = i ? v[1] : v[0], index = i ? at[1] : at[0]; }
};

/// One block a row: merges its lists from pivot_parts. If they have fewer than k entries, the row is read again.
template <typename T, int THREADS>
__global__ void __launch_bounds__(THREADS, 1)
    pivot_lists(const key_of<T>* __restrict__ list_keys, const unsigned* __restrict__ list_indices, const unsigned* __restrict__ counts,
        unsigned splits,
                const bits_of<T>* __restrict__ x, long long xs, unsigned n, const void* __restrict__ lengths, int wide, unsigned k,
                unsigned capacity, int index_bits,
                unsigned sense, unsigned tie, unsigned first, unsigned count, bits_of<T>* __restrict__ values,
                long long* __restrict__ indices,
                unsigned char* __restrict__ mask, int marks) {
    using K = key_of<T>;
    __shared__ Selecting s;
    K* keys = reinterpret_cast<K*>(selecting_memory);
    unsigned* at = reinterpret_cast<unsigned*>(keys + capacity);
    const unsigned row = blockIdx.x;
    __shared__ unsigned ends[LISTS];
    gdc_wait();
    const bits_of<T>* r = x + row * xs;
    const unsigned length = length_of(lengths, wide, row, n), wanted = min(k, length);
    list_keys += static_cast<long long>(row) * splits * k, list_indices += static_cast<long long>(row) * splits * k, counts += row * splits;
    if (threadIdx.x < 32) {  // number of entries before each list
        unsigned upto = 0;
        for (unsigned from = 0; from < splits; from += 32) {
            unsigned mine = from + threadIdx.x < splits ? counts[from + threadIdx.x] : 0;
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                const unsigned v = __shfl_up_sync(~0u, mine, step);
                if (threadIdx.x >= step) mine += v;
            }
            if (from + threadIdx.x < splits) ends[from + threadIdx.x] = upto + mine;
            upto += __shfl_sync(~0u, mine, 31);
        }
    }
    __syncthreads();
    unsigned held = ends[splits - 1];
#pragma unroll 4
    for (unsigned i = threadIdx.x; i < min(held, capacity); i += THREADS) {
        unsigned list = 0;  // the first list that ends after entry i
#pragma unroll
        for (unsigned step = LISTS / 2; step > 0; step /= 2) list += list + step <= splits && ends[list + step - 1] <= i ? step : 0;
        const long long from = static_cast<long long>(list) * k + (i - (list == 0 ? 0 : ends[list - 1]));
        keys[i] = list_keys[from], at[i] = list_indices[from];
    }
    __syncthreads();
    if (held < wanted) {
        const FromRow<T, THREADS, 1> from{r, 0, length, sense, tie};
        held = select<T, THREADS, true>(from, from.rounds(), k, capacity, index_bits, keys, at, s);
    } else if (held > capacity) {
        const FromParts<T, THREADS> from{list_keys, list_indices, counts, k, splits * k};
        constexpr unsigned ROUND = THREADS * FromParts<T, THREADS>::ITEMS;
        held = select<T, THREADS, true>(from, (splits * k + ROUND - 1) / ROUND, k, capacity, index_bits, keys, at, s);
    }
    const Results<T> results{r, values, indices, mask, row, n, first, count, sense, tie, marks != 0};
    finish_row<T, THREADS>(results, keys, at, held, wanted, k, index_bits, s);
}
