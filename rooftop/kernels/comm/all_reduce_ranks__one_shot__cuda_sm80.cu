/* rooftop
idea    = "For small tensors, which are bound by latency: each rank puts its tensor in codes into memory that all see, one meeting, and each adds up all of it. Two halves of the room take turns, so that nobody waits for the readers of the call before."
limit   = "the meeting: on two H200 8.9 us for 256 KiB (NCCL 12.2), of which every thread's fence of the system is a part; W - 1 times the codes over the link"
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

/// size: elements of a message, whole groups. half: bytes of one of the two places for it behind the flags.
template <typename T, int WIRE, int GROUP, bool ROTATED, bool STOCHASTIC, bool HERE>
__global__ void __launch_bounds__(THREADS, 1)
one_shot(int ranks, int first, long long count, long long size, const T* __restrict__ x, T* __restrict__ out, unsigned char* room, const unsigned long long* table, long long bytes,
         long long half, unsigned* epochs, int* fault, unsigned call, int seed, long long patience) {
    using M = Message<WIRE, GROUP>;
    const int rank = first + blockIdx.y;
    const Rooms<HERE> rooms{room, table, bytes};
    x += blockIdx.y * count, out += blockIdx.y * count;
    const bool whole_x = on_16(x), whole_out = on_16(out);
    epochs += HERE ? rank * BLOCKS : 0;
    const unsigned number = epochs[blockIdx.x];
    const long long step = static_cast<long long>(gridDim.x) * THREADS, begin = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    const auto sent = [&](int owner) { return M{rooms(owner) + FLAGS + (number & 1) * half, size}; };

    encode_row<ROTATED, STOCHASTIC>(sent(rank), x, count, whole_x, begin, step, seed, static_cast<unsigned long long>(rank) * size);
    const int met = meet(rooms, rank, ranks, number + 1, call, false, patience, fault);
    sum_row<WIRE>(met == MET ? ranks : 0, size / PACK, begin, step, sent, [&](long long i, bool in, float (&v)[PACK]) {
        if (met != MET) spoil(v);
        if (ROTATED) rotate<GROUP>(v);
        if (in) store_pack(out, i * PACK, count, whole_out, v);
    });
    if (threadIdx.x == 0)
        for (int b = blockIdx.x; b < BLOCKS; b += gridDim.x) epochs[b] = number + 1;
}
