// Rows divided among the blocks of a cluster in packs of 16 bytes, PIECES packs a thread (Slice), and the exchange of statistics between
// the blocks: st.async into each other's shared memory, counted by an mbarrier (Exchange). _cluster_slices.py computes the same sizes on
// the host.
#pragma once
#include <cooperative_groups.h>
#include <cuda_pipeline.h>

#include "packs.cuh"

/// FIT, the alignment of rows. ANYWHERE: any address, but all rows of a cluster are equally far from a 32-byte boundary. ALIGNED: rows
/// start on 16 bytes and are whole packs. FILLED: aligned, and every thread has all of its PIECES packs.
constexpr int ANYWHERE = 0, ALIGNED = 1, FILLED = 2;

/// A block's slice of the rows that its cluster processes. All these rows start `shift` elements after a 32-byte boundary. The boundary is
/// 32 bytes and not 16: if a warp copies half sectors to aligned shared memory, it requests each pack separately from the L2
/// (docs/persistent.md). Each thread has PIECES packs. With FIT == ANYWHERE all of these are inside the row; up to four more packs, at the
/// ends of the row, are the EDGE. At most 32 elements of the edge are inside the row, and each of them belongs to one lane of the first
/// warp. So only that warp tests whether an element is inside the row, and the few packs at the ends need no extra warp.
template <typename T, int PIECES, int THREADS, int CLUSTER, int FIT>
struct Slice {
    static constexpr bool EDGE = FIT == ANYWHERE;
    // blocks divide a row in units of LINE packs: 32 bytes, or 128
    static constexpr int N = 16 / sizeof(T), LINE = CLUSTER == 1 ? 1 : EDGE ? 2 : 8;
    static constexpr int SLOTS = PIECES * THREADS + (EDGE ? 4 : 0);
    static constexpr unsigned ALL = (1u << PIECES) - 1;
    int C, shift, each, first, mine;  // columns of a row; see above; packs of a full block; packs before this block; packs of this block
    int heads, inner;  // packs of this block: those of the edge at the row's start; those that are not of the edge
    int offset;                       // elements from the boundary before the row to this thread's first pack
    unsigned packs;                   // bit i: this thread has pack i; bit PIECES: it has an element of the edge

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
        asm volatile("" : "+r"(packs));  // keeps it in a register: the compiler would recompute it for every row
    }
    __device__ bool has(int i) const { return FIT == FILLED || packs >> i & 1; }
    __device__ bool lacks() const { return FIT != FILLED && (packs & ALL) != ALL; }
    __device__ unsigned place(int i) const { return offset + i * THREADS * N; }  // elements from the boundary before a row to pack i
    __device__ int column(int i) const { return static_cast<int>(place(i)) - shift; }

    /// Whether this thread has an element of the edge; its column is at_edge(). False for all warps but the first.
    __device__ bool has_edge() const { return EDGE && threadIdx.x < 32 && packs >> PIECES & 1; }
    __device__ int at_edge() const {
        const int lane = here(), head = heads > 0 ? heads * N - shift : 0;
        return lane < head ? lane : (first + heads + inner) * N - shift + lane - head;
    }
    __device__ int of_edge() const { return columns(first, first + mine) - inner * N; }
    /// The thread's element of the edge in shared memory; `slot`: the thread's first pack of the row there.
    __device__ T& edge(uint4* slot) const {
        const int lane = here();
        return (reinterpret_cast<T*>(slot - lane + PIECES * THREADS) + lane)[heads > 0 ? shift : 0];
    }
    /// threadIdx.x, opaque to the compiler: what only the first warp needs is then recomputed in every row and occupies no register in the
    /// other warps.
    __device__ static int here() {
        int lane = threadIdx.x;
        asm volatile("" : "+r"(lane));
        return lane;
    }

    __device__ int columns(int from, int to) const { return max(0, min(C, to * N - shift) - max(0, from * N - shift)); }
    /// The number of columns of this thread, of a warp, and of a block.
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

    /// Pack i of a row, or zeros if the thread does not have it. `one_by_one`: element by element, for the weight, whose misalignment
    /// differs from the row's.
    __device__ uint4 load(const T* row, int i, bool one_by_one = false) const {
        uint4 v = make_uint4(0, 0, 0, 0);
        if (!has(i)) return v;
        if (!one_by_one) return *reinterpret_cast<const uint4*>(row + column(i));
#pragma unroll
        for (int j = 0; j < N; ++j) reinterpret_cast<T*>(&v)[j] = row[column(i) + j];
        return v;
    }
    /// Loads the thread's packs of the weight into its slots in shared memory.
    template <typename Slot>
    __device__ void keep(const Slot& slot, const T* row) const {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) *slot(i) = load(row, i, EDGE);
        if (has_edge()) edge(slot(0)) = row[at_edge()];
    }
    /// Starts the asynchronous copies of this thread's packs of a row to its slots; edge packs include elements of the neighbouring rows.
    /// `from`: the boundary before the row, the same for all threads, which add a 32-bit offset. [first_of_array, end_of_array): the whole
    /// tensor. The other lanes of the warp must have finished reading what the slots held before.
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
    /// Stores pack i of a row; `from` is the boundary before the row.
    __device__ void store(T* from, int i, const uint4& v) const {  // written once: evict-first in the L2
        if (has(i)) __stcs(reinterpret_cast<uint4*>(from + place(i)), v);
    }
};

