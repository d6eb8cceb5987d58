/* rooftop
idea    = """Each rank pushes its codes of every other stripe into the memory of the stripe's owner, which adds them up and pushes the codes \
  of the sum to all ranks. A block does both by slabs, in a pipeline: while the codes of one slab cross the link, it adds up the slab before \
  and decodes the sums of the one before that. One flag a slab says that all three are done, and is waited for a slab later, so the link \
  is busy throughout and no thread waits for a store. What a rank sends to itself stays in registers, encoded and decoded like the rest, so \
  that results are equal."""
limit   = """predicted for two H200: 256 MiB of bf16 as int8 in 420 us, of which the bytes need 350 at 400 GB/s; in phases, without the \
  pipeline, it took 680, since the link was idle while own codes and sums were read and rounded"""
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

/// share: elements of a stripe. each: chunks of a stripe that a warp has in a slab. A room has, behind its flags, the messages for its
/// rank's stripe, one from each rank; and, `second` bytes from its start, the messages of the sums, one for each stripe.
template <typename T, int WIRE, int GROUP, bool ROTATED, bool STOCHASTIC, bool HERE>
__global__ void __launch_bounds__(512, 1)
two_shot(int ranks, int first, long long count, long long share, int each, const T* __restrict__ x, T* __restrict__ out,
    unsigned char* room, const unsigned long long* table, long long bytes, long long second, unsigned* epochs, int* fault, unsigned call,
    int seed, long long patience) {
    using M = Message<WIRE, GROUP>;
    constexpr bool KEPT = !ROTATED && !STOCHASTIC;  // own codes stay in registers, of which there are too few otherwise
    const int rank = first + blockIdx.y;
    const Rooms<HERE> rooms{room, table, bytes};
    x += blockIdx.y * count, out += blockIdx.y * count;
    const bool whole_x = on_16(x), whole_out = on_16(out);
    epochs += HERE ? rank * BLOCKS : 0;
    const unsigned number = epochs[blockIdx.x];
    const long long message = M::bytes(share);
    const int chunks = static_cast<int>((share + CHUNK - 1) / CHUNK);
    // a warp's chunks, of every stripe the same
    const int begin = threadIdx.x / 32 * gridDim.x + blockIdx.x, step = gridDim.x * (blockDim.x / 32), slab = each * step;
    const int slabs = (chunks + slab - 1) / slab;
    const auto part = [&](int owner, int source) { return M{rooms(owner) + FLAGS + source * message, share}; };
    const auto sum = [&](int reader, int owner) { return M{rooms(reader) + second + owner * message, share}; };
    const auto load = [&](float (&v)[DEEP][PACK], int s, long long c) {
        load_chunk<GROUP, ROTATED>(v, x + s * share, c, min(count - s * share, share), whole_x);
    };
    const auto store = [&](float (&v)[DEEP][PACK], int s, long long c) {
        store_chunk<GROUP, ROTATED>(out + s * share, c, min(count - s * share, share), whole_out, v);
    };
    const auto index = [&](int source, int s) { return (static_cast<unsigned long long>(source) * ranks + s) * share; };
    float v[DEEP][PACK];
    int met = MET;
    const auto add_up = [&](int c) {  // v: the sum of the own stripe's chunk, this rank's codes as the others would read them
        unsigned in[DEEP][M::W::WORDS];
        float scales;
        int next = rank == 0;  // of the others, in their order
        part(rank, next).fetch(in, scales, c);
        for (int p = 0; p < ranks; ++p) {
            if (p == rank) {
                const long long from = static_cast<long long>(rank) * share;
#pragma unroll
                for (int u = 0; u < DEEP; ++u) {  // one pack after another: all would not fit into the registers
                    const long long at = static_cast<long long>(c) * CHUNK + u * ROW + threadIdx.x % 32 * PACK;
                    float own[PACK];
                    load_pack(own, x + from, at, min(count - from, share), whole_x);
                    const Packed<WIRE> pack = encode<WIRE, GROUP, false>(own, 0, 0);
                    values<WIRE>(own, pack.w, pack.s);
#pragma unroll
                    for (int i = 0; i < PACK; ++i) v[u][i] = p == 0 ? own[i] : __fadd_rn(v[u][i], own[i]);
                }
            } else {
                add_fetched<WIRE, GROUP>(v, in, scales, p == 0);
                next += next + 1 == rank ? 2 : 1;
                if (next < ranks) part(rank, next).fetch(in, scales, c);
            }
        }
    };

    for (int t = 0; t <= slabs + 1; ++t) {
        if (t < slabs) {  // codes of slab t leave, to the next rank first
            for (int k = 1; k < ranks + !KEPT; ++k) {
                const int s = (rank + k) % ranks;
                for (int c = begin + t * slab; c < min((t + 1) * slab, chunks); c += step) {
                    load(v, s, c);
                    put_chunk<WIRE, GROUP, STOCHASTIC>(v, c, seed, index(rank, s), 1, [&](int) { return part(s, rank); });
                }
            }
        }
        if (t > 0) {
            met = hear(rooms, rank, ranks, number + t, call, false, patience, fault);
            if (met != MET) break;
            if (t <= slabs) {  // the sum of the slab before, whose codes have come
                for (int c = begin + (t - 1) * slab; c < min(t * slab, chunks); c += step) {
                    if constexpr (KEPT) add_up(c);
                    else sum_chunk<WIRE, GROUP>(v, ranks, c, [&](int p) { return part(rank, p); });
                    Packed<WIRE> packs[DEEP];
                    encode_chunk<WIRE, GROUP, STOCHASTIC>(packs, v, c, seed, index(ranks, rank));
                    put_packs<WIRE, GROUP>(packs, c, ranks - 1, [&](int p) { return sum((rank + 1 + p) % ranks, rank); });
                    read_packs<WIRE>(v, packs);
                    store(v, rank, c);
                }
            }
        }
        if (t > 1) {  // the others' sums of the slab before that
            for (int k = 1; k < ranks; ++k) {
                const int s = (rank + k) % ranks;
                for (int c = begin + (t - 2) * slab; c < min((t - 1) * slab, chunks); c += step) {
                    sum_chunk<WIRE, GROUP>(v, 1, c, [&](int) { return sum(rank, s); });
                    store(v, s, c);
                }
            }
        }
        // only now, when its stores have arrived: a thread that waits for them holds up its block
        if (t <= slabs) tell(rooms, rank, ranks, number + t + 1, call, false);
    }
    const unsigned last = number + slabs + 1;
    if (met != MET) {  // nothing of the block's is a sum
        tell(rooms, rank, ranks, last, call, true);
        for (int s = 0; s < ranks; ++s) {
            for (int c = begin; c < chunks; c += step) {
                spoil(v);
                store(v, s, c);
            }
        }
    }
    if (threadIdx.x == 0)
        for (int b = blockIdx.x; b < BLOCKS; b += gridDim.x) epochs[b] = last;
}
