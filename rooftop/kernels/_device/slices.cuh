// Rows shared out over the blocks of clusters that stay for the whole launch, in packs of 16 bytes, PIECES a thread.
#pragma once
#include <cooperative_groups.h>
#include <cuda_pipeline.h>

#include "packs.cuh"

/// How rows lie: anywhere, but those of a cluster all as far from a 32-byte boundary; on 16 bytes, with as many columns; and so that every thread
/// has all of its packs.
constexpr int ANYWHERE = 0, ALIGNED = 1, FILLED = 2;

/// A block's slice of the rows that its cluster walks over. They all start `shift` elements after a 32-byte boundary, so the packs at a row's
/// ends may reach beyond it: pack i of a thread begins at column(i), which may be negative. A boundary of 32 bytes, not of 16: a warp that copies
/// half sectors to whole rows of shared memory asks the L2 for each pack by itself (docs/staying.md).
template <typename T, int PIECES, int THREADS, int CLUSTER, int FIT>
struct Slice {
    static constexpr int N = 16 / sizeof(T), LINE = CLUSTER == 1 ? 1 : 8;  // packs of 128 bytes: blocks divide a row between them
    static constexpr bool SHIFTED = FIT == ANYWHERE;
    static constexpr unsigned ALL = (1u << PIECES) - 1;
    int C, shift, each, first, mine;  // columns of a row; packs of a block, before this one, of this one
    int start;                        // column of this thread's first pack
    unsigned packs, inner;            // a bit for each pack that this thread has, and for each that lies within the row

    __device__ Slice(int C, int shift, int rank) : C(C), shift(shift) {
        const int of_row = (shift + C + N - 1) / N;
        each = (of_row + CLUSTER * LINE - 1) / (CLUSTER * LINE) * LINE;
        first = min(of_row, rank * each);
        mine = min(of_row, first + each) - first;
        start = (first + static_cast<int>(threadIdx.x)) * N - shift;
        packs = inner = 0;
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            packs |= (i * THREADS + static_cast<int>(threadIdx.x) < mine) << i;
            inner |= (column(i) >= 0 && column(i) + N <= C) << i;
        }
        inner &= packs;
    }
    __device__ int column(int i) const { return start + i * THREADS * N; }
    __device__ bool has(int i) const { return FIT == FILLED || packs >> i & 1; }
    /// Whether the thread has pack i and it lies within the row. Of what a row has, only the first two packs and the last may not.
    __device__ bool whole(int i) const { return FIT == FILLED || (SHIFTED ? inner : packs) >> i & 1; }
    __device__ bool inside(int i, int j) const { return !SHIFTED || static_cast<unsigned>(column(i) + j) < static_cast<unsigned>(C); }

    __device__ int columns(int from, int to) const { return max(0, min(C, to * N - shift) - max(0, from * N - shift)); }
    /// Columns of this thread, of a warp, and of a block.
    __device__ float of_thread() const {
        if (FIT == FILLED) return PIECES * N;
        int n = 0;
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            if (has(i)) n += max(0, min(C, column(i) + N) - max(0, column(i)));
        }
        return static_cast<float>(n);
    }
    __device__ float of_warp(int warp) const {
        if (FIT == FILLED) return PIECES * 32 * N;
        int n = 0;
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            const int from = i * THREADS + warp * 32;
            n += columns(first + min(mine, from), first + min(mine, from + 32));
        }
        return static_cast<float>(n);
    }
    __device__ float of_rank(int rank) const {
        return FIT == FILLED ? PIECES * THREADS * N : static_cast<float>(columns(rank * each, rank * each + each));
    }

    /// Pack i of a row, zeros where it reaches beyond it; of the weight, which does not start as far from 16 bytes, `one_by_one`.
    __device__ uint4 load(const T* row, int i, bool one_by_one = false) const {
        uint4 v = make_uint4(0, 0, 0, 0);
        if (!has(i)) return v;
        if (!one_by_one && whole(i)) return *reinterpret_cast<const uint4*>(row + column(i));
#pragma unroll
        for (int j = 0; j < N; ++j) {
            if (inside(i, j)) reinterpret_cast<T*>(&v)[j] = row[column(i) + j];
        }
        return v;
    }
    /// Whether a pack of this thread lies partly, or not at all, within the row: a few threads of a row that starts anywhere.
    __device__ bool ragged() const { return SHIFTED && (packs & ~inner) != 0; }
    /// `work(i)` for each such pack.
    template <typename Work>
    __device__ void each_ragged(const Work& work) const {
#pragma unroll 1
        for (unsigned rest = packs & ~inner; rest != 0; rest &= rest - 1) work(__ffs(static_cast<int>(rest)) - 1);
    }
    /// `value` for what pack i holds outside of the row.
    __device__ void settle(uint4* slot, int i, T value) const {
        uint4 v = *slot;
#pragma unroll
        for (int j = 0; j < N; ++j) {
            if (!inside(i, j)) reinterpret_cast<T*>(&v)[j] = value;
        }
        *slot = v;
    }
    /// The first element of the row that this thread's packs hold; 0 where they hold none.
    template <typename Slot>
    __device__ T first_of(const Slot& slot) const {
        if (!SHIFTED) return reinterpret_cast<const T*>(slot(0))[0];
        const int i = PIECES > 1 && column(0) + N <= 0 ? 1 : 0, j = max(0, -column(i));
        return has(i) && j < N ? reinterpret_cast<const T*>(slot(i))[j] : T(0.0f);
    }
    /// Whether no pack of a row reaches beyond the array of R rows: the same for all threads.
    __device__ static bool amid(long long row, int R, long long stride) { return !SHIFTED || (row * stride >= 2 * N && (R - 1 - row) * stride >= N); }
    /// This thread's packs of a row on their way to its slots, with what lies beside the row where they reach beyond it; [begin, end) holds the
    /// array; `amid`: nothing reaches beyond that.
    template <typename Slot>
    __device__ void fetch(const Slot& slot, const T* row, bool amid, const T* begin, const T* end) const {
        if (!SHIFTED || amid) {
#pragma unroll
            for (int i = 0; i < PIECES; ++i) {
                if (has(i)) __pipeline_memcpy_async(slot(i), row + column(i), 16);
            }
        } else {
#pragma unroll 1
            for (int i = 0; i < PIECES; ++i) {
                if (!has(i)) continue;
                const T* from = row + column(i);
                if (from >= begin && from + N <= end) {
                    __pipeline_memcpy_async(slot(i), from, 16);
                } else {
                    *slot(i) = load(row, i);
                }
            }
        }
    }
    /// Pack i of a row; where only a part of it lies within, to `aside`, for store_part.
    __device__ void store(T* row, int i, const uint4& v, uint4* aside) const {  // written once: first to leave the L2
        if (whole(i)) __stcs(reinterpret_cast<uint4*>(row + column(i)), v);
        if (SHIFTED && (packs & ~inner) >> i & 1) *aside = v;
    }
    /// The part of pack i, which was put aside, that lies within the row.
    __device__ void store_part(T* row, int i, const uint4* aside) const {
        const uint4 v = *aside;
#pragma unroll
        for (int j = 0; j < N; ++j) {
            if (inside(i, j)) row[column(i) + j] = reinterpret_cast<const T*>(&v)[j];
        }
    }
};

