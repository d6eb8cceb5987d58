/* rooftop
idea    = """Warp-specialised. A producer warp loads 64 columns of a block row per stage by TMA (parts of a block, or several blocks) and \
  the matching rows of b. Two consumer warp groups multiply with wgmma. Blocks of fewer than 64 rows are multiplied transposed, (S b)ᵀ = bᵀ \
  Sᵀ, so that b is the operand of 64 rows. Block rows differ in length, so multiprocessors fetch tiles from an atomic counter. For short \
  block rows one warp group runs behind the other, so that one multiplies while the other stores. Block rows of 32 or 64 rows can be \
  multiplied in towers of 128 rows, which share the rows of b."""
limit   = """predicted: L2 bandwidth. The rows of b are read once for each block row: 64 to 80 bytes per clock and multiprocessor at the \
  full rate of the tensor cores with blocks of 64 and 128, twice that with 32; in towers shared memory, of which wgmma reads 3 KiB for a \
  block of 32 rows in 24 cycles, and multiplies for 16. With few blocks, the write of the result, which is dense"""
arch    = 90
dtypes  = ["f16", "bf16"]
tensors = ["values: T[B, H, W]", "b: T[K, N]"]
args    = ["columns: i32[B]", "offsets: i32[P]", "out: T[M, N]"]
python  = ["supports", "choose", "configs", "launches", "scratch", "zeroed"]
demands = { has = ["HGMMA", "UTMALDG"], spills = 0 }

[config]
tile   = 256
stages = 4
lag    = 2
towers = false
*/
#include "wgmma.cuh"
#include "_epilogue_store.cuh"

