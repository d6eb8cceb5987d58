// Quotients that all of a row hangs on, without the calls that `/` and sqrtf make, which take registers from all that is live across them.
#pragma once

/// v / n by 1 / n, which waits for no data, and one step that takes off its error: correctly rounded but for rare last bits. Of an infinite v
/// the step would make NaN.
__device__ inline float over(float v, float n, float part) {
    const float q = v * part, found = fmaf(fmaf(-q, n, v), part, q);
    return found == found ? found : q;
}
__device__ inline float over(float v, float n) { return over(v, n, __fdividef(1, n)); }

/// A number that much is divided by, and 1 / n, which is found once.
struct Divisor {
    float n, part;
    __device__ explicit Divisor(float n) : n(n), part(__fdividef(1, n)) { }
};
__device__ inline float over(float v, const Divisor& by) { return over(v, by.n, by.part); }

/// 1 / sqrt(v), to the last bit or so. Of 0 and infinity the step of Newton's would make NaN.
__device__ inline float reciprocal_root(float v) {
    const float r = rsqrtf(v), found = fmaf(0.5f * r, fmaf(-v * r, r, 1), r);
    return found == found ? found : r;
}
