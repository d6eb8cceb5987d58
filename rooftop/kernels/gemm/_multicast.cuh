// TMA multicast to two blocks of a cluster: one copy from L2 is written into the shared memory of both. PTX ISA, "cp.async.bulk.tensor",
// "mapa", "barrier.cluster".
#pragma once
#include "wgmma.cuh"

__device__ inline unsigned cluster_rank() {
    unsigned rank;
    asm("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
    return rank;
}

/// A barrier of all threads of both blocks; memory written before it is visible after it.
__device__ inline void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
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
