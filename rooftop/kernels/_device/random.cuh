// The random bits of a seed and an element's index. Definition: rooftop/formats/random_bits.py
#pragma once

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

/// Random words for rounding, 16 bits an element: the bits of elements 8 * block to 8 * block + 7 are the halves of words 0 to 3, low half first.
struct RandomWords {
    unsigned first;
    __device__ RandomWords(unsigned seed, unsigned long long block)
        : first(random_mix(static_cast<unsigned>(block) ^ seed * 0x9E3779B9u) ^ (seed + static_cast<unsigned>(block >> 32) * 0x7FEB352Du)) { }
    __device__ unsigned operator()(unsigned j) const {
        const unsigned by = j == 0 ? 0x9E3779B9u : j == 1 ? 0x85EBCA6Bu : j == 2 ? 0xC2B2AE35u : 0x7FEB352Du;
        const unsigned long long product = static_cast<unsigned long long>(first) * by;
        return static_cast<unsigned>(product) ^ static_cast<unsigned>(product >> 32);
    }
};

__device__ inline unsigned random_half(unsigned seed, unsigned long long index) {
    return RandomWords(seed, index >> 3)(static_cast<unsigned>(index) >> 1 & 3) >> (index % 2 * 16) & 0xFFFF;
}
