// The random bits of a seed and an element's index. Definition: rooftop/ops/_random.py
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
