/* rooftop
idea    = """A row of y and of dy is read once into registers, and dx is written once: several short rows a warp, or one longer row a \
  block. A thread holds as many vectors of 16 bytes as the row needs, not rounded up to a power of two. Each warp of a block writes one sum \
  to shared memory; after one barrier every warp adds all of them."""
limit   = "Rows of more than 64 KiB do not fit the registers of a block: clusters of blocks take them (softmax_bwd__cuda_sm90.cu)."
dtypes  = ["f32", "f16", "bf16"]
args    = [
    "R: i32", "C: i32", "dy: T[R, C, 1]", "gs: i64 = stride(dy, 0)", "y: T[R, C, 1]", "ys: i64 = stride(y, 0)", "dx: T[R, C, 1]",
    "xs: i64 = stride(dx, 0)",
]
demands = { has = ["LDG.E.128", "STG.E.128"], spills = 0 }
python  = ["supports", "choose", "configs"]
valid   = "16 * team * vectors > C * bytes(y) - 16 and (aligned_rows or team >= min(32, 32 // bytes(y)))"

[requires]
"C == 1 or stride(y, 1) == 1 and stride(dy, 1) == 1 and stride(dx, 1) == 1" = "the elements of a row must be neighbours"

[config]
team         = 32
vectors      = 1
rows         = 1
registers    = 64
aligned_rows = false

[[launch]]
when    = "team <= 32"
kernel  = "softmax_bwd_warp<{T}, {team}, {vectors}, {rows}, {registers}, {aligned_rows}>"
grid    = ["ceil(R / (rows * (256 // team)))"]
block   = [256]
chained = true

[[launch]]
when    = "team > 32"
kernel  = "softmax_bwd_block<{T}, {vectors}, {registers}, {aligned_rows}>"
grid    = ["R"]
block   = ["team"]
chained = true
*/
#include "pdl.cuh"
#include "packs.cuh"

constexpr int REGISTER_FILE = 65536;      // of a multiprocessor
constexpr int WARP_KERNEL_THREADS = 256;  // a block of the kernels that take several rows a warp

/// A thread's elements of a row of y and of dy. The vectors start on 16-byte boundaries of y.
template <typename T, int VECTORS, bool ALIGNED>
struct Rows {
    using P = Pack<T>;
    Row<T, VECTORS, ALIGNED> y;
    uint4 dy[VECTORS];
    float dy_single = 0;

    __device__ void load(const T* of_y, const T* of_dy) {
        const bool together = ALIGNED || aligned(of_dy + y.head);
        y.load(of_y);
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            if (!y.has(i)) continue;
            const T* const from = of_dy + y.column(i);
            dy[i] = together ? __ldcs(reinterpret_cast<const uint4*>(from)) : P::load(from, false);
        }
        if (y.has_single()) dy_single = static_cast<float>(of_dy[y.single_column()]);
    }
    /// The sum of y dy over this thread's elements.
    __device__ float products() const {
        float sum = 0, a[P::N], b[P::N];
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            if (!y.has(i)) continue;
            P::widen(y.packs[i], a), P::widen(dy[i], b);
#pragma unroll
            for (int j = 0; j < P::N; ++j) sum += a[j] * b[j];
        }
        return y.has_single() ? sum + y.single * dy_single : sum;
    }
    /// dx = y (dy - sum).
    __device__ void write(float sum, T* dx) const {
        const bool together = ALIGNED || aligned(dx + y.head);
        float a[P::N], b[P::N];
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            if (!y.has(i)) continue;
            P::widen(y.packs[i], a), P::widen(dy[i], b);
#pragma unroll
            for (int j = 0; j < P::N; ++j) a[j] *= b[j] - sum;
            P::store(dx + y.column(i), together, P::narrow(a));
        }
        if (y.has_single()) dx[y.single_column()] = T(y.single * (dy_single - sum));
    }
};

/// Short rows: LANES lanes a row, ROWS rows each, whose loads are all issued before the first is used. No barrier, no shared memory.
template <typename T, int LANES, int VECTORS, int ROWS, int REGISTERS, bool ALIGNED>
__global__ void __launch_bounds__(WARP_KERNEL_THREADS, REGISTER_FILE / WARP_KERNEL_THREADS / REGISTERS)
    softmax_bwd_warp(int R, int C, const T* __restrict__ dy, long long gs, const T* __restrict__ y, long long ys, T* __restrict__ dx,
        long long xs) {
    constexpr int TEAMS = 32 / LANES;  // rows that a warp processes at the same time
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long first = (static_cast<long long>(blockIdx.x) * (WARP_KERNEL_THREADS / 32) + warp) * (TEAMS * ROWS) + lane / LANES;
    const auto number = [&](int k) { return first + k * TEAMS; };
    Rows<T, VECTORS, ALIGNED> rows[ROWS];
#pragma unroll
    for (int k = 0; k < ROWS; ++k) rows[k].y.locate(y + number(k) * ys, number(k) < R ? C : 0, lane % LANES, LANES);
    gdc_wait();
#pragma unroll
    for (int k = 0; k < ROWS; ++k) rows[k].load(y + number(k) * ys, dy + number(k) * gs);
#pragma unroll
    for (int k = 0; k < ROWS; ++k) rows[k].write(lanes_sum<LANES>(rows[k].products()), dx + number(k) * xs);
}

/// Longer rows: one block a row, with as many threads as the row needs.
template <typename T, int VECTORS, int REGISTERS, bool ALIGNED>
__global__ void __launch_bounds__(1024, REGISTER_FILE / 1024 / REGISTERS)
    softmax_bwd_block(int R, int C, const T* __restrict__ dy, long long gs, const T* __restrict__ y, long long ys, T* __restrict__ dx,
        long long xs) {
    __shared__ float sums[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long number = blockIdx.x;
    Rows<T, VECTORS, ALIGNED> row;
    row.y.locate(y + number * ys, C, threadIdx.x, blockDim.x);
    gdc_wait();
    row.load(y + number * ys, dy + number * gs);
    const float of_warp = lanes_sum<32>(row.products());
    if (lane == 0) sums[warp] = of_warp;
    __syncthreads();
    row.write(lanes_sum<32>(lane < blockDim.x / 32 ? sums[lane] : 0), dx + number * xs);
}
