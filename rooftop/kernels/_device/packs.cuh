// Packs (vectors of 16 bytes of f32, f16 or bf16 elements), a row of them in registers, and the arithmetic of rows: for kernels that
// compute in float32.
#pragma once
#include "words.cuh"

// A pack: one vector load. Kernels that hold a row in registers call it a vector.

/// `together`: the address is a multiple of 16, and the pack is one access; otherwise it is N accesses of one element.
template <typename T>
struct Pack {
    static constexpr int N = 16 / sizeof(T), WORDS = Word<T>::N;
    __device__ static void widen(const uint4& p, float (&f)[N]) {
        const unsigned w[4] = {p.x, p.y, p.z, p.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float g[WORDS];
            widen(w[i], g, static_cast<const T*>(nullptr));
#pragma unroll
            for (int j = 0; j < WORDS; ++j) f[i * WORDS + j] = g[j];
        }
    }
    template <typename E>
    __device__ static void widen(unsigned w, float (&g)[WORDS], const E*) { Word<T>::widen(w, g); }
    // two instructions; the CUDA header's conversion takes three
    __device__ static void widen(unsigned w, float (&g)[WORDS], const __nv_bfloat16*) {
        g[0] = __uint_as_float(w << 16), g[WORDS - 1] = __uint_as_float(w & 0xffff0000u);
    }
    __device__ static uint4 narrow(const float (&f)[N]) {
        unsigned w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float g[WORDS];
#pragma unroll
            for (int j = 0; j < WORDS; ++j) g[j] = f[i * WORDS + j];
            w[i] = Word<T>::narrow(g);
        }
        return make_uint4(w[0], w[1], w[2], w[3]);
    }
    __device__ static uint4 load(const T* p, bool together) {
        if (together) return *reinterpret_cast<const uint4*>(p);
        uint4 v;
#pragma unroll
        for (int j = 0; j < N; ++j) reinterpret_cast<T*>(&v)[j] = p[j];
        return v;
    }
    __device__ static void store(T* p, bool together, const uint4& v) {  // written once: evict-first in the L2
        if (together) return __stcs(reinterpret_cast<uint4*>(p), v);
#pragma unroll
        for (int j = 0; j < N; ++j) p[j] = reinterpret_cast<const T*>(&v)[j];
    }
    /// Like load, but if the address is not a multiple of 16 it loads the two aligned packs around it and shifts out the 16 bytes at p. At
    /// the ends of the array [begin, end), where an aligned pack would reach outside it, elements are loaded one by one.
    __device__ static uint4 load_within(const T* p, bool together, const T* begin, const T* end) {
        const unsigned off = reinterpret_cast<unsigned long long>(p) % 16;
        const T* q = p - off / sizeof(T);
        if (together || q < begin || q + 2 * N > end) return load(p, together);
        const uint4 a = *reinterpret_cast<const uint4*>(q), b = *reinterpret_cast<const uint4*>(q + N);
        unsigned w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 6; ++i) w[i] = off & 8 ? w[i + 2] : w[i];
#pragma unroll
        for (int i = 0; i < 5; ++i) w[i] = off & 4 ? w[i + 1] : w[i];
#pragma unroll
        for (int i = 0; i < 4; ++i) w[i] = __funnelshift_r(w[i], w[i + 1], off % 4 * 8);
        return make_uint4(w[0], w[1], w[2], w[3]);
    }
    /// The pack that starts 4 · WORD bytes and `bits` bits (0 or 16) after q, where q is a multiple of 16: made of two aligned packs. For
    /// many packs with the same WORD, which is then known at compile time.
    template <int WORD>
    __device__ static uint4 load_amid(const T* q, unsigned bits) {
        const uint4 a = *reinterpret_cast<const uint4*>(q), b = *reinterpret_cast<const uint4*>(q + N);
        const unsigned w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        uint4 v;
        v.x = __funnelshift_r(w[WORD], w[WORD + 1], bits), v.y = __funnelshift_r(w[WORD + 1], w[WORD + 2], bits);
        v.z = __funnelshift_r(w[WORD + 2], w[WORD + 3], bits), v.w = __funnelshift_r(w[WORD + 3], w[WORD + 4], bits);
        return v;
    }
};

__device__ inline bool aligned(const void* p) { return reinterpret_cast<unsigned long long>(p) % 16 == 0; }

// Sums over neighbouring lanes of a warp.

/// Butterfly sums over LANES neighbouring lanes (a power of two); every lane gets the result. K sums at once, so that their shuffles
/// overlap.
template <int LANES, int K>
__device__ void lanes_sums(float (&v)[K]) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) {
#pragma unroll
        for (int k = 0; k < K; ++k) v[k] += __shfl_xor_sync(~0u, v[k], step);
    }
}

/// One sum, with a loop of its own: written as lanes_sums<LANES, 1> it makes the compiler order the float32 backward differently.
template <int LANES>
__device__ float lanes_sum(float v) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
    return v;
}

