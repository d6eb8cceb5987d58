// Forward of rms_norm and layer_norm for short rows of any length. A block copies a range of consecutive rows to shared memory in vectors of 16 bytes that
// ignore row boundaries; teams of LANES lanes then read the rows from there, element by element. So a row of 66 16-bit elements, which starts and ends at any
// address, needs no extra instructions for its ends.
//
//     y = (x - mean) / sqrt(mean of (x - mean)^2 + eps) * weight + bias
//
// CENTRE is true for layer_norm: the mean is subtracted.
#pragma once
#include <cuda_pipeline.h>

#include "chain.cuh"
#include "lanes.cuh"
#include "packs.cuh"
#include "quotients.cuh"

constexpr int STAGED_THREADS = 256;
extern __shared__ __align__(128) uint4 stretch[];  // `rows` rows; the results overwrite the elements

/// Weight and bias of one column.
template <typename T, bool WEIGHT, bool BIAS>
struct Kept {
    T w, b;
    __device__ void load(const T* weight, const T* bias, int column) {
        if (WEIGHT) w = weight[column];
        if (BIAS) b = bias[column];
    }
    __device__ float of(float f) const {
        if (WEIGHT) f *= static_cast<float>(w);
        if (BIAS) f += static_cast<float>(b);
        return f;
    }
};

/// R rows of C elements, `rows` a block: a number of rows that is a whole number of vectors. A lane holds EACH elements of a row, LANES apart, and keeps the
/// weight and bias of these columns for all its rows.
template <typename T, int LANES, int EACH, bool CENTRE, bool WEIGHT, bool BIAS>
__global__ void __launch_bounds__(STAGED_THREADS, 4)
    norm_staged(int R, int C, int rows, const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias, T* __restrict__ y, float eps) {
    constexpr int N = 16 / sizeof(T), TEAMS = STAGED_THREADS / LANES;
    const int tid = threadIdx.x, lane = tid % LANES;
    const long long first = static_cast<long long>(blockIdx.x) * rows;
    const int count = min(static_cast<long long>(rows), R - first), elements = count * C, vectors = elements / N;
    x += first * C, y += first * C;
    T* const held = reinterpret_cast<T*>(stretch);
    const Divisor columns(C);

    gdc_wait();
    for (int k = tid; k < vectors; k += STAGED_THREADS) __pipeline_memcpy_async(stretch + k, x + k * N, 16);
    __pipeline_commit();
    for (int k = vectors * N + tid; k < elements; k += STAGED_THREADS) held[k] = x[k];  // the rest of the last block, element by element
    Kept<T, WEIGHT, BIAS> kept[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        if (lane + i * LANES < C) kept[i].load(weight, bias, lane + i * LANES);
    }
    __pipeline_wait_prior(0);
    __syncthreads();

    for (int k = 0; k < count; k += TEAMS) {  // all lanes of a warp take part in the shuffles
        const int row = k + tid / LANES, length = row < count ? C : 0;
        T* const r = held + row * C;
        float v[EACH], sums[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int column = lane + i * LANES;
            v[i] = column < length ? static_cast<float>(r[column]) : 0;
            if (CENTRE) sums[0] += v[i];
        }
        float mean = CENTRE ? over(lanes_sum<LANES>(sums[0]), columns) : 0;
        sums[0] = 0;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            if (CENTRE) v[i] = lane + i * LANES < length ? v[i] - mean : 0;
            sums[0] += v[i] * v[i];
            if (CENTRE) sums[1] += v[i];
        }
        if (CENTRE) {
            lanes_sums<LANES>(sums);
            mean = over(sums[1], columns);  // the rounding error of the mean (Chan, Golub & LeVeque 1983)
            sums[0] = fmaxf(sums[0] - sums[1] * mean, 0);
        } else {
            sums[0] = lanes_sum<LANES>(sums[0]);
        }
        const float scale = reciprocal_root(over(sums[0], columns) + eps);
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int column = lane + i * LANES;
            if (column >= length) break;
            r[column] = T(kept[i].of((CENTRE ? v[i] - mean : v[i]) * scale));
        }
    }
    __syncthreads();
    for (int k = tid; k < vectors; k += STAGED_THREADS) __stcs(reinterpret_cast<uint4*>(y) + k, stretch[k]);
    for (int k = vectors * N + tid; k < elements; k += STAGED_THREADS) y[k] = held[k];
}
