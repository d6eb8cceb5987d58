/* rooftop
idea    = """What stands behind the row-parallel products of a layer that decodes, in one kernel: each rank pushes its rows into the \
  memory of all ranks, all ranks synchronise once, and each rank adds up whole rows, adds the residual, normalises them out of its \
  registers, and writes them in their type or as codes. A row belongs to one block, so its squares are added without a second synchronisation."""
limit   = "not measured: the synchronisation, and W - 1 times the rows over the link"
dtypes  = ["f32", "f16", "bf16"]
args    = ["eps: f32"]
python  = ["supports", "choose", "launches", "scratch", "zeroed"]
demands = { spills = 0 }

[config]
threads = 256
*/
#include "_ranks.cuh"
#include "_wire.cuh"

constexpr int NORMED = 0, TO_INT8 = 1, TO_E4M3 = 2;  // what is written

/// The sum or (MOST) the largest of the block's numbers; all threads get it. `shared` has 32 words.
template <bool MOST>
__device__ inline float over_block(float v, float* shared) {
    const auto both = [](float a, float b) { return MOST ? fmaxf(a, b) : __fadd_rn(a, b); };
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) v = both(v, __shfl_xor_sync(~0u, v, lanes));
    const int lane = threadIdx.x % 32;
    __syncthreads();  // the last call's words have been read
    if (lane == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
    v = lane < blockDim.x / 32 ? shared[lane] : 0;
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) v = both(v, __shfl_xor_sync(~0u, v, lanes));
    return v;
}

template <int OUT>
__device__ inline float scale_of(float largest) {
    return fminf(fmaxf(__fdiv_rn(largest, OUT == TO_INT8 ? 127.f : 448.f), 0x1p-126f), INFINITE);
}

/// The codes of 8 elements from `at` on; infinities are the outermost ones, NaN is 0 (int8) or its own code (e4m3).
template <int OUT>
__device__ inline void store_codes(unsigned char* row, long long at, long long count, bool whole, const float (&v)[PACK], float s) {
    unsigned w[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < PACK; ++i) {
        const float t = __fdiv_rn(v[i], s);
        unsigned code;
        if constexpr (OUT == TO_INT8) code = t != t ? 0 : __float2int_rn(fminf(fmaxf(t, -127.f), 127.f)) & 255;
        else code = t != t ? 0x7f : __nv_cvt_float_to_fp8(t, __NV_SATFINITE, __NV_E4M3);
        w[i / 4] |= code << (i % 4 * 8);
    }
    if (whole && at + PACK <= count) __stcs(reinterpret_cast<uint2*>(row + at), make_uint2(w[0], w[1]));
    else {
#pragma unroll
        for (int i = 0; i < PACK; ++i)
            if (at + i < count) row[at + i] = static_cast<unsigned char>(w[i / 4] >> (i % 4 * 8));
    }
}

