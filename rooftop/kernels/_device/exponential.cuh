// Exponentials and quotients of a softmax, as exact as the type of the result needs.
#pragma once

/// e^x for x <= 0. To one unit in the last place if the result is float32; if it is rounded to 16 bits, in two instructions with an error of a few units that
/// grows with |x|.
template <typename T>
__device__ float exponential(float x) {
    if (sizeof(T) == 4) return expf(x);
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
    return y;
}

/// e / s, given scale = 1 / s. A Newton step corrects the rounding error of `scale`, which matters for float32 results only.
template <typename T>
__device__ float quotient(float e, float s, float scale) {
    const float q = e * scale;
    return sizeof(T) == 4 ? fmaf(fmaf(-q, s, e), scale, q) : q;
}
