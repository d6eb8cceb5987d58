// Rows shared out over the blocks of a cluster, in packs of 16 bytes, PIECES a thread; and how the blocks exchange what they found: st.async into each
// other's shared memory, counted by an mbarrier. slices.py has the sizes as numbers.
#pragma once
#include <cooperative_groups.h>
#include <cuda_pipeline.h>

#include "lanes.cuh"
#include "packs.cuh"

/// How rows lie: anywhere, but those of a cluster all as far from a 32-byte boundary; on 16 bytes, with as many columns; and so that every thread
/// has all of its packs.
constexpr int ANYWHERE = 0, ALIGNED = 1, FILLED = 2;

/// A block's slice of the rows that its cluster walks over. They all start `shift` elements after a 32-byte boundary: a boundary of 32 bytes, not of
/// 16, since a warp that copies half sectors to whole rows of shared memory asks the L2 for each pack by itself (docs/staying.md).
/// Each thread has PIECES packs. Of rows that start anywhere those all lie within the row; up to four packs at its ends are the EDGE, at most 32
/// elements of which lie within, and each of them is a lane's of the first warp. So nobody else asks what lies within, and a few packs more than the
/// threads hold need no warp of their own, which all would wait for.
template <typename T, int PIECES, int THREADS, int CLUSTER, int FIT>
struct Slice {
    static constexpr bool EDGE = FIT == ANYWHERE;
    static constexpr int N = 16 / sizeof(T), LINE = CLUSTER == 1 ? 1 : EDGE ? 2 : 8;  // packs that stay together where blocks divide a row: 32 bytes, 128
    static constexpr int SLOTS = PIECES * THREADS + (EDGE ? 4 : 0);
    static constexpr unsigned ALL = (1u << PIECES) - 1;
    int C, shift, each, first, mine;  // columns of a row; packs of a block, before this one, of this one
    int heads, inner;                  // packs of this block at the row's start that are of the edge; those that are not of it
    int offset;                       // elements from the boundary before the row to this thread's first pack
    unsigned packs;                   // a bit for each pack that this thread has, and one if it has an element of the edge

    __device__ Slice(int C, int shift, int rank) : C(C), shift(shift) {
        const int of_row = (shift + C + N - 1) / N;
        each = (of_row + CLUSTER * LINE - 1) / (CLUSTER * LINE) * LINE;
        first = min(of_row, rank * each);
        mine = min(of_row, first + each) - first;
        heads = EDGE && rank == 0 ? min(mine, 2) : 0;
        inner = EDGE ? max(0, min(mine - heads - (first + mine == of_row), PIECES * THREADS)) : mine;
        offset = (first + heads + static_cast<int>(threadIdx.x)) * N;
        packs = 0;
#pragma unroll
        for (int i = 0; i < PIECES; ++i) packs |= (i * THREADS + static_cast<int>(threadIdx.x) < inner) << i;
        if (EDGE && threadIdx.x < 32) packs |= (static_cast<int>(threadIdx.x) < of_edge()) << PIECES;
        asm volatile("" : "+r"(packs));  // kept, not found again in every row
    }
    __device__ bool has(int i) const { return FIT == FILLED || packs >> i & 1; }
    __device__ bool lacks() const { return FIT != FILLED && (packs & ALL) != ALL; }
    __device__ unsigned place(int i) const { return offset + i * THREADS * N; }  // elements from the boundary before a row to pack i
    __device__ int column(int i) const { return static_cast<int>(place(i)) - shift; }

    /// Whether the edge has an element of this thread, with the column `at_edge`: the same for nearly all warps.
    __device__ bool has_edge() const { return EDGE && threadIdx.x < 32 && packs >> PIECES & 1; }
    __device__ int at_edge() const {
        const int lane = here(), head = heads > 0 ? heads * N - shift : 0;
        return lane < head ? lane : (first + heads + inner) * N - shift + lane - head;
    }
    __device__ int of_edge() const { return columns(first, first + mine) - inner * N; }
    /// The thread's element of the edge in the slots of a row of which `slot` is the thread's first.
    __device__ T& edge(uint4* slot) const {
        const int lane = here();
        return (reinterpret_cast<T*>(slot - lane + PIECES * THREADS) + lane)[heads > 0 ? shift : 0];
    }
    /// This thread, for what one warp asks in every row: found there, since kept it would take a register of all the others.
    __device__ static int here() {
        int lane = threadIdx.x;
        asm volatile("" : "+r"(lane));
        return lane;
    }

    __device__ int columns(int from, int to) const { return max(0, min(C, to * N - shift) - max(0, from * N - shift)); }
    /// Columns of this thread, of a warp, and of a block.
    __device__ float of_thread() const {
        if (FIT == FILLED) return PIECES * N;
        unsigned has = packs;
        asm volatile("" : "+r"(has));
        return static_cast<float>(__popc(has & ALL) * N + (has >> PIECES & 1));
    }
    __device__ float of_warp(int warp) const {
        if (FIT == FILLED) return PIECES * 32 * N;
        int n = EDGE && warp == 0 ? of_edge() : 0;
#pragma unroll
        for (int i = 0; i < PIECES; ++i) n += max(0, min(inner - i * THREADS - warp * 32, 32)) * N;
        return static_cast<float>(n);
    }
    __device__ float of_rank(int rank) const {
        return FIT == FILLED ? PIECES * THREADS * N : static_cast<float>(columns(rank * each, rank * each + each));
    }

