// Messages between ranks, encoded and decoded by warps, 1024 elements at a time. rooftop/formats/wire.py defines their bytes.
//
// A chunk of 1024 elements is DEEP packs a lane: pack u of a lane is the 8 elements from 256 u + 8 lane on, so a warp's accesses are
// contiguous, and the chunk's scales are one access of the first lanes.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "words.cuh"

constexpr int BF16 = 0, FP8 = 1, INT8 = 2, INT4 = 3, PACK = 8, DEEP = 4, ROW = 32 * PACK, CHUNK = DEEP * ROW;

template <int WIRE>
struct Wire {
    static constexpr int BITS = WIRE == BF16 ? 16 : WIRE == INT4 ? 4 : 8, WORDS = PACK * BITS / 32;  // 32-bit words of a pack's codes
    static constexpr float MOST = WIRE == FP8 ? 448.f : WIRE == INT8 ? 127.f : 7.f, NEXT = WIRE == FP8 ? 416.f : WIRE == INT8 ? 126.f : 6.f;
};
constexpr float INFINITE = 3.4028234663852886e38f;  // anything larger is infinite
constexpr float WHOLE = 12582912.f;  // 1.5 * 2^23: added to a number, it leaves the nearest integer in the sum's low bits

__device__ inline bool is_finite(float v) { return fabsf(v) <= INFINITE; }
__device__ inline float not_a_number() { return __uint_as_float(0x7fc00000u); }

__device__ inline void spoil(float (&v)[DEEP][PACK]) {
#pragma unroll
    for (int u = 0; u < DEEP; ++u) {
#pragma unroll
        for (int i = 0; i < PACK; ++i) v[u][i] = not_a_number();
    }
}

// -- elements of memory

template <typename T>
__device__ inline float wide(unsigned word, int half);
template <>
__device__ inline float wide<__nv_bfloat16>(unsigned word, int half) { return __uint_as_float(half ? word & 0xffff0000u : word << 16); }
template <>
__device__ inline float wide<__half>(unsigned word,
    int half) { return __half2float(__ushort_as_half(static_cast<unsigned short>(half ? word >> 16 : word))); }

/// Whether 16-byte accesses are possible.
template <typename T>
__device__ inline bool on_16(const T* x) { return reinterpret_cast<unsigned long long>(x) % 16 == 0; }

/// 8 elements from `at` on, a multiple of 8; zeros from `count` on. `whole`: `x` is aligned to 16 bytes.
template <typename T>
__device__ inline void load_pack(float (&v)[PACK], const T* x, long long at, long long count, bool whole) {
    if (whole && at + PACK <= count) {
        constexpr int QUADS = PACK * sizeof(T) / 16;
        uint4 q[QUADS];
#pragma unroll
        for (int i = 0; i < QUADS; ++i) q[i] = __ldcs(reinterpret_cast<const uint4*>(x + at) + i);
#pragma unroll
        for (int i = 0; i < QUADS; ++i) {
            const unsigned w[4] = {q[i].x, q[i].y, q[i].z, q[i].w};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if constexpr (sizeof(T) == 4) v[4 * i + j] = __uint_as_float(w[j]);
                else v[8 * i + 2 * j] = wide<T>(w[j], 0), v[8 * i + 2 * j + 1] = wide<T>(w[j], 1);
            }
        }
    } else {
#pragma unroll
        for (int i = 0; i < PACK; ++i) v[i] = at + i < count ? static_cast<float>(x[at + i]) : 0.f;
    }
}

template <typename T>
__device__ inline void store_pack(T* x, long long at, long long count, bool whole, const float (&v)[PACK]) {
    if (whole && at + PACK <= count) {
        constexpr int QUADS = PACK * sizeof(T) / 16;
#pragma unroll
        for (int i = 0; i < QUADS; ++i) {
            unsigned w[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if constexpr (sizeof(T) == 4) w[j] = __float_as_uint(v[4 * i + j]);
                else {
                    const T low = static_cast<T>(v[8 * i + 2 * j]), high = static_cast<T>(v[8 * i + 2 * j + 1]);
                    w[j] = *reinterpret_cast<const unsigned short*>(&low) | static_cast<unsigned>(*reinterpret_cast<const unsigned short*>(&high)) << 16;
                }
            }
            __stcs(reinterpret_cast<uint4*>(x + at) + i, make_uint4(w[0], w[1], w[2], w[3]));
        }
    } else {
#pragma unroll
        for (int i = 0; i < PACK; ++i)
            if (at + i < count) x[at + i] = static_cast<T>(v[i]);
    }
}

