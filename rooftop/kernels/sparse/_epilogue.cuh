// The epilogue of a product with a sparse matrix: act(alpha · sum + bias). rooftop/ops/_sparse.py names the activations, in this order.
#pragma once

template <int ACT>
__device__ inline float activated(float s) {
    if (ACT == 1) return s > 0.f || s != s ? s : 0.f;
    if (ACT == 2) return s / (1.f + __expf(-s));
    if (ACT == 3) return 0.5f * s * (1.f + erff(s * 0.70710678118654752f));
    if (ACT == 4) return 0.5f * s * (1.f + tanhf(0.79788456080286536f * (s + 0.044715f * s * s * s)));
    return s;
}

/// BIAS: 0 none, 1 one number a row, 2 one number a column. step: elements from one number to the next.
template <int ACT, int BIAS, typename T>
__device__ inline float finished(float sum, float alpha, const T* __restrict__ bias, long long step, int row, int column) {
    float s = alpha * sum;
    if (BIAS) s += static_cast<float>(bias[(BIAS == 1 ? row : column) * step]);
    return activated<ACT>(s);
}

/// 8 x 8 results in the layout of an mma accumulator: lane 4 g + t has x and y of row g, columns 2 t and 2 t + 1; (row, column): the first.
/// Written to out[m · pitch + n] or, TURNED, to out[n · pitch + m], in 16 bits. PAIRS: two neighbours are aligned to 4 bytes. Past M and N
/// nothing is read or written.
template <typename T, bool TURNED, bool PAIRS, int ACT, int BIAS>
__device__ inline void put_8x8(float x, float y, int row, int column, int M, int N, float alpha, const T* __restrict__ bias, long long step,
    T* __restrict__ out, long long pitch) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, r = row + g, c = column + 2 * t;
    T pair[2] = {T(0.f), T(0.f)};
    if (r < M && c < N) pair[0] = T(finished<ACT, BIAS>(x, alpha, bias, step, r, c));
    if (r < M && c + 1 < N) pair[1] = T(finished<ACT, BIAS>(y, alpha, bias, step, r, c + 1));
    unsigned two = *reinterpret_cast<unsigned*>(pair);
    if (TURNED) asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(two));
    const int major = TURNED ? column + g : r, minor = TURNED ? row + 2 * t : c, rows = TURNED ? N : M, columns = TURNED ? M : N;
    if (major >= rows || minor >= columns) return;
    T* to = out + major * pitch + minor;
    if (PAIRS) {
        *reinterpret_cast<unsigned*>(to) = two;
    } else {
        to[0] = reinterpret_cast<const T*>(&two)[0];
        if (minor + 1 < columns) to[1] = reinterpret_cast<const T*>(&two)[1];
    }
}