    /// Pack i of a row, zeros where the thread has none; of the weight, which does not start as far from 16 bytes, `one_by_one`.
    __device__ uint4 load(const T* row, int i, bool one_by_one = false) const {
        uint4 v = make_uint4(0, 0, 0, 0);
        if (!has(i)) return v;
        if (!one_by_one) return *reinterpret_cast<const uint4*>(row + column(i));
#pragma unroll
        for (int j = 0; j < N; ++j) reinterpret_cast<T*>(&v)[j] = row[column(i) + j];
        return v;
    }
    /// A row of the weight to this thread's slots.
    template <typename Slot>
    __device__ void keep(const Slot& slot, const T* row) const {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) *slot(i) = load(row, i, EDGE);
        if (has_edge()) edge(slot(0)) = row[at_edge()];
    }
    /// This thread's packs of a row on their way to its slots, of the edge with what lies beside the row. `from`: the boundary before the row, the same
    /// for all threads, each of which adds 32 bits; [first_of_array, end_of_array) holds it. Its warp's other lanes have read what lay there.
    template <typename Slot>
    __device__ void fetch(const Slot& slot, const T* from, const T* first_of_array, const T* end_of_array) const {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            if (has(i)) __pipeline_memcpy_async(slot(i), from + place(i), 16);
        }
        if (!EDGE || threadIdx.x >= 32) return;
        __syncwarp();
        const int lane = here();
        if (lane >= mine - inner) return;
        const T* at = from + (first + lane + (lane < heads ? 0 : inner)) * N;
        if (at >= first_of_array && at + N <= end_of_array) {
            __pipeline_memcpy_async(slot(PIECES), at, 16);
        } else {
#pragma unroll 1
            for (int j = 0; j < N; ++j) {
                if (at + j >= first_of_array && at + j < end_of_array) reinterpret_cast<T*>(slot(PIECES))[j] = at[j];
            }
        }
    }
    /// Pack i to a row, of which `from` is the boundary before it.
    __device__ void store(T* from, int i, const uint4& v) const {  // written once: first to leave the L2
        if (has(i)) __stcs(reinterpret_cast<uint4*>(from + place(i)), v);
    }
};

/// Elements from the last 32-byte boundary to p.
template <typename T>
__device__ int beyond(const T* p) {
    return static_cast<int>(reinterpret_cast<unsigned long long>(p) % 32 / sizeof(T));
}

__device__ inline unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

/// The same place in the shared memory of block `rank` of the cluster.
__device__ inline unsigned shared_of_block(int rank, unsigned address) {
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
/// Store v in the shared memory of a block of the cluster; the mbarrier there counts its bytes.
__device__ inline void store_async(unsigned to, const float4& v, unsigned mbarrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                 ::"r"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(mbarrier) : "memory");
}
/// Make an mbarrier that counts bytes. Other blocks of the cluster may use it after a barrier of the cluster.
__device__ inline void mbarrier_init(unsigned mbarrier) { asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(mbarrier) : "memory"); }
/// Begin a phase: it is complete when so many bytes have arrived.
__device__ inline void mbarrier_expect(unsigned mbarrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(mbarrier), "r"(bytes) : "memory");
}
/// Wait until a phase is complete. Phases alternate: 0, 1, 0, ...
__device__ inline void mbarrier_wait(unsigned mbarrier, int phase) {
    unsigned done = 0;
    while (!done) {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(mbarrier), "r"(phase) : "memory");
    }
}

/// The parts that a row's warps leave behind, folded in two steps: one warp folds those of its block and sends the result to all blocks of the
/// cluster; every warp folds those of the blocks. There is no barrier of the cluster, whose release would wait for all stores before it:
/// an mbarrier in each block counts the bytes that have arrived. Between post() and wait() of a row lies the work on the row before.
template <typename P, int THREADS, int CLUSTER>
struct Exchange {
    static constexpr int WARPS = THREADS / 32;
    struct alignas(16) Shared {
        P of_warps[CLUSTER == 1 ? 2 : 1][WARPS], of_blocks[2][CLUSTER];  // of even and of odd rows
        unsigned long long mbarriers[2];
    };
    Shared& shared;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank;

    /// All threads of the cluster, before any of them posts.
    __device__ Exchange(Shared& shared, int rank) : shared(shared), rank(rank) {
        if (CLUSTER == 1) return;
        if (threadIdx.x < 2) mbarrier_init(shared_address(&shared.mbarriers[threadIdx.x]));
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
        const unsigned mbarrier = shared_address(&shared.mbarriers[k % 2]);
        if (lane == 0) mbarrier_expect(mbarrier, CLUSTER * sizeof(P));
        if (lane >= CLUSTER) return;
        const unsigned to = shared_of_block(lane, shared_address(&shared.of_blocks[k % 2][rank])), there = shared_of_block(lane, mbarrier);
        const float* v = reinterpret_cast<const float*>(&all);
        if (sizeof(P) == 16) {
            store_async(to, {v[0], v[1], v[sizeof(P) / 8], v[sizeof(P) / 4 - 1]}, there);
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
        mbarrier_wait(shared_address(&shared.mbarriers[k % 2]), k / 2 % 2);
        return shared.of_blocks[k % 2][lane % CLUSTER];
    }
};
