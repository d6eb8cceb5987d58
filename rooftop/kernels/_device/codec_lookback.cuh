// Decoupled look-back (Merrill and Garland 2016): the offset of a chunk's words, in the same launch that computes them.
#pragma once

constexpr unsigned long long SUM = 1ull << 62, ALL = 2ull << 62, VALUE = SUM - 1;

/// Words of all chunks before `chunk`; by a whole warp. A state is 0, or the chunk's own words (SUM), or those of all chunks up to it (ALL): flag and value
/// are one word, so that no fence is needed. Chunks are taken in the order of a ticket: those before have begun, so that nobody waits for ever.
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
