/* rooftop
idea    = """Up to 64 columns: the product is bound by the memory of S. A block has 128 rows and a part of K. One producer warp loads 256 \
  columns of K per stage by TMA; two consumer warp groups multiply 64 rows each by 64 columns with wgmma.sp. K is divided among so many \
  blocks that all of the bandwidth is drawn (split-K); a second launch adds the parts, in order."""
limit   = "device memory"
arch    = 90
dtypes  = ["f16", "bf16"]
tensors = ["values: T[M, H]", "b: T[K, N]"]
args    = ["meta: i32[S, C, 32, 4]", "out: T[P, Q]"]
python  = ["supports", "choose", "configs", "launches", "scratch"]
demands = { has = ["HGMMA.SP", "UTMALDG"], spills = 0 }

[config]
stages = 3
split  = 1
*/
#include "_add_parts.cuh"
#include "sparse_wgmma.cuh"

/// NEAR: rows of b in shared memory run along K, else along N. values_map: boxes of 128 rows of 64 values; b_map: boxes of 64 rows of 64
/// (NEAR), or 128 rows of 64. slices: pieces of 256 columns; each: of a block. SPLIT: the sums go to parts [split, N, M]. out, TURNED,
/// PAIRS: as in put_8x8; pitch: of out.
template <typename T, int STAGES, bool NEAR, bool TURNED, bool PAIRS, int ACT, int BIAS, bool SPLIT>
__global__ void __launch_bounds__(288, 1)
narrow(int M, int N, int slices, int each, const __grid_constant__ CUtensorMap values_map, const __grid_constant__ CUtensorMap b_map,
       const uint4* __restrict__ meta, int stripes, float alpha, const T* __restrict__ bias, long long bias_step, T* __restrict__ out,
       long long pitch, float* __restrict__ parts) {
    constexpr int A = 2 * 16384, B = 4 * 8192;
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
    gdc_wait();
    int stage = 0;
    if (warp == 8) {
        if (lane != 0) return;
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
        return;
    }
    const int group = warp / 4, row = m + group * 64 + warp % 4 * 16;
    const uint4* from = meta + static_cast<long long>(min(row / 16, stripes - 1)) * slices * 32 + lane;
    float sum[32];
#pragma unroll
    for (int j = 0; j < 32; ++j) sum[j] = 0.f;
    uint4 words = make_uint4(0, 0, 0, 0);
    if (first < last) words = from[first * 32];
    int parity = 0;
#pragma unroll 1
    for (int slice = first; slice < last; ++slice) {
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
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float p = sum[j * 4 + half * 2], q = sum[j * 4 + half * 2 + 1];
            if constexpr (SPLIT) {
                const int r = row + half * 8 + lane / 4, n = j * 8 + lane % 4 * 2;
                float* to = parts + (static_cast<long long>(blockIdx.y) * N + n) * M + r;
                if (r < M && n < N) to[0] = p;
                if (r < M && n + 1 < N) to[M] = q;
            } else put_8x8<T, TURNED, PAIRS, ACT, BIAS>(p, q, row + half * 8, j * 8, M, N, alpha, bias, bias_step, out, pitch);
        }
    }
}
