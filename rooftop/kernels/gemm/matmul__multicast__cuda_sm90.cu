/* rooftop
idea    = """The blocks of a cluster compute neighbouring tiles, CM down and CN across. Blocks of the same rows need the same rows of a, blocks \
  of the same columns the same columns of b: each loads its share of both, and TMA multicast writes it into the shared memory of all that \
  need it. With 2 x 1 a tile of 128 x 256 reads 32 KiB from L2 a slice instead of 48. Tiles of 128, 192 and 256 rows by 64 to 256 columns \
  fill waves. Persistent and warp-specialised: one producer warp, two consumer warp groups of 64 or 128 rows each, three for 192 rows; \
  results are stored by TMA, 64 columns at a time, or 32."""
limit   = """predicted: the card's power where rows are multiples of 128 bytes apart; a tile of 128 x 256 does not saturate the L2 there. Rows \
  that are not cost TMA two cache lines a row of a box, so that L2 is the limit without multicast"""
arch    = 90
dtypes  = ["f16", "bf16"]
args    = ["a: T[M, K]", "b: T[K, N]", "out: T[M, N]"]
python  = ["supports", "choose", "configs", "launches", "explains", "for_any_rows"]
demands = { has = ["HGMMA", "UTMALDG.2D.MULTICAST", "UTMASTG"], spills = 0 }

[config]
BN     = 256
CM     = 2
CN     = 1
STAGES = 4
GROUP  = 8
BM     = 128
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

/// How an operand lies: along K, or ACROSS (its rows run along M or N).
constexpr int ACROSS = 2, LINE = 128;  // LINE: bytes of 64 elements

/// out [M, N] = a b. a_map, b_map: boxes of a block's share of rows by 64 of K, or ACROSS of 64 of K by 64 rows, swizzled by 128 bytes; out_map:
/// boxes of 64 rows by WIDE columns, swizzled by as many bytes as a row has. tall, across: clusters along M and N; `group` rows of clusters are
/// processed down first, so that concurrent tiles share operands in L2. Block i + j CM of a cluster computes row i, column j of its tiles.
template <typename T, int BN, int CM, int CN, int A, int B, int STAGES, int BM = 128>
__global__ void __launch_bounds__(BM == 128 ? 288 : BM == 192 ? 416 : 384, 1)
hgemm(int slices, int tall, int across, int group, const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
      const __grid_constant__ CUtensorMap out_map) {
    // warp groups that multiply, and 64 rows of each
    constexpr int GROUPS = BM == 192 ? 3 : 2, HALVES = BM / 64 / GROUPS;
    constexpr int A_BYTES = BM * LINE, SPAN = B == ACROSS ? (BN + 63) / 64 * 64 : BN, STAGE = A_BYTES + SPAN * LINE;
    constexpr int PIECE = 64 * LINE, PEERS = CM + CN - 1, WIDE = BN % 64 ? 32 : 64;
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ __align__(8) unsigned long long barriers[2 * STAGES];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned base = shared_address(shared), full = shared_address(barriers), empty = full + 8 * STAGES, rank = cluster_rank();
    const int i = rank % CM, j = rank / CM;
    if (threadIdx.x == 0) {
        // empty: the groups of each block that reads what this one loads
        for (int s = 0; s < STAGES; ++s) barrier_init(full + 8 * s, 1), barrier_init(empty + 8 * s, GROUPS * PEERS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
    const int places = tall * across, clusters = gridDim.x / (CM * CN);
    const auto place = [&](int at, int& m, int& n) {
        const int each = group * across, first = at / each * group, rows = min(group, tall - first), within = at % each;
        m = ((first + within % rows) * CM + i) * BM, n = (within / rows * CN + j) * BN;
    };
    if (warp >= 4 * GROUPS) {
        // groups of 128 rows need more than a third of the registers each; of the four warps that give theirs, three do nothing
        if constexpr (BM == 256) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (warp == 4 * GROUPS && lane == 0) {
            prefetch_map(a_map), prefetch_map(b_map), prefetch_map(out_map);
            const unsigned short to_row = CN == 1 ? 1 << i : 1 << i | 1 << (i + CM), to_column = ((1 << CM) - 1) << (j * CM);
            int stage = 0, parity = 1;
            for (int at = blockIdx.x / (CM * CN); at < places; at += clusters) {
                int m, n;
                place(at, m, n);
                for (int slice = 0; slice < slices; ++slice) {
                    const unsigned bar = full + 8 * stage, a = base + stage * STAGE, b = a + A_BYTES;
                    barrier_wait(empty + 8 * stage, parity);  // the stage is free in all blocks that this one writes to
                    barrier_expect(bar, STAGE);
                    const auto copy = [&](unsigned short mask, bool alone, unsigned to, const CUtensorMap& map, int x, int y) {
                        if (alone) copy_box(to, map, bar, x, y);
                        else copy_box_to(mask, to, map, bar, x, y);
                    };
                    if constexpr (A == ACROSS) {
#pragma unroll
                        for (int q = j * (BM / 64 / CN); q < (j + 1) * (BM / 64 / CN); ++q) copy(to_row, CN == 1, a + q * PIECE, a_map, m + q * 64, slice * 64);
                    } else {
                        constexpr int SHARE = BM / CN;
                        copy(to_row, CN == 1, a + j * SHARE * LINE, a_map, slice * 64, m + j * SHARE);
                    }
                    if constexpr (B == ACROSS) {
                        constexpr int SHARE = SPAN / 64 / CM;
#pragma unroll
                        for (int q = i * SHARE; q < (i + 1) * SHARE; ++q) copy(to_column, CM == 1, b + q * PIECE, b_map, n + q * 64, slice * 64);
                    } else {
                        constexpr int SHARE = BN / CM;
                        copy(to_column, CM == 1, b + i * SHARE * LINE, b_map, slice * 64, n + i * SHARE);
                    }
                    if (++stage == STAGES) stage = 0, parity ^= 1;
                }
            }
        }
        __syncwarp();
    } else {
        if constexpr (BM == 256) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int group_of = warp / 4, quarter = warp % 4;
        const bool first_warp = quarter == 0 && lane == 0, releases = quarter == 0 && lane < PEERS;
        // lane l releases a stage in block l of the column, then in the other blocks of the row
        const int across_of = lane - CM + (lane - CM >= j), peer = lane < CM ? lane + j * CM : i + across_of * CM;
        const unsigned staging = base + STAGES * STAGE + group_of * 2 * PIECE;
        // stmatrix: lane l gives the address of row l % 8 + 8 (l / 8 % 2) of the 16 rows of its warp, and of the left (l < 16) or right 16
        // bytes of 32; the swizzle puts 16 bytes at their index xor row % 8, of rows of 64 bytes row / 2 % 4.
        const unsigned line = (quarter * 16 + lane % 16) * 2 * WIDE, chunk = lane / 16, turn = WIDE == 64 ? lane % 8 : lane / 2 % 4;
        int stage = 0, parity = 0;
        for (int at = blockIdx.x / (CM * CN); at < places; at += clusters) {
            int m, n;
            place(at, m, n);
            float sum[HALVES][BN / 2];
#pragma unroll
            for (int s = 0; s < HALVES * BN / 2; ++s) sum[s / (BN / 2)][s % (BN / 2)] = 0.f;
            int before = -1;  // the stage whose wgmma are in flight
#pragma unroll 1
            for (int slice = 0; slice < slices; ++slice) {
                barrier_wait(full + 8 * stage, parity);
                const unsigned of_a = base + stage * STAGE + group_of * HALVES * PIECE, of_b = base + stage * STAGE + A_BYTES;
                products_begin();
#pragma unroll
                for (int k = 0; k < 4; ++k) {  // 16 of K are 32 bytes, or 16 lines
                    const unsigned long long a = A == ACROSS ? operand(of_a + k * 16 * LINE, PIECE, 1024) : rows_along_k<128>(of_a) + 2 * k;
                    const unsigned long long b = B == ACROSS ? operand(of_b + k * 16 * LINE, PIECE, 1024) : rows_along_k<128>(of_b) + 2 * k;
#pragma unroll
                    for (int h = 0; h < HALVES; ++h) product<T, A / ACROSS, B / ACROSS>(sum[h], a + h * (PIECE / 16), b);
                }
                products_commit();
                products_wait<1>();
                if (before >= 0 && releases) barrier_arrive_at(empty + 8 * before, peer);
                before = stage;
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
            products_wait<0>();
            if (releases) barrier_arrive_at(empty + 8 * before, peer);
#pragma unroll
            for (int piece = 0; piece < HALVES * (BN / WIDE); ++piece) {
                const int half = piece / (BN / WIDE), column = piece % (BN / WIDE) * WIDE;
                const unsigned to = staging + piece % 2 * PIECE;
                if (first_warp) {  // the last piece of a tile may lie where the first of the next goes
                    if (piece == 0) stores_read<0>();
                    else stores_read<1>();
                }
                asm volatile("bar.sync %0, 128;" ::"r"(1 + group_of) : "memory");
#pragma unroll
                for (int q = 0; q < WIDE / 16; ++q) {
                    // two 8 x 8 above, two below: rows g and g + 8 of columns 0-7, then of columns 8-15
                    const float* s = sum[half] + column / 2 + q * 8;
                    store_matrices(to + line + ((2 * q + chunk) ^ turn) * 16, rounded<T>(s[0], s[1]), rounded<T>(s[2], s[3]),
                        rounded<T>(s[4], s[5]), rounded<T>(s[6], s[7]));
                }
                before_tma();
                asm volatile("bar.sync %0, 128;" ::"r"(1 + group_of) : "memory");
                if (first_warp) store_box(out_map, to, n + column, m + (group_of * HALVES + half) * 64);
            }
        }
        if (first_warp) stores_done();
        __syncwarp();
    }
    cluster_sync();  // a block may not exit while another still writes into its shared memory or arrives at its barriers
}
