// Some neighbouring floats in registers, the maximum over lanes, and the random bits of V neighbours.
#pragma once
#include "random.cuh"
#include "words.cuh"

/// V elements of T, loaded 16 bytes at a time.
template <typename T, int V>
struct Held {
    static constexpr int PER = Word<T>::N, WORDS = V / PER;
    unsigned w[WORDS];
    __device__ void load(const T* p) {
#pragma unroll
        for (int i = 0; i < WORDS; i += 4) {
            if constexpr (WORDS % 4 == 0) {
                const uint4 v = __ldcs(reinterpret_cast<const uint4*>(p) + i / 4);
                w[i] = v.x, w[i + 1] = v.y, w[i + 2] = v.z, w[i + 3] = v.w;
            }
        }
    }
    __device__ void load_kept(const T* p) {  // read again soon
#pragma unroll
        for (int i = 0; i < WORDS; i += 4) {
            if constexpr (WORDS % 4 == 0) {
                const uint4 v = *(reinterpret_cast<const uint4*>(p) + i / 4);
                w[i] = v.x, w[i + 1] = v.y, w[i + 2] = v.z, w[i + 3] = v.w;
            }
        }
    }
    __device__ void load(const T* p, int count) {  // one by one; zeros beyond `count`
#pragma unroll
        for (int i = 0; i < WORDS; ++i) w[i] = 0;
#pragma unroll
        for (int i = 0; i < V; ++i) {
            if (i < count) reinterpret_cast<T*>(w)[i] = p[i];
        }
    }
    __device__ void clear() {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) w[i] = 0;
    }
    __device__ float operator[](int i) const {
        float f[PER];
        widen(w[i / PER], f, static_cast<const T*>(nullptr));
        return f[i % PER];
    }
    template <typename E>
    __device__ static void widen(unsigned v, float (&f)[PER], const E*) { Word<T>::widen(v, f); }
    __device__ static void widen(unsigned v, float (&f)[PER], const __nv_bfloat16*) { f[0] = __uint_as_float(v << 16), f[PER - 1] = __uint_as_float(v & 0xffff0000u); }
};

__device__ inline unsigned sizes(unsigned w, const float*) { return w & 0x7fffffffu; }
__device__ inline unsigned sizes(unsigned w, const void*) { return w & 0x7fff7fffu; }

/// Maximum over LANES neighbouring threads: lanes of a warp, or the whole block.
template <int LANES, int THREADS>
__device__ float over_lanes(float v, float* shared) {
#pragma unroll
    for (int step = (LANES < 32 ? LANES : 32) / 2; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, step));
    if constexpr (LANES > 32) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (lane == 0) shared[warp] = v;
        __syncthreads();
        v = lane < THREADS / 32 ? shared[lane] : -3.402823466e38f;
#pragma unroll
        for (int step = 16; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, step));
        __syncthreads();
    }
    return v;
}

/// 16 random bits for each of V neighbours from an index on, two at once. WHOLE: the index is a multiple of V, which is 4, 8 or 16.
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
