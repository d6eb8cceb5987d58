// Quotients that all of a row hangs on, without the calls that `/` and sqrtf make, which take registers from all that is live across them.
#pragma once

/// v / n by 1 / n, which waits for no data, and one step that takes off its error: correctly rounded but for rare last bits. Of an infinite v
/// the step would make NaN.
__device__ inline float over(float v, float n) {
    const float part = __fdividef(1, n), q = v * part, found = fmaf(fmaf(-q, n, v), part, q);
    return found == found ? found : q;
}

/// 1 / sqrt(v), to the last bit or so. Of 0 and infinity the step of Newton's would make NaN.
__device__ inline float reciprocal_root(float v) {
    const float r = rsqrtf(v), found = fmaf(0.5f * r, fmaf(-v * r, r, 1), r);
    return found == found ? found : r;
}
