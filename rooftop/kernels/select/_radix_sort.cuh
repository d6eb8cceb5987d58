// A stable sort of rows: a least-significant-digit (LSD) radix sort with digits of 8 bits. Short rows in one block, long ones one tile per
// block in three launches per digit.
#pragma once
#include "pdl.cuh"
#include "_sort_keys.cuh"

/// Shared memory of a block of THREADS, besides its entries.
template <int THREADS>
struct Ranking {
    // of each warp: first the count of each digit, then the place of its first entry within the digit
    unsigned counters[THREADS / 32][256];
    unsigned base[256];  // the place in the tile of a digit's first entry
    unsigned sums[8];
};

/// A thread's ITEMS entries are 32 apart, a warp's are consecutive: entry i of lane l of warp w is at w · 32 ITEMS + 32 i + l.
template <int ITEMS>
__device__ unsigned standing(int i) { return threadIdx.x / 32 * (32 * ITEMS) + i * 32 + threadIdx.x % 32; }

/// Resident blocks a multiprocessor: 1024 threads of 64 registers, or fewer threads if keys and places need more registers.
template <typename K>
constexpr int blocks_of(int threads, int items) {
    const int most = items <= (sizeof(K) == 8 ? 6 : 12) ? 1024 : threads == 384 ? 768 : 512;
    return most > threads ? most / threads : 1;
}

/// The digit for which the largest key comes first.
template <typename K>
__device__ unsigned digit_of(K key, int shift) { return 255 - static_cast<unsigned>(key >> shift & 255); }

/// Exclusive prefix sum of 256 numbers, one of each of the first 256 threads. All threads of the block call it; blocks of 64 and 128
/// threads loop.
template <int THREADS>
__device__ void sums_before(unsigned* v, unsigned* sums) {  // v: shared, in place
    constexpr int EACH = THREADS >= 256 ? 1 : 256 / THREADS, USED = 256 / EACH;
    const unsigned t = threadIdx.x;
    unsigned own[EACH], sum = 0, upto = 0;
    if (t < USED) {
#pragma unroll
        for (int j = 0; j < EACH; ++j) own[j] = v[t * EACH + j], sum += own[j];
        upto = sum;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const unsigned o = __shfl_up_sync(~0u, upto, step);
            if (t % 32 >= step) upto += o;
        }
        if (t % 32 == 31) sums[t / 32] = upto;
    }
    __syncthreads();
    if (t < USED) {
        unsigned at = upto - sum;
        for (unsigned w = 0; w < t / 32; ++w) at += sums[w];
#pragma unroll
        for (int j = 0; j < EACH; ++j) v[t * EACH + j] = at, at += own[j];
    }
    __syncthreads();
}

/// Adds to `place` the place of each entry of a tile when sorted by one digit; stable.
template <int THREADS, int ITEMS, typename K>
__device__ void rank(const K (&key)[ITEMS], int shift, unsigned (&place)[ITEMS], Ranking<THREADS>& s) {
    constexpr int WARPS = THREADS / 32;
    unsigned* mine = s.counters[threadIdx.x / 32];
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < 8; ++j) mine[j * 32 + lane] = 0;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const unsigned d = digit_of(key[i], shift);
        unsigned alike = ~0u;
#pragma unroll
        for (int b = 0; b < 8; ++b) {
            const unsigned set = __ballot_sync(~0u, d >> b & 1);
            alike &= d >> b & 1 ? set : ~set;
        }
        const unsigned first = __ffs(alike) - 1;
        unsigned so_far = 0;
        if (lane == first) so_far = mine[d], mine[d] = so_far + __popc(alike);
        so_far = __shfl_sync(~0u, so_far, first);
        place[i] += so_far + __popc(alike & ((1u << lane) - 1));
        __syncwarp();
    }
    __syncthreads();
    for (unsigned d = threadIdx.x; d < 256; d += THREADS) {
        unsigned sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const unsigned n = s.counters[w][d];
            s.counters[w][d] = sum, sum += n;
        }
        s.base[d] = sum;
    }
    __syncthreads();
    sums_before<THREADS>(s.base, s.sums);
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const unsigned d = digit_of(key[i], shift);
        place[i] += s.base[d] + mine[d];
    }
}

extern __shared__ __align__(16) unsigned char sorting_memory[];

