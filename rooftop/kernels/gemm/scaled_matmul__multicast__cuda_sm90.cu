/* rooftop
idea    = """fp8: two blocks of a cluster compute 256 x BN. Each loads its own 128 rows of a and half of the columns of b, which TMA \
  multicast writes into the shared memory of both: 28 KiB from L2 for 128 x 192 results and 128 of K, where a block alone would load 40. \
  Two consumer warp groups of 64 rows; while one adds its 128 products of each result in float32, the other multiplies."""
limit   = "predicted: the card's power, as of the same kernel for 16 bits"
arch    = 90
args    = ["a: f8e4m3[M, K]", "b: f8e4m3[K, N]"]
python  = ["supports", "choose", "configs", "launches", "for_any_rows"]
demands = { has = ["QGMMA", "UTMALDG.2D.MULTICAST", "UTMASTG"], spills = 0 }

[config]
BN     = 192
STAGES = 4
group  = 8
*/
#include "_wgmma_8bit.cuh"

/// out [M, N] = scale_a · scale_b · a b + bias, both along K. a_map: boxes of 128 rows of a by 128 of K; b_map: boxes of BN / 2 columns of b
/// by 128; out_map: boxes of 64 by 64. All swizzled by 128 bytes. PROMOTE: 128 products at a time are added to a sum in float32. of_a,
/// of_b: 1 with a scale a row and column, 0 with one. tall: pairs of tiles along M; across: tiles along N; `group` rows of pairs are
/// processed down first.
template <bool EA, bool EB, typename O, typename S, int BN, int STAGES, bool PROMOTE>
__global__ void __launch_bounds__(384, 1)
qgemm(int M, int N, int slices, int tall, int across, int group, const float* __restrict__ scale_a, int of_a, const float* __restrict__ scale_b,
      int of_b, const S* __restrict__ bias, const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
      const __grid_constant__ CUtensorMap out_map) {
    constexpr int A = 128 * 128, B = BN * 128, HALF = B / 2, STAGE = A + B, PIECE = 64 * 128, SUMS = BN / 2;
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ __align__(8) unsigned long long barriers[2 * STAGES];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned base = shared_address(shared), full = shared_address(barriers), empty = full + 8 * STAGES, rank = cluster_rank();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, 4);  // empty: two groups of each block
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
    const int pairs = tall * across, clusters = gridDim.x / 2;
    const auto place = [&](int pair, int& m, int& n) {
        const int each = group * across, first = pair / each * group, rows = min(group, tall - first), within = pair % each;
        m = (first + within % rows) * 256 + static_cast<int>(rank) * 128, n = within / rows * BN;
    };
    if (warp >= 8) {  // registers are given in groups of four warps: of the last group one thread works
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (warp == 8 && lane == 0) {
            prefetch_map(a_map), prefetch_map(b_map), prefetch_map(out_map);
            int stage = 0, parity = 1;
            for (int pair = blockIdx.x / 2; pair < pairs; pair += clusters) {
                int m, n;
                place(pair, m, n);
                for (int slice = 0; slice < slices; ++slice) {
                    const unsigned bar = full + 8 * stage, a = base + stage * STAGE, b = a + A;
                    barrier_wait(empty + 8 * stage, parity);  // wait until the stage is free in both blocks
                    barrier_expect(bar, STAGE);
                    copy_box(a, a_map, bar, slice * 128, m);
                    copy_box_to(3, b + rank * HALF, b_map, bar, slice * 128, n + static_cast<int>(rank) * (BN / 2));
                    if (++stage == STAGES) stage = 0, parity ^= 1;
                }
            }
        }
        __syncwarp();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int group_of = warp / 4, quarter = warp % 4;
        const bool first_warp = quarter == 0 && lane == 0;
        const unsigned staging = base + STAGES * STAGE + group_of * 2 * PIECE;
        // stmatrix: as in matmul__multicast__cuda_sm90.cu
        const unsigned line = (quarter * 16 + lane % 16) * 128, chunk = lane / 16, turn = lane % 8;
        int stage = 0, parity = 0;
        for (int pair = blockIdx.x / 2; pair < pairs; pair += clusters) {
            int m, n;
            place(pair, m, n);
            float sum[SUMS], total[PROMOTE ? SUMS : 1];
            if (PROMOTE) {
#pragma unroll
                for (int i = 0; i < SUMS; ++i) total[PROMOTE ? i : 0] = 0.f;
            }
#pragma unroll
            for (int i = 0; i < SUMS; ++i) sum[i] = 0.f;
            int before = -1;  // the stage whose wgmma are in flight
#pragma unroll 1
            for (int slice = 0; slice < slices; ++slice) {
                barrier_wait(full + 8 * stage, parity);
                const unsigned at = base + stage * STAGE;
                const unsigned long long a = rows_along_k<128>(at + group_of * (A / 2)), b = rows_along_k<128>(at + A);
                products_begin();
#pragma unroll
                for (int k = 0; k < 4; ++k) product_8<EA, EB>(sum, a + 2 * k, b + 2 * k, PROMOTE ? k > 0 : 1);  // 32 of K are 32 bytes
                products_commit();
                if constexpr (PROMOTE) {
                    products_wait<0>();
                    if (quarter == 0 && lane < 2) barrier_arrive_at(empty + 8 * stage, lane);
#pragma unroll
                    for (int i = 0; i < SUMS; ++i) total[i] += sum[i];
                } else {
                    products_wait<1>();
                    if (before >= 0 && quarter == 0 && lane < 2) barrier_arrive_at(empty + 8 * before, lane);
                    before = stage;
                }
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
            if constexpr (!PROMOTE) {
                products_wait<0>();
                if (quarter == 0 && lane < 2) barrier_arrive_at(empty + 8 * before, lane);
            }
            const int row = m + group_of * 64 + quarter * 16 + lane / 4;
            const float up = scale_a[min(row, M - 1) * static_cast<long long>(of_a)];
            const float down = scale_a[min(row + 8, M - 1) * static_cast<long long>(of_a)];
#pragma unroll
            for (int piece = 0; piece < BN / 64; ++piece) {
                const unsigned to = staging + piece % 2 * PIECE;
                if (first_warp) stores_read<1>();
                asm volatile("bar.sync %0, 128;" ::"r"(1 + group_of) : "memory");
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    float s[8];
#pragma unroll
                    for (int i = 0; i < 8; ++i) {  // columns 0, 1 of a lane; rows g and g + 8; then columns 8 further
                        const int column = min(n + piece * 64 + j * 16 + i / 4 * 8 + lane % 4 * 2 + i % 2, N - 1);
                        const float x = PROMOTE ? total[PROMOTE ? piece * 32 + j * 8 + i : 0] : sum[piece * 32 + j * 8 + i];
                        s[i] = x * (i / 2 % 2 ? down : up) * scale_b[column * static_cast<long long>(of_b)];
                        if (bias != nullptr) s[i] += static_cast<float>(bias[column]);
                    }
                    // two 8 x 8 above, two below: rows g and g + 8 of columns 0-7, then of columns 8-15
                    store_matrices(to + line + ((2 * j + chunk) ^ turn) * 16, rounded<O>(s[0], s[1]), rounded<O>(s[2], s[3]),
                        rounded<O>(s[4], s[5]), rounded<O>(s[6], s[7]));
                }
                before_tma();
                asm volatile("bar.sync %0, 128;" ::"r"(1 + group_of) : "memory");
                if (first_warp) store_box(out_map, to, n + piece * 64, m + group_of * 64);
            }
        }
        if (first_warp) stores_done();
        __syncwarp();
    }
    cluster_sync();  // a block may not exit while its neighbour still writes into its shared memory or arrives at its barriers
}
