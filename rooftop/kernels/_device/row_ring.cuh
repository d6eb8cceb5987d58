// Rows in flight to a persistent kernel: a ring in shared memory that cp.async fills several rows ahead. A thread copies what it alone reads, so no
// barrier guards the ring.
#pragma once
#include <cuda_pipeline.h>

#include "rows.cuh"

// On 128 bytes: cp.async to a destination that is not asks the L2 for each line two or three times.
extern __shared__ __align__(128) uint4 ring[];

/// Which rows a team takes: the k-th is first + k * step. Rows `period` apart lie equally far from a 16-byte boundary, and a team takes rows of one phase
/// alone, row % period: so its columns are the same in each. Place p of `places` (blocks, or groups of blocks; whole periods of them) has `teams` teams.
struct Walk {
    int phase, first, step, count;
    __device__ Walk(int R, int period, int p, int places, int team, int teams) : phase(p % period) {
        first = phase + period * (p / period * teams + team), step = period * (places / period * teams);
        count = first < R ? (R - first + step - 1) / step : 0;
    }
};

/// One thread's vectors and single of each row that its team takes: STAGES rows of TENSORS tensors, and KEPT tensors of a row's length that are kept, such
/// as the weight. `row` says where they lie; it is located by the first tensor.
template <typename T, int VECTORS, int STAGES, int TENSORS, int KEPT, bool ALIGNED>
struct Ring {
    using P = Pack<T>;
    static constexpr int N = P::N;
    Row<T, VECTORS, ALIGNED> row;
    const T *ahead[TENSORS], *next[TENSORS];  // rows: that cp.async asks for next; after this one
    long long step[TENSORS];                  // elements from one row of the team to its next
    int filled = 0, now = 0;                  // stages: filled next; of the row that is worked on
    float coming[TENSORS] = {}, kept_single[KEPT + 1] = {};

    __device__ uint4* slot(int stage, int tensor, int i) const { return ring + ((stage * TENSORS + tensor) * VECTORS + i) * blockDim.x + threadIdx.x; }
    __device__ uint4* kept(int which, int i) const { return ring + ((STAGES * TENSORS + which) * VECTORS + i) * blockDim.x + threadIdx.x; }
    __device__ float& single(int tensor) const {
        float* const singles = reinterpret_cast<float*>(ring + (STAGES * TENSORS + KEPT) * VECTORS * blockDim.x);
        return singles[(now * TENSORS + tensor) * blockDim.x + threadIdx.x];
    }
    /// Of the row that is worked on.
    __device__ uint4* at(int tensor, int i) const { return slot(now, tensor, i); }
    __device__ void widen(int tensor, int i, float (&f)[N]) const { P::widen(*at(tensor, i), f); }
    __device__ void widen_kept(int which, int i, float (&f)[N]) const { P::widen(*kept(which, i), f); }

    /// use(v) of this thread's elements of the row of the first tensor.
    template <typename Use>
    __device__ void each(const Use& use) const {
        float v[N];
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            if (!row.has(i)) continue;
            widen(0, i, v);
#pragma unroll
            for (int j = 0; j < N; ++j) use(v[j]);
        }
        if (row.has_single()) use(single(0));
    }

    __device__ void keep(int which, const T* of_columns) {
        const bool together = ALIGNED || aligned(of_columns + row.head);
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            if (row.has(i)) *kept(which, i) = P::load(of_columns + row.column(i), together);
        }
        if (row.has_single()) kept_single[which] = static_cast<float>(of_columns[row.single_column()]);
    }
    /// The first STAGES - 1 rows of the walk in flight.
    __device__ void begin(const Walk& walk, const T* const* tensors, const long long* strides) {
#pragma unroll
        for (int t = 0; t < TENSORS; ++t) {
            ahead[t] = next[t] = tensors[t] + walk.first * strides[t], step[t] = walk.step * strides[t];
            if (row.has_single() && walk.count > 0) coming[t] = static_cast<float>(next[t][row.single_column()]);
            next[t] += step[t];
        }
        for (int k = 0; k < STAGES - 1; ++k) fetch(k < walk.count);
    }
    /// Asks for the next row, where there is one, and closes a group of cp.async either way.
    __device__ void fetch(bool there) {
#pragma unroll
        for (int t = 0; t < TENSORS; ++t) {
            const bool together = ALIGNED || aligned(ahead[t] + row.head);
#pragma unroll
            for (int i = 0; i < VECTORS; ++i) {
                if (!there || !row.has(i)) continue;
                if (together)
                    __pipeline_memcpy_async(slot(filled, t, i), ahead[t] + row.column(i), 16);
                else
                    *slot(filled, t, i) = P::load(ahead[t] + row.column(i), false);
            }
            ahead[t] += step[t];
        }
        __pipeline_commit();
        filled = filled + 1 < STAGES ? filled + 1 : 0;
    }
    /// Singles are too small for cp.async: they come through a register, one row ahead. Those of this row; `there`: whether there is one after it.
    __device__ void take_singles(bool there) {
        if (!row.has_single()) return;
#pragma unroll
        for (int t = 0; t < TENSORS; ++t) {
            single(t) = coming[t];
            if (there) coming[t] = static_cast<float>(next[t][row.single_column()]);
            next[t] += step[t];
        }
    }
};
