// Prefetching in a persistent kernel: a ring buffer in shared memory that cp.async fills several rows ahead. A thread reads only what it
// copied itself, so the ring needs no barrier.
#pragma once
#include <cuda_pipeline.h>

#include "packs.cuh"

// Aligned to 128 bytes: with a less aligned destination, cp.async requests each line two or three times from the L2.
extern __shared__ __align__(128) uint4 ring[];

/// Which rows a team processes: its k-th row is first + k * step. Rows `period` apart have the same offset from a 16-byte boundary, and all
/// rows of a team have the same one (row % period), so its columns are the same in each. Place p of `places` (blocks, or groups of blocks;
/// a multiple of the period) has `teams` teams.
struct Walk {
    int phase, first, step, count;
    __device__ Walk(int R, int period, int p, int places, int team, int teams) : phase(p % period) {
        first = phase + period * (p / period * teams + team), step = period * (places / period * teams);
        count = first < R ? (R - first + step - 1) / step : 0;
    }
};

/// One thread's vectors and single element of each row of its team: STAGES rows of TENSORS tensors in the ring, and KEPT tensors that stay
/// in shared memory, such as the weight. `row`: the position of the thread's vectors, computed for the first tensor. SECTORS, for unaligned
/// rows of which a block has one at a time: a row that starts in the middle of a 32-byte sector is one vector further on in the ring. If a
/// warp copies the second half of a sector to the first half of 32 bytes, it requests each vector separately from the L2.
template <typename T, int VECTORS, int STAGES, int TENSORS, int KEPT, bool ALIGNED, bool SECTORS = false>
struct Ring {
    using P = Pack<T>;
    static constexpr int N = P::N;
    Row<T, VECTORS, ALIGNED> row;
    const T *ahead[TENSORS], *next[TENSORS];  // pointers to rows: the next that cp.async copies; the one after the current
    long long step[TENSORS];                  // elements from one row of the team to its next
    int filled = 0, now = 0;  // stages of the ring: filled next; of the current row
    unsigned halves = 0;      // bit STAGES * t + k: in tensor t, the row in stage k starts in the middle of a 32-byte sector
    float coming[TENSORS] = {}, kept_single[KEPT + 1] = {};

    __device__ uint4* stage(int k) const { return ring + k * (TENSORS * VECTORS * blockDim.x + (SECTORS ? 2 : 0)) + threadIdx.x; }
    __device__ uint4* slot(int k, int tensor, int i) const {
        return stage(k) + (tensor * VECTORS + i) * blockDim.x + (SECTORS ? halves >> (STAGES * tensor + k) & 1 : 0);
    }
    __device__ uint4* kept(int which, int i) const { return stage(STAGES) + (which * VECTORS + i) * blockDim.x; }
    __device__ float& single(int tensor) const {
        float* const singles = reinterpret_cast<float*>(stage(STAGES) - threadIdx.x + KEPT * VECTORS * blockDim.x);
        return singles[(now * TENSORS + tensor) * blockDim.x + threadIdx.x];
    }
    /// Vector i of the current row.
    __device__ uint4* at(int tensor, int i) const { return slot(now, tensor, i); }
    __device__ void widen(int tensor, int i, float (&f)[N]) const { P::widen(*at(tensor, i), f); }
    __device__ void widen_kept(int which, int i, float (&f)[N]) const { P::widen(*kept(which, i), f); }

