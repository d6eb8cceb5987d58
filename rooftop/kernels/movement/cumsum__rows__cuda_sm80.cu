/* rooftop
idea    = """Up to eight packs of 16 bytes per thread are in registers, all their loads in flight together. The packs of a warp are scanned \
  by shuffles; float32 elements are scanned in float64, which costs one float64 addition for every four elements and step, not for each \
  element. The elements of a pack are added in float32 to the sum before the pack, which is a pair of float32 numbers, so their rounding \
  errors do not accumulate. Rows of more than 32 KiB are divided into tiles, which are read once: a tile waits for the sums of its group of \
  128 tiles, one word for each of 4 packs of lanes, and for one running sum. Rows that start on any address are read in the packs that \
  contain them. A reverse sum reads the same packs from the end and mirrors them in registers."""
predict = { speedup = 1.5 }
limit   = """On an H200 0.85 to 0.97 of a copy for many rows, in float32 as in 16 bits. Of one long row 0.60: the time from the load of a \
  tile to the running sum of the tiles before it."""
dtypes  = ["f32", "f16", "bf16"]
args    = ["x: T[O, N, I]", "out: T[O, N, I]"]
demands = { has = ["LDG.128"], spills = 0 }
python  = ["supports", "choose", "configs", "scratch", "zeroed", "launches"]

[config]
packs = 8
team  = 256
whole = 0
*/
#include "pdl.cuh"
#include "_rope.cuh"
#include "_prefix_sums.cuh"

/// The pack of V elements that are the elements n to n + V - 1 of a sum over the N elements at `row`.
template <typename T, int V, bool REVERSE>
struct Place {
    int n, N;
    __device__ bool whole() const { return n >= 0 && n + V <= N; }
    __device__ bool part() const { return !whole() && n + V > 0 && n < N; }
    __device__ bool holds(int i) const {
        const int k = REVERSE ? n + V - 1 - i : n + i;
        return k >= 0 && k < N;
    }
    __device__ long long at() const { return REVERSE ? static_cast<long long>(N) - n - V : n; }
};

/// U packs, `step` elements apart, of which the first begins with element `first` of the N of a row. EVEN: rows begin and end on packs;
/// else the first and the last pack of a row may be partly outside: they are copied element by element.
template <typename T, int V, int U, bool REVERSE, bool EVEN>
struct Packs {
    int first, step, N;
    __device__ Place<T, V, REVERSE> operator[](int u) const { return {first + u * step, N}; }
    __device__ bool inside() const { return (EVEN || first >= 0) && first + (U - 1) * step + V <= N; }
    __device__ void load(Row<T, V> (&v)[U], const T* row) const {
        if (inside()) {
#pragma unroll
            for (int u = 0; u < U; ++u) v[u].load(row + (*this)[u].at());
            return;
        }
#pragma unroll
        for (int u = 0; u < U; ++u) {
            v[u] = Row<T, V>{};
            if (EVEN ? (*this)[u].n < N : (*this)[u].whole()) v[u].load(row + (*this)[u].at());
        }
        if (EVEN) return;
#pragma unroll 1
        for (int u = 0; u < U; ++u) {
            const auto place = (*this)[u];
            if (!place.part()) continue;
            Row<T, V> one = {};
#pragma unroll
            for (int i = 0; i < V; ++i) {
                if (place.holds(i)) reinterpret_cast<T*>(one.w)[i] = row[place.at() + i];
            }
#pragma unroll
            for (int k = 0; k < U; ++k) {  // all indices are compile-time constants, so v stays in registers
                if (k == u) v[k] = one;
            }
        }
    }
    __device__ void store(const Row<T, V> (&v)[U], T* row) const {
        if (inside()) {
#pragma unroll
            for (int u = 0; u < U; ++u) v[u].store(row + (*this)[u].at());
            return;
        }
#pragma unroll
        for (int u = 0; u < U; ++u) {
            if (EVEN ? (*this)[u].n < N : (*this)[u].whole()) v[u].store(row + (*this)[u].at());
        }
        if (EVEN) return;
#pragma unroll 1
        for (int u = 0; u < U; ++u) {
            const auto place = (*this)[u];
            if (!place.part()) continue;
            Row<T, V> one = v[0];
#pragma unroll
            for (int k = 1; k < U; ++k) {
                if (k == u) one = v[k];
            }
#pragma unroll
            for (int i = 0; i < V; ++i) {
                if (place.holds(i)) row[place.at() + i] = reinterpret_cast<const T*>(one.w)[i];
            }
        }
    }
};

/// The sum over LANES neighbouring lanes, in each of them.
template <int LANES, typename A>
__device__ A every_lane(A sum) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    return sum;
}