// -- groups, of GROUP / 8 neighbouring lanes; every lane of the warp takes part

/// H v / sqrt(GROUP) of the group, with the additions in the order of rooftop/formats/wire.py.
template <int GROUP>
__device__ inline void rotate(float (&v)[PACK]) {
#pragma unroll
    for (int h = 1; h < PACK; h *= 2) {
#pragma unroll
        for (int i = 0; i < PACK; ++i) {
            if (i & h) continue;
            const float a = v[i], b = v[i | h];
            v[i] = __fadd_rn(a, b), v[i | h] = __fsub_rn(a, b);
        }
    }
#pragma unroll
    for (int lanes = 1; lanes < GROUP / PACK; lanes *= 2) {
        const bool upper = threadIdx.x & lanes;
#pragma unroll
        for (int i = 0; i < PACK; ++i) {
            const float other = __shfl_xor_sync(~0u, v[i], lanes);
            v[i] = upper ? __fsub_rn(other, v[i]) : __fadd_rn(v[i], other);
        }
    }
    constexpr float PART = GROUP == 32 ? 0.17677669529663687f : GROUP == 64 ? 0.125f : GROUP == 128 ? 0.08838834764831845f : 0.0625f;
#pragma unroll
    for (int i = 0; i < PACK; ++i) v[i] = __fmul_rn(v[i], PART);
}

/// The codes of a pack and the scale of its group.
template <int WIRE>
struct Packed {
    unsigned w[Wire<WIRE>::WORDS];
    float s;
};

/// size / most, rounded once, of most = MOST or NEXT: a quotient by the rounded reciprocal, and its remainder's.
template <int WIRE>
__device__ inline float by_most(float size, bool bad) {
    using W = Wire<WIRE>;
    const float most = bad ? W::NEXT : W::MOST, part = bad ? 1.f / W::NEXT : 1.f / W::MOST, q = __fmul_rn(size, part);
    return __fmaf_rn(__fmaf_rn(-q, most, size), part, q);
}