    /// Calls use(v) for this thread's elements of the current row of the first tensor.
    template <typename Use>
    __device__ void each(const Use& use) const {
        float v[N];
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            if (!row.has(i)) continue;
            widen(0, i, v);
#pragma unroll
            for (int j = 0; j < N; ++j) use(v[j]);
        }
        if (row.has_single()) use(single(0));
    }

    __device__ void keep(int which, const T* of_columns) {
        const bool together = ALIGNED || aligned(of_columns + row.head);
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            if (row.has(i)) *kept(which, i) = P::load(of_columns + row.column(i), together);
        }
        if (row.has_single()) kept_single[which] = static_cast<float>(of_columns[row.single_column()]);
    }
    /// Prologue: starts the copies of the first STAGES - 1 rows.
    __device__ void begin(const Walk& walk, const T* const* tensors, const long long* strides) {
#pragma unroll
        for (int t = 0; t < TENSORS; ++t) {
            ahead[t] = next[t] = tensors[t] + walk.first * strides[t], step[t] = walk.step * strides[t];
            if (row.has_single() && walk.count > 0) coming[t] = static_cast<float>(next[t][row.single_column()]);
            next[t] += step[t];
        }
        for (int k = 0; k < STAGES - 1; ++k) fetch(k < walk.count);
    }
    /// Starts the copy of the next row, if there is one, and commits a group of cp.async in any case.
    __device__ void fetch(bool there) {
#pragma unroll
        for (int t = 0; t < TENSORS; ++t) {
            const bool together = ALIGNED || aligned(ahead[t] + row.head);
            if (SECTORS) {
                const unsigned bit = 1u << (STAGES * t + filled),
                    half = reinterpret_cast<unsigned long long>(ahead[t] + row.head) % 32 / 16;
                halves = half ? halves | bit : halves & ~bit;
            }
#pragma unroll
            for (int i = 0; i < VECTORS; ++i) {
                if (!there || !row.has(i)) continue;
                if (together)
                    __pipeline_memcpy_async(slot(filled, t, i), ahead[t] + row.column(i), 16);
                else
                    *slot(filled, t, i) = P::load(ahead[t] + row.column(i), false);
            }
            ahead[t] += step[t];
        }
        __pipeline_commit();
        filled = filled + 1 < STAGES ? filled + 1 : 0;
    }
    /// Single elements are too small for cp.async: they are loaded to a register, one row ahead. Returns those of this row; `there`:
    /// whether there is a next row.
    __device__ void take_singles(bool there) {
        if (!row.has_single()) return;
#pragma unroll
        for (int t = 0; t < TENSORS; ++t) {
            single(t) = coming[t];
            if (there) coming[t] = static_cast<float>(next[t][row.single_column()]);
            next[t] += step[t];
        }
    }
};

// Rows too long for one block: each block of a group has a slice, and the blocks exchange the statistics of their slices through global
// memory.
//
// All blocks of the grid are resident (a cooperative launch), so they may wait for each other. A message is one 64-bit word, which holds a
// float and the number of its row; it is stored at once, so no fence is needed. The mailbox starts as zeros, which is the number of no row.
// Messages of row k are read LAG rows later, when they have usually arrived. A block that sends row k knows that all blocks have read row k
// - 2 LAG - 2, so it may reuse that row's slot of the mailbox.

constexpr int MAIL_ROWS = 8;    // at least 2 LAG + 2
constexpr int GROUP_MOST = 128;  // blocks of a group

template <int WORDS>
struct Mail {
    volatile unsigned long long* const words;  // of the group: [MAIL_ROWS][WORDS][blocks]
    const int blocks, rank;

    __device__ Mail(unsigned long long* all, int blocks) : words(all + blockIdx.x / blocks * (MAIL_ROWS * WORDS * blocks)), blocks(blocks),
        rank(blockIdx.x % blocks) {}

    __device__ volatile unsigned long long& word(int k, int at) const { return words[k % MAIL_ROWS * WORDS * blocks + at]; }
    __device__ void send(int k, int which, float v) const {
        word(k, which * blocks + rank) = static_cast<unsigned long long>(k + 1) << 32 | __float_as_uint(v);
    }
    /// Loads one word a thread, which may not have arrived yet; issued early, so that its L2 latency is hidden.
    __device__ unsigned long long look(int k) const { return threadIdx.x < WORDS * blocks ? word(k, threadIdx.x) : 0; }
    /// Waits for all messages of row k and writes them to inbox[which][block]. All threads call it, and read the inbox after a barrier. The
    /// block has at least WORDS * blocks threads.
    __device__ void take(int k, unsigned long long looked, float (&inbox)[WORDS][GROUP_MOST]) const {
        const bool mine = threadIdx.x < WORDS * blocks;
        while (__any_sync(~0u, mine && looked >> 32 != k + 1)) looked = look(k);
        if (mine) inbox[threadIdx.x / blocks][threadIdx.x % blocks] = __uint_as_float(static_cast<unsigned>(looked));
    }
};

/// The number of a row's elements that block `rank` of a group has.
template <typename T, int VECTORS, bool ALIGNED>
__device__ int elements_of_block(const Row<T, VECTORS, ALIGNED>& row, int rank) {
    int n = 0;
    const int threads = blockDim.x;
    for (int i = 0; i < VECTORS; ++i) n += max(0, min(threads, row.vectors - i * row.team - rank * threads));
    return n * (16 / sizeof(T)) + (rank == 0 ? row.singles : 0);
}
