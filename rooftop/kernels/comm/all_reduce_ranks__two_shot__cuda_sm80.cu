/* rooftop
idea    = "Each rank puts its tensor in codes into memory that all see; block b waits for block b of the others alone, adds up its part of the rank's own stripe from all of them, puts the sum down in codes, waits again, and reads every stripe's sum: a code crosses a link twice, and every rank, the stripe's owner too, takes the sum from the codes."
predict = { speedup = 1.8 }
limit   = "the link: (W - 1) / W of the codes in each of the two shots"
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
two_shot(int ranks, int first, long long count, long long share, const T* x, T* out, unsigned char* room, const unsigned long long* table, long long bytes,
         long long second, unsigned* epochs, int* fault, unsigned call, int seed, long long patience) {
    using M = Message<WIRE, GROUP>;
    const int rank = first + blockIdx.y;
    const Rooms<HERE> rooms{room, table, bytes};
    x += static_cast<long long>(blockIdx.y) * count, out += static_cast<long long>(blockIdx.y) * count;
    const bool whole_x = on_16(x), whole_out = on_16(out);
    epochs += HERE ? rank * 256 : 0;
    const unsigned number = epochs[blockIdx.x];
    const long long message = M::bytes(share), packs = share / PACK, step = static_cast<long long>(gridDim.x) * THREADS;
    const int lane = threadIdx.x % 32;
    const long long begin = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    constexpr long long FLAGS = 256 * MOST_RANKS * 8;
    const auto sent = [&](int owner, int stripe) { return M{rooms(owner) + FLAGS + stripe * message, share}; };
    const auto summed = [&](int owner) { return M{rooms(owner) + second, share}; };

    for (int s = 0; s < ranks; ++s) {
        const M to = sent(rank, s);
#pragma unroll 2
        for (long long i = begin; i - lane < packs; i += step) {
            float v[PACK];
            load_pack(v, x, s * share + i * PACK, i < packs ? count : 0, whole_x);
            if (ROTATED) rotate<GROUP>(v);
            to.template put<STOCHASTIC>(i * PACK, i < packs, v, seed, (static_cast<unsigned long long>(rank) * ranks + s) * share + i * PACK);
        }
    }
    int met = meet(rooms, rank, ranks, number + 1, call, false, patience, fault);
    if (met == MET) {
        const M to = summed(rank);
#pragma unroll 2
        for (long long i = begin; i - lane < packs; i += step) {
            float sum[PACK];
            if (i < packs) sum_pack<WIRE, GROUP>(sum, ranks, i * PACK, [&](int p) { return sent(p, rank); });
            else {
#pragma unroll
                for (int j = 0; j < PACK; ++j) sum[j] = 0;
            }
            to.template put<STOCHASTIC>(i * PACK, i < packs, sum, seed, (static_cast<unsigned long long>(ranks) * ranks + rank) * share + i * PACK);
        }
    }
    met = meet(rooms, rank, ranks, number + 2, call, met != MET, patience, fault);
    for (int k = 0; k < ranks; ++k) {
        const int s = (rank + k) % ranks;  // the ranks begin with different owners
        const M from = summed(s);
#pragma unroll 2
        for (long long i = begin; i - lane < packs; i += step) {
            float v[PACK];
            unsigned in[Wire<WIRE>::WORDS];
            float scale = 1;
            if (i < packs && met == MET) from.fetch(in, scale, i * PACK);
#pragma unroll
            for (int j = 0; j < PACK; ++j) v[j] = met != MET ? not_a_number() : i < packs ? value<WIRE>(in, scale, j) : 0.f;
            if (ROTATED) rotate<GROUP>(v);
            if (i < packs) store_pack(out, s * share + i * PACK, count, whole_out, v);
        }
    }
    if (threadIdx.x == 0)
        for (int b = blockIdx.x; b < 256; b += gridDim.x) epochs[b] = number + 2;
}
