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
#include "wgmma.cuh"

// TMA multicast to two blocks of a cluster: one copy from L2 is written into the shared memory of both. PTX ISA, "cp.async.bulk.tensor",
// "mapa", "barrier.cluster".
__device__ inline unsigned cluster_rank() {
    unsigned rank;
    asm("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
    return rank;
}

/// Arrives at the mbarrier at address `bar` of block `rank`. The arrival has no release semantics at cluster scope, which would wait for
/// all outstanding memory accesses. That is enough to signal that shared memory has been read.
__device__ inline void barrier_arrive_at(unsigned bar, unsigned rank) {
    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(bar),
        "r"(rank)
                 : "memory");
}

/// Copies one box by TMA to the same shared memory address in each block of `mask`; its bytes are counted by the mbarrier at `bar` in each.
/// x: the innermost coordinate.
__device__ inline void copy_box_to(unsigned short mask, unsigned to, const CUtensorMap& map, unsigned bar, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;"
                 ::"r"(to), "l"(reinterpret_cast<unsigned long long>(&map)), "r"(bar), "r"(x), "r"(y), "h"(mask) : "memory");
}

/// Stores a box from shared memory to the tensor, clipped at its bounds. `stores_read<N>()` waits until all but this thread's last N stores
/// have read their shared memory.
__device__ inline void store_box(const CUtensorMap& map, unsigned from, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];\n\tcp.async.bulk.commit_group;"
                 ::"l"(reinterpret_cast<unsigned long long>(&map)), "r"(from), "r"(x), "r"(y) : "memory");
}
template <int LEFT>
__device__ inline void stores_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LEFT) : "memory"); }
__device__ inline void stores_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

/// Makes this thread's earlier writes to shared memory visible to later TMA stores.
__device__ inline void before_tma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// stmatrix: stores four 8 x 8 matrices of 16-bit elements to shared memory. Lane l holds columns 2 (l % 4) and 2 (l % 4) + 1 of row l / 4
/// of each matrix, and gives the address of row l % 8 of matrix l / 8.
__device__ inline void store_matrices(unsigned to, unsigned a, unsigned b, unsigned c, unsigned d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

template <typename T>
__device__ inline unsigned rounded(float low, float high) {
    unsigned pair;
    if constexpr (IS_HALF<T>)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

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
