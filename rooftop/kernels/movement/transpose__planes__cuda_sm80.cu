/* rooftop
idea    = """Two to eight long rows (planes of an image) and their interleaved form (its pixels). Each thread loads a pack of 16 bytes of \
  each plane, interleaves them in registers, and the warp exchanges the packs through shared memory, so that loads and stores are coalesced \
  and 16 bytes wide. Pixels to planes: the same the other way round."""
predict = { speedup = 2.1 }
limit   = "The copy of the same bytes; 0.95 of it on an H200 at 3x33554432 bytes."
dtypes  = ["i8", "i16", "i32", "i64"]
args    = [
    "many: i64 = max(R, C)", "tiles: u32 = ceil(max(R, C) * bytes(x) / 4096)", "B2: u32", "B3: u32", "x: T[B1, B2, B3, R, C]", "out: T[B1, B2, B3, R, C]",
    "x1: i64 = stride(x, 0)", "x2: i64 = stride(x, 1)", "x3: i64 = stride(x, 2)",
    "o1: i64 = stride(out, 0)", "o2: i64 = stride(out, 1)", "o3: i64 = stride(out, 2)", "plane: i64 = stride(x, 3) if R <= C else stride(out, 4)",
]
demands = { has = ["LDG.128", "STG.128"], spills = 0 }

[requires]
"(2 <= R and R <= 8 and R <= C and stride(out, 4) == R or 2 <= C and C <= 8 and C < R and stride(x, 3) == C) and stride(x, 4) == 1 and stride(out, 3) == 1" = "one of the two dimensions must be 2 to 8 long, and the other the contiguous one of the planes; the interleaved form must be contiguous"
"starts(x, 16) and starts(out, 16)" = "both must start on 16-byte boundaries"
"(B3 == 1 or stride(x, 2) * bytes(x) % 16 == 0 and stride(out, 2) * bytes(x) % 16 == 0) and (B2 == 1 or stride(x, 1) * bytes(x) % 16 == 0 and stride(out, 1) * bytes(x) % 16 == 0) and (B1 == 1 or stride(x, 0) * bytes(x) % 16 == 0 and stride(out, 0) * bytes(x) % 16 == 0)" = "so must each of the matrices"
"(stride(x, 3) if R <= C else stride(out, 4)) * bytes(x) % 16 == 0" = "so must each of the planes"
"numel(x) > 0" = "there is nothing to copy"

[[launch]]
kernel  = "planes<{bytes(x)}, {min(R, C)}, {C < R}>"
grid    = ["B1 * B2 * B3 * ceil(max(R, C) * bytes(x) / 4096)"]
block   = [256]
pdl = true
*/
#include "pdl.cuh"

template <int BYTES>
struct Raw;
template <>
struct Raw<1> { using type = unsigned char; };
template <>
struct Raw<2> { using type = unsigned short; };
template <>
struct Raw<4> { using type = unsigned; };
template <>
struct Raw<8> { using type = uint2; };
template <int BYTES>
using raw = typename Raw<BYTES>::type;

/// 16 bytes as words.
struct Pack {
    unsigned w[4];
};

/// The packs of the other form: F packs of planes become F packs of pixels, or (SPLIT) the other way round.
template <int SIZE, int F, bool SPLIT>
__device__ void exchange(const Pack (&a)[F], Pack (&b)[F]) {
    constexpr int N = 16 / SIZE;
    const auto byte = [&](int k, int i, int& shift) {  // the word of a that has byte i of pack k of b, and where in it
        const int e = SPLIT ? i / SIZE * F + k : k * N + i / SIZE, from = SPLIT ? e / N : e % F,
            at = (SPLIT ? e % N : e / F) * SIZE + i % SIZE;
        shift = at % 4;
        return a[from].w[at / 4];
    };
#pragma unroll
    for (int k = 0; k < F; ++k) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            int p, q, r, s;
            const unsigned e = byte(k, 4 * j, p), f = byte(k, 4 * j + 1, q), g = byte(k, 4 * j + 2, r), h = byte(k, 4 * j + 3, s);
            if (SIZE >= 4) b[k].w[j] = e;
            else if (SIZE == 2) b[k].w[j] = __byte_perm(e, g, p | (p + 1) << 4 | (4 + r) << 8 | (5 + r) << 12);
            else b[k].w[j] = __byte_perm(__byte_perm(e, f, p | (4 + q) << 4), __byte_perm(g, h, r | (4 + s) << 4), 0x5410);
        }
    }
}

