/* rooftop
idea    = """Each rank pushes its quantised tensor into the memory of all ranks, and each computes the whole sum: one rounding and one \
  synchronisation, for small tensors, which are bound by latency, and between two ranks for all, since two shots send as many bytes there. \
  A block goes by slabs: while one crosses the link it adds up the slab before. A slab's codes lie in one of four quarters of the receive \
  buffer, in turn, so that no rank waits for the readers of earlier ones, and large tensors pass through the L2."""
limit   = """predicted for two H200: 256 MiB of bf16 as int8 in 400 us, of which the bytes need 350 at 400 GB/s; small tensors: the \
  synchronisation"""
dtypes  = ["f32", "f16", "bf16"]
tensors = ["x: T[W, N]", "out: T[W, N]"]
args    = ["seed: i32"]
python  = ["supports", "choose", "launches", "scratch", "zeroed"]
demands = { spills = 24 }  # bytes on sm_80; 8 on sm_86 and sm_89, none from sm_90 on

[config]
blocks = 1
*/
#include "_ranks.cuh"
#include "_wire.cuh"

/// size: elements in whole groups. each: chunks that a warp has in a slab. quarter: bytes of each of the four quarters of a room behind its
/// flags; a quarter holds a message of a slab from each rank.
template <typename T, int WIRE, int GROUP, bool ROTATED, bool STOCHASTIC, bool HERE>
__global__ void __launch_bounds__(512, 1)
one_shot(int ranks, int first, long long count, long long size, int each, const T* __restrict__ x, T* __restrict__ out,
    unsigned char* room, const unsigned long long* table, long long bytes, long long quarter, unsigned* epochs, int* fault, unsigned call,
    int seed, long long patience) {
    using M = Message<WIRE, GROUP>;
    const int rank = first + blockIdx.y;
    const Rooms<HERE> rooms{room, table, bytes};
    x += blockIdx.y * count, out += blockIdx.y * count;
    const bool whole_x = on_16(x), whole_out = on_16(out);
    epochs += HERE ? rank * BLOCKS : 0;
    const unsigned number = epochs[blockIdx.x];
    const int chunks = static_cast<int>((size + CHUNK - 1) / CHUNK);
    // a warp's chunks
    const int begin = threadIdx.x / 32 * gridDim.x + blockIdx.x, step = gridDim.x * (blockDim.x / 32), slab = each * step;
    const int slabs = (chunks + slab - 1) / slab;
    const long long held = min(static_cast<long long>(slab) * CHUNK, size), message = M::bytes(held);  // elements and bytes of a message
    const auto part = [&](int reader, int source, int t) {
        return M{rooms(reader) + FLAGS + ((number + t) & 3) * quarter + source * message, held};
    };
    float v[DEEP][PACK];
    int met = MET;

    for (int t = 0; t <= slabs; ++t) {
        if (t < slabs) {
            for (int c = begin; c < min(slab, chunks - t * slab); c += step) {
                load_chunk<GROUP, ROTATED>(v, x, t * slab + c, count, whole_x);
                put_chunk<WIRE, GROUP, STOCHASTIC>(v, c, seed, static_cast<unsigned long long>(rank) * size + static_cast<long long>(t) * slab * CHUNK, ranks,
                    [&](int p) { return part((rank + p) % ranks, rank, t); });
            }
        }
        if (t > 0) {
            met = hear(rooms, rank, ranks, number + t, call, false, patience, fault);
            if (met != MET) break;
            for (int c = begin; c < min(slab, chunks - (t - 1) * slab); c += step) {
                sum_chunk<WIRE, GROUP>(v, ranks, c, [&](int p) { return part(rank, p, t - 1); });
                store_chunk<GROUP, ROTATED>(out, (t - 1) * slab + c, count, whole_out, v);
            }
        }
        // only now, when its stores have arrived: a thread that waits for them holds up its block
        if (t < slabs) tell(rooms, rank, ranks, number + t + 1, call, false);
    }
    const unsigned last = number + slabs;
    if (met != MET) {  // nothing of the block's is a sum
        tell(rooms, rank, ranks, last, call, true);
        for (int c = begin; c < chunks; c += step) {
            spoil(v);
            store_chunk<GROUP, ROTATED>(out, c, count, whole_out, v);
        }
    }
    if (threadIdx.x == 0)
        for (int b = blockIdx.x; b < BLOCKS; b += gridDim.x) epochs[b] = last;
}
