// A row held in the registers of a team of threads (a team is some lanes of a warp, or a block). It is read once and written once. It is not padded to a power
// of two.
#pragma once
#include "packs.cuh"

constexpr int REGISTER_FILE = 65536;      // of a multiprocessor
constexpr int WARP_KERNEL_THREADS = 256;  // a block of the kernels that take several rows a warp

/// A row of `columns` elements in vectors of 16 bytes (a Pack of packs.cuh; the sm_90 kernels call it a pack too). Thread t holds vectors t, t + team, t + 2
/// team, ...: at most VECTORS of them, and neighbouring threads load neighbouring vectors.
///
/// Vectors start on 16-byte boundaries of memory, wherever the row starts, so every vector is one 16-byte access. If ALIGNED is false, the row has up
/// to N - 1 elements before its first vector and up to N - 1 after its last. These are its singles: one a thread, held by the first 2 (N - 1) threads.
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
        for (int i = 0; i < VECTORS; ++i) packs[i] = has(i) ? __ldcs(reinterpret_cast<const uint4*>(row + column(i))) : make_uint4(0, 0, 0, 0);
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