/// One block for a row of at most THREADS · ITEMS elements, at most 65536.
template <typename T, int THREADS, int ITEMS>
__global__ void __launch_bounds__(THREADS, blocks_of<key_of<T>>(THREADS, ITEMS))
    sort_rows(const bits_of<T>* __restrict__ x, long long xs, unsigned n, const void* __restrict__ lengths, int wide, unsigned sense,
        unsigned first, unsigned count,
              bits_of<T>* __restrict__ values, long long* __restrict__ indices, unsigned char* __restrict__ mask, int marks, int rest) {
    using K = key_of<T>;
    __shared__ Ranking<THREADS> s;
    K* keys = reinterpret_cast<K*>(sorting_memory);
    unsigned short* at = reinterpret_cast<unsigned short*>(keys + THREADS * ITEMS);
    const long long row = blockIdx.x;
    gdc_wait();
    const bits_of<T>* r = x + row * xs;
    const unsigned length = length_of(lengths, wide, row, n);
    K key[ITEMS];
    unsigned place[ITEMS];  // place in the lower half, index in the upper half
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const unsigned p = standing<ITEMS>(i);
        place[i] = p << 16, key[i] = p < length ? to_key<T>(r[p], sense) : 0;  // padding comes last, and stays last at each digit
    }
#pragma unroll 1
    for (int shift = 0; shift < key_bits<T>; shift += 8) {
        rank<THREADS, ITEMS>(key, shift, place, s);
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) keys[place[i] & 0xffff] = key[i],
            at[place[i] & 0xffff] = static_cast<unsigned short>(place[i] >> 16);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) key[i] = keys[standing<ITEMS>(i)], place[i] = static_cast<unsigned>(at[standing<ITEMS>(i)]) << 16;
        __syncthreads();
    }
    const Results<T> results{r, values, indices, mask, row, n, first, count, sense, 0, marks != 0};
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const unsigned p = standing<ITEMS>(i);
        if (p < length) results.put(p, key[i], place[i] >> 16);
        else if (p < n && rest) results.rest(p);
        else if (p < n) results.none(p);
    }
}

/// The entries of a tile: elements of the row (FIRST), or the output of the pass before, [rows, n].
template <typename T, bool FIRST, int THREADS, int ITEMS>
__device__ void tile_keys(key_of<T> (&key)[ITEMS], unsigned from, unsigned length, const bits_of<T>* r, const key_of<T>* keys,
    unsigned sense) {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const unsigned p = from + standing<ITEMS>(i);
        if constexpr (FIRST) key[i] = p < length ? to_key<T>(r[p], sense) : 0;
        else key[i] = p < length ? keys[p] : 0;
    }
}

/// Histograms: how often each digit occurs in each tile, counts[row][digit][tile].
template <typename T, bool FIRST, int THREADS, int ITEMS>
__global__ void __launch_bounds__(THREADS, blocks_of<key_of<T>>(THREADS, ITEMS))
    radix_count(const bits_of<T>* __restrict__ x, long long xs, unsigned n, const void* __restrict__ lengths, int wide, unsigned sense,
        int shift, unsigned tiles,
                const key_of<T>* __restrict__ keys, unsigned* __restrict__ counts) {
    __shared__ unsigned histogram[256];
    const unsigned row = blockIdx.x / tiles, tile = blockIdx.x % tiles, from = tile * (THREADS * ITEMS);
    for (unsigned d = threadIdx.x; d < 256; d += THREADS) histogram[d] = 0;
    __syncthreads();
    gdc_wait();
    const unsigned length = length_of(lengths, wide, row, n);
    key_of<T> key[ITEMS];
    tile_keys<T, FIRST, THREADS, ITEMS>(key, from, length, x + row * xs, FIRST ? nullptr : keys + static_cast<long long>(row) * n, sense);
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        if (from + standing<ITEMS>(i) < length) atomicAdd(&histogram[digit_of(key[i], shift)], 1u);
    }
    __syncthreads();
    for (unsigned d = threadIdx.x; d < 256; d += THREADS) counts[(row * 256ll + d) * tiles + tile] = histogram[d];
}

