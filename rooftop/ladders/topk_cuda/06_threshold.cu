/* rooftop
idea    = "The row is read once and not held. A block keeps a list in shared memory of the elements that precede the k-th of those read so far: after a few thousand elements hardly any does, so that most loads end in one comparison. The first threshold is the k-th largest of the threads' own maxima; when the list is full, a radix select over it drops what is behind the k-th and raises the threshold. The next 16 elements of a thread are loaded while these are compared."
predict = { speedup = 1.6 }
limit   = "2.03 times as fast as rung 05 on an H200, where 1.6 was predicted, probably because the histograms and cluster barriers that are gone took longer than a row's read. What is left: a barrier for every 8192 elements, since all threads must know how long the list is; a block has 32 KiB in flight, and 128 rows take as many multiprocessors."
dtypes  = ["f32"]
args    = ["N: u32", "k: u32", "capacity: u32", "x: f32[R, N]", "xs: i64 = stride(x, 0)", "values: f32[R, K]", "indices: i64[R, K]"]
demands = { has = ["LDG.E.128"], spills = 0 }

[let]
capacity = "k + 512 * 16 + 2048"

[requires]
"stride(x, 1) == 1" = "the elements of a row must be neighbours"
"largest and nan == 'largest'" = "takes the largest, NaN first"
"not present(lengths)" = "takes whole rows"
"N > 0 and R > 0" = "there is nothing to select"
"0 < k and k <= 2048" = "the selected must fit shared memory"

[[launch]]
kernel = "threshold_rows"
grid   = ["R"]
block  = [512]
shared = "8 * (capacity + 3)"
*/
#include "_top_k.cuh"

__global__ void __launch_bounds__(512) threshold_rows(unsigned N, unsigned k, unsigned capacity, const float* __restrict__ x, long long xs, float* values, long long* indices) {
    __shared__ Selecting s;
    capacity = (capacity + 3) / 4 * 4;  // keys and indices start on 16 bytes
    unsigned* const keys = reinterpret_cast<unsigned*>(selecting_memory);
    unsigned* const at = keys + capacity;
    const unsigned* const r = reinterpret_cast<const unsigned*>(x + blockIdx.x * xs);
    const FromRow<float, 512> from{r, 0, N, 0, 0};
    const unsigned held = select<float, 512, true>(from, from.rounds(), k, capacity, 32, keys, at, s);
    const Results<float> results{r, reinterpret_cast<unsigned*>(values), indices, nullptr, blockIdx.x, N, 0, k, 0, 0, false};
    write_results<float, 512>(results, keys, at, held, k);
}
