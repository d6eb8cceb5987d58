// The weights of the elements of a row of logits, and their sums: integer multiples of 2^-32, so that the result does not depend on the order of summation.
#pragma once
#include "_sort_keys.cuh"

using Sum = unsigned long long;

/// Inclusive prefix sum of v over the threads; `all`: the total of the block. `warps`: shared, THREADS / 32.
template <int THREADS>
__device__ Sum sum_upto(Sum v, Sum* warps, Sum& all) {
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const Sum o = __shfl_up_sync(~0u, v, step);
        if (lane >= step) v += o;
    }
    __syncthreads();
    if (lane == 31) warps[threadIdx.x / 32] = v;
    __syncthreads();
    all = 0;
    Sum before = 0;
#pragma unroll
    for (int w = 0; w < THREADS / 32; ++w) {
        if (w == threadIdx.x / 32) before = all;
        all += warps[w];
    }
    return before + v;
}

/// The weight of an element. Keys: those of the order with the largest first, NaN last.
template <typename T>
struct Weigh {
    unsigned masked;  // the key of -infinity: it and everything below it is never drawn
    float most, inverse, least;  // the largest logit; 1 / temperature; min_p

    __device__ Weigh(unsigned top_key, float temperature, float min_p)
        : masked(to_key<T>(last_value<T>(0), NAN_SMALLEST)), most(number<T>(Order<T>::down(top_key))), inverse(1.0f / temperature), least(min_p) { }
    /// (logit - largest) / temperature: 0 for the largest, NaN where masked.
    __device__ float scaled(float x) const { return x == most ? 0.0f : (x - most) * inverse; }
    /// The weight in units of 2^-32 for a share w of the largest one's, rounded down.
    __device__ static Sum units(float w) { return static_cast<Sum>(__float2uint_rz(w * 4294967296.0f)) + (w >= 1.0f); }
    /// Without min_p.
    __device__ Sum all(unsigned key) const { return key <= masked ? 0 : units(expf(scaled(number<T>(Order<T>::down(key))))); }
    __device__ Sum operator()(unsigned key) const {
        const float w = key <= masked ? 0.0f : expf(scaled(number<T>(Order<T>::down(key))));
        return w >= least ? units(w) : 0;
    }
    /// The weight of a logit that is not masked.
    __device__ float share(float x) const { return expf(scaled(x)); }
};
