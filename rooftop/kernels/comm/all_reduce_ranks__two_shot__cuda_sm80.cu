/* rooftop
idea    = """Each rank pushes its codes of every stripe into the memory of the stripe's owner. Block b waits only for block b of the other \
  ranks, adds up its part of its rank's own stripe, pushes the codes of the sum to all ranks, and waits again. Only stores cross a link, \
  and no thread waits for them before the flag is set, so they overlap with the reading and rounding of the next data. All ranks, the owner \
  too, decode the sum from its codes, so that results are equal."""
limit   = """not measured; predicted for two H200: 64 MiB of bf16 as int8 in 120 us, where reading from the peers takes 187, since the link \
  is busy while x is read and rounded"""
dtypes  = ["f32", "f16", "bf16"]
tensors = ["x: T[W, N]", "out: T[W, N]"]
args    = ["seed: i32"]
python  = ["supports", "choose", "launches", "scratch", "zeroed"]
demands = { spills = 0 }

[config]
blocks = 1
*/
#include "_ranks.cuh"
#include "_wire.cuh"

constexpr int THREADS = 512;

/// share: elements of a stripe. A room has, behind its flags, the messages for its rank's stripe, one from each rank; and, `second` bytes
/// from its start, the messages of the sums, one for each stripe.
template <typename T, int WIRE, int GROUP, bool ROTATED, bool STOCHASTIC, bool HERE>
__global__ void __launch_bounds__(THREADS, 1)
two_shot(int ranks, int first, long long count, long long share, const T* __restrict__ x, T* __restrict__ out, unsigned char* room,
    const unsigned long long* table, long long bytes,
         long long second, unsigned* epochs, int* fault, unsigned call, int seed, long long patience) {
    using M = Message<WIRE, GROUP>;
    const int rank = first + blockIdx.y;
    const Rooms<HERE> rooms{room, table, bytes};
    x += blockIdx.y * count, out += blockIdx.y * count;
    const bool whole_x = on_16(x), whole_out = on_16(out);
    epochs += HERE ? rank * BLOCKS : 0;
    const unsigned number = epochs[blockIdx.x];
    const long long message = M::bytes(share), chunks = (share + CHUNK - 1) / CHUNK;
    // a warp's chunks, of every stripe the same
    const long long begin = threadIdx.x / 32 * gridDim.x + blockIdx.x, step = gridDim.x * (THREADS / 32);
    const auto part = [&](int owner, int source) { return M{rooms(owner) + FLAGS + source * message, share}; };
    const auto sum = [&](int reader, int owner) { return M{rooms(reader) + second + owner * message, share}; };
    float v[DEEP][PACK];

    for (int k = 1; k <= ranks; ++k) {
        const int s = (rank + k) % ranks;  // each rank starts with a different owner
        for (long long c = begin; c < chunks; c += step) {
            load_chunk<GROUP, ROTATED>(v, x + s * share, c, min(count - s * share, share), whole_x);
            put_chunk<WIRE, GROUP, STOCHASTIC>(v, c, seed, (static_cast<unsigned long long>(rank) * ranks + s) * share, 1,
                [&](int) { return part(s, rank); });
        }
    }
    int met = meet(rooms, rank, ranks, number + 1, call, false, patience, fault);
    if (met == MET) {
        for (long long c = begin; c < chunks; c += step) {
            sum_chunk<WIRE, GROUP>(v, ranks, c, [&](int p) { return part(rank, p); });
            put_chunk<WIRE, GROUP, STOCHASTIC>(v, c, seed, (static_cast<unsigned long long>(ranks) * ranks + rank) * share, ranks,
                                               [&](int p) { return sum((rank + p) % ranks, rank); });
        }
    }
    met = meet(rooms, rank, ranks, number + 2, call, met != MET, patience, fault);
    for (int s = 0; s < ranks; ++s) {
        for (long long c = begin; c < chunks; c += step) {
            sum_chunk<WIRE, GROUP>(v, met == MET ? 1 : 0, c, [&](int) { return sum(rank, s); });
            if (met != MET) spoil(v);
            store_chunk<GROUP, ROTATED>(out + s * share, c, min(count - s * share, share), whole_out, v);
        }
    }
    if (threadIdx.x == 0)
        for (int b = blockIdx.x; b < BLOCKS; b += gridDim.x) epochs[b] = number + 2;
}
