// A few neighbouring floats in registers, the maximum over lanes, and the random bits of V neighbours.
#pragma once
#include <cooperative_groups.h>

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
    __device__ void load_kept(const T* p) {  // will be read again soon
#pragma unroll
        for (int i = 0; i < WORDS; i += 4) {
            if constexpr (WORDS % 4 == 0) {
                const uint4 v = *(reinterpret_cast<const uint4*>(p) + i / 4);
                w[i] = v.x, w[i + 1] = v.y, w[i + 2] = v.z, w[i + 3] = v.w;
            }
        }
    }
    __device__ void load(const T* p, int count) {  // element by element; zeros past `count`
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
    template <bool WHOLE>
    __device__ void load_where(bool there, const T* p, int count) {  // zeros if not `there`
        if (!there) clear();
        else if (WHOLE) load(p);
        else load(p, count);
    }
    __device__ void widen(Held<float, V>& to) const {
#pragma unroll
        for (int i = 0; i < V; ++i) to.w[i] = __float_as_uint((*this)[i]);
    }
    __device__ static unsigned infinite(const __half*) { return 0x7c00; }
    __device__ static unsigned infinite(const void*) { return 0x7f80; }
    __device__ void drop_unclean() {  // replaces infinities and NaN by zeros
        const unsigned least = PER == 1 ? 0x7f800000u : infinite(static_cast<const T*>(nullptr));
#pragma unroll
        for (int i = 0; i < WORDS; ++i) {
            if (PER == 1) w[i] = (w[i] & 0x7fffffffu) < least ? w[i] : 0;
            else {
                const unsigned low = (w[i] & 0x7fffu) < least ? w[i] & 0xffffu : 0, high = (w[i] >> 16 & 0x7fffu) < least ? w[i] & 0xffff0000u : 0;
                w[i] = low | high;
            }
        }
    }
    __device__ float operator[](int i) const {
        float f[PER];
        widen(w[i / PER], f, static_cast<const T*>(nullptr));
        return f[i % PER];
    }
    __device__ float size(int i) const {
        float f[PER];
        widen(w[i / PER] & (PER == 1 ? 0x7fffffffu : 0x7fff7fffu), f, static_cast<const T*>(nullptr));
        return f[i % PER];
    }
    template <typename E>
    __device__ static void widen(unsigned v, float (&f)[PER], const E*) { Word<T>::widen(v, f); }
    __device__ static void widen(unsigned v, float (&f)[PER], const __nv_bfloat16*) { f[0] = __uint_as_float(v << 16), f[PER - 1] = __uint_as_float(v & 0xffff0000u); }
};

/// Elementwise maxima of words of T, starting from 0; a NaN is kept. Of magnitudes, or with `over` of values that may be negative.
template <typename T>
struct Most {
    static constexpr unsigned SIGNS = Word<T>::N == 1 ? 0x80000000u : 0x80008000u;
    unsigned w = 0;
    __device__ void over(unsigned v) { larger(v, static_cast<const T*>(nullptr)); }
    __device__ void over_size(unsigned v) { over(v & ~SIGNS); }
    __device__ void over_negative(unsigned v) { over(v ^ SIGNS); }
    __device__ void larger(unsigned v, const float*) { w = static_cast<unsigned>(max(static_cast<int>(w), static_cast<int>(v))); }  // as integers: NaN above all
    __device__ void larger(unsigned v, const __half*) { w = Word<__half>::word(__hmax2_nan(Word<__half>::both(w), Word<__half>::both(v))); }
    __device__ void larger(unsigned v, const __nv_bfloat16*) { w = Word<__nv_bfloat16>::word(__hmax2_nan(Word<__nv_bfloat16>::both(w), Word<__nv_bfloat16>::both(v))); }
    /// The word's elements as bits of float32, which are ordered as the numbers are: infinity, and NaN above it.
    __device__ void bits(unsigned (&b)[Word<T>::N]) const {
        float f[Word<T>::N];
        Held<T, Word<T>::N>::widen(w, f, static_cast<const T*>(nullptr));
#pragma unroll
        for (int i = 0; i < Word<T>::N; ++i) b[i] = __float_as_uint(f[i]);
    }
    __device__ unsigned all() const {
        unsigned b[Word<T>::N];
        bits(b);
        return max(b[0], b[Word<T>::N - 1]);
    }
};
constexpr unsigned INFINITE_BITS = 0x7f800000u;

/// Maximum over LANES neighbouring threads (lanes of a warp, or the whole block), then over the blocks of a cluster. `round`: 0, 1, ...: the number of
/// earlier calls; `shared` has 32 words, `of_blocks` CLUSTER words a round.
template <int LANES, int THREADS, int CLUSTER = 1>
__device__ unsigned over_lanes(unsigned v, unsigned* shared, unsigned* of_blocks = nullptr, int round = 0) {
    if constexpr (LANES >= 32) v = __reduce_max_sync(~0u, v);
    else {
#pragma unroll
        for (int step = LANES / 2; step > 0; step /= 2) v = max(v, __shfl_xor_sync(~0u, v, step));
    }
    if constexpr (LANES > 32) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (lane == 0) shared[warp] = v;
        __syncthreads();
        v = __reduce_max_sync(~0u, lane < THREADS / 32 ? shared[lane] : 0);
        if constexpr (CLUSTER == 1) __syncthreads();
    }
#if __CUDA_ARCH__ >= 900
    if constexpr (CLUSTER > 1) {
        const auto cluster = cooperative_groups::this_cluster();
        if (round == 0) cluster.barrier_wait();
        if (threadIdx.x < CLUSTER) *cluster.map_shared_rank(&of_blocks[round * CLUSTER + cluster.block_rank()], threadIdx.x) = v;
        cluster.sync();
#pragma unroll
        for (int i = 0; i < CLUSTER; ++i) v = max(v, of_blocks[round * CLUSTER + i]);
    }
#endif
    return v;
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
