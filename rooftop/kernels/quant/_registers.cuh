// A few neighbouring floats in registers, and the maximum over lanes.
#pragma once
#include <cooperative_groups.h>

#include "words.cuh"
#include "_quantized.cuh"

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
                const unsigned low = (w[i] & 0x7fffu) < least ? w[i] & 0xffffu : 0,
                    high = (w[i] >> 16 & 0x7fffu) < least ? w[i] & 0xffff0000u : 0;
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
    __device__ static void widen(unsigned v, float (&f)[PER], const __nv_bfloat16*) { f[0] = __uint_as_float(v << 16),
        f[PER - 1] = __uint_as_float(v & 0xffff0000u); }
};

/// Elementwise maxima of words of T, starting from 0; a NaN is kept. Of magnitudes, or with `over` of values that may be negative.
template <typename T>
struct Most {
    static constexpr unsigned SIGNS = Word<T>::N == 1 ? 0x80000000u : 0x80008000u;
    unsigned w = 0;
    __device__ void over(unsigned v) { larger(v, static_cast<const T*>(nullptr)); }
    __device__ void over_size(unsigned v) { over(v & ~SIGNS); }
    __device__ void over_negative(unsigned v) { over(v ^ SIGNS); }
    // as integers: NaN above all
    __device__ void larger(unsigned v, const float*) { w = static_cast<unsigned>(max(static_cast<int>(w), static_cast<int>(v))); }
    __device__ void larger(unsigned v, const __half*) { w = Word<__half>::word(__hmax2_nan(Word<__half>::both(w), Word<__half>::both(v))); }
    __device__ void larger(unsigned v,
        const __nv_bfloat16*) { w = Word<__nv_bfloat16>::word(__hmax2_nan(Word<__nv_bfloat16>::both(w), Word<__nv_bfloat16>::both(v))); }
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

/// Maximum over LANES neighbouring threads (lanes of a warp, or the whole block), then over the blocks of a cluster. `round`: 0, 1, ...:
/// the number of earlier calls; `shared` has 32 words, `of_blocks` CLUSTER words a round.
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

// Codes of finite values, four at a time: each code in the low bits of a byte, then the bytes are packed. Gives the same bits as the
// general `encode` of _quantized.cuh, in a third of its instructions.

/// The stored scale and its value, as by scale_of and effective; for e4m3 with the hardware's conversion instructions.
template <int F, int S>
__device__ inline float scale_and_value(float largest, const float* over, typename ScaleType<S>::Stored& stored) {
#if __CUDA_ARCH__ >= 890
    if constexpr (S == SCALE_E4M3) {
        const float of_all = over ? *over : 1.f, part = __fdiv_rn(largest, Format<F>::MAX), s = over ? __fdiv_rn(part, of_all) : part;
        stored = __nv_cvt_float_to_fp8(fminf(fmaxf(s, 0x1p-6f), 448.f), __NV_SATFINITE, __NV_E4M3);
        const float value = __half2float(__half(__nv_cvt_fp8_to_halfraw(stored, __NV_E4M3)));
        return over ? fminf(fmaxf(__fmul_rn(value, of_all), 0x1p-126f), 0x1p125f) : value;
    }
#endif
    stored = scale_of<F, S>(largest, over);
    return effective<S>(stored, over);
}

/// Byte 0, byte 2 or byte 3 of four words, packed into one word.
template <int BYTE>
__device__ inline unsigned four_bytes(const unsigned (&w)[4]) {
    constexpr unsigned PAIR = BYTE | (4 + BYTE) << 4;
    return __byte_perm(__byte_perm(w[0], w[1], PAIR), __byte_perm(w[2], w[3], PAIR), 0x5410);
}

/// Bits of `b` where `mask` is set, of `a` elsewhere.
__device__ inline unsigned chosen(unsigned a, unsigned b, unsigned mask) { return (a & ~mask) | (b & mask); }

/// The signs of elements i to i + 3 as the highest bits of four bytes.
template <typename T, int V>
__device__ inline unsigned four_signs(const Held<T, V>& held, int i) {
    if constexpr (Held<T, V>::PER == 2) return __byte_perm(held.w[i / 2], held.w[i / 2 + 1], 0x7531);
    else {
        const unsigned w[4] = {held.w[i], held.w[i + 1], held.w[i + 2], held.w[i + 3]};
        return four_bytes<3>(w);
    }
}

/// Packs four bytes, each with a code in its low bits, into a string of codes. Other bits must be zero for 8 and 6 bits, and may be
/// anything for 4.
template <int BITS, int V>
__device__ inline void squeeze(unsigned (&out)[(V * BITS + 31) / 32], const unsigned (&bytes)[V / 4]) {
    if constexpr (BITS == 8) {
#pragma unroll
        for (int i = 0; i < V / 4; ++i) out[i] = bytes[i];
    } else if constexpr (BITS == 4) {
#pragma unroll
        for (int i = 0; i < V / 4; i += 2) {
            const unsigned next = i + 1 < V / 4 ? bytes[i + 1] : 0;
            out[i / 2] = chosen(__byte_perm(bytes[i], next, 0x6420), __byte_perm(bytes[i], next, 0x7531) << 4, 0xf0f0f0f0u);
        }
        if (V == 4) out[0] &= 0xffff;
    } else {
        unsigned z[V / 4];
#pragma unroll
        for (int i = 0; i < V / 4; ++i) {
            const unsigned y = (bytes[i] & 0x003f003fu) | (bytes[i] >> 2 & 0x0fc00fc0u);
            z[i] = (y & 0xfff) | (y >> 4 & 0xfff000);
        }
        if constexpr (V == 4) out[0] = z[0];
        else {
#pragma unroll
            for (int i = 0; i < V / 16; ++i) {
                out[3 * i] = z[4 * i] | z[4 * i + 1] << 24;
                out[3 * i + 1] = z[4 * i + 1] >> 8 | z[4 * i + 2] << 16;
                out[3 * i + 2] = z[4 * i + 2] >> 16 | z[4 * i + 3] << 8;
            }
        }
    }
}

constexpr float WHOLE = 12582912.f;  // 1.5 * 2^23: added to a number, it leaves the nearest integer in the sum's low bits

/// The codes of e2m1 lie on three straight lines; the code is the minimum of the three. Their sums with WHOLE are ordered as bits in the
/// same way as the numbers. BEYOND: clamp to 7.
template <bool BEYOND>
__device__ inline unsigned least_line(float a, float b, float c) {
    const unsigned least = min(min(__float_as_uint(a), __float_as_uint(b)), __float_as_uint(c));
    return BEYOND ? min(least, 0x4b400007u) : least;
}

/// Whether `encode_clean` supports it.
template <int F, int ROUND, bool SYMMETRIC>
__device__ constexpr bool has_clean() {
#if __CUDA_ARCH__ < 890
    if (ROUND == NEAREST && !Format<F>::INT && F != E2M1) return false;
#endif
    return ROUND == NEAREST || (ROUND == STOCHASTIC && SYMMETRIC);
}

/// Like `encode`, for finite elements and a scale that is not `careful`.
template <int F, int S, int ROUND, bool SYMMETRIC, typename T, int V, typename Random, typename Divided, typename Zero>
__device__ inline void encode_clean(unsigned (&out)[(V * Format<F>::BITS + 31) / 32], const Held<T, V>& held, Random random, Divided by,
    Zero zero) {
    using X = Format<F>;
    constexpr float UNIT = unit_of<F, ROUND>(), MAX = X::MAX * UNIT;
    constexpr bool BEYOND = S != SCALE_F32;  // a rounded scale may leave values beyond the largest code
    if constexpr (!has_clean<F, ROUND, SYMMETRIC>()) {
        encode<F, ROUND, SYMMETRIC, V>(out, [&](int i) { return held[i]; }, random, by, zero);
    } else {
        unsigned bytes[V / 4];
#pragma unroll
        for (int i = 0; i < V; i += 4) {
            unsigned w[4];
            unsigned& all = bytes[i / 4];
            if constexpr (X::INT && ROUND == NEAREST) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    float v = by(i + j)(held[i + j]);
                    if (SYMMETRIC && BEYOND) v = fminf(fmaxf(v, -MAX), MAX);
                    if (!SYMMETRIC && BEYOND) v = fminf(fmaxf(v, -2.f * X::STEPS), 2.f * X::STEPS);
                    float sum = __fadd_rn(v, WHOLE);
                    if (!SYMMETRIC) {
                        const float z = static_cast<float>(zero(i + j));
                        sum = __fadd_rn(fminf(fmaxf(sum, WHOLE + X::LOW - z), WHOLE + X::LOW + X::STEPS - z), z);
                    }
                    w[j] = __float_as_uint(sum);
                }
                all = four_bytes<0>(w);
                if (SYMMETRIC && !X::SIGNED) all ^= X::BITS == 8 ? 0x80808080u : 0x08080808u;
            } else if constexpr (X::INT) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    float v = by(i + j)(held[i + j]);
                    if (BEYOND) v = fminf(fmaxf(v, -MAX), MAX);
                    const unsigned bits = random(i + j / 2 * 2);
                    w[j] = static_cast<unsigned>(__float2int_rn(v)) + (j % 2 ? bits >> 16 : bits & 0xffff);
                }
                all = four_bytes<2>(w);
                if (!X::SIGNED) all ^= X::BITS == 8 ? 0x80808080u : 0x08080808u;
            } else if constexpr (ROUND == STOCHASTIC) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    float v = fabsf(by(i + j)(held[i + j]));
                    if (BEYOND) v = fminf(v, MAX);
                    w[j] = raised<F>(v, __byte_perm(random(i + j / 2 * 2), 0x80, j % 2 ? 0x5324 : 0x5104));
                }
                constexpr int DOWN = 8 - X::BITS;
                all = chosen(four_bytes<3>(w), four_signs(held, i) >> DOWN, 0x80808080u >> DOWN);
            // h is twice the magnitude; the minimum of three lines, rounded: for codes 0 to 4, 4 to 6 and from 6 on
            } else if constexpr (F == E2M1) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const float h = by(i + j)(held.size(i + j));
                    w[j] = least_line<BEYOND>(__fadd_rn(h, WHOLE), __fmaf_rn(h, 0.5f, WHOLE + 2), __fmaf_rn(h, 0.25f, WHOLE + 4));
                }
                all = chosen(four_bytes<0>(w), four_signs(held, i) >> 4, 0x08080808u);
            } else {
                constexpr bool THREE = F == E4M3 || F == E2M3;  // mantissa bits: three, else two
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    float v = by(i + j)(held[i + j]);
                    if (BEYOND && X::BITS == 6) v = fminf(fmaxf(v, -MAX), MAX);
                    w[j] = __float_as_uint(v);
                }
                const auto pair = [&](int j) -> unsigned {
                    return __nv_cvt_float2_to_fp8x2(make_float2(__uint_as_float(w[j]), __uint_as_float(w[j + 1])), __NV_SATFINITE,
                        THREE ? __NV_E4M3 : __NV_E5M2);
                };
                all = pair(0) | pair(2) << 16;
                if (X::BITS == 6) all = (all & 0x1f1f1f1fu) | (all >> 2 & 0x20202020u);
            }
        }
        squeeze<X::BITS, V>(out, bytes);
    }
}
