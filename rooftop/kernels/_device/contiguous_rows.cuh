// Consecutive rows as one contiguous range of memory, a *stretch*. A block copies whole rows to shared memory in vectors of 16 bytes that
// ignore row boundaries. Teams of lanes then load each row from there to registers, again in vectors; in the first and the last vector the
// elements of neighbouring rows are masked.
#pragma once
#include <cuda_pipeline.h>

#include "packs.cuh"

/// -inf in all elements of a word.
template <typename T>
__device__ unsigned lowest_word() {
    float f[Word<T>::N];
#pragma unroll
    for (int j = 0; j < Word<T>::N; ++j) f[j] = -__int_as_float(0x7f800000);
    return Word<T>::narrow(f);
}

/// The row at elements `from` to `to` of a stretch, in the registers of a team of LANES lanes. A lane has PIECES vectors, LANES apart; the
/// last one (and if rows are not whole vectors, the last but one) may be past the row. WHOLE: rows are whole vectors. FULL: and each lane
/// has all of its PIECES.
template <typename T, int LANES, int PIECES, bool WHOLE, bool FULL>
struct StretchRow {
    using P = Pack<T>;
    static constexpr int N = P::N, WORDS = Word<T>::N;
    uint4 packs[PIECES];
    int from, to, at;  // of the row, in elements; index of this lane's first vector

    __device__ StretchRow(const uint4* stretch, int from, int to, int lane) : from(from), to(to), at(from / N + lane) {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            if (has(i)) packs[i] = stretch[at + i * LANES];
        }
    }
    __device__ int start(int i) const { return (at + i * LANES) * N; }  // first element of vector i
    __device__ bool has(int i) const { return FULL || i < PIECES - (WHOLE ? 1 : 2) || start(i) < to; }
    /// Whether the vector contains elements of a neighbouring row.
    __device__ bool before(int i) const { return !WHOLE && i == 0 && start(i) < from; }
    __device__ bool beyond(int i) const { return !WHOLE && i >= PIECES - 2 && has(i) && start(i) + N > to; }

    /// The bits of word i of a vector that belong to its elements from number `cut` on.
    __device__ static unsigned bits_from(int cut,
        int i) { return __funnelshift_lc(0, ~0u, max(cut * static_cast<int>(8 * sizeof(T)) - 32 * i, 0)); }
    __device__ static void set(uint4& v, bool below, int cut, unsigned fill) {
        unsigned w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const unsigned bits = below ? ~bits_from(cut, i) : bits_from(cut, i);
            w[i] = (w[i] & ~bits) | (fill & bits);
        }
        v = make_uint4(w[0], w[1], w[2], w[3]);
    }
    /// Overwrites the elements of neighbouring rows with those of the word `fill`.
    __device__ void mask(unsigned fill) {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            if (before(i)) set(packs[i], true, from - start(i), fill);
            if (beyond(i)) set(packs[i], false, to - start(i), fill);
        }
    }
    /// Stores the results of the lane's vectors, get(i), over the row's elements. Of the first and the last vector only the elements of
    /// this row are stored.
    template <typename Get>
    __device__ void store(uint4* stretch, const Get& get) const {
        uint4 last = make_uint4(0, 0, 0, 0);
        int place = -1;  // first element of the last vector
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            if (!has(i)) continue;
            const uint4 v = get(i);
            if (beyond(i)) {
                last = v, place = start(i);
            } else if (before(i)) {
                store_some(reinterpret_cast<T*>(stretch), start(i), v);
            } else {
                stretch[at + i * LANES] = v;
            }
        }
        if (!WHOLE && place >= 0) store_some(reinterpret_cast<T*>(stretch), place, last);
    }
    __device__ void store_some(T* elements, int place, const uint4& v) const {
#pragma unroll
        for (int j = 0; j < N; ++j) {
            if (place + j >= from && place + j < to) elements[place + j] = reinterpret_cast<const T*>(&v)[j];
        }
    }
    /// The largest element; -inf if there is none.
    __device__ float most() const {
        unsigned top = lowest_word<T>();
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            if (!has(i)) continue;
            const uint4 p = packs[i];
            const unsigned of_pack = Word<T>::larger(Word<T>::larger(p.x, p.y), Word<T>::larger(p.z, p.w));
            top = i == 0 ? of_pack : Word<T>::larger(top, of_pack);
        }
        float two[WORDS];
        Word<T>::widen(top, two);
        return fmaxf(two[0], two[WORDS - 1]);
    }
    /// Calls use(element, its number in the lane) for every element, as float.
    template <typename Use>
    __device__ void each(const Use& use) const {
        float f[N];
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            if (!has(i)) continue;
            P::widen(packs[i], f);
#pragma unroll
            for (int j = 0; j < N; ++j) use(f[j], i * N + j);
        }
    }
};

/// Issues the asynchronous copies of a thread's vectors of a stretch, THREADS apart; `left`: bytes of the stretch from the thread's first
/// vector on.
template <int THREADS>
__device__ void fetch_vectors(unsigned to, const char* from, int left) {
    constexpr int COUNT = 6, STEP = THREADS * 16;
#pragma unroll 1
    for (; left > 0; to += COUNT * STEP, from += COUNT * STEP, left -= COUNT * STEP) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {  // __pipeline_memcpy_async would need two more instructions, for the shared address
            if (left > i * STEP) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + i * STEP),
                "l"(from + i * STEP) : "memory");
        }
    }
}
