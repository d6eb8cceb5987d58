/* rooftop
idea    = "A cluster reads a row once: each of its blocks holds its part as keys in shared memory, where the radix select runs. Blocks add up their histograms of digits, now of 11 bits, through distributed shared memory; the selected elements are sent to the first block, which sorts them. Rows of up to 8192 are processed by one block."
predict = { speedup = 2.5 }
limit   = "The histograms: contended atomic additions, since the exponents of neighbours are alike, and two cluster barriers per digit, during which nothing is read."
arch    = 90
dtypes  = ["f32"]
args    = ["N: i32", "part: i32", "k: i32", "x: f32[R, N]", "xs: i64 = stride(x, 0)", "values: f32[R, K]", "indices: i64[R, K]"]

[let]
blocks = "1 if N <= 8192 else 2 if N <= 16384 else 4 if N <= 32768 else 8"
part   = "ceil(N / blocks)"

[requires]
"stride(x, 1) == 1" = "the elements of a row must be neighbours"
"largest and nan == 'largest'" = "takes the largest, NaN first"
"not present(lengths)" = "takes whole rows"
"N > 0 and R > 0" = "there is nothing to select"
"0 < k and k <= 2048" = "the selected must fit shared memory"
"N <= 376832" = "a cluster of 8 must hold the row"

[[launch]]
kernel  = "cluster_rows"
grid    = ["R * blocks"]
block   = [512]
cluster = ["blocks"]
shared  = "4 * part"
*/
#include <cooperative_groups.h>
#include "_sort_keys.cuh"

namespace cg = cooperative_groups;

constexpr int DIGITS = 2048, WARPS = 16, MOST = 8;  // MOST: blocks of a cluster

struct Shared {
    alignas(16) unsigned keys[2048];
    alignas(16) unsigned at[2048];
    unsigned counts[DIGITS], totals[DIGITS];  // of this block's part, and of the row
    unsigned warps[WARPS], equals[MOST], found[3], listed;
};

__global__ void __launch_bounds__(512, 2) cluster_rows(int N, int part, int k, const float* __restrict__ x, long long xs, float* values, long long* indices) {
    extern __shared__ unsigned held[];
    __shared__ Shared s;
    const cg::cluster_group cluster = cg::this_cluster();
    const int blocks = cluster.num_blocks(), rank = cluster.block_rank(), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long row = blockIdx.x / blocks;
    x += row * xs;
    const int begin = rank * part, count = max(0, min(part, N - begin));
    if (threadIdx.x == 0) s.listed = 0;
#pragma unroll 8
    for (int i = threadIdx.x; i < count; i += 512) held[i] = to_key<float>(__float_as_uint(x[begin + i]), 0);
    unsigned key = 0, need = k, equal = 0;
    int shift = 32;
    do {
        const int above = shift, bits = min(shift, 11);
        shift -= bits;
        const unsigned last = (1u << bits) - 1;
        for (int d = threadIdx.x; d < DIGITS; d += 512) s.counts[d] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < count; i += 512) {
            if (above == 32 || (held[i] ^ key) >> above == 0) atomicAdd(&s.counts[last - (held[i] >> shift & last)], 1u);
        }
        cluster.sync();
        for (int d = rank * (DIGITS / blocks) + threadIdx.x; d < (rank + 1) * (DIGITS / blocks); d += 512) {
            unsigned sum = 0;
            for (int b = 0; b < blocks; ++b) sum += *cluster.map_shared_rank(&s.counts[d], b);
            for (int b = 0; b < blocks; ++b) *cluster.map_shared_rank(&s.totals[d], b) = sum;
        }
        cluster.sync();
        unsigned own[4], sum = 0;  // digits in descending order, four a thread
        for (int j = 0; j < 4; ++j) own[j] = s.totals[4 * threadIdx.x + j], sum += own[j];
        unsigned upto = sum;
        for (int step = 1; step < 32; step *= 2) {
            const unsigned v = __shfl_up_sync(~0u, upto, step);
            if (lane >= step) upto += v;
        }
        if (lane == 31) s.warps[warp] = upto;
        __syncthreads();
        for (int w = 0; w < warp; ++w) upto += s.warps[w];
        upto -= sum;
        for (int j = 0; j < 4; ++j) {
            if (upto < need && need <= upto + own[j]) s.found[0] = 4 * threadIdx.x + j, s.found[1] = upto, s.found[2] = own[j];
            upto += own[j];
        }
        __syncthreads();
        key |= (last - s.found[0]) << shift, need -= s.found[1], equal = s.found[2];
    } while (shift > 0 && need < equal);
    // All keys above `key` are selected, and of those equal to it the `need` with the lowest indices. A warp has neighbouring elements, so it can count equals in order.
    const int stretch = (part + 511) / 512 * 32, from = warp * stretch, to = min(from + stretch, count);
    unsigned taken = 0;  // equals before this warp's
    if (need < equal) {
        unsigned mine = 0;
        for (int i = from + lane; i < to; i += 32) mine += held[i] == key;
        for (int step = 16; step > 0; step /= 2) mine += __shfl_xor_sync(~0u, mine, step);
        if (lane == 0) s.warps[warp] = mine;
        __syncthreads();
        if (threadIdx.x < blocks) {
            unsigned all = 0;
            for (int w = 0; w < WARPS; ++w) all += s.warps[w];
            *cluster.map_shared_rank(&s.equals[rank], threadIdx.x) = all;
        }
        cluster.sync();
        for (int b = 0; b < rank; ++b) taken += s.equals[b];
        for (int w = 0; w < warp; ++w) taken += s.warps[w];
    }
    unsigned* list = cluster.map_shared_rank(s.keys, 0);
    unsigned* places = cluster.map_shared_rank(s.at, 0);
    unsigned* listed = cluster.map_shared_rank(&s.listed, 0);
    for (int i = from + lane; i - lane < to; i += 32) {
        const unsigned v = i < to ? held[i] : 0;
        bool selected = i < to && v >= key;
        if (need < equal) {
            const unsigned equals = __ballot_sync(~0u, i < to && v == key);
            selected = selected && (v > key || taken + __popc(equals & ((1u << lane) - 1)) < need);
            taken += __popc(equals);
        }
        if (selected) {
            const unsigned place = atomicAdd(listed, 1u);
            list[place] = v, places[place] = begin + i;
        }
    }
    cluster.sync();
    if (rank > 0) return;
    sort_entries<unsigned, 512>(s.keys, s.at, k);
    for (int i = threadIdx.x; i < k; i += 512) {
        values[row * k + i] = x[s.at[i]];
        indices[row * k + i] = s.at[i];
    }
}
