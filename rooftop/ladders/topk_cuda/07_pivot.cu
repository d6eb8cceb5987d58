/* rooftop
idea    = "The threshold is known before the row is read: of a sample of the row, the key at a place a few standard deviations behind that of the k-th is a pivot that slightly more than k elements of the row reach. So nothing depends on what was read before: no barrier between the loads, four of 16 bytes in flight in each of 1024 threads, and the few elements that reach the pivot are appended to a list by an atomic counter. If fewer than k reach it, or more than the list holds, the row is read again as in rung 06: the result is always exact."
predict = { speedup = 1.6 }
limit   = "The sample and its select before the read, the list after it; other blocks of the multiprocessor, if any, read meanwhile. A block for each row: fewer rows than multiprocessors leave some idle."
dtypes  = ["f32"]
args    = ["N: u32", "k: u32", "sample: u32", "capacity: u32", "x: f32[R, N]", "xs: i64 = stride(x, 0)", "values: f32[R, K]", "indices: i64[R, K]"]
demands = { has = ["LDG.E.128"], spills = 0 }

[requires]
"stride(x, 1) == 1" = "the elements of a row must be neighbours"
"largest and nan == 'largest'" = "takes the largest, NaN first"
"not present(lengths)" = "takes whole rows"
"N > 0 and R > 0" = "there is nothing to select"
"0 < k and k <= 2048" = "the selected must fit shared memory"

[config]
threads  = 512
sample   = 4096
capacity = 8192

[[choice]]
when    = "N < 4096"
sample  = 0

[[choice]]
when    = "N < 65536"
sample  = 1024

[[choice]]
when    = "R <= sms"
threads = 1024

[[launch]]
kernel = "pivot_rows<{threads}>"
grid   = ["R"]
block  = ["threads"]
shared = "8 * capacity"
*/
#include "_top_k.cuh"

constexpr unsigned RUN = 32, LOADS = 4;  // consecutive elements of the sample; loads of a thread in flight

/// `sample` elements of a row, a multiple of RUN and at most N; 0: none is taken.
template <int THREADS>
__global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    pivot_rows(unsigned N, unsigned k, unsigned sample, unsigned capacity, const float* __restrict__ x, long long xs, float* values, long long* indices) {
    __shared__ Selecting s;
    unsigned* const keys = reinterpret_cast<unsigned*>(selecting_memory);
    unsigned* const at = keys + capacity;
    x += blockIdx.x * xs;
    const unsigned* const r = reinterpret_cast<const unsigned*>(x);
    const unsigned tid = threadIdx.x;
    unsigned held = ~0u;
    if (sample > 0) {
        const unsigned apart = N / (sample / RUN);
#pragma unroll 8
        for (unsigned i = tid; i < sample; i += THREADS) keys[i] = to_key<float>(r[i / RUN * apart + i % RUN], 0);
        const float mean = static_cast<float>(k) * sample / N;  // so many of the first k are in a sample
        unsigned pivot, index;
        __syncthreads();
        const auto each = [&](auto look) {
            for (unsigned i = tid; i < sample; i += THREADS) look(keys[i], [&] { return i; });
        };
        kth_of<unsigned, 32, THREADS>(each, min(sample, static_cast<unsigned>(mean + 4 * sqrtf(mean)) + 4), 16, s, pivot, index);
        __syncthreads();
        if (tid == 0) s.kept = 0;
        __syncthreads();
        const float low = number<float>(Order<float>::down(pivot));
        const auto look = [&](float v, unsigned i) {
            if (v < low) return;  // NaN is not: it comes first
            const unsigned key = to_key<float>(__float_as_uint(v), 0);
            if (key < pivot) return;
            const unsigned to = atomicAdd(&s.kept, 1u);
            if (to < capacity) keys[to] = key, at[to] = i;
        };
        const unsigned head = min(N, static_cast<unsigned>(-reinterpret_cast<unsigned long long>(x) % 16 / 4)), packs = (N - head) / 4, tail = head + 4 * packs;
        const float4* const from = reinterpret_cast<const float4*>(x + head);
        if (tid < head) look(x[tid], tid);
        if (tid < N - tail) look(x[tail + tid], tail + tid);
        for (unsigned p = tid; p < packs; p += LOADS * THREADS) {
            float4 v[LOADS];
#pragma unroll
            for (unsigned u = 0; u < LOADS; ++u) v[u] = from[min(p + u * THREADS, packs - 1)];
#pragma unroll
            for (unsigned u = 0; u < LOADS; ++u) {
                const unsigned i = head + 4 * (p + u * THREADS);
                if (i >= tail || (v[u].x < low && v[u].y < low && v[u].z < low && v[u].w < low)) continue;
                look(v[u].x, i), look(v[u].y, i + 1), look(v[u].z, i + 2), look(v[u].w, i + 3);
            }
        }
        __syncthreads();
        held = s.kept;
        __syncthreads();
    }
    if (held > capacity || held < k) {
        const FromRow<float, THREADS, 1> again{r, 0, N, 0, 0};
        held = select<float, THREADS, true>(again, again.rounds(), k, capacity, 32, keys, at, s);
    } else if (held > PLACED && held > k) {
        unsigned key, index;
        keep_first<unsigned, 32, THREADS>(keys, at, held, k, 32, s, key, index);
        held = k;
    }
    const Results<float> results{r, reinterpret_cast<unsigned*>(values), indices, nullptr, blockIdx.x, N, 0, k, 0, 0, false};
    write_results<float, THREADS>(results, keys, at, held, k);
}
