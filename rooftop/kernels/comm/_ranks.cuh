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

/// Block b of this rank tells block b of all others that it has come to `number`: memory that its threads wrote before is visible to
/// whoever sees that. Flags are the first words of a room, 64 bits each: [block][rank], the number in the low half and `call` in the high
/// half, which all ranks must agree on; `spoilt`: the call has failed here.
template <typename Room>
__device__ inline void tell(const Room& rooms, int rank, int ranks, unsigned number, unsigned call, bool spoilt) {
    __syncthreads();
    if (threadIdx.x < ranks) {
        __threadfence_system();  // the block's writes (ordered before this by the barrier) become visible before the flag
        volatile unsigned long long* theirs =
            reinterpret_cast<volatile unsigned long long*>(rooms(static_cast<int>(threadIdx.x))) + blockIdx.x * MOST_RANKS + rank;
        *theirs = static_cast<unsigned long long>(spoilt ? SPOILT : call) << 32 | number;
    }
}

/// Waits until block b of all ranks has told `number` or a later one. All threads call it; all get the result. `patience`: a timeout in
/// nanoseconds. `fault`: where a failure is written, for the host and for this rank's other blocks.
template <typename Room>
__device__ inline int hear(const Room& rooms, int rank, int ranks, unsigned number, unsigned call, bool spoilt, long long patience,
    volatile int* fault) {
    __shared__ int answer;
    if (threadIdx.x == 0) answer = MET;
    __syncthreads();
    if (threadIdx.x < ranks) {
        volatile unsigned long long* mine = reinterpret_cast<volatile unsigned long long*>(rooms(rank)) + blockIdx.x * MOST_RANKS + threadIdx.x;
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

/// A barrier between ranks: both of them.
template <typename Room>
__device__ inline int meet(const Room& rooms, int rank, int ranks, unsigned number, unsigned call, bool spoilt, long long patience,
    volatile int* fault) {
    tell(rooms, rank, ranks, number, call, spoilt);
    return hear(rooms, rank, ranks, number, call, spoilt, patience, fault);
}
