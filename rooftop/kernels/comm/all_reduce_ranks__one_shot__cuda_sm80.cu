/* rooftop
idea    = "For small tensors, which are bound by latency: each rank puts its tensor in codes into memory that all see, one meeting, and each adds up all of it. Two halves of the room take turns, so that nobody waits for the readers of the call before."
predict = { speedup = 1.5 }
limit   = "the meeting, and W - 1 times the codes over the link"
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
one_shot(int ranks, int first, long long count, long long size, const T* x, T* out, unsigned char* room, const unsigned long long* table, long long bytes,
         long long half, unsigned* epochs, int* fault, unsigned call, int seed, long long patience) {
    using M = Message<WIRE, GROUP>;
    const int rank = first + blockIdx.y;
    const Rooms<HERE> rooms{room, table, bytes};
    x += static_cast<long long>(blockIdx.y) * count, out += static_cast<long long>(blockIdx.y) * count;
    const bool whole_x = on_16(x), whole_out = on_16(out);
    epochs += HERE ? rank * 256 : 0;
    const unsigned number = epochs[blockIdx.x];
    const long long packs = size / PACK, step = static_cast<long long>(gridDim.x) * THREADS, begin = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    const int lane = threadIdx.x % 32;
    constexpr long long FLAGS = 256 * MOST_RANKS * 8;
    const auto sent = [&](int owner) { return M{rooms(owner) + FLAGS + (number & 1) * half, size}; };

    const M to = sent(rank);
    for (long long i = begin; i - lane < packs; i += step) {
        float v[PACK];
        load_pack(v, x, i * PACK, i < packs ? count : 0, whole_x);
        if (ROTATED) rotate<GROUP>(v);
        to.template put<STOCHASTIC>(i * PACK, i < packs, v, seed, static_cast<unsigned long long>(rank) * size + i * PACK);
    }
    const int met = meet(rooms, rank, ranks, number + 1, call, false, patience, fault);
    for (long long i = begin; i - lane < packs; i += step) {
        float sum[PACK];
#pragma unroll
        for (int j = 0; j < PACK; ++j) sum[j] = met == MET ? 0.f : not_a_number();
        if (i < packs && met == MET) sum_pack<WIRE, GROUP>(sum, ranks, i * PACK, sent);
        if (ROTATED) rotate<GROUP>(sum);
        if (i < packs) store_pack(out, i * PACK, count, whole_out, sum);
    }
    if (threadIdx.x == 0)
        for (int b = blockIdx.x; b < 256; b += gridDim.x) epochs[b] = number + 1;
}
