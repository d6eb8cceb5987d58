/* rooftop
idea    = """Short rows that are adjacent in memory are one contiguous range. A block copies about 32 KiB of it to shared memory in vectors \
  of 16 bytes that ignore row boundaries. Teams of a few lanes load rows from there to registers, in vectors too; elements of neighbouring \
  rows in the first and the last vector are masked. The results overwrite the elements in shared memory and are stored in vectors. So rows \
  of odd lengths are nearly as fast as aligned ones, and few lanes idle because a row is not a power of two of vectors."""
limit   = """0.93 to 0.96 of a copy on an H200 at 231 to 340 columns: about 18 instructions for each 16-bit element; the time of a copy has \
  room for 28."""
dtypes  = ["f32", "f16", "bf16"]
args    = ["R: i32", "C: i32", "rows: i32", "x: T[R, C, 1]", "y: T[R, C, 1]"]
demands = { has = ["LDGSTS.E.128", "STG.E.128"], spills = 0 }
python  = ["supports", "choose", "configs"]
valid   = "rows * lanes % 256 == 0 and pieces == ceil(ceil((C * bytes(x) + 16 - gcd(16, C * bytes(x))) / 16) / lanes)"

[config]
lanes  = 8
pieces = 4
rows   = 32

[[launch]]
kernel  = "softmax_staged<{T}, {lanes}, {pieces}, {C * bytes(x) % 16 == 0}, {C * bytes(x) % 16 == 0 and lanes * pieces * 16 == C * bytes(x)}>"
grid    = ["ceil(R / rows)"]
block   = [256]
shared  = "16 * ceil(rows * C * bytes(x) / 16)"
pdl = true
*/
#include <math_constants.h>

#include "pdl.cuh"
#include "packs.cuh"
#include "contiguous_rows.cuh"

constexpr int THREADS = 256;
// The identity of the maximum: with -inf, a lane that has only -inf would give -inf - -inf = NaN, also in rows that have finite elements.
constexpr float LOWEST = -3.402823466e38f;
extern __shared__ __align__(128) uint4 stretch[];  // `rows` rows; the results overwrite the elements

/// R rows of C elements, `rows` a block: a whole number of vectors.
template <typename T, int LANES, int PIECES, bool WHOLE, bool FULL>
__global__ void __launch_bounds__(THREADS, 3) softmax_staged(int R, int C, int rows, const T* __restrict__ x, T* __restrict__ y) {
    using P = Pack<T>;
    constexpr int N = P::N, TEAMS = THREADS / LANES;
    const int tid = threadIdx.x, team = tid / LANES;
    const long long first = static_cast<long long>(blockIdx.x) * rows;
    const int count = min(static_cast<long long>(rows), R - first), elements = count * C, vectors = elements / N;
    x += first * C, y += first * C;
    T* const held = reinterpret_cast<T*>(stretch);

    gdc_wait();
    fetch_vectors<THREADS>(static_cast<unsigned>(__cvta_generic_to_shared(stretch + tid)), reinterpret_cast<const char*>(x) + tid * 16,
        (vectors - tid) * 16);
    __pipeline_commit();
    if (tid < elements % N) held[vectors * N + tid] = x[vectors * N + tid];  // the rest of the last block, element by element
    __pipeline_wait_prior(0);
    __syncthreads();

#pragma unroll 1
    for (int k = 0; k < count; k += TEAMS) {  // all lanes of a warp take part in the shuffles
        const int at = min(k + team, count - 1) * C;
        StretchRow<T, LANES, PIECES, WHOLE, FULL> row(stretch, at, at + C, tid % LANES);
        row.mask(lowest_word<T>());
        float most = row.most(), sums[2] = {0, 0}, e[PIECES * N];
#pragma unroll
        for (int step = LANES / 2; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
        most = fmaxf(most, LOWEST);
        row.each([&](float v, int j) { sums[j % 2] += e[j] = exponential<T>(v - most); });
        const float sum = lanes_sum<LANES>(sums[0] + sums[1]), scale = __fdividef(1, sum);
        __syncthreads();  // rows share vectors: all rows are read before the first is overwritten
        if (k + team < count) {
            row.store(stretch, [&](int i) {
                float f[N];
#pragma unroll
                for (int j = 0; j < N; ++j) {
                    // a Newton step corrects the rounding error of `scale`, which matters for float32 results only
                    const float q = e[i * N + j] * scale;
                    f[j] = sizeof(T) == 4 ? fmaf(fmaf(-q, sum, e[i * N + j]), scale, q) : q;
                }
                return P::narrow(f);
            });
        }
        if (!WHOLE && k + TEAMS < count) __syncthreads();
    }
    __syncthreads();
#pragma unroll 2
    for (int k = tid; k < vectors; k += THREADS) __stcs(reinterpret_cast<uint4*>(y) + k, stretch[k]);
    if (tid < elements % N) y[vectors * N + tid] = held[vectors * N + tid];
}
