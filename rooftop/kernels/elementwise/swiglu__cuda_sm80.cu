/* rooftop
idea    = """One pack of 16 bytes of each of the two inputs per thread; packed inputs are two rows of one tensor. The same computation as \
  swiglu__triton in another language."""
predict = { speedup = 1.0 }
limit   = "The copy of the same bytes."
dtypes  = ["f32", "f16", "bf16"]
args    = [
    "rows: i64 = R", "columns: i64 = C", "a: T[R, A]", "b: T[R, C]?", "y: T[R, C]", "as: i64 = stride(a, 0)",
    "bs: i64 = stride(b, 0) if b else 0", "ys: i64 = stride(y, 0)",
]
demands = { has = ["LDG.E.128", "STG.E.128"], spills = 0 }

[config]
threads = 256

[[launch]]
kernel = "swiglu_of<{T}, {threads}>"
grid   = ["ceil(ceil(C / (16 // bytes(a))) * R / threads)"]
block  = ["threads"]
chained = true
*/
#include "pdl.cuh"
#include "packs.cuh"

template <bool FAST>
__device__ float gated(float a, float b) {
    return (FAST ? __fdividef(a, 1 + __expf(-a)) : a / (1 + expf(-a))) * b;
}

/// y = silu(a) b for rows of C elements; row strides `as`, `bs`, `ys`. Without b it is the second half of a's rows.
template <typename T, int THREADS>
__global__ void __launch_bounds__(THREADS)
    swiglu_of(long long rows, long long columns, const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ y, long long as,
        long long bs, long long ys) {
    using P = Pack<T>;
    constexpr bool FAST = sizeof(T) == 2;
    gdc_wait();  // 64-bit divisions are calls, and no call may precede the wait
    const long long packs = (columns + P::N - 1) / P::N, at = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    const long long row = at / packs, column = at % packs * P::N;
    if (row >= rows) return;
    const T* gate = a + row * as + column;
    const T* value = b ? b + row * bs + column : gate + columns;
    T* to = y + row * ys + column;
    if (column + P::N <= columns && aligned(gate) && aligned(value) && aligned(to)) {
        float f[P::N], g[P::N];
        P::widen(P::load(gate, true), f);
        P::widen(P::load(value, true), g);
#pragma unroll
        for (int j = 0; j < P::N; ++j) f[j] = gated<FAST>(f[j], g[j]);
        P::store(to, true, P::narrow(f));
    } else {
        for (int j = 0; j < P::N && column + j < columns; ++j) to[j] =
            T(gated<FAST>(static_cast<float>(gate[j]), static_cast<float>(value[j])));
    }
}
