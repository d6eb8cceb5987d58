// What follows a product with a sparse matrix: act(alpha · sum + bias). rooftop/ops/_sparse.py names the activations, in this order.
#pragma once

template <int ACT>
__device__ inline float activated(float s) {
    if (ACT == 1) return s > 0.f || s != s ? s : 0.f;
    if (ACT == 2) return s / (1.f + __expf(-s));
    if (ACT == 3) return 0.5f * s * (1.f + erff(s * 0.70710678118654752f));
    if (ACT == 4) return 0.5f * s * (1.f + tanhf(0.79788456080286536f * (s + 0.044715f * s * s * s)));
    return s;
}

/// BIAS: 0 none, 1 a number a row, 2 a number a column. step: elements from one number to the next.
template <int ACT, int BIAS, typename T>
__device__ inline float finished(float sum, float alpha, const T* __restrict__ bias, long long step, int row, int column) {
    float s = alpha * sum;
    if (BIAS) s += static_cast<float>(bias[(BIAS == 1 ? row : column) * step]);
    return activated<ACT>(s);
}
