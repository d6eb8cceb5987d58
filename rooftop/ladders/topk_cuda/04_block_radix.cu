/* rooftop
idea    = "A radix select: a histogram of the keys by 8 bits in shared memory gives the digit of the k-th; continue with the next 8 bits among the keys that have this digit. A last pass collects the keys above the k-th, and of its equals those of lowest index."
predict = { speedup = 1.2 }
limit   = "Five passes over the row; all but the first hit L2 at best. Atomic additions of the first histogram are contended, since the exponents of neighbours are alike."
dtypes  = ["f32"]
args    = ["N: i32", "k: i32", "x: f32[R, N]", "xs: i64 = stride(x, 0)", "values: f32[R, K]", "indices: i64[R, K]"]

[requires]
"stride(x, 1) == 1" = "the elements of a row must be neighbours"
"largest and nan == 'largest'" = "takes the largest, NaN first"
"not present(lengths)" = "takes whole rows"
"N > 0 and R > 0" = "there is nothing to select"
"0 < k and k <= 2048" = "the selected must fit shared memory"

[[launch]]
kernel = "block_radix"
grid   = ["R"]
block  = [512]
*/
#include "_top_k.cuh"

__global__ void __launch_bounds__(512) block_radix(int N, int k, const float* __restrict__ x, long long xs, float* values, long long* indices) {
    __shared__ __align__(16) unsigned keys[2048], at[2048];
    __shared__ unsigned histogram[256], found[2], count, ties[16];
    x += blockIdx.x * xs;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned prefix = 0, need = k;
    for (int shift = 24; shift >= 0; shift -= 8) {
        if (threadIdx.x < 256) histogram[threadIdx.x] = 0;
        if (threadIdx.x == 0) count = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < N; i += 512) {
            const unsigned key = to_key<float>(__float_as_uint(x[i]), 0);
            if (shift == 24 || (key ^ prefix) >> (shift + 8) == 0) atomicAdd(&histogram[key >> shift & 255], 1u);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            unsigned above = 0, digit = 255;
            while (above + histogram[digit] < need) above += histogram[digit--];
            found[0] = digit, found[1] = above;
        }
        __syncthreads();
        prefix |= found[0] << shift, need -= found[1];
    }
    unsigned taken = 0;  // elements equal to the k-th so far, in the order of their indices
    for (int from = 0; from < N; from += 512) {
        const int i = from + threadIdx.x;
        const unsigned key = i < N ? to_key<float>(__float_as_uint(x[i]), 0) : 0;
        const bool above = i < N && key > prefix, equal = i < N && key == prefix;
        const unsigned equals = __ballot_sync(~0u, equal);
        if (lane == 0) ties[warp] = __popc(equals);
        __syncthreads();
        unsigned rank = taken + __popc(equals & ((1u << lane) - 1));
        for (int w = 0; w < 16; ++w) {
            if (w < warp) rank += ties[w];
            taken += ties[w];
        }
        if (above || (equal && rank < need)) {
            const unsigned to = atomicAdd(&count, 1u);
            keys[to] = key, at[to] = i;
        }
        __syncthreads();
    }
    sort_entries<unsigned, 512>(keys, at, k);
    for (int i = threadIdx.x; i < k; i += 512) {
        values[blockIdx.x * static_cast<long long>(k) + i] = x[at[i]];
        indices[blockIdx.x * static_cast<long long>(k) + i] = at[i];
    }
}
