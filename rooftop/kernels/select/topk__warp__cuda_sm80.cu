/* rooftop
idea    = """A warp holds a short row in registers. The k-th of the 32 largest elements of its lanes is a bar that at least k elements reach, and \
  rarely many more; lanes count theirs, and write them to a list in shared memory, in which each counts those before it. No sort of the row, \
  and no barrier of a block. If the list is too small (many equal elements), the k-th key is found bit by bit, by ballots."""
predict = { speedup = 6 }
limit   = "Instructions: about 400 of a warp for a row of 300 elements, whose read takes as long as 250."
dtypes  = ["f32", "f16", "bf16", "i64", "i32"]
args    = ["x: T[R, N]"]
demands = { has = ["LDG"], spills = 0 }
python  = ["supports", "choose", "launches"]

[config]
each = 4
*/
#include "pdl.cuh"
#include "_sort_keys.cuh"

constexpr unsigned LIST = 128, WARPS = 4;  // entries of a warp's list; warps of a block

/// Rows of at most 32 R elements, one warp each; 1 <= k <= 32. Lane l has elements l, l + 32, ...
template <typename T, int R>
__global__ void __launch_bounds__(32 * WARPS)
    first_of_rows(const bits_of<T>* __restrict__ x, long long xs, unsigned rows, unsigned n, const void* __restrict__ lengths, int wide, unsigned k,
        unsigned sense, bits_of<T>* __restrict__ values, long long* __restrict__ indices) {
    using K = key_of<T>;
    __shared__ K listed_keys[WARPS * LIST];
    __shared__ unsigned listed_indices[WARPS * LIST];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.x * WARPS + warp;
    gdc_wait();
    if (row >= rows) return;
    const bits_of<T>* r = x + row * xs;
    const unsigned length = length_of(lengths, wide, row, n), wanted = min(k, length);
    K* keys = listed_keys + warp * LIST;
    unsigned* at = listed_indices + warp * LIST;
    K key[R], most = 0;
#pragma unroll
    for (int j = 0; j < R; ++j) key[j] = j * 32 + lane < length ? to_key<T>(r[j * 32 + lane], sense) : 0;
#pragma unroll
    for (int j = 0; j < R; ++j) most = key[j] > most ? key[j] : most;
#pragma unroll
    for (int size = 2; size <= 32; size *= 2) {  // the largest first
#pragma unroll
        for (int step = size / 2; step > 0; step /= 2) {
            const K other = __shfl_xor_sync(~0u, most, step);
            const bool larger = ((lane & size) == 0) == ((lane & step) == 0);  // whether this lane takes the larger one
            most = (other > most) == larger ? other : most;
        }
    }
    K bar = __shfl_sync(~0u, most, k - 1);
    unsigned held = 0;  // elements of at least `bar`: of this lane, then of the lanes up to it; padding has key 0
#pragma unroll
    for (int j = 0; j < R; ++j) held += key[j] >= bar;
    unsigned to = held;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const unsigned before_them = __shfl_up_sync(~0u, held, step);
        if (lane >= step) held += before_them;
    }
    to = held - to;
    held = __shfl_sync(~0u, held, 31);
    if (bar > 0 && held <= LIST) {
#pragma unroll
        for (int j = 0; j < R; ++j) {
            if (key[j] >= bar) keys[to] = key[j], at[to] = j * 32 + lane, ++to;
        }
    } else {  // the bits of the last key, the highest first: as many as at least `wanted` elements have
        bar = 0;
#pragma unroll 1
        for (int bit = static_cast<int>(8 * sizeof(K)) - 1; bit >= 0; --bit) {
            const K higher = bar | K(1) << bit;
            unsigned count = 0;
#pragma unroll
            for (int j = 0; j < R; ++j) count += __popc(__ballot_sync(~0u, key[j] >= higher));
            if (count >= wanted) bar = higher;
        }
        unsigned larger = 0;
#pragma unroll
        for (int j = 0; j < R; ++j) larger += __popc(__ballot_sync(~0u, key[j] > bar));
        unsigned equals = wanted - larger;  // of those that equal the last key, so many of the lowest indices
        const unsigned below = (1u << lane) - 1;
        held = 0;
#pragma unroll
        for (int j = 0; j < R; ++j) {
            const bool same = j * 32 + lane < length && key[j] == bar;
            const unsigned alike = __ballot_sync(~0u, same);
            const bool in = key[j] > bar || (same && __popc(alike & below) < equals);
            equals -= min(equals, static_cast<unsigned>(__popc(alike)));
            const unsigned all = __ballot_sync(~0u, in), place = held + __popc(all & below);
            if (in) keys[place] = key[j], at[place] = j * 32 + lane;
            held += __popc(all);
        }
    }
    __syncwarp();
    for (unsigned e = lane; e < held; e += 32) {
        const K mine = keys[e];
        const unsigned index = at[e];
        unsigned place = 0;
#pragma unroll 4
        for (unsigned t = 0; t < held; ++t) place += before(keys[t], at[t], mine, index);
        if (place < k) {
            values[static_cast<long long>(row) * k + place] = from_key<T>(mine, sense, r + index);
            indices[static_cast<long long>(row) * k + place] = index;
        }
    }
    if (lane >= wanted && lane < k) {  // past the row's length
        values[static_cast<long long>(row) * k + lane] = last_value<T>(sense);
        indices[static_cast<long long>(row) * k + lane] = -1;
    }
}
