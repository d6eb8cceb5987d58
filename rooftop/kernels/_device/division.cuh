// Division and 1 / sqrt for the statistics of a row. `/` and sqrtf compile to function calls, and registers that are live across a call are lost.
#pragma once

/// v / n. `part` is 1 / n, computed before v is known; one correction step follows, so the result is correctly rounded but for rare last bits.
/// For an infinite v the step gives NaN, and the uncorrected quotient is returned.
__device__ inline float over(float v, float n, float part) {
    const float q = v * part, found = fmaf(fmaf(-q, n, v), part, q);
    return found == found ? found : q;
}
__device__ inline float over(float v, float n) { return over(v, n, __fdividef(1, n)); }

/// A divisor that is used several times, with its reciprocal: `part` = 1 / n.
struct Divisor {
    float n, part;
    __device__ explicit Divisor(float n) : n(n), part(__fdividef(1, n)) { }
};
__device__ inline float over(float v, const Divisor& by) { return over(v, by.n, by.part); }

/// 1 / sqrt(v), accurate to about one bit: rsqrtf and one Newton step. For 0 and infinity the step gives NaN, and rsqrtf's result is returned.
__device__ inline float reciprocal_root(float v) {
    const float r = rsqrtf(v), found = fmaf(0.5f * r, fmaf(-v * r, r, 1), r);
    return found == found ? found : r;
}