/// A tile is the HIGH rows of a block row by TILE columns. A stage holds 64 columns of S: 64 / SUB parts of SUB, which is WIDE or 64.
/// SWAPPED: the transposed tile is computed. NEAR: rows of b in shared memory run along K. values_map: boxes of HIGH rows of SUB; b_map:
/// boxes of TILE rows of SUB (NEAR), or SUB rows of 64. lag: stages, fewer than STAGES, that warp group 0 multiplies before group 1 starts,
/// so that one computes while the other stores. STEP: as in put_sums. next: the counter of tiles. tall, across: block rows, and tiles along
/// N; tiles of one column of tiles are consecutive.
template <typename T, int HIGH, int WIDE, int TILE, int STAGES, bool NEAR, int STEP, int ACT, int BIAS>
__global__ void __launch_bounds__(288, 1)
spmm(int M, int N, int K, int blocks, int tall, int across, int lag, const __grid_constant__ CUtensorMap values_map,
    const __grid_constant__ CUtensorMap b_map,
     const int* __restrict__ columns, const int* __restrict__ offsets, int* __restrict__ next, float alpha, const T* __restrict__ bias,
     long long bias_step,
     T* __restrict__ out) {
    constexpr bool SWAPPED = HIGH < 64;
    constexpr int SUB = WIDE < 64 ? WIDE : 64, PARTS = 64 / SUB, EACH = WIDE / SUB, A = HIGH * 128, B = TILE * 128;
    constexpr int SUMS = SWAPPED ? TILE / 128 : 1, REGS = SWAPPED ? HIGH / 2 : HIGH == 128 ? TILE / 2 : TILE / 4;
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ __align__(8) unsigned long long barriers[2 * STAGES];
    __shared__ int2 about[STAGES];  // the tile, -1 past the last; its parts in this stage, 256 more where it is the tile's last
    // Where ptxas cannot see that branches around wgmma do not diverge it serialises all wgmma: hence the shuffle, and a loop for each tile.
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const unsigned base = shared_address(shared), full = shared_address(barriers), empty = full + 8 * STAGES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, 8);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    const int tiles = tall * across;
    if (warp == 8) {
        if (lane == 0) prefetch_map(values_map), prefetch_map(b_map);
        const int most = max((K + WIDE - 1) / WIDE - 1, 0);
        int stage = 0, parity = 1, tile = blockIdx.x;
        while (tile < tiles) {
            int after = 0;
            if (lane == 0) after = atomicAdd(next, 1) + gridDim.x;
            const int r = tile % tall, n = tile / tall * TILE;
            const int first = min(max(offsets[r], 0), blocks), last = min(max(offsets[r + 1], first), blocks),
                parts = (last - first) * EACH;
            int held = 0, ahead = first + lane < last ? columns[first + lane] : 0;  // column indices of 32 blocks, and of the 32 after them
            int part = 0;
            do {
                const int count = min(PARTS, parts - part);
                if (part % (32 * EACH) == 0) {
                    held = ahead;
                    const int at = first + part / EACH + 32 + lane;
                    ahead = at < last ? columns[at] : 0;
                }
                const unsigned bar = full + 8 * stage, a = base + stage * (A + B), b = a + A;
                barrier_wait(empty + 8 * stage, parity);
                if (lane == 0) {
                    about[stage] = make_int2(tile, count + (part + PARTS >= parts ? 256 : 0));
                    barrier_expect(bar, count * (HIGH + TILE) * SUB * 2);
                }
                __syncwarp();
                constexpr int BOXES = NEAR ? 1 : TILE / 64;  // of b in a part
                const int mine = lane / BOXES, box = lane % BOXES, block = (part + min(mine, PARTS - 1)) / EACH;
                const int column = min(max(__shfl_sync(~0u, held, block % 32), 0), most);
                if (mine < count) {
                    const int within = (part + mine) % EACH * SUB, k = column * WIDE + within;
                    if (NEAR) copy_box(b + mine * TILE * SUB * 2, b_map, bar, k, n);
                    else copy_box(b + box * 8192 + mine * SUB * 128, b_map, bar, n + box * 64, k);
                    if (box == 0) copy_box(a + mine * HIGH * SUB * 2, values_map, bar, within, (first + block) * HIGH);
                }
                if (++stage == STAGES) stage = 0, parity ^= 1;
                part += PARTS;
            } while (part < parts);
            tile = __shfl_sync(~0u, after, 0);
        }
        barrier_wait(empty + 8 * stage, parity);
        if (lane == 0) {
            about[stage].x = -1;
            barrier_arrive(full + 8 * stage);
        }
        return;
    }
    const int group = warp / 4;
    float sum[SUMS][REGS];
    const auto clear = [&] {
#pragma unroll
        for (int i = 0; i < SUMS; ++i) {
#pragma unroll
            for (int j = 0; j < REGS; ++j) sum[i][j] = 0.f;
        }
    };
    clear();
    int stage = 0, parity = 0, before = -1, seen = 0;
    if (group == 1 && lag > 0) asm volatile("barrier.sync 1, 256;" ::: "memory");
    while (true) {
        barrier_wait(full + 8 * stage, parity);
        const int tile = about[stage].x;
        if (group == 0 && seen <= lag && tile < 0 && lag > 0) {
            asm volatile("barrier.arrive 1, 256;" ::: "memory");
            seen = lag + 1;
        }
        if (tile < 0) break;
        int more;
        do {
            barrier_wait(full + 8 * stage, parity);
            more = about[stage].y;
            if (group == 0 && seen <= lag && seen++ == lag && lag > 0) {
                asm volatile("barrier.arrive 1, 256;" ::: "memory");
                seen = lag + 1;
            }
            const int count = more & 255;
            const unsigned a = base + stage * (A + B), b = a + A;
            products_begin();
#pragma unroll
            for (int p = 0; p < PARTS; ++p) {
                if (p < count) {
#pragma unroll
                    for (int k = 0; k < SUB / 16; ++k) {
                        const unsigned value = a + p * HIGH * SUB * 2 + k * 32;
#pragma unroll
                        for (int i = 0; i < SUMS; ++i) {
                            const int row = SWAPPED ? (group * SUMS + i) * 64 : HIGH == 128 ? 0 : group * (TILE / 2);  // of the columns of b
                            const unsigned long long of_b = NEAR ? rows_along_k<SUB * 2>(b + (p * TILE + row) * SUB * 2 + k * 32)
                                                                 : operand(b + row * 128 + p * SUB * 128 + k * 2048, 8192, 1024);
                            if (SWAPPED) product<T, !NEAR, 0>(sum[i], of_b, rows_along_k<SUB * 2>(value));
                            else product<T, 0, !NEAR>(sum[i], rows_along_k<SUB * 2>(value + (HIGH == 128 ? group * 64 * SUB * 2 : 0)), of_b);
                        }
                    }
                }
            }
            products_commit();
            products_wait<1>();
            if (before >= 0 && lane == 0) barrier_arrive(empty + 8 * before);
            before = stage;
            if (++stage == STAGES) stage = 0, parity ^= 1;
        } while (more < 256);
        products_wait<0>();
        if (lane == 0) barrier_arrive(empty + 8 * before);
        before = -1;
        const int m = tile % tall * HIGH, n = tile / tall * TILE, down = warp % 4 * 16;
#pragma unroll
        for (int i = 0; i < SUMS; ++i) {
            if constexpr (SWAPPED) put_sums<T, true, STEP, ACT, BIAS == 0 ? 0 : 3 - BIAS>(sum[i], n + (group * SUMS + i) * 64 + down, m, N,
                M, alpha, bias, bias_step, out, N);
            else put_sums<T, false, STEP, ACT, BIAS>(sum[i], m + (HIGH == 128 ? group * 64 : 0) + down,
                n + (HIGH == 128 ? 0 : group * (TILE / 2)), M, N, alpha, bias, bias_step, out, N);
        }
        clear();
    }
}

