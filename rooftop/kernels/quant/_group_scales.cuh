// Scales of groups, if a lane holds several packs of different groups: each scale is computed by one lane, and the codes of e2m1 in fewer
// instructions.
#pragma once
#include "_registers.cuh"

/// Reduces the maxima of U packs in each lane over the P lanes of a group. Afterwards the lane given by `place` has them, KEPT a lane.
template <int P, int U>
struct Exchange {
    static constexpr int SPLIT = P < U ? P : U, KEPT = U / SPLIT;
    /// The first of the packs whose group this lane has: its lowest bits, the lowest first.
    __device__ static int mine(int lane) {
        int first = 0;
#pragma unroll
        for (int bit = 1, n = U / 2; bit < SPLIT; bit *= 2, n /= 2) first += lane & bit ? n : 0;
        return first;
    }
    /// The lane of the group that has pack u's maximum.
    __device__ static constexpr int place(int u) {
        int lane = 0;
        for (int bit = 1, n = U / 2; bit < SPLIT; bit *= 2, n /= 2) lane += u & n ? bit : 0;
        return lane;
    }
    __device__ static void largest(unsigned (&m)[U], int lane) {
#pragma unroll
        for (int bit = 1, n = U / 2; bit < P; bit *= 2, n /= 2) {
            if (bit < SPLIT) {
                const bool upper = lane & bit;
#pragma unroll
                for (int i = 0; i < n; ++i) {
                    const unsigned kept = upper ? m[i + n] : m[i], sent = upper ? m[i] : m[i + n];
                    m[i] = max(kept, __shfl_xor_sync(~0u, sent, bit));
                }
            } else {
#pragma unroll
                for (int i = 0; i < KEPT; ++i) m[i] = max(m[i], __shfl_xor_sync(~0u, m[i], bit));
            }
        }
    }
};

/// 1 / s rounded to nearest, for s from 2^-126 to 2^126: like __frcp_rn, without its branch to the slow path.
__device__ inline float reciprocal(float s) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(s));
    return __fmaf_rn(r, __fmaf_rn(-s, r, 1.f), r);
}

/// x / s rounded to nearest if neither it nor the remainder underflows; r: 1 / s rounded to nearest (Markstein 1990).
__device__ inline float quotient(float x, float s, float r) {
    const float q = __fmul_rn(x, r);
    return __fmaf_rn(__fmaf_rn(-q, s, x), r, q);
}

/// The divisor of a group and its stored scale. [-down, up] is the group's range; if symmetric, `up` is the largest magnitude. If `careful`
/// is set on return, the result may be wrong, and any_pack must compute it. `near`: an element may be so near the border between two codes
/// of e2m1 that only the rounded quotient decides.
template <typename T, int F, int S, int ROUND, bool SYMMETRIC>
struct Found {
    static constexpr bool POWER = S == SCALE_E8M0, APART = F == E2M1 && ROUND == NEAREST && (POWER || sizeof(T) == 2);
    typename ScaleType<S>::Stored stored;
    float divisor, part;
    int offset = Format<F>::MIDDLE;
    bool careful, near = false;
    /// over, part_of_all: the tensor's scale and its reciprocal; OVER: whether there is one.
    template <bool OVER>
    __device__ void find(unsigned up_bits, unsigned down_bits, float over, float part_of_all) {
        using X = Format<F>;
        using By = DividedBy<F, S, ROUND>;
        constexpr float BY_MAX = 1.f / X::MAX;
        const float up = __uint_as_float(up_bits), down = __uint_as_float(down_bits);
        if constexpr (SYMMETRIC && (S == SCALE_F32 || (F == E2M1 && S == SCALE_E4M3 && __CUDA_ARCH__ >= 890))) {
            float s = quotient(up, X::MAX, BY_MAX);
            // 2^-50, 2^50; zeros divided by anything are zeros
            careful = up_bits - 1 < (127u - 50 << 23) - 1 || up_bits >= 127u + 50 << 23;
            if constexpr (S == SCALE_F32) stored = s = fmaxf(s, 0x1p-126f);
            else {
                if (OVER) s = quotient(s, over, part_of_all), careful |= !(over > 0x1p-50f && over < 0x1p50f);
                stored = __nv_cvt_float_to_fp8(fminf(fmaxf(s, 0x1p-6f), 448.f), __NV_SATFINITE, __NV_E4M3);
                s = __half2float(__half(__nv_cvt_fp8_to_halfraw(stored, __NV_E4M3)));
                if (OVER) s = __fmul_rn(s, over);
                careful |= stored == 0x7e;  // otherwise quotients stay below 7, which rounds to the largest code
            }
            divisor = s * (1.f / By::UNIT), part = reciprocal(s) * By::UNIT;
        } else {
            const float* const of_all = OVER ? &over : nullptr;
            float s;
            if constexpr (SYMMETRIC) s = scale_and_value<F, S>(up, of_all, stored);
            else {
                stored = store_scale<S>(__fadd_rn(__fdiv_rn(up, X::STEPS), __fdiv_rn(down, X::STEPS))), s = effective<S>(stored, of_all);
                offset = zero_point<F>(down, s);
            }
            const By by(s, fmaxf(up, down), up_bits >= INFINITE_BITS || down_bits >= INFINITE_BITS);
            careful = by.careful && (up_bits | down_bits) != 0;
            divisor = by.s, part = by.part;
        }
        // borders are at 1, 1.25, 1.5, 1.75 times powers of two; the approximate quotient is off by at most 2^-23
        if constexpr (APART && !POWER) {
            // mantissa bits of float32 that are zero in a T
            constexpr unsigned BELOW = (1u << (23 - (is_half(static_cast<const T*>(nullptr)) ? 10 : 7))) - 1;
#pragma unroll
            for (int i = 4; i < 8; ++i) near |= ((__float_as_uint(divisor * (i / 4.f)) + 3) & BELOW) <= 6;
        }
    }
    __device__ static constexpr bool is_half(const __half*) { return true; }
    __device__ static constexpr bool is_half(const void*) { return false; }
};

/// Like encode_clean for e2m1, for numbers that are not `near`: the approximate quotient rounds to the same code as the exact one.
template <bool BEYOND, typename T, int V>
__device__ inline void encode_apart(unsigned (&out)[V / 8], const Held<T, V>& held, float part) {
    unsigned bytes[V / 4];
#pragma unroll
    for (int i = 0; i < V; i += 4) {
        unsigned w[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float size = held.size(i + j);
            w[j] = least_line<BEYOND>(__fmaf_rn(size, part, WHOLE), __fmaf_rn(size, part * 0.5f, WHOLE + 2),
                __fmaf_rn(size, part * 0.25f, WHOLE + 4));
        }
        bytes[i / 4] = chosen(four_bytes<0>(w), four_signs(held, i) >> 4, 0x08080808u);
    }
    squeeze<4, V>(out, bytes);
}
