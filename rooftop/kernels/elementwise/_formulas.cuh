// Activations and their slopes of float32 values, as rooftop/kernels/_device/activations.py and _geglu_tanh.py have them in Triton. FAST: the
// result is rounded to 16 bits: exponential and reciprocal are one instruction of the hardware each, accurate to a few units in the last place.
#pragma once

template <bool FAST>
__device__ float exponential_of(float z) {
    if (!FAST) return expf(z);
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(z * 1.4426950408889634f));
    return y;
}

template <bool FAST>
__device__ float reciprocal(float z) {
    if (!FAST) return 1 / z;
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(z));
    return y;
}

/// 1 / (1 + e^-z)
template <bool FAST>
__device__ float sigmoid(float z) { return reciprocal<FAST>(1 + exponential_of<FAST>(-z)); }

template <bool FAST>
__device__ float silu(float x) { return x * sigmoid<FAST>(x); }

template <bool FAST>
__device__ float silu_slope(float x) {
    const float s = sigmoid<FAST>(x);
    return s * (1 + x * (1 - s));
}

/// Φ(x) for 16-bit results, as `normal_fine` of activations.py: |[x > 0] - 2^(p |x| - 1)|.
__device__ inline float normal_fine(float x) {
    const float y = fabsf(x);
    float p = fmaf(-1.7356653543854073e-06f, y, 5.9754067385828225e-05f), e;
    p = fmaf(p, y, -0.0009169386381084332f);
    p = fmaf(p, y, 0.00845751245380599f);
    p = fmaf(p, y, -0.05386145716967388f);
    p = fmaf(p, y, -0.4585615975756573f);
    p = fmaf(p, y, -1.1512100265386889f);
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(fmaf(p, y, -1.0f)));
    return fabsf((x > 0 ? 1.0f : 0.0f) - e);
}

__device__ inline float normal(float x) { return 0.5f + 0.5f * erff(x * 0.7071067811865476f); }

/// Twice the argument z of the tanh.
__device__ inline float tanh_argument(float x) { return 1.5957691216057308f * (x + 0.044715f * x * x * x); }

/// x Φ(x), and with TANH x (1 + tanh z) / 2 = x sigmoid(2 z); for float32 results by tanhf, to the last digits.
template <bool TANH, bool FAST>
__device__ float gelu(float x) {
    if (TANH) {
        return FAST ? x * sigmoid<true>(tanh_argument(x)) : x * (0.5f + 0.5f * tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
    }
    return FAST ? x * normal_fine(x) : x * normal(x);
}

constexpr float LEAST = -18.021826694558577f;  // of 2 z: below, 1 + tanh z is 0 in float32, and an infinite value times it NaN

template <bool FAST>
__device__ float gelu_tanh_or_zero(float x) {
    const float z = tanh_argument(x);
    return x * (z < LEAST ? 0 : sigmoid<FAST>(z));
}

/// s + x s (1 - s) (2 z)' with s = sigmoid(2 z); from e = exp(-|2 z|), so that 1 - s keeps its digits. ZERO: 0 below LEAST.
template <bool FAST, bool ZERO>
__device__ float gelu_tanh_slope(float x) {
    const float z = tanh_argument(x), e = ZERO && z < LEAST ? 0 : exponential_of<FAST>(-fabsf(z)), r = reciprocal<FAST>(1 + e);
    return (z < 0 ? e : 1) * r + x * (e * r * r) * (1.5957691216057308f * (1 + 0.134145f * x * x));
}

/// The slope of Φ, the density of the normal distribution.
template <bool FAST>
__device__ float density(float x) { return 0.3989422804014327f * exponential_of<FAST>(-0.5f * x * x); }