/// A team of TEAM threads processes a tile of TEAM · U packs of a row; warp after warp, of each warp U times 32 neighbouring packs (of a
/// smaller team all its threads). Rows of x and out start at the same distance from a multiple of 16 bytes. EVEN: both start
/// and end on such multiples. WHOLE: a row is one tile; else a team is the block. words: a counter; the
/// sums of tiles [O, tiles]; running sums at the ends of groups [O, groups].
template <typename T, int U, int TEAM, bool REVERSE, bool EVEN, bool WHOLE, int GROUP>
__global__ void __launch_bounds__(256, U > 6 || (U > 5 && sizeof(T) < 4) ? 3 : U > 4 || (U > 2 && sizeof(T) < 4) ? 4 : U > 2 ? 5 : 6)
    rows(const T* x, T* out, unsigned long long* words, long long O, int N, long long xo, long long oo, int tiles) {
    using A = typename Sum<T>::type;
    constexpr int V = 16 / sizeof(T), L = TEAM < 32 ? TEAM : 32, WARPS = TEAM / L;
    __shared__ A sums[8];
    __shared__ double before;
    __shared__ unsigned ticket;
    gdc_wait();
    long long r = static_cast<long long>(blockIdx.x) * (256 / TEAM) + threadIdx.x / TEAM;
    int tile = 0;
    if (!WHOLE) {  // tiles are taken by a counter: the tiles that this one waits for have started
        if (threadIdx.x == 0) ticket = atomicAdd(reinterpret_cast<unsigned*>(words), 1u);
        __syncthreads();
        const unsigned rows = static_cast<unsigned>(O);
        r = ticket % rows, tile = static_cast<int>(ticket / rows);
    }
    const int lane = threadIdx.x % L, warp = threadIdx.x % TEAM / L;
    const int count = r < O ? N : 0;
    const T* from = x + r * xo;
    const unsigned beyond = EVEN ? 0 : static_cast<unsigned>(reinterpret_cast<unsigned long long>(REVERSE ? from + N : from)) % 16;
    const int skip = static_cast<int>((REVERSE ? (16 - beyond) % 16 : beyond) / sizeof(T));  // elements of the first pack before the row
    const Packs<T, V, U, REVERSE, EVEN> packs{((tile * WARPS + warp) * U * L + lane) * V - skip, L * V, count};
    Row<T, V> v[U];
    packs.load(v, from);
    A upto[U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
        float f[V];
        v[u].widen(f);
        A sums[V];
#pragma unroll
        for (int i = 0; i < V; ++i) sums[i] = static_cast<A>(f[i]);
#pragma unroll
        for (int half = V / 2; half > 0; half /= 2) {
#pragma unroll
            for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
        }
        upto[u] = sums[0];
    }
#pragma unroll
    for (int start = 0; start < U; start += 4) {  // four scans at a time: enough to hide the shuffles' latency, and few registers
#pragma unroll
        for (int step = 1; step < L; step *= 2) {
#pragma unroll
            for (int u = start; u < U && u < start + 4; ++u) {
                const A other = __shfl_up_sync(~0u, upto[u], step, L);
                if (lane >= step) upto[u] += other;
            }
        }
    }
    A total = 0;  // upto becomes the sum of the warp's packs before this one
#pragma unroll
    for (int u = 0; u < U; ++u) {
        const A other = __shfl_up_sync(~0u, upto[u], 1, L), all = __shfl_sync(~0u, upto[u], L - 1, L);
        upto[u] = lane > 0 ? total + other : total;
        total += all;
    }
    A carry = 0;
    if constexpr (WARPS > 1) {
        if (lane == 0) sums[threadIdx.x / 32] = total;
        __syncthreads();
        const A* team = sums + threadIdx.x / TEAM * WARPS;
        if constexpr (!WHOLE) {
            if (warp == 0) {
                const double mine = every_lane<WARPS>(static_cast<double>(team[lane % WARPS]));
                const int groups = (tiles + GROUP - 1) / GROUP, g = tile / GROUP, place = tile % GROUP;
                unsigned long long* word = words + 1 + r * tiles + tile;
                unsigned long long* end = words + 1 + O * tiles + r * groups + g;
                if (lane == 0) publish(word, mine);
                double found = every_lane<32>(awaited<GROUP / 32>(word - place + lane, place > lane ? (place - lane + 31) / 32 : 0, 32));
                if (g > 0) found += awaited<1>(end - 1, 1, 1);
                if (lane == 0) {
                    before = found;
                    if (place == GROUP - 1) publish(end, found + mine);
                }
            }
            __syncthreads();
            carry = static_cast<A>(before);
        }
        carry += every_lane<WARPS>(lane % WARPS < warp ? team[lane % WARPS] : A(0));
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
        float f[V];
        v[u].widen(f);
        run_along<REVERSE>(f, Base<T>(carry + upto[u]));
        v[u].narrow(f);
    }
    packs.store(v, out + r * oo);
}
