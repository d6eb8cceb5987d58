/* rooftop
idea    = """The steps of a rank between messages, as separate launches: tensors to messages, messages to the message of their sum, \
  messages to tensors. torch.distributed transfers the messages between launches; if one device plays all ranks, they are in its memory \
  already."""
limit   = "memory: x is read and the codes written; the codes are read and out written"
dtypes  = ["f32", "f16", "bf16"]
tensors = ["x: T[W, N]", "out: T[W, N]"]
args    = ["seed: i32"]
python  = ["supports", "choose", "launches", "scratch"]
demands = { spills = 0 }

[config]
blocks = 1
*/
#include "_wire.cuh"

constexpr int THREADS = 512;

/// Encodes row blockIdx.y of tensor blockIdx.z as a message of `size` elements, padded with zeros. A tensor has `most` elements in
/// consecutive rows of `count`.
template <typename T, int WIRE, int GROUP, bool ROTATED, bool STOCHASTIC>
__global__ void __launch_bounds__(THREADS)
encode_rows(long long count, long long most, long long size, const T* __restrict__ x, unsigned char* __restrict__ messages, int seed,
    long long start) {
    using M = Message<WIRE, GROUP>;
    const long long index = blockIdx.z * static_cast<long long>(gridDim.y) + blockIdx.y, left = most - blockIdx.y * count,
        held = left < count ? left : count;
    const T* row = x + blockIdx.z * most + blockIdx.y * count;
    const bool whole = on_16(row);
    const M to{messages + index * M::bytes(size), size};
    float v[DEEP][PACK];
    for (long long c = threadIdx.x / 32 * gridDim.x + blockIdx.x; c * CHUNK < size; c += gridDim.x * (THREADS / 32)) {
        load_chunk<GROUP, ROTATED>(v, row, c, held, whole);
        put_chunk<WIRE, GROUP, STOCHASTIC>(v, c, seed, static_cast<unsigned long long>(start + index * size), 1, [&](int) { return to; });
    }
}

/// Adds the messages of `size` elements of `ranks` ranks, `stride` bytes apart, in the order of the ranks, and encodes the sum as a
/// message.
template <int WIRE, int GROUP, bool STOCHASTIC>
__global__ void __launch_bounds__(THREADS, 1)
add_messages(int ranks, long long size, long long stride, unsigned char* __restrict__ messages, unsigned char* __restrict__ sum, int seed,
    long long start) {
    using M = Message<WIRE, GROUP>;
    messages += blockIdx.y * M::bytes(size), sum += blockIdx.y * M::bytes(size);
    const M to{sum, size};
    const unsigned long long index = static_cast<unsigned long long>(start) + blockIdx.y * size;
    float v[DEEP][PACK];
    for (long long c = threadIdx.x / 32 * gridDim.x + blockIdx.x; c * CHUNK < size; c += gridDim.x * (THREADS / 32)) {
        sum_chunk<WIRE, GROUP>(v, ranks, c, [&](int p) { return M{messages + p * stride, size}; });
        put_chunk<WIRE, GROUP, STOCHASTIC>(v, c, seed, index, 1, [&](int) { return to; });
    }
}

/// Decodes row blockIdx.y of tensor blockIdx.z: the sum of `ranks` messages of `size` elements, `stride` bytes apart, of which message
/// blockIdx.y is the first. A tensor has `most` elements in rows of `count`. All tensors get the same values.
template <typename T, int WIRE, int GROUP, bool ROTATED>
__global__ void __launch_bounds__(THREADS, 1)
decode_rows(int ranks, long long count, long long most, long long size, long long stride, unsigned char* __restrict__ messages,
    T* __restrict__ out) {
    using M = Message<WIRE, GROUP>;
    messages += blockIdx.y * M::bytes(size);
    T* row = out + blockIdx.z * most + blockIdx.y * count;
    const bool whole = on_16(row);
    const long long left = most - blockIdx.y * count, kept = left < count ? left : count;
    float v[DEEP][PACK];
    for (long long c = threadIdx.x / 32 * gridDim.x + blockIdx.x; c * CHUNK < size; c += gridDim.x * (THREADS / 32)) {
        sum_chunk<WIRE, GROUP>(v, ranks, c, [&](int p) { return M{messages + p * stride, size}; });
        store_chunk<GROUP, ROTATED>(row, c, kept, whole, v);
    }
}
