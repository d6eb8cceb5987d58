// Sums over neighbouring lanes of a warp.
#pragma once

/// Butterfly sums over LANES neighbouring lanes (a power of two); every lane gets the result. K sums at once, so that their shuffles overlap.
template <int LANES, int K>
__device__ void lanes_sums(float (&v)[K]) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) {
#pragma unroll
        for (int k = 0; k < K; ++k) v[k] += __shfl_xor_sync(~0u, v[k], step);
    }
}

/// One sum, with a loop of its own: written as lanes_sums<LANES, 1> it makes the compiler order the float32 backward differently.
template <int LANES>
__device__ float lanes_sum(float v) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
    return v;
}

/// The smallest power of two that is at least n: the number of lanes for n parts.
constexpr int lanes_for(int n) { return n <= 1 ? 1 : 2 * lanes_for((n + 1) / 2); }
