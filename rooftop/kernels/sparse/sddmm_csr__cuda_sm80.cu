/* rooftop
idea    = """A warp computes 32 elements, whatever rows they belong to, so that long rows delay no other. Each lane finds the row of one \
  element by bisection. LANES neighbouring lanes read a row of a and a row of b, AT_ONCE elements in flight, and reduce by shuffles. \
  Repeated reads of a row of a hit L1."""
limit   = "predicted: L2 bandwidth, a row of b read for each element"
dtypes  = ["f32", "f16", "bf16"]
args    = [
    "M: i32", "N: i32", "K: i32", "nnz: i32", "a: T[M, N]", "as: i64 = stride(a, 0)", "b: T[K, N]", "bs: i64 = stride(b, 0)",
    "columns: i32[nnz]", "offsets: i32[P]", "alpha: f32", "out: T[nnz]",
]
python  = ["supports", "choose"]
demands = { has = ["FFMA"], spills = 0 }

[config]
wide  = 1
lanes = 32

[[launch]]
kernel  = "sampled<{T}, {wide}, {lanes}>"
grid    = ["ceil(nnz / 256)"]
block   = [256]
pdl = true
*/
#include "pdl.cuh"
#include "_csr_rows.cuh"

template <typename T, int W, int LANES>
__global__ void __launch_bounds__(256, 3)
sampled(int M, int N, int K, int nnz, const T* __restrict__ a, long long as, const T* __restrict__ b, long long bs,
    const int* __restrict__ columns,
        const int* __restrict__ offsets, float alpha, T* __restrict__ out) {
    constexpr int GROUPS = 32 / LANES, AT_ONCE = LANES < 4 ? LANES : 4;
    gdc_wait();
    const int lane = threadIdx.x % 32, begin = (blockIdx.x * 8 + threadIdx.x / 32) * 32, mine = begin + lane;
    if (begin >= nnz) return;
    int row = row_of(offsets, M, begin), high = row_of(offsets, M, min(begin + 31, nnz - 1)) + 1, column = 0;
    bool here = false;
    if (mine < nnz) {
        while (high - row > 1) {
            const int middle = (row + high) / 2;
            if (offsets[middle] <= mine) row = middle;
            else high = middle;
        }
        here = offsets[row] <= mine && mine < offsets[row + 1];
        column = min(static_cast<unsigned>(columns[mine]), static_cast<unsigned>(K - 1));
    }
    float result = 0.f;
#pragma unroll 1
    for (int e = 0; e < 32; e += GROUPS * AT_ONCE) {
        const T *x[AT_ONCE], *y[AT_ONCE];
        float sum[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; ++u) {
            const int from = e + u * GROUPS + lane / LANES;
            x[u] = a + __shfl_sync(~0u, row, from) * as, y[u] = b + __shfl_sync(~0u, column, from) * bs;
            sum[u] = 0.f;
        }
#pragma unroll 1
        for (int c = lane % LANES * W; c < N; c += LANES * W) {
#pragma unroll
            for (int u = 0; u < AT_ONCE; ++u) {
                const auto p = Vector<T, W>::load(x[u] + c), q = Vector<T, W>::load(y[u] + c);
#pragma unroll
                for (int w = 0; w < W; ++w) sum[u] = fmaf(static_cast<float>(p.v[w]), static_cast<float>(q.v[w]), sum[u]);
            }
        }
#pragma unroll
        for (int step = LANES / 2; step > 0; step /= 2) {
#pragma unroll
            for (int u = 0; u < AT_ONCE; ++u) sum[u] += __shfl_xor_sync(~0u, sum[u], step);
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; ++u) {  // element e + u GROUPS + g is in the lanes of group g
            const float found = __shfl_sync(~0u, sum[u], lane % GROUPS * LANES);
            if ((lane - e) / GROUPS == u && lane >= e) result = found;
        }
    }
    if (mine < nnz) out[mine] = T(here ? alpha * result : 0.f);
}
