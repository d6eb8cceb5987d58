/* rooftop
idea    = "Short rows that lie one after another are one stretch of memory: a block brings some 24 KiB of it to shared memory in vectors of 16 bytes, whatever the length of a row, and teams of 4 to 32 lanes take rows from there element by element. So odd rows cost what even ones do, and no lane is idle because a row has no power of two of vectors."
limit   = "Instructions, some 20 an element: from 512 elements on, rows in registers (softmax__cuda_sm80.cu) take fewer."
dtypes  = ["f32", "f16", "bf16"]
args    = ["R: i32", "C: i32", "rows: i32", "x: T[R, C, 1]", "y: T[R, C, 1]"]
demands = { has = ["LDGSTS.E.128", "STG.E.128"], spills = 0 }
python  = ["supports", "prefers", "choose", "configs"]
valid   = "lanes * each >= C and lanes * (each - 1) < C and rows * lanes % 256 == 0"

[config]
lanes = 8
each  = 16
rows  = 32

[[launch]]
kernel  = "softmax_staged<{T}, {lanes}, {each}>"
grid    = ["ceil(R / rows)"]
block   = [256]
shared  = "16 * ceil(rows * C * bytes(x) / 16)"
chained = true
*/
#include <cuda_pipeline.h>
#include <math_constants.h>

#include "chain.cuh"
#include "lanes.cuh"
#include "packs.cuh"

constexpr int THREADS = 256;
// The identity of the maximum: with -inf, a lane that has only -inf would give -inf - -inf = NaN, also in rows that have finite elements.
constexpr float LOWEST = -3.402823466e38f;
extern __shared__ __align__(128) uint4 stretch[];  // `rows` rows; the results overwrite the elements

/// e^x for x <= 0. To one unit in the last place if the result is float32; if it is rounded to 16 bits, in two instructions with an error of a few units that
/// grows with |x|.
template <typename T>
__device__ float exponential(float x) {
    if (sizeof(T) == 4) return expf(x);
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
    return y;
}

/// R rows of C elements, `rows` a block: a whole number of vectors. A lane holds EACH elements of a row, LANES apart.
template <typename T, int LANES, int EACH>
__global__ void __launch_bounds__(THREADS, 4) softmax_staged(int R, int C, int rows, const T* __restrict__ x, T* __restrict__ y) {
    constexpr int N = 16 / sizeof(T), TEAMS = THREADS / LANES;
    const int tid = threadIdx.x, lane = tid % LANES;
    const long long first = static_cast<long long>(blockIdx.x) * rows;
    const int count = min(static_cast<long long>(rows), R - first), elements = count * C, vectors = elements / N;
    x += first * C, y += first * C;
    T* const held = reinterpret_cast<T*>(stretch);

    wait_for_before();
    for (int k = tid; k < vectors; k += THREADS) __pipeline_memcpy_async(stretch + k, x + k * N, 16);
    __pipeline_commit();
    for (int k = vectors * N + tid; k < elements; k += THREADS) held[k] = x[k];  // the rest of the last block, element by element
    __pipeline_wait_prior(0);
    __syncthreads();

    for (int k = 0; k < count; k += TEAMS) {  // all lanes of a warp take part in the shuffles
        const int row = k + tid / LANES, length = row < count ? C : 0;
        T* const r = held + row * C;
        float v[EACH], most = LOWEST, sum = 0;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            v[i] = lane + i * LANES < length ? static_cast<float>(r[lane + i * LANES]) : -CUDART_INF_F;
            most = fmaxf(most, v[i]);
        }
#pragma unroll
        for (int step = LANES / 2; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
#pragma unroll
        for (int i = 0; i < EACH; ++i) sum += v[i] = exponential<T>(v[i] - most);
        sum = lanes_sum<LANES>(sum);
        const float scale = __fdividef(1, sum);
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int column = lane + i * LANES;
            if (column >= length) break;
            const float q = v[i] * scale;  // a Newton step corrects the rounding error of `scale`, which matters for float32 results only
            r[column] = T(sizeof(T) == 4 ? fmaf(fmaf(-q, sum, v[i]), scale, q) : q);
        }
    }
    __syncthreads();
    for (int k = tid; k < vectors; k += THREADS) __stcs(reinterpret_cast<uint4*>(y) + k, stretch[k]);
    for (int k = vectors * N + tid; k < elements; k += THREADS) y[k] = held[k];
}