/// Elements from the last 32-byte boundary to p.
template <typename T>
__device__ int beyond(const T* p) {
    return static_cast<int>(reinterpret_cast<unsigned long long>(p) % 32 / sizeof(T));
}

/// The sum of what LANES neighbouring lanes hold, a power of two, in all of them.
template <int LANES>
__device__ float lanes_sum(float v) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
    return v;
}

__device__ inline unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

/// The parts that a row's warps leave behind, folded in two steps: one warp folds those of its block and sends the result to all blocks of the
/// cluster; every warp folds those of the blocks. Nobody stands at a barrier of the cluster, whose release would wait for all stores before it:
/// an mbarrier in each block counts the bytes that have come. Between post() and wait() of a row lies the work on the row before.
template <typename P, int THREADS, int CLUSTER>
struct Exchange {
    static constexpr int WARPS = THREADS / 32;
    struct alignas(16) Shared {
        P of_warps[CLUSTER == 1 ? 2 : 1][WARPS], of_blocks[2][CLUSTER];  // of even and of odd rows
        unsigned long long come[2];
    };
    Shared& shared;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank;

    /// All threads of the cluster, before any of them posts.
    __device__ Exchange(Shared& shared, int rank) : shared(shared), rank(rank) {
        if (CLUSTER == 1) return;
        if (threadIdx.x < 2) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&shared.come[threadIdx.x])) : "memory");
        cooperative_groups::this_cluster().sync();
    }

    /// Leave this warp's part of the cluster's row k; `fold` makes one of those that the lanes hold, of which lane 0 to WARPS - 1 have one.
    template <typename Fold>
    __device__ void post(int k, const P& part, const Fold& fold) {
        if (lane == 0) shared.of_warps[CLUSTER == 1 ? k % 2 : 0][warp] = part;
        if (CLUSTER == 1) return;
        if (warp != k % WARPS) {
            asm volatile("bar.arrive 1, %0;" ::"n"(THREADS) : "memory");
            return;
        }
        asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
        const P all = fold(lane < WARPS ? shared.of_warps[0][lane] : P{});
        const unsigned come = shared_address(&shared.come[k % 2]);
        if (lane == 0) asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(come), "n"(CLUSTER * sizeof(P)) : "memory");
        if (lane >= CLUSTER) return;
        unsigned to, there;
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(shared_address(&shared.of_blocks[k % 2][rank])), "r"(lane));
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(come), "r"(lane));
        const float* v = reinterpret_cast<const float*>(&all);
        if (sizeof(P) == 16) {
            asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                         ::"r"(to), "f"(v[0]), "f"(v[1]), "f"(v[sizeof(P) / 8]), "f"(v[sizeof(P) / 4 - 1]), "r"(there) : "memory");
        } else {
            asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
                         ::"r"(to), "f"(v[0]), "f"(v[1]), "r"(there) : "memory");
        }
    }
    /// The part, of row k, of the warp whose number the lane is, or of the block, which CLUSTER lanes hold, and the next, and so on.
    __device__ P wait(int k) const {
        if (CLUSTER == 1) {
            __syncthreads();
            return lane < WARPS ? shared.of_warps[k % 2][lane] : P{};
        }
        unsigned over = 0;
        while (!over) {
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                         : "=r"(over) : "r"(shared_address(&shared.come[k % 2])), "r"(k / 2 % 2) : "memory");
        }
        return shared.of_blocks[k % 2][lane % CLUSTER];
    }
};
