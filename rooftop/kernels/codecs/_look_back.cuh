// Decoupled look-back (Merrill and Garland 2016): a chunk computes the offset of its words in the same launch that computes the words.
#pragma once

constexpr unsigned long long SUM = 1ull << 62, ALL = 2ull << 62, VALUE = SUM - 1;

/// The number of words of all chunks before `chunk`; called by a whole warp. A state is 0 (not ready), the chunk's own words (SUM), or
/// those of all chunks up to it (ALL). Flag and value are one 64-bit word, so no fence is needed. Chunks are taken in the order of a ticket
/// (an atomic counter), so all earlier chunks have started and every wait ends.
__device__ inline unsigned long long words_before(volatile unsigned long long* states, long long chunk) {
    const int lane = threadIdx.x % 32;
    unsigned long long sum = 0;
    for (long long at = chunk - 1 - lane; ; at -= 32) {
        unsigned long long state;
        do state = at < 0 ? ALL : states[at]; while (__any_sync(~0u, state == 0));
        const unsigned done = __ballot_sync(~0u, state >> 63);
        const int last = done ? __ffs(static_cast<int>(done)) - 1 : 31;
        unsigned long long mine = lane <= last ? state & VALUE : 0;
#pragma unroll
        for (int j = 16; j > 0; j /= 2) mine += __shfl_xor_sync(~0u, mine, j);
        sum += mine;
        if (done) return sum;
    }
}