/// x, residual, sum: [rows, columns], weight: [columns], of each rank; residual and weight may be null. out: T or codes. scale:
/// one a row (OUT_GROUP 0) or for each OUT_GROUP columns. half: bytes of each of the two halves of a room behind its flags; a half holds
/// a message of each row from each rank.
template <typename T, int WIRE, int GROUP, bool HERE, typename W, int OUT, int OUT_GROUP>
__global__ void __launch_bounds__(256, 1)
all_reduce_norm(int ranks, int first, long long rows, long long columns, const T* __restrict__ x, const T* __restrict__ residual,
    const W* __restrict__ weight, T* sum, unsigned char* __restrict__ out, float* __restrict__ scale, unsigned char* room,
    const unsigned long long* table, long long bytes, long long half, unsigned* epochs, int* fault, unsigned call, float eps,
    long long patience) {
    using M = Message<WIRE, GROUP>;
    __shared__ float shared[32];
    const int rank = first + blockIdx.y, warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
    const Rooms<HERE> rooms{room, table, bytes};
    const long long across = OUT_GROUP ? (columns + OUT_GROUP - 1) / OUT_GROUP : 1;
    x += blockIdx.y * rows * columns, sum += blockIdx.y * rows * columns;
    if (residual) residual += blockIdx.y * rows * columns;
    if (weight) weight += blockIdx.y * columns;
    out += blockIdx.y * rows * columns * (OUT == NORMED ? sizeof(T) : 1);
    if (OUT != NORMED) scale += blockIdx.y * rows * across;
    epochs += HERE ? rank * BLOCKS : 0;
    const unsigned number = epochs[blockIdx.x];
    const long long size = (columns + GROUP - 1) / GROUP * GROUP, message = M::bytes(size), chunks = (size + CHUNK - 1) / CHUNK;
    const bool kept = chunks <= warps;  // a warp's only chunk stays in its registers
    const auto part = [&](int reader, int source, long long row) {
        return M{rooms(reader) + FLAGS + (number & 1) * half + (source * rows + row) * message, size};
    };
    float v[DEEP][PACK], other[DEEP][PACK], by[DEEP][PACK];
    const auto load_residual = [&](long long row, long long c) {
        const T* line = residual + row * columns;
#pragma unroll
        for (int u = 0; u < DEEP; ++u) load_pack(other[u], line, c * CHUNK + u * ROW + lane * PACK, columns, on_16(line));
    };
    const auto load_weight = [&](long long c) {
#pragma unroll
        for (int u = 0; u < DEEP; ++u) load_pack(by[u], weight, c * CHUNK + u * ROW + lane * PACK, columns, on_16(weight));
    };

    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        const T* from = x + row * columns;
        const bool whole = on_16(from);
        for (long long c = warp; c < chunks; c += warps) {
            load_chunk<GROUP, false>(v, from, c, columns, whole);
            put_chunk<WIRE, GROUP, false>(v, c, 0, 0, ranks, [&](int p) { return part((rank + p) % ranks, rank, row); });
        }
    }
    tell(rooms, rank, ranks, number + 1, call, false);
    const bool early = kept && warp < chunks && blockIdx.x < rows;  // loads that the waiting hides
    if (early && residual) load_residual(blockIdx.x, warp);
    if (early && weight) load_weight(warp);
    const int met = hear(rooms, rank, ranks, number + 1, call, false, patience, fault);
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        T* const sums = sum + row * columns;
        const bool whole = on_16(sums);
        const auto add = [&](long long c) {  // v: what the ranks and the residual add up to
            sum_chunk<WIRE, GROUP>(v, met == MET ? ranks : 0, c, [&](int p) { return part(rank, p, row); });
            if (met != MET) spoil(v);
            if (!residual) return;
            if (!early || row != blockIdx.x) load_residual(row, c);
#pragma unroll
            for (int u = 0; u < DEEP; ++u) {
#pragma unroll
                for (int i = 0; i < PACK; ++i) v[u][i] = __fadd_rn(v[u][i], other[u][i]);
            }
        };
        float squares = 0;
        for (long long c = warp; c < chunks; c += warps) {
            add(c);
#pragma unroll
            for (int u = 0; u < DEEP; ++u) {
                const long long at = c * CHUNK + u * ROW + lane * PACK;
#pragma unroll
                for (int i = 0; i < PACK; ++i) squares = __fmaf_rn(v[u][i], v[u][i], squares);  // zeros past the end
                store_pack(sums, at, columns, whole, v[u]);
            }
        }
        const float part_of = __frcp_rn(__fsqrt_rn(__fadd_rn(__fdiv_rn(over_block<false>(squares, shared), columns), eps)));
        const auto normalise = [&](long long c) {
            if (!kept) {
                add(c);
                if (weight) load_weight(c);
            }
#pragma unroll
            for (int u = 0; u < DEEP; ++u) {
#pragma unroll
                for (int i = 0; i < PACK; ++i) {
                    v[u][i] = __fmul_rn(v[u][i], part_of);
                    if (weight) v[u][i] = __fmul_rn(v[u][i], by[u][i]);
                }
            }
        };
        if constexpr (OUT == NORMED) {
            T* const to = reinterpret_cast<T*>(out) + row * columns;
            const bool whole_out = on_16(to);
            for (long long c = warp; c < chunks; c += warps) {
                normalise(c);
                store_chunk<GROUP, false>(to, c, columns, whole_out, v);
            }
        } else {
            unsigned char* const to = out + row * columns;
            const bool whole_out = reinterpret_cast<unsigned long long>(to) % 8 == 0;
            float most = 0;
            if constexpr (OUT_GROUP == 0) {
                for (long long c = warp; c < chunks; c += warps) {
                    normalise(c);
#pragma unroll
                    for (int u = 0; u < DEEP; ++u) {
#pragma unroll
                        for (int i = 0; i < PACK; ++i)
                            if (c * CHUNK + u * ROW + lane * PACK + i < columns && is_finite(v[u][i])) most = fmaxf(most, fabsf(v[u][i]));
                    }
                }
                most = over_block<true>(most, shared);
            }
            float s = scale_of<OUT>(most);
            if (OUT_GROUP == 0 && threadIdx.x == 0) scale[row] = s;
            for (long long c = warp; c < chunks; c += warps) {
                if (OUT_GROUP || !kept) normalise(c);
#pragma unroll
                for (int u = 0; u < DEEP; ++u) {
                    const long long at = c * CHUNK + u * ROW + lane * PACK;
                    if constexpr (OUT_GROUP != 0) {
                        float largest = 0;
#pragma unroll
                        for (int i = 0; i < PACK; ++i)
                            if (at + i < columns && is_finite(v[u][i])) largest = fmaxf(largest, fabsf(v[u][i]));
#pragma unroll
                        for (int lanes = 1; lanes < OUT_GROUP / PACK; lanes *= 2)
                            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, lanes));
                        s = scale_of<OUT>(largest);
                        if (at < columns && at % OUT_GROUP == 0) scale[row * across + at / OUT_GROUP] = s;
                    }
                    store_codes<OUT>(to, at, columns, whole_out, v[u], s);
                }
            }
        }
    }
    if (threadIdx.x == 0)
        for (int b = blockIdx.x; b < BLOCKS; b += gridDim.x) epochs[b] = number + 1;
}
