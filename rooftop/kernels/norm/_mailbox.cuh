// Rows too long for one block: each block of a group has a slice, and the blocks exchange the statistics of their slices through global memory.
//
// All blocks of the grid are resident (a cooperative launch), so they may wait for each other. A message is one 64-bit word, which holds a float and the number
// of its row; it is stored at once, so no fence is needed. The mailbox starts as zeros, which is the number of no row. Messages of row k are read LAG rows
// later, when they have usually arrived. A block that sends row k knows that all blocks have read row k - 2 LAG - 2, so it may reuse that row's slot of the
// mailbox.
#pragma once
#include "register_rows.cuh"

constexpr int MAIL_ROWS = 8;    // at least 2 LAG + 2
constexpr int GROUP_MOST = 128;  // blocks of a group

template <int WORDS>
struct Mail {
    volatile unsigned long long* const words;  // of the group: [MAIL_ROWS][WORDS][blocks]
    const int blocks, rank;

    __device__ Mail(unsigned long long* all, int blocks) : words(all + blockIdx.x / blocks * (MAIL_ROWS * WORDS * blocks)), blocks(blocks), rank(blockIdx.x % blocks) {}

    __device__ volatile unsigned long long& word(int k, int at) const { return words[k % MAIL_ROWS * WORDS * blocks + at]; }
    __device__ void send(int k, int which, float v) const {
        word(k, which * blocks + rank) = static_cast<unsigned long long>(k + 1) << 32 | __float_as_uint(v);
    }
    /// Loads one word a thread, which may not have arrived yet; issued early, so that its L2 latency is hidden.
    __device__ unsigned long long look(int k) const { return threadIdx.x < WORDS * blocks ? word(k, threadIdx.x) : 0; }
    /// Waits for all messages of row k and writes them to inbox[which][block]. All threads call it, and read the inbox after a barrier. The block has at least
    /// WORDS * blocks threads.
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