/// The low bytes of four words.
__device__ inline unsigned low_bytes(unsigned a, unsigned b, unsigned c, unsigned d) {
    return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

/// Codes in the low bits of words to a pack.
template <int WIRE>
__device__ inline void join(unsigned (&w)[Wire<WIRE>::WORDS], const unsigned (&code)[PACK]) {
    if constexpr (WIRE == INT4) {
        const unsigned even = low_bytes(code[0], code[2], code[4], code[6]), odd = low_bytes(code[1], code[3], code[5], code[7]);
        w[0] = (even & 0x0f0f0f0fu) | (odd << 4 & 0xf0f0f0f0u);
    } else {
#pragma unroll
        for (int i = 0; i < PACK; i += 4) w[i / 4] = low_bytes(code[i], code[i + 1], code[i + 2], code[i + 3]);
    }
}

/// `index`: of the random bits of the first element, a multiple of 8.
template <int WIRE, int GROUP, bool STOCHASTIC>
__device__ inline Packed<WIRE> encode(const float (&v)[PACK], unsigned seed, unsigned long long index) {
    using W = Wire<WIRE>;
    Packed<WIRE> out;
    out.s = 1;
    if constexpr (WIRE == BF16) {
#pragma unroll
        for (int i = 0; i < PACK; i += 2) {
            const __nv_bfloat162 pair = __floats2bfloat162_rn(v[i], v[i + 1]);
            out.w[i / 2] = *reinterpret_cast<const unsigned*>(&pair);
        }
    } else {
        const float infinity = __uint_as_float(0x7f800000u);
        float size = 0, zero = 0;  // NaN where an element is not finite
#pragma unroll
        for (int i = 0; i < PACK; ++i) size = fmaxf(size, fabsf(v[i])), zero = __fmaf_rn(v[i], 0.f, zero);
        size = zero != zero ? infinity : size;
#pragma unroll
        for (int lanes = 1; lanes < GROUP / PACK; lanes *= 2) size = fmaxf(size, __shfl_xor_sync(~0u, size, lanes));
        const bool bad = size == infinity, any = __any_sync(~0u, bad);
        if (any) {  // the largest finite one
            float finite = 0;
#pragma unroll
            for (int i = 0; i < PACK; ++i)
                if (is_finite(v[i])) finite = fmaxf(finite, fabsf(v[i]));
#pragma unroll
            for (int lanes = 1; lanes < GROUP / PACK; lanes *= 2) finite = fmaxf(finite, __shfl_xor_sync(~0u, finite, lanes));
            size = finite;
        }
        const float s = fmaxf(by_most<WIRE>(size, bad), 0x1p-126f), part = __frcp_rn(s);
        out.s = bad ? -s : s;
        if (STOCHASTIC || any) {
            const float most = bad ? W::NEXT : W::MOST;
            const RandomWords random(seed, index >> 3);
            constexpr unsigned EDGE = static_cast<unsigned>(W::MOST);
#pragma unroll
            for (int i = 0; i < W::WORDS; ++i) out.w[i] = 0;
#pragma unroll
            for (int i = 0; i < PACK; ++i) {
                unsigned code;
                const float t = fminf(fmaxf(__fmul_rn(v[i], part), -most), most);  // NaN gives -most; its own code is put in below
                if constexpr (WIRE == FP8) {
                    code = __nv_cvt_float_to_fp8(t, __NV_SATFINITE, __NV_E4M3);
                    if (bad && !is_finite(v[i])) code = v[i] != v[i] ? 0x7f : v[i] > 0 ? 0x7e : 0xfe;
                } else {
                    if constexpr (STOCHASTIC) code =
                        static_cast<unsigned>((__float2int_rn(__fmul_rn(t, 65536.f))
                            + static_cast<int>(random(i / 2) >> (i % 2 * 16) & 0xffff)) >> 16);
                    else code = __float_as_uint(__fadd_rn(t, WHOLE));
                    if (bad && !is_finite(v[i])) code = v[i] != v[i] ? -EDGE - 1 : v[i] > 0 ? EDGE : -EDGE;
                }
                out.w[i * W::BITS / 32] |= (code & ((1u << W::BITS) - 1)) << (i * W::BITS % 32);
            }
        } else if constexpr (WIRE == FP8) {
#pragma unroll
            for (int i = 0; i < PACK; i += 4) {
                unsigned pairs[2];
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    const float2 two = make_float2(__fmul_rn(v[i + 2 * j], part), __fmul_rn(v[i + 2 * j + 1], part));
                    pairs[j] = __nv_cvt_float2_to_fp8x2(two, __NV_SATFINITE, __NV_E4M3);
                }
                out.w[i / 4] = pairs[0] | pairs[1] << 16;
            }
        } else {  // none is beyond the largest code by more than a rounding, which the next one takes back
            unsigned code[PACK];
#pragma unroll
            for (int i = 0; i < PACK; ++i) code[i] = __float_as_uint(__fadd_rn(__fmul_rn(v[i], part), WHOLE));
            join<WIRE>(out.w, code);
        }
    }
    return out;
}

/// The values of a pack.
template <int WIRE>
__device__ inline void values(float (&v)[PACK], const unsigned (&in)[Wire<WIRE>::WORDS], float s) {
    using W = Wire<WIRE>;
    if constexpr (WIRE == BF16) {
#pragma unroll
        for (int i = 0; i < PACK; ++i) v[i] = wide<__nv_bfloat16>(in[i / 2], i % 2);
    } else {
        if constexpr (WIRE == FP8) {
#pragma unroll
            for (int i = 0; i < PACK; i += 2) {
                const auto pair = static_cast<__nv_fp8x2_storage_t>(in[i / 4] >> (i % 4 * 8));
                const __half_raw two[2] = {{__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3).x}, {__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3).y}};
                v[i] = __half2float(__half(two[0])), v[i + 1] = __half2float(__half(two[1]));
            }
        } else {  // 2^23 and the code with its sign turned, less both
            const float base = 8388608.f + (WIRE == INT8 ? 128.f : 8.f);
            const unsigned turned = in[0] ^ (WIRE == INT8 ? 0x80808080u : 0x88888888u);
            const unsigned first = WIRE == INT8 ? turned : turned & 0x0f0f0f0fu;
            const unsigned second = WIRE == INT8 ? in[W::WORDS - 1] ^ 0x80808080u : turned >> 4 & 0x0f0f0f0fu;
#pragma unroll
            for (int i = 0; i < PACK; ++i) {
                const int at = WIRE == INT8 ? i % 4 : i / 2;
                const unsigned from = (WIRE == INT8 ? i < 4 : i % 2 == 0) ? first : second;
                v[i] = __fsub_rn(__uint_as_float(__byte_perm(from, 0x4b000000u, 0x7540 | at)), base);
            }
        }
        const float size = fabsf(s);
        if (s < 0) {
#pragma unroll
            for (int i = 0; i < PACK; ++i) {
                const float code = v[i];
                v[i] = __fmul_rn(code, size);
                if (fabsf(code) == W::MOST) v[i] = copysignf(__uint_as_float(0x7f800000u), code);
                if (WIRE != FP8 && code < -W::MOST) v[i] = not_a_number();
            }
        } else {
#pragma unroll
            for (int i = 0; i < PACK; ++i) v[i] = __fmul_rn(v[i], size);
        }
    }
}