/// The smallest power of two that is at least n: the number of lanes for n parts.
constexpr int lanes_for(int n) { return n <= 1 ? 1 : 2 * lanes_for((n + 1) / 2); }

// Division and 1 / sqrt for the statistics of a row. `/` and sqrtf compile to function calls, and registers that are live across a call are
// lost.

/// v / n. `part` is 1 / n, computed before v is known; one correction step follows, so the result is correctly rounded but for rare last
/// bits. For an infinite v the step gives NaN, and the uncorrected quotient is returned.
__device__ inline float over(float v, float n, float part) {
    const float q = v * part, found = fmaf(fmaf(-q, n, v), part, q);
    return found == found ? found : q;
}
__device__ inline float over(float v, float n) { return over(v, n, __fdividef(1, n)); }

/// A divisor that is used several times, with its reciprocal: `part` = 1 / n.
struct Divisor {
    float n, part;
    __device__ explicit Divisor(float n) : n(n), part(__fdividef(1, n)) { }
};
__device__ inline float over(float v, const Divisor& by) { return over(v, by.n, by.part); }

/// 1 / sqrt(v), accurate to about one bit: rsqrtf and one Newton step. For 0 and infinity the step gives NaN, and rsqrtf's result is
/// returned.
__device__ inline float reciprocal_root(float v) {
    const float r = rsqrtf(v), found = fmaf(0.5f * r, fmaf(-v * r, r, 1), r);
    return found == found ? found : r;
}

// Exponentials and quotients of a softmax, as exact as the type of the result needs.

/// e^x for x <= 0. To one unit in the last place if the result is float32; if it is rounded to 16 bits, in two instructions with an error
/// of a few units that grows with |x|.
template <typename T>
__device__ float exponential(float x) {
    if (sizeof(T) == 4) return expf(x);
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
    return y;
}

/// e / s, given scale = 1 / s. A Newton step corrects the rounding error of `scale`, which matters for float32 results only.
template <typename T>
__device__ float quotient(float e, float s, float scale) {
    const float q = e * scale;
    return sizeof(T) == 4 ? fmaf(fmaf(-q, s, e), scale, q) : q;
}

// A row held in the registers of a team of threads (a team is some lanes of a warp, or a block). It is read once and written once. It is
// not padded to a power of two.

/// A row of `columns` elements in vectors of 16 bytes (a Pack of packs.cuh; the sm_90 kernels call it a pack too). Thread t holds vectors
/// t, t + team, t + 2 team, ...: at most VECTORS of them, and neighbouring threads load neighbouring vectors.
///
/// Vectors start on 16-byte boundaries of memory, wherever the row starts, so every vector is one 16-byte access. If ALIGNED is false, the
/// row has up to N - 1 elements before its first vector and up to N - 1 after its last. These are its singles: one a thread, held by the
/// first 2 (N - 1) threads.
template <typename T, int VECTORS, bool ALIGNED>
struct Row {
    using P = Pack<T>;
    static constexpr int N = P::N;  // elements of a vector
    int thread, team;               // this thread's place in the team; threads of the team
    int head, vectors, singles;     // of the whole row: elements before the first vector; vectors; singles
    uint4 packs[VECTORS];           // this thread's vectors; zeros past the end of the row
    float single;                   // and its single element

    /// Sets the position of the row; accesses no memory. With columns == 0 nothing is read or written later.
    __device__ void locate(const T* row, int columns, int its_thread, int its_team) {
        thread = its_thread, team = its_team, head = singles = 0, single = 0;
        if (!ALIGNED) head = min(columns, static_cast<int>(-reinterpret_cast<unsigned long long>(row) % 16 / sizeof(T)));
        vectors = (columns - head) / N;
        if (!ALIGNED) singles = columns - vectors * N;
    }
    __device__ bool has(int i) const { return i * team + thread < vectors; }
    __device__ int column(int i) const { return head + (i * team + thread) * N; }
    __device__ bool has_single() const { return !ALIGNED && thread < singles; }
    __device__ int single_column() const { return thread < head ? thread : thread + vectors * N; }

    /// Issues all loads before any value is used. __ldcs: evict-first, since x is read only once.
    __device__ void load(const T* row) {
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) packs[i] = has(i) ? __ldcs(reinterpret_cast<const uint4*>(row + column(i)))
            : make_uint4(0, 0, 0, 0);
        if (has_single()) single = static_cast<float>(row[single_column()]);
    }
    /// Calls use(element) for every element of this thread, as float.
    template <typename Use>
    __device__ void each(const Use& use) const {
        float f[N];
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            if (!has(i)) continue;
            P::widen(packs[i], f);
#pragma unroll
            for (int j = 0; j < N; ++j) use(f[j]);
        }
        if (has_single()) use(single);
    }
    /// The number of elements that one warp of the team holds.
    __device__ int elements_of_warp(int warp) const {
        int n = 0;
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) n += max(0, min(32, vectors - i * team - warp * 32));
        return n * N + (warp == 0 ? singles : 0);
    }
};
