/* rooftop
ops     = ["kthvalue", "topk_mask"]
idea    = """The k-th element of a row for any k, with one read of the row. A cluster holds the row in shared memory and makes histograms \
  of digits of 11 bits, from the highest digit down. Among elements equal to the k-th it chooses by index. topk_mask: the mask of the first \
  k of a row for any k, with one read of the row. A cluster holds the row in shared memory, makes histograms of digits of 11 bits from the \
  highest digit down until the k-th is known, and writes the mask from shared memory."""
limit   = """On an H200, float32: 21 us for one row of 131072 and 890 us for 1024, whatever k; 4096x8192, one block per row, 250 us. The \
  pass over shared memory for each of three digits, contended atomic additions (most elements have similar exponents, so few digits occur), \
  and the cluster barriers; the read of 1024x131072 takes 124 us. topk_mask: on an H200, float32: 15 us for one row of 131072 and 730 us \
  for 1024 with k = 65536; 4096x8192, one block per row, 200 us. The pass over shared memory for each digit, contended atomic additions \
  (most elements have similar exponents, so few digits occur), and the cluster barriers; the read of 1024x131072 takes 124 us."""
dtypes  = ["f32", "f16", "bf16", "i64", "i32"]
args    = ["x: T[R, N]"]
demands = { has = ["LDG.128"], spills = 0 }
python  = ["supports", "choose", "launches"]
*/
// Selects the k-th element of a row for any k. One cluster a row: its blocks read their parts once and hold them in shared memory, and
// histograms of 11-bit digits (a radix select) find the element.
#include <cooperative_groups.h>
#include "pdl.cuh"
#include "_sort_keys.cuh"

namespace cg = cooperative_groups;

constexpr int HELD_THREADS = 512, HELD_WARPS = HELD_THREADS / 32, DIGIT = 11, DIGITS = 1 << DIGIT, MOST_BLOCKS = 8;

struct Held {
    unsigned counts[DIGITS], totals[DIGITS];  // histograms: of this block's elements, and of the whole row's
    unsigned warps[HELD_WARPS], equals[MOST_BLOCKS], found[3];
};

/// Inclusive prefix sum of v over the threads of the block; `all`: the total.
__device__ inline unsigned held_upto(unsigned v, unsigned& all, Held& s) {
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const unsigned o = __shfl_up_sync(~0u, v, step);
        if (lane >= step) v += o;
    }
    __syncthreads();
    if (lane == 31) s.warps[threadIdx.x / 32] = v;
    __syncthreads();
    all = 0;
    unsigned before = 0;
#pragma unroll
    for (int w = 0; w < HELD_WARPS; ++w) {
        if (w == threadIdx.x / 32) before = all;
        all += s.warps[w];
    }
    return before + v;
}