/// A message in memory that holds `count` elements, a multiple of GROUP.
template <int WIRE, int GROUP>
struct Message {
    using W = Wire<WIRE>;
    static constexpr int SCALES = CHUNK / GROUP;  // of a chunk
    unsigned char* place;
    long long count;
    __host__ __device__ static long long bytes(long long count) {
        return WIRE == BF16 ? 2 * count : (count * W::BITS / 8 + 4 * (count / GROUP) + 15) / 16 * 16;
    }
    __device__ unsigned* codes(long long at) const { return reinterpret_cast<unsigned*>(place + at * W::BITS / 8); }
    __device__ float* scale(long long at) const { return reinterpret_cast<float*>(place + count * W::BITS / 8) + at / GROUP; }

    /// By a warp: writes chunk `c`, of which each lane has its packs, and lane l the scale of the chunk's group l.
    __device__ void put(long long c, const Packed<WIRE> (&packs)[DEEP], float scales) const {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int u = 0; u < DEEP; ++u) {
            const long long at = c * CHUNK + u * ROW + lane * PACK;
            if (at >= count) break;
            const unsigned(&w)[W::WORDS] = packs[u].w;
            if constexpr (W::WORDS == 4) *reinterpret_cast<uint4*>(codes(at)) = make_uint4(w[0], w[1], w[2], w[3]);
            else if constexpr (W::WORDS == 2) *reinterpret_cast<uint2*>(codes(at)) = make_uint2(w[0], w[1]);
            else *codes(at) = w[0];
        }
        if (WIRE != BF16 && lane < SCALES && c * CHUNK + lane * GROUP < count) *scale(c * CHUNK + lane * GROUP) = scales;
    }

    /// A lane's packs of chunk `c`, and for lane l the scale of the chunk's group l; bypasses the L1, since another GPU may have written
    /// them.
    __device__ void fetch(unsigned (&in)[DEEP][W::WORDS], float& scales, long long c) const {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int u = 0; u < DEEP; ++u) {
            const long long at = c * CHUNK + u * ROW + lane * PACK;
            const bool is = at < count;
            if constexpr (W::WORDS == 4) {
                const uint4 q = is ? __ldcg(reinterpret_cast<const uint4*>(codes(at))) : make_uint4(0, 0, 0, 0);
                in[u][0] = q.x, in[u][1] = q.y, in[u][2] = q.z, in[u][3] = q.w;
            } else if constexpr (W::WORDS == 2) {
                const uint2 q = is ? __ldcg(reinterpret_cast<const uint2*>(codes(at))) : make_uint2(0, 0);
                in[u][0] = q.x, in[u][1] = q.y;
            } else in[u][0] = is ? __ldcg(codes(at)) : 0;
        }
        scales = WIRE != BF16 && lane < SCALES && c * CHUNK + lane * GROUP < count ? __ldcg(scale(c * CHUNK + lane * GROUP)) : 1.f;
    }
};

// -- chunks, each by a warp

/// Loads a chunk of a row of `held` elements; zeros past its end.
template <int GROUP, bool ROTATED, typename T>
__device__ inline void load_chunk(float (&v)[DEEP][PACK], const T* row, long long c, long long held, bool whole) {
#pragma unroll
    for (int u = 0; u < DEEP; ++u) load_pack(v[u], row, c * CHUNK + u * ROW + threadIdx.x % 32 * PACK, held, whole);
    if (ROTATED) {
#pragma unroll
        for (int u = 0; u < DEEP; ++u) rotate<GROUP>(v[u]);
    }
}

