// Sixteen bytes of f32, f16 or bf16 elements, for kernels that compute in float.
#pragma once
#include "words.cuh"

/// Sixteen bytes of elements of T, to floats and back; `together`: the address is a multiple of 16.
template <typename T>
struct Pack {
    static constexpr int N = 16 / sizeof(T), WORDS = Word<T>::N;
    __device__ static void widen(const uint4& p, float (&f)[N]) {
        const unsigned w[4] = {p.x, p.y, p.z, p.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float g[WORDS];
            Word<T>::widen(w[i], g);
#pragma unroll
            for (int j = 0; j < WORDS; ++j) f[i * WORDS + j] = g[j];
        }
    }
    __device__ static uint4 narrow(const float (&f)[N]) {
        unsigned w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float g[WORDS];
#pragma unroll
            for (int j = 0; j < WORDS; ++j) g[j] = f[i * WORDS + j];
            w[i] = Word<T>::narrow(g);
        }
        return make_uint4(w[0], w[1], w[2], w[3]);
    }
    __device__ static uint4 load(const T* p, bool together) {
        if (together) return *reinterpret_cast<const uint4*>(p);
        uint4 v;
#pragma unroll
        for (int j = 0; j < N; ++j) reinterpret_cast<T*>(&v)[j] = p[j];
        return v;
    }
    __device__ static void store(T* p, bool together, const uint4& v) {  // written once: first to leave the L2
        if (together) return __stcs(reinterpret_cast<uint4*>(p), v);
#pragma unroll
        for (int j = 0; j < N; ++j) p[j] = reinterpret_cast<const T*>(&v)[j];
    }
};