/// Prefix sums over the tiles of a row's digit, one warp each; the total goes to totals[row][digit]. `lists`: rows · 256.
__global__ void __launch_bounds__(256) radix_scan(unsigned* __restrict__ counts, unsigned lists, unsigned tiles,
    unsigned* __restrict__ totals) {
    constexpr int EACH = 8;  // loads in flight
    const unsigned list = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    gdc_wait();
    if (list >= lists) return;
    unsigned* c = counts + static_cast<long long>(list) * tiles;
    unsigned before = 0;
    for (unsigned from = lane; from < tiles + lane; from += EACH * 32) {
        unsigned v[EACH];
#pragma unroll
        for (int j = 0; j < EACH; ++j) v[j] = from + j * 32 < tiles ? c[from + j * 32] : 0;
#pragma unroll
        for (int j = 0; j < EACH; ++j) {
            unsigned upto = v[j];
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                const unsigned o = __shfl_up_sync(~0u, upto, step);
                if (lane >= step) upto += o;
            }
            if (from + j * 32 < tiles) c[from + j * 32] = before + upto - v[j];
            before += __shfl_sync(~0u, upto, 31);
        }
    }
    if (lane == 0) totals[list] = before;
}

/// Scatters a tile's entries to their places by one digit; after the LAST digit, writes results.
template <typename T, bool FIRST, bool LAST, int THREADS, int ITEMS>
__global__ void __launch_bounds__(THREADS, blocks_of<key_of<T>>(THREADS, ITEMS))
    radix_scatter(const bits_of<T>* __restrict__ x, long long xs, unsigned n, const void* __restrict__ lengths, int wide, unsigned sense,
        int shift, unsigned tiles,
                  const key_of<T>* __restrict__ keys_in, const unsigned* __restrict__ indices_in, const unsigned* __restrict__ counts,
                  const unsigned* __restrict__ totals,
                  key_of<T>* __restrict__ keys_out, unsigned* __restrict__ indices_out, unsigned first, unsigned count,
                  bits_of<T>* __restrict__ values,
                  long long* __restrict__ indices, unsigned char* __restrict__ mask, int marks, int rest) {
    using K = key_of<T>;
    constexpr unsigned TILE = THREADS * ITEMS;
    __shared__ Ranking<THREADS> s;
    __shared__ unsigned start[256];  // place in the row of the first entry of this tile with each digit
    K* keys = reinterpret_cast<K*>(sorting_memory);
    unsigned* at = reinterpret_cast<unsigned*>(keys + TILE);
    const unsigned row = blockIdx.x / tiles, tile = blockIdx.x % tiles, from = tile * TILE;
    gdc_wait();
    const unsigned length = length_of(lengths, wide, row, n);
    const bits_of<T>* r = x + row * xs;
    const long long line = static_cast<long long>(row) * n;
    const Results<T> results{r, values, indices, mask, row, n, first, count, sense, 0, marks != 0};
    K key[ITEMS];
    unsigned place[ITEMS];
    if (from < length) {
        tile_keys<T, FIRST, THREADS, ITEMS>(key, from, length, r, FIRST ? nullptr : keys_in + line, sense);
        for (unsigned d = threadIdx.x; d < 256; d += THREADS) start[d] = totals[row * 256 + d];
        __syncthreads();
        sums_before<THREADS>(start, s.sums);
        for (unsigned d = threadIdx.x; d < 256; d += THREADS) start[d] += counts[(row * 256ll + d) * tiles + tile];
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) place[i] = 0;
        rank<THREADS, ITEMS>(key, shift, place, s);
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) keys[place[i]] = key[i];
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const unsigned p = from + standing<ITEMS>(i);
            at[place[i]] = FIRST || p >= length ? p : indices_in[line + p];  // read late: keys and places fill the registers until here
        }
        __syncthreads();
        const unsigned here = min(TILE, length - from);
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const unsigned p = standing<ITEMS>(i);
            if (p >= here) continue;
            const K k = keys[p];
            const unsigned d = digit_of(k, shift), to = start[d] + p - s.base[d];
            if constexpr (LAST) results.put(to, k, at[p]);
            else keys_out[line + to] = k, indices_out[line + to] = at[p];
        }
    }
    if constexpr (LAST) {
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const unsigned p = from + standing<ITEMS>(i);
            if (p < length || p >= n) continue;
            if (rest) results.rest(p);
            else results.none(p);
        }
    }
}
