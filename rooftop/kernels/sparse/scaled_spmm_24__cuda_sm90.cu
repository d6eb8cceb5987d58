/* rooftop
idea    = """The pipeline of spmm_24__cuda_sm90 with 8-bit operands: a stage of the same bytes holds 256 columns of K, and one wgmma.sp \
  multiplies 64 of them. The metadata have the layout of 16-bit operands; an 8-bit instruction needs the metadata of a row's 32 columns in \
  one lane, and the neighbouring lane holds half of them: one shuffle and one PRMT for 16 rows and 64 columns rearrange them. fp8 products \
  are summed by the tensor cores along all of K (fast), or along 128 products at a time, whose sums are added in float32."""
limit   = """predicted: L2 bandwidth and the card's power, as with 16 bits, at twice the products; without `fast` the float32 additions, 64 \
  for each four instructions"""
arch    = 90
dtypes  = ["f8e4m3", "f8e5m2", "i8"]
tensors = ["values: T[M, H]"]
args    = ["meta: i32[S, C, 32, 4]"]
python  = ["supports", "choose", "configs", "launches"]
demands = { has = ["UTMALDG"], spills = 0 }

[config]
blocks = 2
stages = 3
*/
#include <cuda_fp8.h>

#include "_epilogue_store.cuh"
#include "sparse_wgmma.cuh"

#define HELD_8(h, i) h(d[i]), h(d[i + 1]), h(d[i + 2]), h(d[i + 3]), h(d[i + 4]), h(d[i + 5]), h(d[i + 6]), h(d[i + 7])
#define HELD_64(h) HELD_8(h, 0), HELD_8(h, 8), HELD_8(h, 16), HELD_8(h, 24), HELD_8(h, 32), HELD_8(h, 40), HELD_8(h, 48), HELD_8(h, 56)
#define SPARSE_PRODUCT(h, TYPES, SCALES)                                                                     \
    asm volatile(                                                                                            \
        "{ .reg .pred p; setp.ne.b32 p, %67, 0; wgmma.mma_async.sp.sync.aligned.m64n128k64." TYPES " {"      \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                             \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                   \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                   \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"                     \
        "}, %64, %65, %66, 0, p" SCALES "; }"                                                                \
        : HELD_64(h)                                                                                         \
        : "l"(a), "l"(b), "r"(word), "n"(ADD))

template <typename T>
constexpr bool IS_E4M3 = false;
template <>
constexpr bool IS_E4M3<__nv_fp8_e4m3> = true;

/// d = S b, or with ADD d += S b: 64 rows of a 2:4 sparse matrix, 64 of its columns, by 128 columns of b. word: this lane's metadata.
template <typename T, typename U, int ADD>
__device__ __forceinline__ void product_of(float (&d)[64], unsigned long long a, unsigned long long b, unsigned word) {
    if constexpr (IS_E4M3<T> && IS_E4M3<U>) SPARSE_PRODUCT("+f", "f32.e4m3.e4m3", ", 1, 1");
    if constexpr (IS_E4M3<T> && !IS_E4M3<U>) SPARSE_PRODUCT("+f", "f32.e4m3.e5m2", ", 1, 1");
    if constexpr (!IS_E4M3<T> && IS_E4M3<U>) SPARSE_PRODUCT("+f", "f32.e5m2.e4m3", ", 1, 1");
    if constexpr (!IS_E4M3<T> && !IS_E4M3<U>) SPARSE_PRODUCT("+f", "f32.e5m2.e5m2", ", 1, 1");
}
template <typename T, typename U, int ADD>
__device__ __forceinline__ void product_of(int (&d)[64], unsigned long long a, unsigned long long b, unsigned word) {
    SPARSE_PRODUCT("+r", "s32.s8.s8", "");
}

/// Converts metadata of 16-bit operands (rows g and g + 8 by 16 columns in lane 4 g + t) to those of 8 bits: row g + 8 (t % 2) by the 32
/// columns of two lanes.
__device__ inline unsigned of_8_bits(unsigned word) {
    const unsigned other = __shfl_xor_sync(~0u, word, 1);
    return threadIdx.x % 2 ? __byte_perm(other, word, 0x7632) : __byte_perm(word, other, 0x5410);
}

constexpr int WIDE = 128;