/// The k-th element of each row in order, 1 <= k <= n: its value and index, or (`mask` present) a mark at each of the first k elements.
/// `packs`: number of 16-byte packs a block holds.
template <typename T>
__global__ void __launch_bounds__(HELD_THREADS, 2)
    held_select(const bits_of<T>* __restrict__ x, long long xs, unsigned n, const void* __restrict__ lengths, int wide, unsigned packs,
        unsigned k, unsigned sense,
                bits_of<T>* __restrict__ value, long long* __restrict__ index, unsigned char* __restrict__ mask) {
    using K = key_of<T>;
    using B = bits_of<T>;
    extern __shared__ __align__(16) uint4 held[];
    __shared__ Held s;
    constexpr unsigned N = 16 / sizeof(T), U = 4, EACH = DIGITS / HELD_THREADS;
    const cg::cluster_group cluster = cg::this_cluster();
    const unsigned blocks = cluster.num_blocks(), rank = cluster.block_rank(), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long row = blockIdx.x / blocks;
    gdc_wait();
    const B* r = x + row * xs;
    const unsigned length = length_of(lengths, wide, row, n);
    const unsigned off = reinterpret_cast<unsigned long long>(r) % 16 / sizeof(T), all_packs = (off + n + N - 1) / N;
    const unsigned first_pack = min(all_packs, rank * packs), count = min(all_packs, first_pack + packs) - first_pack;
    const int start = static_cast<int>(first_pack * N) - static_cast<int>(off);  // index in the row of the first element held
    // the row's part of them
    const int begin = max(0, -start), end = max(begin, min(static_cast<int>(length) - start, static_cast<int>(count * N)));
    const int stop = max(begin, min(static_cast<int>(n) - start, static_cast<int>(count * N)));
    B* mine = reinterpret_cast<B*>(held);
    for (unsigned from = threadIdx.x; from < count; from += U * HELD_THREADS) {
        uint4 v[U];
#pragma unroll
        for (unsigned u = 0; u < U; ++u) {
            const int p = static_cast<int>((from + u * HELD_THREADS) * N);
            if (p >= begin && p + static_cast<int>(N) <= end) v[u] = *reinterpret_cast<const uint4*>(r + (start + p));
        }
#pragma unroll
        for (unsigned u = 0; u < U; ++u) {
            const int p = static_cast<int>((from + u * HELD_THREADS) * N);
            if (p >= begin && p + static_cast<int>(N) <= end) {
                held[from + u * HELD_THREADS] = v[u];
            } else {
                for (int i = max(p, begin); i < min(p + static_cast<int>(N), end); ++i) mine[i] = r[start + i];
            }
        }
    }
    if (length < k) {  // the row has fewer than k elements: all are selected, and there is no k-th
        if (mask == nullptr && rank == 0 && threadIdx.x == 0) value[row] = last_value<T>(sense), index[row] = -1;
        if (mask != nullptr) {
            for (int i = begin + static_cast<int>(threadIdx.x); i < stop; i += HELD_THREADS) mask[row * n + (start + i)] = i < end;
        }
        return;
    }
    K key = 0;
    unsigned need = k, equal = 0;
#pragma unroll 1
    for (int shift = key_bits<T>; shift > 0;) {
        const int above = shift, bits = min(shift, DIGIT);
        shift -= bits;
        const unsigned last = (1u << bits) - 1;
        for (unsigned d = threadIdx.x; d < DIGITS; d += HELD_THREADS) s.counts[d] = 0;
        __syncthreads();
#pragma unroll 4
        for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += HELD_THREADS) {
            const K v = to_key<T>(mine[i], sense);
            if (above == key_bits<T> || v >> above == key >> above) atomicAdd(&s.counts[last - (static_cast<unsigned>(v >> shift) & last)],
                1u);
        }
        cluster.sync();
        const unsigned share = DIGITS / blocks;
        for (unsigned d = rank * share + threadIdx.x; d < (rank + 1) * share; d += HELD_THREADS) {
            unsigned sum = 0;
            for (unsigned b = 0; b < blocks; ++b) sum += *cluster.map_shared_rank(&s.counts[d], b);
            for (unsigned b = 0; b < blocks; ++b) *cluster.map_shared_rank(&s.totals[d], b) = sum;
        }
        cluster.sync();
        unsigned own[EACH], sum = 0, all;
#pragma unroll
        for (unsigned j = 0; j < EACH; ++j) own[j] = s.totals[threadIdx.x * EACH + j], sum += own[j];
        unsigned upto = held_upto(sum, all, s) - sum;
        if (upto < need && need <= upto + sum) {
            bool open = true;
#pragma unroll
            for (unsigned j = 0; j < EACH; ++j) {
                if (open && need <= upto + own[j]) s.found[0] = threadIdx.x * EACH + j, s.found[1] = upto, s.found[2] = own[j],
                    open = false;
                upto += own[j];
            }
        }
        __syncthreads();
        key |= static_cast<K>(last - s.found[0]) << shift;
        need -= s.found[1], equal = s.found[2];
        // all elements with these digits are among the first k: every key from here on is selected
        if (mask != nullptr && need == equal) break;
    }
    // Among elements equal to the k-th the first `need` by index are selected. A warp has neighbouring elements, so it can count the equals
    // before its own.
    const int stretch = (static_cast<int>(count * N) + HELD_WARPS * 32 - 1) / (HELD_WARPS * 32) * 32,
        from = static_cast<int>(warp) * stretch;
    unsigned before_it = 0;
    if (mask != nullptr && need == equal) {
        need = ~0u;
    } else {
        unsigned sum = 0;
        for (int i = from + static_cast<int>(lane); i < min(from + stretch, end); i += 32) sum += i >= begin
            && to_key<T>(mine[i], sense) == key;
#pragma unroll
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
        __syncthreads();
        if (lane == 0) s.warps[warp] = sum;
        __syncthreads();
        if (threadIdx.x < blocks) {
            unsigned block = 0;
            for (int w = 0; w < HELD_WARPS; ++w) block += s.warps[w];
            *cluster.map_shared_rank(&s.equals[rank], threadIdx.x) = block;
        }
        cluster.sync();
        for (unsigned b = 0; b < rank; ++b) before_it += s.equals[b];
        for (unsigned w = 0; w < warp; ++w) before_it += s.warps[w];
        if (mask == nullptr && (need <= before_it || need > before_it + sum)) return;
    }
    for (int i = from + static_cast<int>(lane); i - static_cast<int>(lane) < min(from + stretch, stop); i += 32) {
        const bool there = i >= begin && i < end;
        const K v = there ? to_key<T>(mine[i], sense) : 0;
        const unsigned equals = __ballot_sync(~0u, there && v == key), place = before_it + __popc(equals & ((1u << lane) - 1));
        before_it += __popc(equals);
        if (mask != nullptr) {
            if (i >= begin && i < stop) mask[row * n + (start + i)] = there && (v > key || (v == key && place < need));
        } else if (there && v == key && place == need - 1) {
            value[row] = mine[i], index[row] = start + i;
        }
    }
}
