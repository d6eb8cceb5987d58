/* rooftop
idea    = """A warp holds a short row in registers, of floats as float32. The k-th of the 32 largest elements of its lanes is a bar that at least k \
  elements reach, and rarely many more. Lanes write the indices of theirs to a list in shared memory; then each lane makes one entry of the \
  list, key and index in one number, and counts the larger ones. So only the elements of the list are turned into keys. If the list is too \
  small (many equal elements), or with NaN, the k-th key is found bit by bit, by ballots."""
predict = { speedup = 6 }
limit   = "Instructions: of a warp for a row of 300 elements about 370, whose read takes as long as 250."
dtypes  = ["f32", "f16", "bf16", "i64", "i32"]
args    = ["x: T[R, N]"]
demands = { has = ["LDG"], spills = 0 }
python  = ["supports", "choose", "launches"]

[config]
each = 4
*/
#include "pdl.cuh"
#include "_sort_keys.cuh"

constexpr unsigned LIST = 128, WARPS = 4, LONGEST = 1024;  // entries of a warp's list; warps of a block; elements of a row

/// The larger one; NaN if one is NaN.
__device__ inline float larger(float a, float b) {
    float found;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));
    return found;
}
template <typename K>
__device__ K larger(K a, K b) { return a > b ? a : b; }

/// What elements are compared by, until few are left: floats as float32 (a NaN compares with nothing), integers as keys. `lowest` is padding.
template <typename T>
struct Compared {
    using V = key_of<T>;
    __device__ static V lowest() { return 0; }
    __device__ static V of(bits_of<T> b, unsigned sense) { return to_key<T>(b, sense); }
};
template <typename T>
struct ComparedFloat {
    using V = float;
    __device__ static V lowest() { return __uint_as_float(0xff800000u); }
    __device__ static V of(bits_of<T> b, unsigned sense) {
        return __uint_as_float(__float_as_uint(number<T>(b)) + (sense << 31));  // the smallest first: with the other sign
    }
};
template <>
struct Compared<float> : ComparedFloat<float> {};
template <>
struct Compared<__half> : ComparedFloat<__half> {};
template <>
struct Compared<__nv_bfloat16> : ComparedFloat<__nv_bfloat16> {};

/// An entry of the list: the larger one is first in order. 0 is below all of them.
template <int BYTES>
struct Entry {
    unsigned long long word;
    __device__ static Entry of(unsigned key, unsigned index) { return {static_cast<unsigned long long>(key) << 32 | (LONGEST - index)}; }
    __device__ unsigned index() const { return LONGEST - static_cast<unsigned>(word); }
    __device__ bool operator>(Entry o) const { return word > o.word; }
};
template <>
struct Entry<2> {  // 26 bits, which are a float32: comparing two is one instruction
    float word;
    __device__ static Entry of(unsigned key, unsigned index) { return {__uint_as_float(key << 10 | (LONGEST - 1 - index))}; }
    __device__ unsigned index() const { return LONGEST - 1 - __float_as_uint(word) % LONGEST; }
    __device__ bool operator>(Entry o) const { return word > o.word; }
};
template <>
struct Entry<8> {
    unsigned long long key, at;
    __device__ static Entry of(unsigned long long key, unsigned index) { return {key, LONGEST - index}; }
    __device__ unsigned index() const { return LONGEST - static_cast<unsigned>(at); }
    __device__ bool operator>(Entry o) const { return key > o.key || (key == o.key && at > o.at); }
};

/// How many of the first n entries of `all`, read in packs of 16 bytes (n is a multiple of a pack), hold `test`.
template <typename E, typename Test>
__device__ unsigned counted(const E* all, unsigned n, Test test) {
    constexpr int PACK = 16 / sizeof(E);
    struct alignas(16) Pack { E v[PACK]; };
    float found = 0;  // a comparison and an addition of float32 are two instructions, of integers three
#pragma unroll 4
    for (unsigned t = 0; t < n; t += PACK) {
        const Pack p = *reinterpret_cast<const Pack*>(all + t);
#pragma unroll
        for (int j = 0; j < PACK; ++j) found += test(p.v[j]) ? 1.f : 0.f;
    }
    return static_cast<unsigned>(found);
}

template <typename V>
constexpr bool PAIRS = false;
#if __CUDA_ARCH__ >= 900  // instructions compare two bfloat16 at a time
template <>
constexpr bool PAIRS<float> = true;
#endif

/// The k-th largest `most` of the warp's lanes, of floats (with PAIRS) rounded down to bfloat16; `top` has room for them.
template <typename V>
__device__ V kth_of_lanes(V most, unsigned k, unsigned lane, V* top) {
    unsigned reached;  // by how many lanes
    if constexpr (PAIRS<V>) {
        const unsigned bits = __float_as_uint(most);
        most = __uint_as_float((bits >> 31 ? bits + 0xffff : bits) & 0xffff0000u);
        __nv_bfloat16* tops = reinterpret_cast<__nv_bfloat16*>(top);
        tops[lane] = __float2bfloat16(most);
        __syncwarp();
        const __nv_bfloat162 mine = __float2bfloat162_rn(most);
        __nv_bfloat162 found = __float2bfloat162_rn(0.f);
#pragma unroll
        for (int t = 0; t < 32; t += 8) {
            struct alignas(16) Pack { __nv_bfloat162 v[4]; };
            const Pack p = *reinterpret_cast<const Pack*>(tops + t);
#pragma unroll
            for (int j = 0; j < 4; ++j) found = __hadd2(found, __hge2(p.v[j], mine));
        }
        reached = static_cast<unsigned>(__low2float(found) + __high2float(found));
    } else {
        top[lane] = most;
        __syncwarp();
        reached = counted(top, 32, [&](V other) { return other >= most; });
    }
    // Of the lanes that at least k lanes reach, the one that the fewest do.
    return __shfl_sync(~0u, most, __reduce_min_sync(~0u, reached >= k ? reached * 32 + lane : ~0u) % 32);
}

