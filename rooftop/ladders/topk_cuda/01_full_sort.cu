/* rooftop
idea    = "A block sorts its whole row in memory by a bitonic network, then writes the first k."
limit   = "A row of 131072 is read and written 153 times in L2 or memory, 8 bytes read and written per element each time."
dtypes  = ["f32"]
args    = ["N: i32", "wide: i32 = pow2(N)", "k: i32", "x: f32[R, N]", "xs: i64 = stride(x, 0)", "entries: i64[R, W]", "values: f32[R, K]", "indices: i64[R, K]"]

[requires]
"stride(x, 1) == 1" = "the elements of a row must be neighbours"
"largest and nan == 'largest'" = "takes the largest, NaN first"
"not present(lengths)" = "takes whole rows"
"k > 0 and N > 0 and R > 0" = "there is nothing to select"
"N <= 1073741824" = "the network counts in 32 bits"

[scratch]
entries = "i64[R, pow2(N)]"

[[launch]]
kernel = "full_sort"
grid   = ["R"]
block  = [1024]
*/
#include "_sort_keys.cuh"

/// An entry as one number, larger for the first in order: the key in the high half, the complement of the index in the low half.
__global__ void __launch_bounds__(1024) full_sort(int N, int wide, int k, const float* __restrict__ x, long long xs, unsigned long long* entries, float* values, long long* indices) {
    x += blockIdx.x * xs;
    entries += static_cast<long long>(blockIdx.x) * wide;
    for (int i = threadIdx.x; i < wide; i += 1024) {
        const unsigned key = i < N ? to_key<float>(__float_as_uint(x[i]), 0) : 0;
        entries[i] = i < N ? static_cast<unsigned long long>(key) << 32 | ~static_cast<unsigned>(i) : 0;
    }
    __syncthreads();
    for (int size = 2; size <= wide; size *= 2) {
        for (int step = size / 2; step > 0; step /= 2) {
            for (int t = threadIdx.x; t < wide / 2; t += 1024) {
                const int a = 2 * step * (t / step) + t % step, b = a + step;
                const unsigned long long va = entries[a], vb = entries[b];
                if ((va < vb) == ((a & size) == 0)) entries[a] = vb, entries[b] = va;
            }
            __syncthreads();
        }
    }
    for (int i = threadIdx.x; i < k; i += 1024) {
        const unsigned at = ~static_cast<unsigned>(entries[i]);
        values[blockIdx.x * static_cast<long long>(k) + i] = x[at];
        indices[blockIdx.x * static_cast<long long>(k) + i] = at;
    }
}