/// A tile is 128 BLOCKS rows by 128 columns; warp group w has the 64 BLOCKS rows from 64 BLOCKS w on. values_map: boxes of 128 BLOCKS rows
/// of 128 values;
/// b_map: boxes of 128 columns of b, 128 rows of it. slices: pieces of 256 columns of S. SUM: float or int. PARTED: the sums of a slice are
/// added separately.
/// step_a, step_b: 0 if there is one scale for all. out, TURNED, STEP: as in put_sums; pitch: of out.
template <typename T, typename U, typename O, typename SUM, int BLOCKS, int STAGES, bool PARTED, bool TURNED, int STEP, int ACT, int BIAS>
__global__ void __launch_bounds__(384, 1)
spmm(int M, int N, int slices, int tall, int across, int band, const __grid_constant__ CUtensorMap values_map,
    const __grid_constant__ CUtensorMap b_map,
     const uint4* __restrict__ meta, int stripes, const float* __restrict__ scale_a, int step_a, const float* __restrict__ scale_b,
     int step_b,
     const O* __restrict__ bias, long long bias_step, O* __restrict__ out, long long pitch) {
    constexpr int HIGH = 128 * BLOCKS, A = HIGH * 128, B = WIDE * 256;
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
    if (warp >= 8) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (warp > 8 || lane != 0) return;
        prefetch_map(values_map), prefetch_map(b_map);
        int stage = 0, parity = 1;
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            int m, n;
            place(tile, m, n);
            for (int slice = 0; slice < slices; ++slice) {
                const unsigned bar = full + 8 * stage, a = base + stage * (A + B), b = a + A;
                barrier_wait(empty + 8 * stage, parity);
                barrier_expect(bar, A + B);
                copy_box(a, values_map, bar, slice * 128, m);
                copy_box(b, b_map, bar, slice * 256, n);
                copy_box(b + WIDE * 128, b_map, bar, slice * 256 + 128, n);
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int group = warp / 4;
    const long long stripe = slices * 32ll;  // uint4 of a stripe of 16 rows
    int stage = 0, parity = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        int m, n;
        place(tile, m, n);
        SUM sum[BLOCKS][64];
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) {
#pragma unroll
            for (int j = 0; j < 64; ++j) sum[i][j] = 0;
        }
        const uint4* from[BLOCKS];
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) from[i] = meta + min((m + (group * BLOCKS + i) * 64) / 16 + warp % 4, stripes - 1) * stripe + lane;
        const auto rows_at = [&](int i, int k) { return operand(base + stage * (A + B) + group * (A / 2) + i * 8192 + k * 32, 16, 1024); };
        const auto columns_at = [&](int k) { return operand(base + stage * (A + B) + A + k / 2 * WIDE * 128 + k % 2 * 64, 16, 1024); };
        int before = -1;  // the stage whose wgmma are in flight
        if constexpr (PARTED) {
#pragma unroll 1
            for (int slice = 0; slice < slices; ++slice) {
                uint4 four[BLOCKS];
#pragma unroll
                for (int i = 0; i < BLOCKS; ++i) four[i] = from[i][slice * 32];
                barrier_wait(full + 8 * stage, parity);
#pragma unroll
                for (int i = 0; i < BLOCKS; ++i) {
                    const unsigned words[4] = {of_8_bits(four[i].x), of_8_bits(four[i].y), of_8_bits(four[i].z), of_8_bits(four[i].w)};
                    SUM part[64];
                    products_begin();
                    product_of<T, U, 0>(part, rows_at(i, 0), columns_at(0), words[0]);
#pragma unroll
                    for (int k = 1; k < 4; ++k) product_of<T, U, 1>(part, rows_at(i, k), columns_at(k), words[k]);
                    products_commit();
                    products_wait<0>();
#pragma unroll
                    for (int j = 0; j < 64; ++j) sum[i][j] += part[j];
                }
                if (lane == 0) barrier_arrive(empty + 8 * stage);
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
        } else {
#pragma unroll 1
            for (int slice = 0; slice < slices; slice += 2) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {  // metadata registers are double-buffered: those of the wgmma in flight must not change
                    if (slice + h >= slices) break;
                    unsigned words[BLOCKS][4];
#pragma unroll
                    for (int i = 0; i < BLOCKS; ++i) {
                        const uint4 four = from[i][(slice + h) * 32];
                        words[i][0] = of_8_bits(four.x), words[i][1] = of_8_bits(four.y), words[i][2] = of_8_bits(four.z),
                            words[i][3] = of_8_bits(four.w);
                    }
                    barrier_wait(full + 8 * stage, parity);
                    products_begin();
#pragma unroll
                    for (int i = 0; i < BLOCKS; ++i) {
#pragma unroll
                        for (int k = 0; k < 4; ++k) product_of<T, U, 1>(sum[i], rows_at(i, k), columns_at(k), words[i][k]);
                    }
                    products_commit();
                    products_wait<1>();
                    if (before >= 0 && lane == 0) barrier_arrive(empty + 8 * before);
                    before = stage;
                    if (++stage == STAGES) stage = 0, parity ^= 1;
                }
            }
        }
        if constexpr (!PARTED) {
            products_wait<0>();
            if (before >= 0 && lane == 0) barrier_arrive(empty + 8 * before);
        }
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) {
            const int row = m + (group * BLOCKS + i) * 64 + warp % 4 * 16;
            float of_row[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) of_row[half] =
                scale_a[static_cast<long long>(min(row + half * 8 + lane / 4, M - 1)) * step_a];
            float scaled[64];
#pragma unroll
            for (int j = 0; j < WIDE / 8; ++j) {
                const int column = n + j * 8 + lane % 4 * 2;
                const float x = scale_b[static_cast<long long>(min(column, N - 1)) * step_b],
                    y = scale_b[static_cast<long long>(min(column + 1, N - 1)) * step_b];
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    scaled[j * 4 + half * 2] = static_cast<float>(sum[i][j * 4 + half * 2]) * of_row[half] * x;
                    scaled[j * 4 + half * 2 + 1] = static_cast<float>(sum[i][j * 4 + half * 2 + 1]) * of_row[half] * y;
                }
            }
            put_sums<O, TURNED, STEP, ACT, BIAS>(scaled, row, n, M, N, 1.f, bias, bias_step, out, pitch);
        }
    }
}
