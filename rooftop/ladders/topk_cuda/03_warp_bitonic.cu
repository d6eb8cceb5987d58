/* rooftop
idea    = "Each warp keeps the 64 largest of its part of the row sorted in registers, two per lane. It reads 64 elements at a time; only if one of them exceeds the smallest kept element does it sort them and merge, by a bitonic network of shuffles. Eight warps share a row."
predict = { speedup = 5 }
limit   = "Each merge is 27 steps of the network, perhaps for a single new element; early in a row nearly every load has one."
dtypes  = ["f32"]
args    = ["N: i32", "k: i32", "x: f32[R, N]", "xs: i64 = stride(x, 0)", "values: f32[R, K]", "indices: i64[R, K]"]

[requires]
"stride(x, 1) == 1" = "the elements of a row must be neighbours"
"largest and nan == 'largest'" = "takes the largest, NaN first"
"not present(lengths)" = "takes whole rows"
"N > 0 and R > 0" = "there is nothing to select"
"0 < k and k <= 64" = "a warp keeps 64"

[[launch]]
kernel = "warp_bitonic"
grid   = ["R"]
block  = [256]
*/
#include "_sort_keys.cuh"

using Entry = unsigned long long;

/// One step of a bitonic network over 64 places; place p is in lane p / 2, register p % 2. Pairs differ in bit `step`; descending where bit `size` is 0.
__device__ void exchange(Entry (&v)[2], int size, int step) {
    const int lane = threadIdx.x % 32;
    if (step == 1) {
        const bool falling = (2 * lane & size) == 0;
        if ((v[0] < v[1]) == falling) {
            const Entry e = v[0];
            v[0] = v[1], v[1] = e;
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const Entry other = __shfl_xor_sync(~0u, v[j], step / 2);
        const bool takes_more = ((2 * lane & size) == 0) == ((2 * lane & step) == 0);
        v[j] = (other > v[j]) == takes_more ? other : v[j];
    }
}

/// The 64 largest of `kept` (in descending order) and v, in descending order.
__device__ void merge(Entry (&kept)[2], Entry (&v)[2]) {
#pragma unroll
    for (int size = 2; size <= 64; size *= 2) {
#pragma unroll
        for (int step = size / 2; step > 0; step /= 2) exchange(v, size, step);
    }
    const Entry a = __shfl_xor_sync(~0u, v[1], 31), b = __shfl_xor_sync(~0u, v[0], 31);  // the other way round: place 63 - p
    kept[0] = a > kept[0] ? a : kept[0], kept[1] = b > kept[1] ? b : kept[1];
#pragma unroll
    for (int step = 32; step > 0; step /= 2) exchange(kept, 64, step);
}

__global__ void __launch_bounds__(256) warp_bitonic(int N, int k, const float* __restrict__ x, long long xs, float* values, long long* indices) {
    __shared__ Entry lists[8][64];
    x += blockIdx.x * xs;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Entry kept[2] = {0, 0}, least = 0;
    for (int from = warp * 64; from < N; from += 512) {
        Entry v[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int i = from + j * 32 + lane;
            v[j] = i < N ? static_cast<Entry>(to_key<float>(__float_as_uint(x[i]), 0)) << 32 | ~static_cast<unsigned>(i) : 0;
        }
        if (!__any_sync(~0u, v[0] > least || v[1] > least)) continue;
        merge(kept, v);
        least = __shfl_sync(~0u, kept[1], 31);
    }
    lists[warp][2 * lane] = kept[0], lists[warp][2 * lane + 1] = kept[1];
    __syncthreads();
    if (warp > 0) return;
    for (int w = 1; w < 8; ++w) {
        Entry v[2] = {lists[w][2 * lane], lists[w][2 * lane + 1]};
        merge(kept, v);
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const int place = 2 * lane + j;
        if (place >= k) continue;
        const unsigned at = ~static_cast<unsigned>(kept[j]);
        values[blockIdx.x * static_cast<long long>(k) + place] = x[at];
        indices[blockIdx.x * static_cast<long long>(k) + place] = at;
    }
}
