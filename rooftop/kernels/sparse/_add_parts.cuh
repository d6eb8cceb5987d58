// The second launch of split-K.
#pragma once
#include "pdl.cuh"
#include "_epilogue.cuh"

/// out = act(alpha · Σ parts + bias); parts [split, N, M].
template <typename T, bool TURNED, int ACT, int BIAS>
__global__ void __launch_bounds__(256)
add_parts(int M, int N, int split, const float* __restrict__ parts, float alpha, const T* __restrict__ bias, long long bias_step,
          T* __restrict__ out, long long pitch) {
    gdc_wait();
    const int m = blockIdx.x * 256 + threadIdx.x, n = blockIdx.y;
    if (m >= M) return;
    const long long all = static_cast<long long>(M) * N;
    const float* from = parts + static_cast<long long>(n) * M + m;
    float s = from[0];
    for (int i = 1; i < split; ++i) s += from[i * all];
    out[TURNED ? n * pitch + m : m * pitch + n] = T(finished<ACT, BIAS>(s, alpha, bias, bias_step, m, n));
}
