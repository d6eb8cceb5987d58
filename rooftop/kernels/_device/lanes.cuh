// Sums over neighbouring lanes of a warp.
#pragma once

/// What LANES neighbouring lanes hold, a power of two, summed up in all of them: K sums side by side, which wait for one another's shuffles.
template <int LANES, int K>
__device__ void lanes_sums(float (&v)[K]) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) {
#pragma unroll
        for (int k = 0; k < K; ++k) v[k] += __shfl_xor_sync(~0u, v[k], step);
    }
}

/// One sum, by a loop of its own: as one of K it has the compiler order the backward of float32 otherwise.
template <int LANES>
__device__ float lanes_sum(float v) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
    return v;
}

/// The least power of two that is at least n: so many lanes for n parts.
constexpr int lanes_for(int n) { return n <= 1 ? 1 : 2 * lanes_for((n + 1) / 2); }
