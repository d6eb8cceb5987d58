/* rooftop
idea    = "Each rank puts its tensor in codes into memory that all see; block b waits for block b of the others alone, adds up its part of the rank's own stripe from all of them, puts the sum down in codes, waits again, and reads every stripe's sum: a code crosses a link twice, and every rank, the stripe's owner too, takes the sum from the codes."
limit   = "loads under way over the link: on two H200 64 MiB of bf16 take 187 us as int8 (NCCL 246), 251 with half the blocks; int4 144, bf16 467, whose packs of 32 bytes a lane ask for every sector twice"
dtypes  = ["f32", "f16", "bf16"]
tensors = ["x: T[W, N]", "out: T[W, N]"]
args    = ["seed: i32"]
python  = ["supports", "choose", "launches", "scratch", "zeroed"]
demands = { spills = 0 }

[config]
blocks = 1
*/
#include "ranks.cuh"
#include "wire.cuh"

constexpr int THREADS = 512;

/// share: elements of a stripe. `second`: where in a room, in bytes, the sum's message lies; the tensor's, one a stripe, begin behind the flags.
template <typename T, int WIRE, int GROUP, bool ROTATED, bool STOCHASTIC, bool HERE>
__global__ void __launch_bounds__(THREADS, 1)
two_shot(int ranks, int first, long long count, long long share, const T* __restrict__ x, T* __restrict__ out, unsigned char* room, const unsigned long long* table, long long bytes,
         long long second, unsigned* epochs, int* fault, unsigned call, int seed, long long patience) {
    using M = Message<WIRE, GROUP>;
    const int rank = first + blockIdx.y;
    const Rooms<HERE> rooms{room, table, bytes};
    x += blockIdx.y * count, out += blockIdx.y * count;
    const bool whole_x = on_16(x), whole_out = on_16(out);
    epochs += HERE ? rank * BLOCKS : 0;
    const unsigned number = epochs[blockIdx.x];
    const long long message = M::bytes(share), packs = share / PACK, step = static_cast<long long>(gridDim.x) * THREADS;
    const long long begin = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    const auto sent = [&](int owner, int stripe) { return M{rooms(owner) + FLAGS + stripe * message, share}; };
    const auto summed = [&](int owner) { return M{rooms(owner) + second, share}; };

    for (int s = 0; s < ranks; ++s)
        encode_row<ROTATED, STOCHASTIC>(sent(rank, s), x + s * share, min(count - s * share, share), whole_x, begin, step, seed,
                                        (static_cast<unsigned long long>(rank) * ranks + s) * share);
    int met = meet(rooms, rank, ranks, number + 1, call, false, patience, fault);
    if (met == MET) {
        const M to = summed(rank);
        const unsigned long long index = (static_cast<unsigned long long>(ranks) * ranks + rank) * share;
        sum_row<WIRE>(ranks, packs, begin, step, [&](int p) { return sent(p, rank); },
                      [&](long long i, bool in, const float (&v)[PACK]) { to.template put<STOCHASTIC>(i * PACK, in, v, seed, index + i * PACK); });
    }
    met = meet(rooms, rank, ranks, number + 2, call, met != MET, patience, fault);
    for (int k = 0; k < ranks; ++k) {
        const int s = (rank + k) % ranks;  // the ranks begin with different owners
        const long long kept = min(count - s * share, share);
        sum_row<WIRE>(met == MET ? 1 : 0, packs, begin, step, [&](int) { return summed(s); }, [&](long long i, bool in, float (&v)[PACK]) {
            if (met != MET) spoil(v);
            if (ROTATED) rotate<GROUP>(v);
            if (in) store_pack(out + s * share, i * PACK, kept, whole_out, v);
        });
    }
    if (threadIdx.x == 0)
        for (int b = blockIdx.x; b < BLOCKS; b += gridDim.x) epochs[b] = number + 2;
}