/// The number of elements from the last 32-byte boundary to p.
template <typename T>
__device__ int beyond(const T* p) {
    return static_cast<int>(reinterpret_cast<unsigned long long>(p) % 32 / sizeof(T));
}

__device__ inline unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

/// The address of the same location in the shared memory of block `rank` of the cluster.
__device__ inline unsigned shared_of_block(int rank, unsigned address) {
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
/// Stores v in the shared memory of a block of the cluster; the mbarrier there counts its bytes.
__device__ inline void store_async(unsigned to, const float4& v, unsigned mbarrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                 ::"r"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(mbarrier) : "memory");
}
/// Initialises an mbarrier for one arrival (and the bytes it expects). Other blocks of the cluster may use it after a cluster barrier.
__device__ inline void mbarrier_init(unsigned mbarrier) { asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(mbarrier)
    : "memory"); }
/// Arrives and starts a phase that is complete when `bytes` bytes have arrived.
__device__ inline void mbarrier_expect(unsigned mbarrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(mbarrier), "r"(bytes) : "memory");
}
/// Waits until the phase with parity `phase` is complete: 0, 1, 0, ...
__device__ inline void mbarrier_wait(unsigned mbarrier, int phase) {
    unsigned done = 0;
    while (!done) {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(mbarrier), "r"(phase) : "memory");
    }
}

/// Combines the warps' parts of a row in two steps: one warp combines those of its block and sends the result to all blocks of the cluster;
/// then every warp combines those of the blocks. No cluster barrier is used, since its release would wait for all earlier stores to global
/// memory; an mbarrier in each block counts the arrived bytes instead. Between post() and wait() of a row the caller finishes the row
/// before.
template <typename P, int THREADS, int CLUSTER>
struct Exchange {
    static constexpr int WARPS = THREADS / 32;
    struct alignas(16) Shared {
        P of_warps[CLUSTER == 1 ? 2 : 1][WARPS], of_blocks[2][CLUSTER];  // of even and of odd rows
        unsigned long long mbarriers[2];
    };
    Shared& shared;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank;

    /// All threads of the cluster construct it before any of them posts.
    __device__ Exchange(Shared& shared, int rank) : shared(shared), rank(rank) {
        if (CLUSTER == 1) return;
        if (threadIdx.x < 2) mbarrier_init(shared_address(&shared.mbarriers[threadIdx.x]));
        cooperative_groups::this_cluster().sync();
    }

    /// Writes this warp's part of row k (counted per cluster). `fold` combines the parts that lanes 0 to WARPS - 1 hold.
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
    /// Waits for the parts of row k. With one block lane i gets the part of warp i; in a cluster lane i gets the part of block i % CLUSTER.
    __device__ P wait(int k) const {
        if (CLUSTER == 1) {
            __syncthreads();
            return lane < WARPS ? shared.of_warps[k % 2][lane] : P{};
        }
        mbarrier_wait(shared_address(&shared.mbarriers[k % 2]), k / 2 % 2);
        return shared.of_blocks[k % 2][lane % CLUSTER];
    }
};
