/* rooftop
idea    = """Persistent, warp-specialised. One producer warp loads 128 columns of K per stage by TMA, which is half as many values of the \
  sparse matrix. Two consumer warp groups multiply them with wgmma.sp from shared memory, one group of products in flight. The metadata are \
  stored in the order that the lanes need and are loaded straight to registers: 16 bytes for 16 rows and 256 columns. Up to 64 columns are \
  bound by the memory of S: the blocks of a cluster then divide K."""
limit   = """L2 bandwidth and the card's power. With tiles of 256 x 128 the tensor cores could consume 64 bytes per clock and \
  multiprocessor, more than L2 delivers; tiles of 128 x 256, which need 80, are slower by a quarter"""
arch    = 90
dtypes  = ["f16", "bf16"]
tensors = ["values: T[M, H]", "b: T[K, N]"]
args    = ["meta: i32[S, C, 32, 4]", "out: T[P, Q]"]
python  = ["supports", "choose", "configs", "launches"]
demands = { has = ["HGMMA.SP", "UTMALDG"], spills = 0 }

[config]
blocks = 2
wide   = 128
stages = 3
split  = 0
*/
#include "_epilogue.cuh"
#include "sparse_wgmma.cuh"

/// A tile is 128 BLOCKS rows by WIDE columns; warp group w has the 64 BLOCKS rows from 64 BLOCKS w on. NEAR: rows of b in shared memory run
/// along K, else along N. values_map: boxes of 128 BLOCKS rows of 64 values; b_map: boxes of WIDE rows of 64 (NEAR), or 128 rows of 64.
/// slices: pieces of 128 columns, an even number. out, TURNED, PAIRS: as in put_8x8; pitch: of out.
template <typename T, int BLOCKS, int WIDE, int STAGES, bool NEAR, bool TURNED, bool PAIRS, int ACT, int BIAS>
__global__ void __launch_bounds__(288, 1)
spmm(int M, int N, int slices, int tall, int across, int band, const __grid_constant__ CUtensorMap values_map,
    const __grid_constant__ CUtensorMap b_map,
     const uint2* __restrict__ meta, int stripes, float alpha, const T* __restrict__ bias, long long bias_step, T* __restrict__ out,
     long long pitch) {
    constexpr int HIGH = 128 * BLOCKS, A = HIGH * 128, B = WIDE * 256, REGS = WIDE / 2;
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ __align__(8) unsigned long long barriers[2 * STAGES];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned base = shared_address(shared), full = shared_address(barriers), empty = full + 8 * STAGES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, 8);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    const int tiles = tall * across;
    // Grouped order: bands of `band` rows of tiles, down first.
    const auto place = [&](int tile, int& m, int& n) {
        const int each = band * across, first = tile / each * band, rows = min(band, tall - first), within = tile % each;
        m = (first + within % rows) * HIGH, n = within / rows * WIDE;
    };
    if (warp == 8) {
        if (lane != 0) return;
        prefetch_map(values_map), prefetch_map(b_map);
        int stage = 0, parity = 1;
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            int m, n;
            place(tile, m, n);
            for (int slice = 0; slice < slices; ++slice) {
                const unsigned bar = full + 8 * stage, a = base + stage * (A + B), b = a + A;
                barrier_wait(empty + 8 * stage, parity);
                barrier_expect(bar, A + B);
                copy_box(a, values_map, bar, slice * 64, m);
                if (NEAR) {
                    copy_box(b, b_map, bar, slice * 128, n);
                    copy_box(b + WIDE * 128, b_map, bar, slice * 128 + 64, n);
                } else {
#pragma unroll
                    for (int i = 0; i < WIDE / 64; ++i) copy_box(b + i * 16384, b_map, bar, n + i * 64, slice * 128);
                }
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
        }
        return;
    }
    const int group = warp / 4;
    const long long stripe = slices * 32ll;  // uint2 of a stripe of 16 rows
    int stage = 0, parity = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        int m, n;
        place(tile, m, n);
        float sum[BLOCKS][REGS];
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) {
#pragma unroll
            for (int j = 0; j < REGS; ++j) sum[i][j] = 0.f;
        }
        const uint2* from[BLOCKS];
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) from[i] = meta + min((m + (group * BLOCKS + i) * 64) / 16 + warp % 4, stripes - 1) * stripe
            + lane * 2;
        int before = -1;  // the stage whose wgmma are in flight
#pragma unroll 1
        for (int slice = 0; slice < slices; slice += 2) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {  // metadata registers are double-buffered: those of the wgmma in flight must not change
                uint2 words[BLOCKS];
#pragma unroll
                for (int i = 0; i < BLOCKS; ++i) words[i] = from[i][slice * 32 + h];
                barrier_wait(full + 8 * stage, parity);
                const unsigned a = base + stage * (A + B) + group * (A / 2), b = base + stage * (A + B) + A;
                products_begin();
#pragma unroll
                for (int i = 0; i < BLOCKS; ++i) {
#pragma unroll
                    for (int k = 0; k < 2; ++k) {
                        const unsigned word = k ? words[i].y : words[i].x;
                        const unsigned long long row = operand(a + i * 8192 + k * 64, 16, 1024);
                        const unsigned long long column = NEAR ? operand(b + k * WIDE * 128, 16, 1024) : operand(b + k * 8192, 16384, 1024);
                        sparse_product<T, 0, !NEAR>(sum[i], row, column, word);
                        // 32 bytes of values; 64 bytes, or 32 rows, of b
                        sparse_product<T, 1, !NEAR>(sum[i], row + 2, column + (NEAR ? 4 : 256), word);
                    }
                }
                products_commit();
                products_wait<1>();
                if (before >= 0 && lane == 0) barrier_arrive(empty + 8 * before);
                before = stage;
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
        }
        products_wait<0>();
        if (before >= 0 && lane == 0) barrier_arrive(empty + 8 * before);
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) {
            const int row = m + (group * BLOCKS + i) * 64 + warp % 4 * 16;
#pragma unroll
            for (int j = 0; j < WIDE / 8; ++j) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    put_8x8<T, TURNED, PAIRS, ACT, BIAS>(sum[i][j * 4 + half * 2], sum[i][j * 4 + half * 2 + 1], row + half * 8, n + j * 8,
                        M, N, alpha, bias, bias_step,
                                                         out, pitch);
                }
            }
        }
    }
}

