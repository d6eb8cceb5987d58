/* rooftop
idea    = "Blocks of 64 and 128 rows, as spmm_bsr__cuda_sm90 takes them, but results go to shared memory and from there by TMA, while the next tile is multiplied already: where few blocks stand in a row, the stores were half of the time."
limit   = "predicted: the L2, which brings the rows of b once for each block row, some 30 bytes a clock and multiprocessor where 48 would keep the tensor cores busy"
arch    = 90
dtypes  = ["f16", "bf16"]
tensors = ["values: T[B, H, W]", "b: T[K, N]", "out: T[M, N]"]
args    = ["columns: i32[B]", "offsets: i32[P]"]
python  = ["supports", "prefers", "choose", "configs", "launches", "scratch", "zeroed"]
demands = { has = ["HGMMA", "UTMALDG", "UTMASTG"], spills = 0 }

[config]
tile   = 256
stages = 3
*/
#include "block_wgmma.cuh"
#include "sparse_epilogue.cuh"

/// The four warps of a group meet.
__device__ inline void meet(int group) {
    __syncwarp();
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
}
/// A box of shared memory to (x, y) of a matrix, what lies within it.
__device__ inline void store_box(const CUtensorMap& map, unsigned from, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];"
                 ::"l"(reinterpret_cast<unsigned long long>(&map)), "r"(from), "r"(x), "r"(y) : "memory");
}

/// A tile is the HIGH rows of a block row by TILE columns; a warp group has 64 rows by COLS of it. A stage holds 64 columns of S: 64 / SUB parts of SUB, which is WIDE or 64.
/// NEAR: rows of b in shared memory run along K. values_map: boxes of HIGH rows of SUB; b_map: boxes of TILE rows of SUB (NEAR), or SUB rows of 64; out_map: 64 by 64.
/// next: the counter of tiles. tall, across: block rows, and tiles along N; tiles of one column of them come one after another.
template <typename T, int HIGH, int WIDE, int TILE, int STAGES, bool NEAR, int ACT, int BIAS>
__global__ void __launch_bounds__(288, 1)
spmm(int M, int N, int K, int blocks, int tall, int across, const __grid_constant__ CUtensorMap values_map, const __grid_constant__ CUtensorMap b_map,
     const __grid_constant__ CUtensorMap out_map, const int* __restrict__ columns, const int* __restrict__ offsets, int* __restrict__ next, float alpha,
     const T* __restrict__ bias, long long bias_step) {
    constexpr int SUB = WIDE < 64 ? WIDE : 64, PARTS = 64 / SUB, EACH = WIDE / SUB, A = HIGH * 128, B = TILE * 128;
    constexpr int COLS = HIGH == 128 ? TILE : TILE / 2, REGS = COLS / 2;
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ __align__(8) unsigned long long barriers[2 * STAGES];
    __shared__ int2 about[STAGES];  // the tile, -1 past the last; its parts in this stage, 256 more where it is the tile's last
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned base = shared_address(shared), full = shared_address(barriers), empty = full + 8 * STAGES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, 8);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    const int tiles = tall * across;
    if (warp == 8) {
        if (lane == 0) prefetch_map(values_map), prefetch_map(b_map), prefetch_map(out_map);
        const int most = max((K + WIDE - 1) / WIDE - 1, 0);
        int stage = 0, parity = 1, tile = blockIdx.x;
        while (tile < tiles) {
            int after = 0;
            if (lane == 0) after = atomicAdd(next, 1) + gridDim.x;
            const int r = tile % tall, n = tile / tall * TILE;
            const int first = min(max(offsets[r], 0), blocks), last = min(max(offsets[r + 1], first), blocks), parts = (last - first) * EACH;
            int held = 0, ahead = first + lane < last ? columns[first + lane] : 0;  // of 32 blocks, and of the 32 after them
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
    const int group = warp / 4, g = lane / 4, t = lane % 4, down = warp % 4 * 16;
    const bool leads = threadIdx.x % 128 == 0;
    const unsigned held = base + STAGES * (A + B) + group * 128 * COLS;  // the group's results: boxes of 64 rows of 128 bytes, swizzled
    float sum[REGS] = {};
    int stage = 0, parity = 0, before = -1;
    while (true) {
        barrier_wait(full + 8 * stage, parity);
        const int tile = about[stage].x, more = about[stage].y, count = more & 255;
        if (tile < 0) break;
        const unsigned a = base + stage * (A + B), b = a + A;
        products_begin();
#pragma unroll
        for (int p = 0; p < PARTS; ++p) {
            if (p < count) {
#pragma unroll
                for (int k = 0; k < SUB / 16; ++k) {
                    const unsigned value = a + p * HIGH * SUB * 2 + k * 32;
                    const int row = HIGH == 128 ? 0 : group * COLS;  // of the columns of b
                    const unsigned long long of_b = NEAR ? rows_along_k<SUB * 2>(b + (p * TILE + row) * SUB * 2 + k * 32)
                                                         : operand(b + row * 128 + p * SUB * 128 + k * 2048, 8192, 1024);
                    product<T, 0, !NEAR>(sum, rows_along_k<SUB * 2>(value + (HIGH == 128 ? group * 64 * SUB * 2 : 0)), of_b);
                }
            }
        }
        products_commit();
        products_wait<1>();
        if (before >= 0 && lane == 0) barrier_arrive(empty + 8 * before);
        before = stage;
        if (++stage == STAGES) stage = 0, parity ^= 1;
        if (more < 256) continue;
        products_wait<0>();
        if (lane == 0) barrier_arrive(empty + 8 * before);
        before = -1;
        const int m = tile % tall * HIGH + (HIGH == 128 ? group * 64 : 0), n = tile / tall * TILE + (HIGH == 128 ? 0 : group * COLS);
        if (leads) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");  // the tile before has left shared memory
        meet(group);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = down + half * 8 + g;
#pragma unroll
            for (int j = 0; j < COLS / 8; ++j) {
                const int r = m + row, c = n + j * 8 + 2 * t;
                T pair[2] = {T(0.f), T(0.f)};
                if (!BIAS || (r < M && c < N)) pair[0] = T(finished<ACT, BIAS>(sum[j * 4 + half * 2], alpha, bias, bias_step, r, c));
                if (!BIAS || (r < M && c + 1 < N)) pair[1] = T(finished<ACT, BIAS>(sum[j * 4 + half * 2 + 1], alpha, bias, bias_step, r, c + 1));
                asm volatile("st.shared.b32 [%0], %1;" ::"r"(held + j / 8 * 8192 + row * 128 + (j % 8 ^ g) * 16 + t * 4), "r"(*reinterpret_cast<unsigned*>(pair)) : "memory");
            }
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        meet(group);
        if (leads) {
#pragma unroll
            for (int i = 0; i < COLS / 64; ++i) {
                if (n + i * 64 < N && m < M) store_box(out_map, held + i * 8192, n + i * 64, m);
            }
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        }
#pragma unroll
        for (int j = 0; j < REGS; ++j) sum[j] = 0.f;
    }
    if (leads) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
