// Draws from whole rows, one block a row. One read computes the sum of each chunk of the row, relative to the chunk's own largest logit, so
// that the row's largest need not be known first. Then the chunk that contains the draw is read again to find the element.
#pragma once
#include "_sort_keys.cuh"
#include "_draw_rows.cuh"
#include "words.cuh"

namespace draws {

constexpr float LOWEST = -3.4028234663852886e38f;
constexpr float LIGHTEST = 2.3283064365386963e-10f;  // 2^-32: elements with a smaller weight are never drawn

__device__ inline float power_of_two(float x) {
    float w;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(w) : "f"(x));
    return w;
}

__device__ inline Sum to_units(float w) { return __float2ull_rz(w * 4294967296.0f); }

/// A row as packs of 16 bytes, from the last 16-byte boundary before it on. A chunk is `each` times 32 U packs, and belongs to one warp.
template <typename T>
struct Chunks {
    static constexpr unsigned N = 16 / sizeof(T), U = 4;
    const bits_of<T>* r;
    unsigned n, off, packs, each, count;

    __device__ Chunks(const bits_of<T>* r, unsigned n)
        : r(r), n(n), off(reinterpret_cast<unsigned long long>(r) % 16 / sizeof(T)) {
        packs = (off + n + N - 1) / N;
        const unsigned steps = (packs + 32 * U - 1) / (32 * U);
        each = (steps + CHUNKS - 1) / CHUNKS;
        count = (steps + each - 1) / each;
    }
    /// The index of the first element of pack p; wraps around if that is before the row.
    __device__ unsigned index(unsigned p) const { return p * N - off; }
    __device__ unsigned chunk_of(unsigned i) const { return (i + off) / (N * 32 * U * each); }
    __device__ uint4 pack(unsigned p) const {
        const unsigned i = index(p);
        uint4 v;
        if (i < n && i + N <= n) {
            v = *reinterpret_cast<const uint4*>(r + i);
        } else {
#pragma unroll
            for (unsigned j = 0; j < N; ++j) reinterpret_cast<bits_of<T>*>(&v)[j] = p < packs && i + j < n ? r[i + j] : last_value<T>(0);
        }
        return v;
    }
    /// Calls `look(packs, p, chunk)` with U packs a thread (p and every 32nd after it) while the next loads are in flight, and `end(chunk)`
    /// after each chunk.
    template <typename Look, typename End>
    __device__ void walk(Look look, End end) const {
        const unsigned lane = threadIdx.x % 32;
        unsigned c = threadIdx.x / 32, step = 0;
        uint4 next[U];
#pragma unroll
        for (unsigned u = 0; u < U; ++u) next[u] = pack(c * each * 32 * U + u * 32 + lane);
#pragma unroll 1
        while (c < count) {
            uint4 now[U];
#pragma unroll
            for (unsigned u = 0; u < U; ++u) now[u] = next[u];
            const unsigned p = (c * each + step) * 32 * U + lane, chunk = c;
            const bool last = ++step == each;
            if (last) c += WARPS, step = 0;
            if (c < count) {
#pragma unroll
                for (unsigned u = 0; u < U; ++u) next[u] = pack((c * each + step) * 32 * U + u * 32 + lane);
            }
            look(now, p);
            if (last) end(chunk);
        }
    }
};

template <typename T>
__device__ float value_of(const uint4& v, unsigned j) {  // j is known at compile time
    if constexpr (sizeof(T) == 4) {
        return __uint_as_float(reinterpret_cast<const unsigned*>(&v)[j]);
    } else {
        float f[2];
        Word<T>::widen(reinterpret_cast<const unsigned*>(&v)[j / 2], f);
        return f[j % 2];
    }
}

/// The weights of elements relative to one with logit `most`; NaN for NaN.
struct Scaled {
    float scale;  // log2(e) / temperature

    __device__ explicit Scaled(float temperature)
        : scale(fminf(1.4426950408889634f / temperature, 3e37f)) { }
    __device__ float operator()(float x, float most) const { return power_of_two(__fmul_rn(__fsub_rn(x, most), scale)); }
};