/// Up to 64 columns: bound by the memory of S. The SPLIT blocks of a cluster have 128 rows and a part of K each, 256 columns a stage, so that
/// enough blocks draw on the memory; the first adds the sums of the others, in order. values_map: boxes of 128 rows of 64 values; b_map:
/// boxes of 64 rows of 64 (NEAR), or 128 rows of 64. slices: pieces of 256 columns; each: of a block. The rest as above.
template <typename T, int SPLIT, int STAGES, bool NEAR, bool TURNED, bool PAIRS, int ACT, int BIAS>
__global__ void __launch_bounds__(288, 1)
narrow(int M, int N, int slices, int each, const __grid_constant__ CUtensorMap values_map, const __grid_constant__ CUtensorMap b_map,
       const uint4* __restrict__ meta, int stripes, float alpha, const T* __restrict__ bias, long long bias_step, T* __restrict__ out,
       long long pitch) {
    constexpr int A = 2 * 16384, B = 4 * 8192;
    static_assert((SPLIT - 1) * 32768 <= STAGES * (A + B));
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ __align__(8) unsigned long long barriers[2 * STAGES];
    // ptxas must see that branches around wgmma do not diverge, or it serialises them: hence the shuffle
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32, m = blockIdx.x * 128;
    const int first = blockIdx.y * each, last = min(slices, first + each);
    const unsigned base = shared_address(shared), full = shared_address(barriers), empty = full + 8 * STAGES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, 8);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    int stage = 0;
    if (warp == 8 && lane == 0) {
        prefetch_map(values_map), prefetch_map(b_map);
        int parity = 1;
        for (int slice = first; slice < last; ++slice) {
            const unsigned bar = full + 8 * stage, a = base + stage * (A + B), b = a + A;
            barrier_wait(empty + 8 * stage, parity);
            barrier_expect(bar, A + B);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                copy_box(a + h * 16384, values_map, bar, slice * 128 + h * 64, m);
                if (NEAR) {
                    copy_box(b + h * 16384, b_map, bar, slice * 256 + h * 128, 0);
                    copy_box(b + h * 16384 + 8192, b_map, bar, slice * 256 + h * 128 + 64, 0);
                } else {
                    copy_box(b + h * 16384, b_map, bar, 0, slice * 256 + h * 128);
                }
            }
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
    }
    const int group = warp / 4, row = m + group * 64 + warp % 4 * 16;
    const uint4* from = meta + static_cast<long long>(min(row / 16, stripes - 1)) * slices * 32 + lane;
    float sum[32];
#pragma unroll
    for (int j = 0; j < 32; ++j) sum[j] = 0.f;
    uint4 words = make_uint4(0, 0, 0, 0);
    if (warp < 8) words = from[first * 32];
    int parity = 0;
#pragma unroll 1
    for (int slice = first; warp < 8 && slice < last; ++slice) {
        const uint4 ahead = from[min(slice + 1, last - 1) * 32];
        barrier_wait(full + 8 * stage, parity);
        const unsigned a = base + stage * (A + B) + group * 8192, b = base + stage * (A + B) + A;
        const unsigned four[4] = {words.x, words.y, words.z, words.w};
        products_begin();
#pragma unroll
        for (int k = 0; k < 4; ++k) {  // 64 columns: 64 bytes of values
            const unsigned long long left = operand(a + k / 2 * 16384 + k % 2 * 64, 16, 1024);
            const unsigned long long right = NEAR ? operand(b + k * 8192, 16, 1024) : operand(b + k * 8192, 16384, 1024);
            sparse_product<T, 0, !NEAR>(sum, left, right, four[k]);
            // 32 bytes of values; 64 bytes, or 32 rows, of b
            sparse_product<T, 1, !NEAR>(sum, left + 2, right + (NEAR ? 4 : 256), four[k]);
        }
        products_commit();
        products_wait<0>();  // the memory is the limit; the other group multiplies meanwhile
        if (lane == 0) barrier_arrive(empty + 8 * stage);
        words = ahead;
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    if constexpr (SPLIT > 1) {
        cluster_sync();  // all rings are done with
        const unsigned rank = blockIdx.y;
        if (rank > 0 && warp < 8) {
            unsigned to;
            asm("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(to) : "r"(base + (rank - 1) * 32768 + threadIdx.x * 4));
#pragma unroll
            for (int j = 0; j < 32; ++j) asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to + j * 1024), "f"(sum[j]) : "memory");
        }
        cluster_sync();
        if (rank > 0) return;
        if (warp < 8) {
            const float* of = reinterpret_cast<const float*>(shared) + threadIdx.x;
#pragma unroll
            for (int i = 0; i < SPLIT - 1; ++i) {
#pragma unroll
                for (int j = 0; j < 32; ++j) sum[j] += of[(i * 32 + j) * 256];
            }
        }
    }
    if (warp == 8) return;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            put_8x8<T, TURNED, PAIRS, ACT, BIAS>(sum[j * 4 + half * 2], sum[j * 4 + half * 2 + 1], row + half * 8, j * 8, M, N, alpha, bias,
                bias_step, out, pitch);
        }
    }
}