template <int GROUP, bool ROTATED, typename T>
__device__ inline void store_chunk(T* row, long long c, long long kept, bool whole, float (&v)[DEEP][PACK]) {
#pragma unroll
    for (int u = 0; u < DEEP; ++u) {
        if (ROTATED) rotate<GROUP>(v[u]);
        store_pack(row, c * CHUNK + u * ROW + threadIdx.x % 32 * PACK, kept, whole, v[u]);
    }
}

/// `index`: of the random bits of the row's first element.
template <int WIRE, int GROUP, bool STOCHASTIC>
__device__ inline void encode_chunk(Packed<WIRE> (&packs)[DEEP], const float (&v)[DEEP][PACK], long long c, unsigned seed,
    unsigned long long index) {
#pragma unroll
    for (int u = 0; u < DEEP; ++u)
        packs[u] = encode<WIRE, GROUP, STOCHASTIC>(v[u], seed, index + c * CHUNK + u * ROW + threadIdx.x % 32 * PACK);
}

/// Writes an encoded chunk to `places` messages: message(0), message(1), ...
template <int WIRE, int GROUP, typename Of>
__device__ inline void put_packs(const Packed<WIRE> (&packs)[DEEP], long long c, int places, Of message) {
    const int lane = threadIdx.x % 32;
    float scales = 1;
#pragma unroll
    for (int u = 0; u < DEEP; ++u) {
        const float s = __shfl_sync(~0u, packs[u].s, lane * GROUP % ROW / PACK);
        if (lane * GROUP / ROW == u) scales = s;
    }
    for (int p = 0; p < places; ++p) message(p).put(c, packs, scales);
}

/// Both: encodes a chunk and writes it.
template <int WIRE, int GROUP, bool STOCHASTIC, typename Of>
__device__ inline void put_chunk(const float (&v)[DEEP][PACK], long long c, unsigned seed, unsigned long long index, int places,
    Of message) {
    Packed<WIRE> packs[DEEP];
    encode_chunk<WIRE, GROUP, STOCHASTIC>(packs, v, c, seed, index);
    put_packs<WIRE, GROUP>(packs, c, places, message);
}

/// What the ranks that get an encoded chunk read.
template <int WIRE>
__device__ inline void read_packs(float (&v)[DEEP][PACK], const Packed<WIRE> (&packs)[DEEP]) {
#pragma unroll
    for (int u = 0; u < DEEP; ++u) values<WIRE>(v[u], packs[u].w, packs[u].s);
}

/// sum = v, or (not `first`) sum + v, of a message's chunk that `fetch` gave.
template <int WIRE, int GROUP>
__device__ inline void add_fetched(float (&sum)[DEEP][PACK], const unsigned (&in)[DEEP][Wire<WIRE>::WORDS], float scales, bool first) {
#pragma unroll
    for (int u = 0; u < DEEP; ++u) {
        float v[PACK];
        values<WIRE>(v, in[u], WIRE == BF16 ? 1.f : __shfl_sync(~0u, scales, (u * ROW + threadIdx.x % 32 * PACK) / GROUP));
#pragma unroll
        for (int i = 0; i < PACK; ++i) sum[u][i] = first ? v[i] : __fadd_rn(sum[u][i], v[i]);
    }
}

/// The sum of `ranks` messages, added in the order of the ranks. message(p): the message of rank p.
template <int WIRE, int GROUP, typename Of>
__device__ inline void sum_chunk(float (&sum)[DEEP][PACK], int ranks, long long c, Of message) {
    constexpr int AHEAD = 2;  // messages whose loads are in flight together
#pragma unroll
    for (int u = 0; u < DEEP; ++u) {
#pragma unroll
        for (int i = 0; i < PACK; ++i) sum[u][i] = 0;
    }
    for (int p = 0; p < ranks; p += AHEAD) {
        unsigned in[AHEAD][DEEP][Wire<WIRE>::WORDS];
        float scales[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; ++j)
            if (p + j < ranks) message(p + j).fetch(in[j], scales[j], c);
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) {
            if (p + j >= ranks) break;
            add_fetched<WIRE, GROUP>(sum, in[j], scales[j], p + j == 0);
        }
    }
}