/// The largest of `most` and the logits of some packs; NaN is ignored.
template <typename T>
__device__ float larger(const uint4 (&v)[Chunks<T>::U], float most) {
    using W = Word<T>;
    unsigned word = W::larger(W::larger(v[0].x, v[0].y), W::larger(v[0].z, v[0].w));
#pragma unroll
    for (unsigned u = 1; u < Chunks<T>::U; ++u) word = W::larger(word, W::larger(W::larger(v[u].x, v[u].y), W::larger(v[u].z, v[u].w)));
    float f[W::N];
    W::widen(word, f);
    return fmaxf(most, fmaxf(f[0], f[W::N - 1]));
}

/// Returns the largest logit of the row, at least LOWEST. If `weights` is set, s.sums gets the weight of each chunk relative to that logit,
/// in units of 2^-32.
/// `mosts`, `masses`: shared memory, one entry a chunk.
template <typename T>
__device__ float sum_chunks(const Chunks<T>& row, const Scaled& scaled, bool weights, float* mosts, float* masses, Sampling& s) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float most = LOWEST, mass = 0.0f, top = LOWEST;
    row.walk(
        [&](const uint4 (&v)[Chunks<T>::U], unsigned) {
            const float now = larger<T>(v, most);
            if (weights) {
                mass *= scaled(most, now);
#pragma unroll
                for (unsigned u = 0; u < Chunks<T>::U; ++u) {
                    float sum = 0.0f;
#pragma unroll
                    for (unsigned j = 0; j < Chunks<T>::N; ++j) sum += fmaxf(scaled(value_of<T>(v[u], j), now), 0.0f);  // 0 for NaN
                    mass += sum;
                }
            }
            most = now;
        },
        [&](unsigned chunk) {
            top = fmaxf(top, most);
            if (weights) {
                const float all = warp_max(most);
                mass *= scaled(most, all);
#pragma unroll
                for (int step = 16; step > 0; step /= 2) mass += __shfl_xor_sync(~0u, mass, step);
                if (lane == 0) mosts[chunk] = all, masses[chunk] = mass;
            }
            most = LOWEST, mass = 0.0f;
        });
    top = warp_max(top);
    float* warps = reinterpret_cast<float*>(s.warps);
    __syncthreads();
    if (lane == 0) warps[warp] = top;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < WARPS; ++w) top = fmaxf(top, warps[w]);
    __syncthreads();
    for (unsigned c = threadIdx.x; c < CHUNKS; c += THREADS) {
        const float w = weights && c < row.count ? scaled(mosts[c], top) : 0.0f;
        s.sums[c] = w >= LIGHTEST ? to_units(masses[c] * w) : 0;  // a chunk counts only if one of its elements does
    }
    __syncthreads();
    return top;
}

/// Draws, given the weights of the chunks in s.sums; `weight(bits, index)` is the weight of an element. If rounding makes the sum of a
/// chunk's elements smaller than the chunk's own sum, the last element with a weight may be drawn. The result is -1 if no element has a
/// weight.
template <typename T, typename Of>
__device__ void draw_from_chunks(const Chunks<T>& row, Of weight, Sum u, long long* out, Sampling& s) {
    Sum rest, all;
    __syncthreads();
    const unsigned c = past<CHUNKS / THREADS>([&](unsigned i) { return s.sums[i]; }, u, rest, s);
    if (c == NOBODY) {
        if (threadIdx.x == 0) *out = -1;
        return;
    }
    const unsigned elements = row.each * 32 * Chunks<T>::U * Chunks<T>::N, own_elements = elements / THREADS;
    const long long from = static_cast<long long>(c) * elements - row.off + threadIdx.x * static_cast<long long>(own_elements);
    const unsigned first = static_cast<unsigned>(max(0ll, from)),
        end = static_cast<unsigned>(max(0ll, min(static_cast<long long>(row.n), from + own_elements)));
    Sum own = 0;
#pragma unroll 8
    for (unsigned i = first; i < end; ++i) own += weight(row.r[i], i);
    Sum upto = sum_upto<THREADS>(own, s.warps, all) - own;
    if (all == 0) {
        if (threadIdx.x == 0) *out = -1;
        return;
    }
    rest = min(rest, all - 1);
    if (rest < upto || rest >= upto + own) return;
    for (unsigned i = first; i < end; ++i) {
        upto += weight(row.r[i], i);
        if (rest < upto) {
            *out = i;
            return;
        }
    }
}

}  // namespace draws