/// The elements from `begin` on of n, as many as a pack has.
template <int SIZE>
__device__ Pack load(const char* p, long long begin, long long n) {
    constexpr int N = 16 / SIZE;
    Pack v{};
    if (begin + N <= n) {
        const uint4 whole = *reinterpret_cast<const uint4*>(p + begin * SIZE);
        v = reinterpret_cast<const Pack&>(whole);
    } else {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            if (begin + i < n) reinterpret_cast<raw<SIZE>*>(&v)[i] = reinterpret_cast<const raw<SIZE>*>(p)[begin + i];
        }
    }
    return v;
}
template <int SIZE>
__device__ void store(const Pack& v, char* p, long long begin, long long n) {
    constexpr int N = 16 / SIZE;
    if (begin + N <= n) {
        *reinterpret_cast<uint4*>(p + begin * SIZE) = reinterpret_cast<const uint4&>(v);
    } else {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            if (begin + i < n) reinterpret_cast<raw<SIZE>*>(p)[begin + i] = reinterpret_cast<const raw<SIZE>*>(&v)[i];
        }
    }
}

constexpr int common(int a, int b) { return b == 0 ? a : common(b, a % b); }

/// F planes of `many` elements, `plane` elements apart, and their pixels, contiguous. A warp takes 32 packs of each plane.
template <int SIZE, int F, bool SPLIT>
__global__ void __launch_bounds__(256)
    planes(long long many, unsigned tiles, unsigned B2, unsigned B3, const void* __restrict__ x, void* __restrict__ out, long long x1,
        long long x2, long long x3,
           long long o1, long long o2, long long o3, long long plane) {
    // packs between two that are left out: neighbouring lanes, F packs apart, meet in no bank
    constexpr int N = 16 / SIZE, GAP = 8 * F / common(F, 8);
    __shared__ uint4 held[8][32 * F + 32 * F / GAP];
    const unsigned b = blockIdx.x / tiles, b3 = b % B3, b2 = b / B3 % B2, b1 = b / B3 / B2;
    const int lane = threadIdx.x % 32;
    uint4* mine = held[threadIdx.x / 32];
    const auto slot = [&](int p) -> uint4& { return mine[p + p / GAP]; };
    const long long warp = (static_cast<long long>(blockIdx.x % tiles) * 256 + threadIdx.x / 32 * 32) * N, column = warp + lane * N;
    const char* from = static_cast<const char*>(x) + (b1 * x1 + b2 * x2 + b3 * x3) * SIZE;
    char* to = static_cast<char*>(out) + (b1 * o1 + b2 * o2 + b3 * o3) * SIZE;
    gdc_wait();
    Pack v[F], u[F];
#pragma unroll
    for (int k = 0; k < F; ++k) {
        if (SPLIT) v[k] = load<SIZE>(from, warp * F + (k * 32 + lane) * N, many * F);
        else v[k] = load<SIZE>(from + k * plane * SIZE, column, many);
    }
    if (SPLIT) {
#pragma unroll
        for (int k = 0; k < F; ++k) slot(k * 32 + lane) = reinterpret_cast<const uint4&>(v[k]);
        __syncwarp();
#pragma unroll
        for (int k = 0; k < F; ++k) {
            const uint4 p = slot(lane * F + k);
            v[k] = reinterpret_cast<const Pack&>(p);
        }
    }
    exchange<SIZE, F, SPLIT>(v, u);
    if (!SPLIT) {
#pragma unroll
        for (int k = 0; k < F; ++k) slot(lane * F + k) = reinterpret_cast<const uint4&>(u[k]);
        __syncwarp();
#pragma unroll
        for (int k = 0; k < F; ++k) {
            const uint4 p = slot(k * 32 + lane);
            u[k] = reinterpret_cast<const Pack&>(p);
        }
    }
#pragma unroll
    for (int k = 0; k < F; ++k) {
        if (SPLIT) store<SIZE>(u[k], to + k * plane * SIZE, column, many);
        else store<SIZE>(u[k], to, warp * F + (k * 32 + lane) * N, many * F);
    }
}
