// Memory shared by the ranks of a group, and their synchronisation: a flag for each block and rank in every rank's memory, written by the
// others.
#pragma once

/// The ranks' buffers ("rooms"). HERE: one device plays all ranks, and their rooms are consecutive; else a table of the addresses at which
/// this GPU sees them.
template <bool HERE>
struct Rooms {
    unsigned char* first;
    const unsigned long long* table;
    long long bytes;  // of a room
    __device__ unsigned char* operator()(int rank) const {
        if constexpr (HERE) return first + rank * bytes;
        else return reinterpret_cast<unsigned char*>(table[rank]);
    }
};

constexpr int MET = 0, LATE = 1, OTHER_CALL = 2;  // results of a meeting (a barrier between ranks)
constexpr unsigned long long ASK_NS = 1000000;  // a rank that waits asks as often whether another block has given up
constexpr unsigned SPOILT = 0xffffffffu;
constexpr int MOST_RANKS = 16, BLOCKS = 256;  // the most ranks and blocks for which a room has flags
constexpr long long FLAGS = BLOCKS * MOST_RANKS * 8;  // their bytes

/// A barrier between ranks: block b of each rank waits for block b of all others; memory written before it is visible after it. Flags are
/// the first words of a room, 64 bits each: [block][rank], the meeting's number in the low half and `call` in the high half, which all
/// ranks must agree on. All threads call it; all get the result. `patience`: a timeout in nanoseconds. `fault`: where a failure is written,
/// for the host and for this rank's other blocks.
template <typename Room>
__device__ inline int meet(const Room& rooms, int rank, int ranks, unsigned number, unsigned call, bool spoilt, long long patience,
    volatile int* fault) {
    __shared__ int answer;
    if (threadIdx.x == 0) answer = MET;
    __syncthreads();
    if (threadIdx.x < ranks) {
        __threadfence_system();  // the block's writes (ordered before this by the barrier) become visible before the flag
        const int other = threadIdx.x;
        const unsigned said = spoilt ? SPOILT : call;
        volatile unsigned long long* theirs = reinterpret_cast<volatile unsigned long long*>(rooms(other)) + blockIdx.x * MOST_RANKS + rank;
        volatile unsigned long long* mine = reinterpret_cast<volatile unsigned long long*>(rooms(rank)) + blockIdx.x * MOST_RANKS + other;
        *theirs = static_cast<unsigned long long>(said) << 32 | number;
        unsigned long long seen, begun, asked;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begun));
        asked = begun;
        int found = MET;
        for (unsigned tries = 1; seen = *mine, static_cast<int>(static_cast<unsigned>(seen) - number) < 0; ++tries) {
            if (tries % 256) continue;
            unsigned long long now;
            asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
            // `fault` is in the host's memory; reads by all blocks take 100 us in all. So it is read only after ASK_NS, longer than an
            // ordinary call waits; after an earlier failure (`spoilt`) at once.
            const bool late = static_cast<long long>(now - begun) > patience;
            if (!late && !spoilt && now - asked < ASK_NS) continue;
            asked = now;
            if (late || *fault) {
                found = *fault ? *fault : LATE;
                break;
            }
        }
        const unsigned heard = static_cast<unsigned>(seen >> 32);
        if (found == MET && (heard == SPOILT || spoilt || (static_cast<unsigned>(seen) == number && heard != call))) found = OTHER_CALL;
        if (found != MET) {
            answer = found;
            if (!*fault) *fault = found;
        }
        __threadfence_system();
    }
    __syncthreads();
    const int all = answer;
    __syncthreads();
    return all;
}