/// Rows of more than 32 (R - 2) elements and at most 32 R, one warp each; 1 <= k <= 32. Lane l has elements l, l + 32, ...
template <typename T, int R>
__global__ void __launch_bounds__(32 * WARPS, R <= 10 ? 16 : R <= 24 ? 8 : 4)
    first_of_rows(const bits_of<T>* __restrict__ x, long long xs, unsigned rows, unsigned n, const void* __restrict__ lengths, int wide, unsigned k,
        unsigned sense, bits_of<T>* __restrict__ values, long long* __restrict__ indices) {
    using C = Compared<T>;
    using V = typename C::V;
    using E = Entry<sizeof(bits_of<T>)>;
    constexpr unsigned PACK = 16 / sizeof(E);
    __shared__ __align__(16) V tops[WARPS][32];
    __shared__ unsigned short listed[WARPS][LIST];
    __shared__ __align__(16) E entries[WARPS][LIST];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.x * WARPS + warp;
    gdc_wait();
    if (row >= rows) return;
    const bits_of<T>* r = x + row * xs;
    const unsigned length = length_of(lengths, wide, row, n), wanted = min(k, length);
    unsigned short* list = listed[warp];
    E* entry = entries[warp];
    V v[R];
#pragma unroll
    for (int j = 0; j < R; ++j) v[j] = j < R - 2 || j * 32 + lane < n ? C::of(r[j * 32 + lane], sense) : C::lowest();
    if (length < n) {
#pragma unroll
        for (int j = 0; j < R; ++j) v[j] = j * 32 + lane < length ? v[j] : C::lowest();
    }
    V most = v[0];
#pragma unroll
    for (int j = 1; j < R; ++j) most = larger(most, v[j]);
    const V bar = kth_of_lanes(most, k, lane, tops[warp]);
    unsigned near = 0;  // bit j: v[j] reaches the bar
#pragma unroll
    for (int j = 0; j < R; j += 16) {  // in float32: two instructions an element
        float bits = 0;
#pragma unroll
        for (int i = j; i < R && i < j + 16; ++i) bits = fmaf(v[i] >= bar ? 1.f : 0.f, static_cast<float>(1 << (i - j)), bits);
        near |= static_cast<unsigned>(bits) << j;
    }
    unsigned held = __popc(near), to = held;  // how many of this lane, then of the lanes up to it
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const unsigned before_them = __shfl_up_sync(~0u, held, step);
        if (lane >= step) held += before_them;
    }
    to = held - to;
    held = __shfl_sync(~0u, held, 31);
    if (bar > C::lowest() && held <= LIST && !__any_sync(~0u, most != most)) {
        for (; near != 0; near &= near - 1) list[to++] = (__ffs(near) - 1) * 32 + lane;
    } else {  // the bits of the last key, the highest first: as many as at least `wanted` elements have
        using K = key_of<T>;
        K key[R], last = 0;
#pragma unroll
        for (int j = 0; j < R; ++j) key[j] = j * 32 + lane < length ? to_key<T>(r[j * 32 + lane], sense) : 0;
#pragma unroll 1
        for (int bit = key_bits<T> - 1; bit >= 0; --bit) {
            const K higher = last | K(1) << bit;
            unsigned count = 0;
#pragma unroll
            for (int j = 0; j < R; ++j) count += __popc(__ballot_sync(~0u, key[j] >= higher));
            if (count >= wanted) last = higher;
        }
        unsigned larger_ones = 0;
#pragma unroll
        for (int j = 0; j < R; ++j) larger_ones += __popc(__ballot_sync(~0u, key[j] > last));
        unsigned equals = wanted - larger_ones;  // of those that equal the last key, so many of the lowest indices
        const unsigned below = (1u << lane) - 1;
        held = 0;
#pragma unroll
        for (int j = 0; j < R; ++j) {
            const bool same = j * 32 + lane < length && key[j] == last;
            const unsigned alike = __ballot_sync(~0u, same);
            const bool in = key[j] > last || (same && __popc(alike & below) < equals);
            equals -= min(equals, static_cast<unsigned>(__popc(alike)));
            const unsigned all = __ballot_sync(~0u, in);
            if (in) list[held + __popc(all & below)] = j * 32 + lane;
            held += __popc(all);
        }
    }
    __syncwarp();
    const unsigned padded = (held + PACK - 1) / PACK * PACK;
    for (unsigned e = lane; e < padded; e += 32) entry[e] = e < held ? E::of(to_key<T>(r[list[e]], sense), list[e]) : E{};
    __syncwarp();
    for (unsigned e = lane; e < held; e += 32) {
        const E mine = entry[e];
        const unsigned place = counted(entry, padded, [&](E other) { return other > mine; });
        if (place < k) {
            values[static_cast<long long>(row) * k + place] = r[mine.index()];  // from the L1
            indices[static_cast<long long>(row) * k + place] = mine.index();
        }
    }
    if (lane >= wanted && lane < k) {  // past the row's length
        values[static_cast<long long>(row) * k + lane] = last_value<T>(sense);
        indices[static_cast<long long>(row) * k + lane] = -1;
    }
}
