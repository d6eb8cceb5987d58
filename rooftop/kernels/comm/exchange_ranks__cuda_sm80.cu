/* rooftop
idea    = """Reduce-scatter, all-gather and all-to-all are one exchange: each rank pushes messages into the memory of the others, all ranks \
  synchronise once, and each rank adds up or decodes what it received. The receive buffer has two halves, used in turn, so that no rank \
  waits for the readers of the previous call."""
limit   = "not measured: the link"
dtypes  = ["f32", "f16", "bf16"]
tensors = ["x: T[W, N]", "out: T[W, P]"]
args    = ["seed: i32"]
python  = ["supports", "choose", "launches", "scratch", "zeroed"]
demands = { spills = 0 }

[config]
blocks = 1
*/
#include "_ranks.cuh"
#include "_wire.cuh"

constexpr int THREADS = 512;
constexpr int SCATTER = 0, GATHER = 1, TO_ALL = 2;

/// A rank's x is `ranks` rows of `count` elements (GATHER: one row); row s goes to rank s (GATHER: to all). size: elements of a message, a
/// multiple of the group. half: bytes of each of the two halves of a room behind its flags; a half holds a message from each rank. out: one
/// row for SCATTER, else `ranks` rows.
template <typename T, int WIRE, int GROUP, bool ROTATED, bool STOCHASTIC, bool HERE, int KIND>
__global__ void __launch_bounds__(THREADS, 1)
exchange(int ranks, int first, long long count, long long size, const T* __restrict__ x, T* __restrict__ out, unsigned char* room,
    const unsigned long long* table, long long bytes,
         long long half, unsigned* epochs, int* fault, unsigned call, int seed, long long patience) {
    using M = Message<WIRE, GROUP>;
    const int rank = first + blockIdx.y;
    const Rooms<HERE> rooms{room, table, bytes};
    x += blockIdx.y * count * (KIND == GATHER ? 1 : ranks), out += blockIdx.y * count * (KIND == SCATTER ? 1 : ranks);
    epochs += HERE ? rank * BLOCKS : 0;
    const unsigned number = epochs[blockIdx.x];
    const long long message = M::bytes(size), chunks = (size + CHUNK - 1) / CHUNK;
    const long long begin = threadIdx.x / 32 * gridDim.x + blockIdx.x, step = gridDim.x * (THREADS / 32);  // a warp's chunks
    const auto part = [&](int reader, int source) { return M{rooms(reader) + FLAGS + (number & 1) * half + source * message, size}; };
    float v[DEEP][PACK];

    for (int k = 1; k <= (KIND == GATHER ? 1 : ranks); ++k) {
        const int s = KIND == GATHER ? 0 : (rank + k) % ranks;  // each rank starts with a different reader
        const T* row = x + s * count;
        const bool whole = on_16(row);
        const unsigned long long index =
            static_cast<unsigned long long>(KIND == GATHER ? rank : static_cast<long long>(rank) * ranks + s) * size;
        for (long long c = begin; c < chunks; c += step) {
            load_chunk<GROUP, ROTATED>(v, row, c, count, whole);
            put_chunk<WIRE, GROUP, STOCHASTIC>(v, c, seed, index, KIND == GATHER ? ranks : 1,
                [&](int p) { return part(KIND == GATHER ? (rank + p) % ranks : s, rank); });
        }
    }
    const int met = meet(rooms, rank, ranks, number + 1, call, false, patience, fault);
    for (int s = 0; s < (KIND == SCATTER ? 1 : ranks); ++s) {
        T* row = out + s * count;
        const bool whole = on_16(row);
        for (long long c = begin; c < chunks; c += step) {
            sum_chunk<WIRE, GROUP>(v, met == MET ? KIND == SCATTER ? ranks : 1 : 0, c,
                [&](int p) { return part(rank, KIND == SCATTER ? p : s); });
            if (met != MET) spoil(v);
            store_chunk<GROUP, ROTATED>(row, c, count, whole, v);
        }
    }
    if (threadIdx.x == 0)
        for (int b = blockIdx.x; b < BLOCKS; b += gridDim.x) epochs[b] = number + 1;
}
