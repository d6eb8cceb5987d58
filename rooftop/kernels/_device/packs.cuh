// A pack: one vector load of 16 bytes of f32, f16 or bf16 elements, for kernels that compute in float32. Kernels of register_rows.cuh call it a vector.
#pragma once
#include "words.cuh"

/// `together`: the address is a multiple of 16, and the pack is one access; otherwise it is N accesses of one element.
template <typename T>
struct Pack {
    static constexpr int N = 16 / sizeof(T), WORDS = Word<T>::N;
    __device__ static void widen(const uint4& p, float (&f)[N]) {
        const unsigned w[4] = {p.x, p.y, p.z, p.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float g[WORDS];
            widen(w[i], g, static_cast<const T*>(nullptr));
#pragma unroll
            for (int j = 0; j < WORDS; ++j) f[i * WORDS + j] = g[j];
        }
    }
    template <typename E>
    __device__ static void widen(unsigned w, float (&g)[WORDS], const E*) { Word<T>::widen(w, g); }
    __device__ static void widen(unsigned w, float (&g)[WORDS], const __nv_bfloat16*) {  // two instructions; the CUDA header's conversion takes three
        g[0] = __uint_as_float(w << 16), g[WORDS - 1] = __uint_as_float(w & 0xffff0000u);
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
    __device__ static void store(T* p, bool together, const uint4& v) {  // written once: evict-first in the L2
        if (together) return __stcs(reinterpret_cast<uint4*>(p), v);
#pragma unroll
        for (int j = 0; j < N; ++j) p[j] = reinterpret_cast<const T*>(&v)[j];
    }
    /// Like load, but if the address is not a multiple of 16 it loads the two aligned packs around it and shifts out the 16 bytes at p. At the ends of the
    /// array [begin, end), where an aligned pack would reach outside it, elements are loaded one by one.
    __device__ static uint4 load_within(const T* p, bool together, const T* begin, const T* end) {
        const unsigned off = reinterpret_cast<unsigned long long>(p) % 16;
        const T* q = p - off / sizeof(T);
        if (together || q < begin || q + 2 * N > end) return load(p, together);
        const uint4 a = *reinterpret_cast<const uint4*>(q), b = *reinterpret_cast<const uint4*>(q + N);
        unsigned w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 6; ++i) w[i] = off & 8 ? w[i + 2] : w[i];
#pragma unroll
        for (int i = 0; i < 5; ++i) w[i] = off & 4 ? w[i + 1] : w[i];
#pragma unroll
        for (int i = 0; i < 4; ++i) w[i] = __funnelshift_r(w[i], w[i + 1], off % 4 * 8);
        return make_uint4(w[0], w[1], w[2], w[3]);
    }
    /// The pack that starts 4 · WORD bytes and `bits` bits (0 or 16) after q, where q is a multiple of 16: made of two aligned packs. For many packs with
    /// the same WORD, which is then known at compile time.
    template <int WORD>
    __device__ static uint4 load_amid(const T* q, unsigned bits) {
        const uint4 a = *reinterpret_cast<const uint4*>(q), b = *reinterpret_cast<const uint4*>(q + N);
        const unsigned w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        uint4 v;
        v.x = __funnelshift_r(w[WORD], w[WORD + 1], bits), v.y = __funnelshift_r(w[WORD + 1], w[WORD + 2], bits);
        v.z = __funnelshift_r(w[WORD + 2], w[WORD + 3], bits), v.w = __funnelshift_r(w[WORD + 3], w[WORD + 4], bits);
        return v;
    }
};
