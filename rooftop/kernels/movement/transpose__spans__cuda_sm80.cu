/* rooftop
idea    = """Small matrices stored one after another. A block processes as many of them as are needed for the span to begin and end on 16 \
  bytes. It copies the span to shared memory and writes the transposed span, each pack of 16 bytes gathered from shared memory element by \
  element."""
limit   = "one shared-memory load for each element"
dtypes  = ["i8", "i16", "i32", "i64"]
args    = ["n: i64 = numel(x)", "R: u32", "C: u32", "tile: u32 = 16 // bytes(x) * max(1, 1024 // (R * C))", "x: T[B1, B2, B3, R, C]", "out: T[B1, B2, B3, R, C]"]
demands = { has = ["LDG.128", "STG.128"], spills = 0 }

[requires]
"stride(x, 4) == 1 and (R == 1 or stride(x, 3) == C) and (B3 == 1 or stride(x, 2) == R * C) and (B2 == 1 or stride(x, 1) == B3 * R * C) and (B1 == 1 or stride(x, 0) == B2 * B3 * R * C)" = "the matrices of x must lie one after another"
"(C == 1 or stride(out, 4) == R) and (R == 1 or stride(out, 3) == 1) and (B3 == 1 or stride(out, 2) == R * C) and (B2 == 1 or stride(out, 1) == B3 * R * C) and (B1 == 1 or stride(out, 0) == B2 * B3 * R * C)" = "so must their transposes"
"starts(x, 16) and starts(out, 16)" = "both must start on 16-byte boundaries"
"R * C <= 2560" = "a block's matrices must fit its shared memory"
"numel(x) > 0" = "there is nothing to copy"

# a block has as many matrices as begin and end on 16 bytes together, and more up to 16 KiB
[[launch]]
kernel  = "spans<{bytes(x)}>"
grid    = ["ceil(B1 * B2 * B3 / (16 // bytes(x) * max(1, 1024 // (R * C))))"]
block   = [256]
shared  = "16 * R * C * max(1, 1024 // (R * C))"
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

extern __shared__ __align__(128) uint4 held[];

/// n elements in all, copied as bits.
template <int SIZE>
__global__ void __launch_bounds__(256) spans(long long n, unsigned R, unsigned C, unsigned tile, const void* __restrict__ x,
    void* __restrict__ out) {
    using E = typename Raw<SIZE>::type;
    constexpr unsigned N = 16 / SIZE, EACH = 4;
    gdc_wait();
    const unsigned matrix = R * C, whole = tile * matrix;
    const long long first = static_cast<long long>(blockIdx.x) * whole;
    const unsigned mine = static_cast<unsigned>(min(static_cast<long long>(whole), n - first)), packs = mine / N, tail = mine % N;
    const E* from = static_cast<const E*>(x) + first;
    E* to = static_cast<E*>(out) + first;
    E* elements = reinterpret_cast<E*>(held);

#pragma unroll 1
    for (unsigned k = threadIdx.x; k < packs; k += EACH * 256) {
        uint4 v[EACH];
#pragma unroll
        for (unsigned u = 0; u < EACH; ++u) {
            if (k + u * 256 < packs) v[u] = reinterpret_cast<const uint4*>(from)[k + u * 256];
        }
#pragma unroll
        for (unsigned u = 0; u < EACH; ++u) {
            if (k + u * 256 < packs) held[k + u * 256] = v[u];
        }
    }
    if (threadIdx.x < tail) elements[packs * N + threadIdx.x] = from[packs * N + threadIdx.x];
    __syncthreads();

#pragma unroll 1
    for (unsigned k = threadIdx.x; k < packs; k += 256) {
        unsigned begin = k * N / matrix * matrix, within = k * N - begin, c = within / R, r = within - c * R, at = begin + r * C + c;
        uint4 v;
#pragma unroll
        for (unsigned i = 0; i < N; ++i) {
            if (i > 0) {  // down the column, then to the next one, or to the next matrix
                at += C;
                if (++r == R) {
                    r = 0, at = begin + ++c;
                    if (c == C) c = 0, begin += matrix, at = begin;
                }
            }
            reinterpret_cast<E*>(&v)[i] = elements[at];
        }
        reinterpret_cast<uint4*>(to)[k] = v;
    }
    if (threadIdx.x < tail) {
        const unsigned o = packs * N + threadIdx.x, begin = o / matrix * matrix, within = o - begin;
        to[o] = elements[begin + within % R * C + within / R];
    }
}