/// Block rows of 32 or 64 rows in towers of 128: rows of b that several of them need are loaded once, at a density of 0.5 about half as often.
/// The producer warp merges their lists of columns. A tile is a tower by TILE columns, computed transposed. A stage holds 64 / WIDE columns of blocks: of each the blocks that are there, and the
/// WIDE rows of b. NEAR: rows of b in shared memory run along K. values_map: boxes of HIGH rows of WIDE; b_map: boxes of TILE rows of WIDE
/// (NEAR), or WIDE rows of 64. STEP: as in put_sums. next: the counter of tiles. tall: block rows; high, across: tiles along M and N.
template <typename T, int HIGH, int WIDE, int TILE, int STAGES, bool NEAR, int STEP, int ACT, int BIAS>
__global__ void __launch_bounds__(288, 1)
towers(int M, int N, int K, int blocks, int tall, int high, int across, const __grid_constant__ CUtensorMap values_map,
    const __grid_constant__ CUtensorMap b_map, const int* __restrict__ columns, const int* __restrict__ offsets, int* __restrict__ next,
    float alpha, const T* __restrict__ bias, long long bias_step, T* __restrict__ out) {
    constexpr int ROWS = 128 / HIGH, PARTS = 64 / WIDE, BLOCK = HIGH * WIDE * 2, A = 128 * 128, B = TILE * 128, SUMS = TILE / 128;
    constexpr int LAST = 1 << 30, NONE = 0x7fffffff;
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ __align__(8) unsigned long long barriers[2 * STAGES];
    __shared__ int2 about[STAGES];  // the tile, -1 past the last; which blocks this stage holds, ROWS bits a column, and LAST
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const unsigned base = shared_address(shared), full = shared_address(barriers), empty = full + 8 * STAGES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, 8);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    const int tiles = high * across;
    if (warp >= 8) {
        if (warp > 9) return;  // there are 9 warps; without this and the tests for warp 8 ptxas makes other code than was timed
        if (lane == 0) prefetch_map(values_map), prefetch_map(b_map);
        // EACH lanes hold the next column indices of one block row. In a stage a lane copies one box: of b, or one block.
        constexpr int EACH = 32 / ROWS, BOXES = NEAR ? 1 : TILE / 64, COPIES = BOXES + ROWS;
        static_assert(PARTS * COPIES <= 32);
        const int most = max((K + WIDE - 1) / WIDE - 1, 0), row = lane / EACH, slot = lane % EACH;
        const int part = lane / COPIES, box = lane % COPIES, of_row = max(box - BOXES, 0);
        int stage = 0, parity = 1, tile = blockIdx.x;
        while (tile < tiles) {
            int after = 0;
            if (lane == 0) after = atomicAdd(next, 1) + gridDim.x;
            const int r = tile % high * ROWS + row, n = tile / high * TILE;
            int first = 0, last = 0;
            if (r < tall) {
                first = min(max(offsets[r], 0), blocks);
                last = min(max(offsets[r + 1], first), blocks);
            }
            const auto read = [&](int i) { return i < last ? min(max(columns[i], 0), most) : NONE; };
            int at = first, held = read(first + slot), ahead = read(first + EACH + slot);
            int head = __shfl_sync(~0u, held, row * EACH), least = __reduce_min_sync(~0u, head);
            do {
                int count = 0, mask = 0, column = 0, block = 0;
                bool wanted = false;
#pragma unroll
                for (int p = 0; p < PARTS; ++p) {
                    if (least == NONE) continue;
                    const bool here = head == least;
                    const unsigned votes = __ballot_sync(~0u, here);
                    int bits = 0;
#pragma unroll
                    for (int i = 0; i < ROWS; ++i) bits |= (votes >> i * EACH & 1) << i;
                    const int there = __shfl_sync(~0u, at, of_row * EACH);
                    if (part == p) column = least, block = there, wanted = box < BOXES || (bits >> of_row & 1);
                    mask |= bits << p * ROWS;
                    ++count;
                    if (here && (++at - first) % EACH == 0) {
                        held = ahead;
                        ahead = read(at + EACH + slot);
                    }
                    head = __shfl_sync(~0u, held, row * EACH + (at - first) % EACH);
                    least = __reduce_min_sync(~0u, head);
                }
                const unsigned bar = full + 8 * stage, a = base + stage * (A + B), b = a + A;
                barrier_wait(empty + 8 * stage, parity);
                if (lane == 0 && warp == 8) {
                    about[stage] = make_int2(tile, mask | (least == NONE ? LAST : 0));
                    barrier_expect(bar, count * TILE * WIDE * 2 + __popc(mask) * BLOCK);
                }
                __syncwarp();
                if (wanted) {
                    if (box >= BOXES) copy_box(a + (part * ROWS + of_row) * BLOCK, values_map, bar, 0, block * HIGH);
                    else if (NEAR) copy_box(b + part * TILE * WIDE * 2, b_map, bar, column * WIDE, n);
                    else copy_box(b + box * 8192 + part * WIDE * 128, b_map, bar, n + box * 64, column * WIDE);
                }
                if (++stage == STAGES) stage = 0, parity ^= 1;
            } while (least != NONE);
            tile = __shfl_sync(~0u, after, 0);
        }
        barrier_wait(empty + 8 * stage, parity);
        if (lane == 0 && warp == 8) {
            about[stage].x = -1;
            barrier_arrive(full + 8 * stage);
        }
        return;
    }
    const int group = warp / 4;
    float sum[SUMS][ROWS][HIGH / 2];  // 64 columns of b, by HIGH rows of S
    const auto clear = [&] {
#pragma unroll
        for (int i = 0; i < SUMS; ++i) {
#pragma unroll
            for (int j = 0; j < 64; ++j) sum[i][j / (HIGH / 2)][j % (HIGH / 2)] = 0.f;
        }
    };
    clear();
    int stage = 0, parity = 0, before = -1;
    while (true) {
        barrier_wait(full + 8 * stage, parity);
        const int tile = about[stage].x;
        if (tile < 0) break;
        int held;
        do {
            barrier_wait(full + 8 * stage, parity);
            held = about[stage].y;
            const unsigned a = base + stage * (A + B), b = a + A;
            products_begin();
#pragma unroll
            for (int p = 0; p < PARTS; ++p) {
#pragma unroll
                for (int i = 0; i < ROWS; ++i) {
                    if (held >> (p * ROWS + i) & 1) {
                        const unsigned value = a + (p * ROWS + i) * BLOCK;
#pragma unroll
                        for (int k = 0; k < WIDE / 16; ++k) {
#pragma unroll
                            for (int s = 0; s < SUMS; ++s) {
                                const int column = (group * SUMS + s) * 64;
                                const unsigned long long right = rows_along_k<WIDE * 2>(value + k * 32);
                                product<T, !NEAR, 0>(sum[s][i], NEAR ? rows_along_k<WIDE * 2>(b + (p * TILE + column) * WIDE * 2 + k * 32)
                                    : operand(b + column * 128 + p * WIDE * 128 + k * 2048, 8192, 1024), right);
                            }
                        }
                    }
                }
            }
            products_commit();
            products_wait<1>();
            if (before >= 0 && lane == 0) barrier_arrive(empty + 8 * before);
            before = stage;
            if (++stage == STAGES) stage = 0, parity ^= 1;
        } while (!(held & LAST));
        products_wait<0>();
        if (lane == 0) barrier_arrive(empty + 8 * before);
        before = -1;
        const int m = tile % high * 128, n = tile / high * TILE + warp % 4 * 16;
#pragma unroll
        for (int s = 0; s < SUMS; ++s) {
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                put_sums<T, true, STEP, ACT, BIAS == 0 ? 0 : 3 - BIAS>(sum[s][i], n + (group * SUMS + s) * 64, m + i * HIGH, N, M, alpha, bias,
                    bias_step, out, N);
            }
        }
        clear();
    }
}
