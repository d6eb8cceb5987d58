// 32-bit words: of one f32 or two f16 or bf16 elements, a row as packs of them (vectors of 16 bytes), for kernels that compute in float32;
// and random words.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

/// The elements in one 32-bit word: conversion to float (widen), back with one rounding (narrow), and the elementwise maximum of two words
/// (a NaN loses against a number, as in fmaxf).
template <typename T>
struct Word;

template <>
struct Word<float> {
    static constexpr int N = 1;
    __device__ static void widen(unsigned w, float (&f)[N]) { f[0] = __uint_as_float(w); }
    __device__ static unsigned narrow(const float (&f)[N]) { return __float_as_uint(f[0]); }
    __device__ static unsigned larger(unsigned a, unsigned b) { return __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b))); }
};

template <>
struct Word<__half> {
    static constexpr int N = 2;
    __device__ static __half2 both(unsigned w) { return *reinterpret_cast<const __half2*>(&w); }
    __device__ static unsigned word(__half2 v) { return *reinterpret_cast<const unsigned*>(&v); }
    __device__ static void widen(unsigned w, float (&f)[N]) {
        const float2 v = __half22float2(both(w));
        f[0] = v.x, f[1] = v.y;
    }
    __device__ static unsigned narrow(const float (&f)[N]) { return word(__floats2half2_rn(f[0], f[1])); }
    __device__ static unsigned larger(unsigned a, unsigned b) { return word(__hmax2(both(a), both(b))); }
};

template <>
struct Word<__nv_bfloat16> {
    static constexpr int N = 2;
    __device__ static __nv_bfloat162 both(unsigned w) { return *reinterpret_cast<const __nv_bfloat162*>(&w); }
    __device__ static unsigned word(__nv_bfloat162 v) { return *reinterpret_cast<const unsigned*>(&v); }
    __device__ static void widen(unsigned w, float (&f)[N]) {
        const float2 v = __bfloat1622float2(both(w));
        f[0] = v.x, f[1] = v.y;
    }
    __device__ static unsigned narrow(const float (&f)[N]) { return word(__floats2bfloat162_rn(f[0], f[1])); }
    __device__ static unsigned larger(unsigned a, unsigned b) { return word(__hmax2(both(a), both(b))); }
};

/// A row of C elements: `head` elements up to the first 16-byte boundary, then `packs` packs of 16 bytes, then a tail shorter than a pack.
/// The packs are divided among the blocks of a cluster: this block has `mine` of them, from element `first` on. Block 0 also takes the
/// `singles`, the elements of
/// head and tail: fewer than 16, one a thread.
template <typename T, int CLUSTER>
struct Share {
    static constexpr int PACK = 16 / sizeof(T);
    int head, packs, singles, first, mine;

    __device__ Share(const T* row, int C, int rank) {
        head = min(C, static_cast<int>(-reinterpret_cast<unsigned long long>(row) % 16 / sizeof(T)));
        packs = (C - head) / PACK;
        singles = rank == 0 ? C - packs * PACK : 0;
        const int each = (packs + CLUSTER - 1) / CLUSTER, start = min(packs, rank * each);
        first = head + start * PACK;
        mine = min(packs - start, each);
    }

    /// The column of single element i.
    __device__ int single(int i) const { return i < head ? i : i + packs * PACK; }
};

__device__ inline float warp_max(float v) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, step));
    return v;
}

__device__ inline float warp_sum(float v) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
    return v;
}

// The random bits of a seed and an element's index. Definition: rooftop/formats/random_bits.py

__device__ inline unsigned random_mix(unsigned h) {
    h ^= h >> 16;
    h *= 0x85EBCA6Bu;
    h ^= h >> 13;
    h *= 0xC2B2AE35u;
    return h ^ h >> 16;
}

__device__ inline unsigned random_bits(unsigned seed, unsigned long long index) {
    const unsigned first = random_mix(static_cast<unsigned>(index) ^ seed * 0x9E3779B9u);
    return random_mix(first ^ (seed + static_cast<unsigned>(index >> 32) * 0x7FEB352Du));
}

/// Random words for rounding, 16 bits an element: the bits of elements 8 * block to 8 * block + 7 are the halves of words 0 to 3, low half
/// first.
struct RandomWords {
    unsigned first;
    __device__ RandomWords(unsigned seed, unsigned long long block)
        : first(random_mix(static_cast<unsigned>(block) ^ seed * 0x9E3779B9u) ^ (seed
            + static_cast<unsigned>(block >> 32) * 0x7FEB352Du)) { }
    __device__ unsigned operator()(unsigned j) const {
        const unsigned by = j == 0 ? 0x9E3779B9u : j == 1 ? 0x85EBCA6Bu : j == 2 ? 0xC2B2AE35u : 0x7FEB352Du;
        const unsigned long long product = static_cast<unsigned long long>(first) * by;
        return static_cast<unsigned>(product) ^ static_cast<unsigned>(product >> 32);
    }
};

__device__ inline unsigned random_half(unsigned seed, unsigned long long index) {
    return RandomWords(seed, index >> 3)(static_cast<unsigned>(index) >> 1 & 3) >> (index % 2 * 16) & 0xFFFF;
}

/// 16 random bits for each of V neighbours from an index on, two in a word. WHOLE: the index is a multiple of V, which is 4, 8 or 16.
template <int V, bool WHOLE>
struct Drawn {
    int seed;
    unsigned long long index;
    RandomWords words, next;
    __device__ Drawn(int seed, unsigned long long index)
        : seed(seed), index(index), words(seed, index >> 3), next(seed, (index >> 3) + 1) { }
    __device__ unsigned operator()(int i) const {
        if (!WHOLE) return random_half(seed, index + i) | random_half(seed, index + i + 1) << 16;
        if (V == 4) return words((static_cast<unsigned>(index) >> 1 & 2) + i / 2);
        return i < 8 ? words(i / 2) : next(i / 2 - 4);
    }
};
