/* rooftop
idea    = """For small tensors, which are bound by latency: each rank pushes its quantised tensor into the memory of all ranks, all ranks \
  synchronise once, and each rank computes the whole sum. The receive buffer has two halves, used in turn, so that no rank waits for the \
  readers of the previous call."""
limit   = "not measured: the synchronisation, and W - 1 times the codes over the link"
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

/// size: elements of a message, a multiple of the group. half: bytes of each of the two halves of a room behind its flags; a half holds a
/// message from each rank.
template <typename T, int WIRE, int GROUP, bool ROTATED, bool STOCHASTIC, bool HERE>
__global__ void __launch_bounds__(THREADS, 1)
one_shot(int ranks, int first, long long count, long long size, const T* __restrict__ x, T* __restrict__ out, unsigned char* room,
    const unsigned long long* table, long long bytes,
         long long half, unsigned* epochs, int* fault, unsigned call, int seed, long long patience) {
    using M = Message<WIRE, GROUP>;
    const int rank = first + blockIdx.y;
    const Rooms<HERE> rooms{room, table, bytes};
    x += blockIdx.y * count, out += blockIdx.y * count;
    const bool whole_x = on_16(x), whole_out = on_16(out);
    epochs += HERE ? rank * BLOCKS : 0;
    const unsigned number = epochs[blockIdx.x];
    const long long message = M::bytes(size), chunks = (size + CHUNK - 1) / CHUNK;
    const long long begin = threadIdx.x / 32 * gridDim.x + blockIdx.x, step = gridDim.x * (THREADS / 32);  // a warp's chunks
    const auto part = [&](int reader, int source) { return M{rooms(reader) + FLAGS + (number & 1) * half + source * message, size}; };
    float v[DEEP][PACK];

    for (long long c = begin; c < chunks; c += step) {
        load_chunk<GROUP, ROTATED>(v, x, c, count, whole_x);
        put_chunk<WIRE, GROUP, STOCHASTIC>(v, c, seed, static_cast<unsigned long long>(rank) * size, ranks,
            [&](int p) { return part((rank + p) % ranks, rank); });
    }
    const int met = meet(rooms, rank, ranks, number + 1, call, false, patience, fault);
    for (long long c = begin; c < chunks; c += step) {
        sum_chunk<WIRE, GROUP>(v, met == MET ? ranks : 0, c, [&](int p) { return part(rank, p); });
        if (met != MET) spoil(v);
        store_chunk<GROUP, ROTATED>(out, c, count, whole_out, v);
    }
    if (threadIdx.x == 0)
        for (int b = blockIdx.x; b < BLOCKS; b += gridDim.x) epochs[b] = number + 1;
}
