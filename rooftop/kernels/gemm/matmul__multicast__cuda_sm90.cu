/* rooftop
idea    = """Two blocks of a cluster compute 256 x 256. Each loads its own 128 rows of a and half of the 256 columns of b, and TMA \
  multicast writes that half into the shared memory of both. A block reads 32 KiB from L2 per slice instead of 48. Persistent and \
  warp-specialised: one producer warp, two consumer warp groups of 64 rows each; results are stored by TMA, 64 columns at a time."""
limit   = """predicted: the card's power, as without multicast. Multicast saves traffic between L2 and the multiprocessors, and a tile of \
  128 x 256 does not saturate it"""
arch    = 90
dtypes  = ["f16", "bf16"]
args    = ["a: T[M, K]", "b: T[K, N]", "out: T[M, N]"]
python  = ["supports", "choose", "configs", "launches"]
demands = { has = ["HGMMA", "UTMALDG.2D.MULTICAST", "UTMASTG"], spills = 0 }

[config]
stages = 4
group  = 8
*/
#include "_multicast.cuh"

/// out [M, N] = a b, both along K. a_map: boxes of 128 rows of a by 64 of K; b_map: boxes of 128 columns of b by 64; out_map: boxes of 64
/// rows by 64 columns. All swizzled by 128 bytes. tall: pairs of tiles along M, across: tiles along N; `group` rows of pairs are processed
/// down first, so that concurrent tiles share operands in L2.
template <typename T, int STAGES>
__global__ void __launch_bounds__(288, 1)
hgemm(int slices, int tall, int across, int group, const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
      const __grid_constant__ CUtensorMap out_map) {
    constexpr int A = 128 * 128, B = 256 * 128, HALF = B / 2, STAGE = A + B, PIECE = 64 * 128;
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
        m = (first + within % rows) * 256 + static_cast<int>(rank) * 128, n = within / rows * 256;
    };
    if (warp == 8) {
        if (lane == 0) {
            prefetch_map(a_map), prefetch_map(b_map), prefetch_map(out_map);
            int stage = 0, parity = 1;
            for (int pair = blockIdx.x / 2; pair < pairs; pair += clusters) {
                int m, n;
                place(pair, m, n);
                for (int slice = 0; slice < slices; ++slice) {
                    const unsigned bar = full + 8 * stage, a = base + stage * STAGE, b = a + A;
                    barrier_wait(empty + 8 * stage, parity);  // wait until the stage is free in both blocks
                    barrier_expect(bar, STAGE);
                    copy_box(a, a_map, bar, slice * 64, m);
                    copy_box_to(3, b + rank * HALF, b_map, bar, slice * 64, n + static_cast<int>(rank) * 128);
                    if (++stage == STAGES) stage = 0, parity ^= 1;
                }
            }
        }
        __syncwarp();
    } else {
        const int group_of = warp / 4, quarter = warp % 4;
        const bool first_warp = quarter == 0 && lane == 0;
        const unsigned staging = base + STAGES * STAGE + group_of * 2 * PIECE;
        // stmatrix: lane l gives the address of row l % 8 + 8 (l / 8 % 2) of the 16 rows of its warp, and of the left (l < 16) or right 16
        // bytes of 32; the swizzle puts 16 bytes at their index xor row % 8.
        const unsigned line = (quarter * 16 + lane % 16) * 128, chunk = lane / 16, turn = lane % 8;
        int stage = 0, parity = 0;
        for (int pair = blockIdx.x / 2; pair < pairs; pair += clusters) {
            int m, n;
            place(pair, m, n);
            float sum[128];
#pragma unroll
            for (int i = 0; i < 128; ++i) sum[i] = 0.f;
            int before = -1;  // the stage whose wgmma are in flight
#pragma unroll 1
            for (int slice = 0; slice < slices; ++slice) {
                barrier_wait(full + 8 * stage, parity);
                const unsigned at = base + stage * STAGE;
                const unsigned long long a = rows_along_k<128>(at + group_of * (A / 2)), b = rows_along_k<128>(at + A);
                products_begin();
#pragma unroll
                for (int k = 0; k < 4; ++k) product<T, 0, 0>(sum, a + 2 * k, b + 2 * k);  // 16 columns of K are 32 bytes
                products_commit();
                products_wait<1>();
                if (before >= 0 && quarter == 0 && lane < 2) barrier_arrive_at(empty + 8 * before, lane);
                before = stage;
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
            products_wait<0>();
            if (quarter == 0 && lane < 2) barrier_arrive_at(empty + 8 * before, lane);
#pragma unroll
            for (int piece = 0; piece < 4; ++piece) {
                const unsigned to = staging + piece % 2 * PIECE;
                if (first_warp) stores_read<1>();
                asm volatile("bar.sync %0, 128;" ::"r"(1 + group_of) : "memory");
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    // two 8 x 8 above, two below: rows g and g + 8 of columns 0-7, then of columns 8-15
                    const float* s = sum + piece * 32 + j * 8;
                    store_matrices(to + line + ((2 * j + chunk) ^ turn) * 16, rounded<T>(s[0], s[1]), rounded<T>(s[2], s[3]),
                        rounded<T>(s[4], s[5]),
                                   rounded<T>(s[6], s[7]));
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
