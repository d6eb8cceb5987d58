/* rooftop
idea    = """For few long rows, whose tiles wait for each other. One block a multiprocessor has a ring of tiles of 32 KiB in shared memory, \
  and its warps divide the work: four load tiles and add them, one takes tickets and publishes the sums of tiles, one waits for the sums of \
  the tiles before, eight scan and write. Each runs ahead of the next by some tiles, so that neither the memory's latency nor that of the \
  published sums is on the way of the bytes. The order of additions is fixed: a tile adds the sums of its group of 512 tiles and the \
  running sum at the end of the group before."""
predict = { speedup = 1.4 }
limit   = """One long row: what a multiprocessor copies with one block. A row of 16 MiB: the start of the kernel and the first sums, before \
  anything can be written."""
dtypes  = ["f32", "f16", "bf16"]
args    = ["x: T[O, N, I]", "out: T[O, N, I]"]
demands = { has = ["LDGSTS.E.128", "STG.E.128"], spills = 0 }
python  = ["supports", "choose", "configs", "scratch", "launches"]

[config]
slots = 6
lead  = 3
group = 512
*/
#include <cuda_pipeline.h>

#include "pdl.cuh"
#include "_rope.cuh"
#include "_prefix_sums.cuh"

constexpr unsigned NONE = ~0u;  // no ticket is left
constexpr int WRITERS = 8, LOADERS = 4, PACKS = 8, TILE = WRITERS * PACKS * 32;  // warps; packs of 16 bytes of a lane, of a tile
constexpr int TICKETS = 16;

/// Phase k of an mbarrier ends with the arrivals for the k-th tile of its slot.
__device__ inline unsigned address_of(const unsigned long long& bar) { return static_cast<unsigned>(__cvta_generic_to_shared(&bar)); }
__device__ inline void start(unsigned long long& bar, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address_of(bar)), "r"(arrivals) : "memory");
}
__device__ inline void arrive(unsigned long long& bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address_of(bar))
    : "memory"); }
__device__ inline void await(unsigned long long& bar, int phase) {
    unsigned done = 0;
    while (!done) {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(address_of(bar)), "r"(phase & 1) : "memory");
    }
}

/// What the warps of a block tell each other. A block processes its i-th tile in slot i % S.
template <typename A, int S>
struct Steps {
    // mbarriers: there is a ticket; the tile and its sums; the sum before it, and every writer has read that; the slot is free
    unsigned long long taken[S], summed[S], carried[S], read[S], freed[S];
    unsigned tickets[TICKETS];
    A sums[S][WRITERS];  // of the parts of a tile
    double carry[S];
    __device__ unsigned ticket(int i) const { return tickets[i % TICKETS]; }
};

/// A tile of a row: pack p has the elements n(p) to n(p) + V - 1 of a sum over N elements. Rows start anywhere: the first and the last pack
/// of a row may be partly outside, unless EVEN.
template <typename T, bool REVERSE, bool EVEN>
struct Tile {
    static constexpr int V = 16 / sizeof(T);
    int first, N;
    __device__ Tile(const T* row, int tile, int count) : N(count) {
        const unsigned beyond = EVEN ? 0 : static_cast<unsigned>(reinterpret_cast<unsigned long long>(REVERSE ? row + N : row)) % 16;
        first = tile * TILE * V - static_cast<int>((REVERSE ? (16 - beyond) % 16 : beyond) / sizeof(T));
    }
    __device__ int n(int p) const { return first + p * V; }
    __device__ bool all() const { return (EVEN || first >= 0) && first + TILE * V <= N; }
    __device__ bool whole(int p) const { return EVEN ? n(p) < N : n(p) >= 0 && n(p) + V <= N; }
    __device__ bool holds(int p, int i) const {
        const int k = REVERSE ? n(p) + V - 1 - i : n(p) + i;
        return k >= 0 && k < N;
    }
    __device__ long long at(int p) const { return REVERSE ? static_cast<long long>(N) - n(p) - V : n(p); }
    /// Starts the copy of a pack.
    __device__ void load(uint4* to, const T* row, int p) const {
        if (whole(p)) {
            __pipeline_memcpy_async(to, row + at(p), 16);
            return;
        }
        Row<T, V> one = {};
        if (!EVEN) {
#pragma unroll
            for (int i = 0; i < V; ++i) {
                if (holds(p, i)) reinterpret_cast<T*>(one.w)[i] = row[at(p) + i];
            }
        }
        *to = one.w[0];
    }
    __device__ void store(const Row<T, V>& one, T* row, int p) const {
        if (whole(p)) {
            one.store(row + at(p));
        } else if (!EVEN) {
#pragma unroll
            for (int i = 0; i < V; ++i) {
                if (holds(p, i)) row[at(p) + i] = reinterpret_cast<const T*>(one.w)[i];
            }
        }
    }
};

/// The sum of a pack.
template <typename A, typename T, int V>
__device__ A pack_sum(const Row<T, V>& v) {
    float f[V];
    v.widen(f);
    A sums[V];
#pragma unroll
    for (int i = 0; i < V; ++i) sums[i] = static_cast<A>(f[i]);
#pragma unroll
    for (int half = V / 2; half > 0; half /= 2) {
#pragma unroll
        for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
    }
    return sums[0];
}

template <typename A>
__device__ A every_lane(A sum) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    return sum;
}

/// Sets the counter and the words to zero.
__global__ void clear(unsigned long long* words, long long count) {
    gdc_wait();
    gdc_launch_dependents();
    const long long at = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at < count) words[at] = 0;
}

/// Ticket t is tile t / O of row t % O. words: a counter; the sums of tiles [O, tiles]; running sums at the ends of groups [O, groups]. S
/// slots; sums of tiles are published up to LEAD + 1 tiles before the writers have taken them out of their slots, and S - LEAD tiles are
/// loaded at once.
template <typename T, int S, int LEAD, int GROUP, bool REVERSE, bool EVEN>
__global__ void __launch_bounds__(32 * (WRITERS + LOADERS + 2), 1)
    chain(const T* x, T* out, unsigned long long* words, unsigned O, int N, long long xo, long long oo, int tiles) {
    static_assert(LEAD >= 1 && S - LEAD >= 2 && S + 3 <= TICKETS, "");
    using A = typename Sum<T>::type;
    constexpr int V = 16 / sizeof(T);
    extern __shared__ __align__(128) uint4 ring[];
    __shared__ Steps<A, S> steps;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) {
        for (int s = 0; s < S; ++s) {
            start(steps.taken[s], 1), start(steps.summed[s], 32 * LOADERS), start(steps.carried[s], 1), start(steps.read[s], WRITERS);
            start(steps.freed[s], WRITERS + 1);  // the warp that looks back too: no one may be two phases behind
        }
    }
    __syncthreads();
    gdc_wait();

    if (warp < WRITERS) {
        for (int i = 0;; ++i) {
            const int s = i % S, part = warp * PACKS * 32 + lane;
            await(steps.summed[s], i / S);
            const unsigned ticket = steps.ticket(i);
            if (ticket == NONE) return;
            const unsigned r = ticket % O;
            const Tile<T, REVERSE, EVEN> tile(x + r * xo, static_cast<int>(ticket / O), N);
            Row<T, V> v[PACKS];
#pragma unroll
            for (int u = 0; u < PACKS; ++u) v[u].w[0] = ring[s * TILE + part + u * 32];
            A total = 0;  // of the packs before
            for (int k = 0; k < warp; ++k) total += steps.sums[s][k];
            __syncwarp();
            if (lane == 0) arrive(steps.freed[s]);
            A upto[PACKS];
#pragma unroll
            for (int u = 0; u < PACKS; ++u) upto[u] = pack_sum<A>(v[u]);
#pragma unroll
            // four scans at a time: enough to hide the shuffles' latency, and few registers
            for (int begin = 0; begin < PACKS; begin += 4) {
#pragma unroll
                for (int step = 1; step < 32; step *= 2) {
#pragma unroll
                    for (int u = begin; u < begin + 4; ++u) {
                        const A other = __shfl_up_sync(~0u, upto[u], step);
                        if (lane >= step) upto[u] += other;
                    }
                }
            }
#pragma unroll
            for (int u = 0; u < PACKS; ++u) {
                const A other = __shfl_up_sync(~0u, upto[u], 1), all = __shfl_sync(~0u, upto[u], 31);
                upto[u] = lane > 0 ? total + other : total;
                total += all;
            }
            await(steps.carried[s], i / S);
            const A carry = static_cast<A>(steps.carry[s]);
            __syncwarp();
            if (lane == 0) arrive(steps.read[s]);
#pragma unroll
            for (int u = 0; u < PACKS; ++u) {
                float f[V];
                v[u].widen(f);
                run_along<REVERSE>(f, Base<T>(carry + upto[u]));
                v[u].narrow(f);
            }
            T* to = out + r * oo;
            if (tile.all()) {
#pragma unroll
                for (int u = 0; u < PACKS; ++u) v[u].store(to + tile.at(part + u * 32));
            } else {
#pragma unroll
                for (int u = 0; u < PACKS; ++u) tile.store(v[u], to, part + u * 32);
            }
        }
    }

    if (warp < WRITERS + LOADERS) {  // a thread adds what it has copied itself
        constexpr int PARTS = WRITERS / LOADERS;
        const int mine = (warp - WRITERS) * PARTS * PACKS * 32 + lane;
        const auto load = [&](int i) {
            await(steps.taken[i % S], i / S);
            const unsigned ticket = steps.ticket(i);
            if (ticket != NONE) {
                const T* row = x + ticket % O * xo;
                uint4* const slot = ring + i % S * TILE;
                const Tile<T, REVERSE, EVEN> tile(row, static_cast<int>(ticket / O), N);
                if (tile.all()) {
#pragma unroll
                    for (int u = 0; u < PARTS * PACKS; ++u) __pipeline_memcpy_async(slot + mine + u * 32, row + tile.at(mine + u * 32), 16);
                } else {
#pragma unroll 1
                    for (int u = 0; u < PARTS * PACKS; ++u) tile.load(slot + mine + u * 32, row, mine + u * 32);
                }
            }
            __pipeline_commit();
        };
        for (int i = 0; i < S - LEAD; ++i) load(i);
        for (int i = 0;; ++i) {
            const int s = i % S;
            __pipeline_wait_prior(S - LEAD - 1);
            const bool there = steps.ticket(i) != NONE;
            if (there) {
#pragma unroll
                for (int part = 0; part < PARTS; ++part) {
                    A sum = 0;
#pragma unroll
                    for (int u = 0; u < PACKS; ++u) {
                        Row<T, V> v;
                        v.w[0] = ring[s * TILE + mine + (part * PACKS + u) * 32];
                        sum += pack_sum<A>(v);
                    }
                    sum = every_lane(sum);
                    if (lane == 0) steps.sums[s][(warp - WRITERS) * PARTS + part] = sum;
                }
            }
            arrive(steps.summed[s]);
            if (!there) return;
            if (i >= LEAD) await(steps.freed[(i - LEAD) % S], (i - LEAD) / S);
            load(i - LEAD + S);
        }
    }

    if (warp == WRITERS + LOADERS) {
        if (lane > 0) return;
        unsigned ticket = 0;
        const auto take = [&](int i) {
            if (ticket != NONE) {
                // the tiles that a tile waits for have been taken by running blocks
                ticket = atomicAdd(reinterpret_cast<unsigned*>(words), 1u);
                if (ticket / O >= static_cast<unsigned>(tiles)) ticket = NONE;
            }
            steps.tickets[i % TICKETS] = ticket;
            arrive(steps.taken[i % S]);
        };
        for (int i = 0; i <= S - LEAD; ++i) take(i);
        for (int i = 0;; ++i) {
            await(steps.summed[i % S], i / S);
            const unsigned now = steps.ticket(i);
            if (now == NONE) return;
            double total = 0;
#pragma unroll
            for (int k = 0; k < WRITERS; ++k) total += static_cast<double>(steps.sums[i % S][k]);
            publish(words + 1 + static_cast<long long>(now % O) * tiles + now / O, total);
            take(i + S - LEAD + 1);
        }
    }

    const int groups = (tiles + GROUP - 1) / GROUP;
    for (int i = 0;; ++i) {
        const int s = i % S;
        await(steps.summed[s], i / S);
        const unsigned ticket = steps.ticket(i);
        if (ticket == NONE) return;
        __syncwarp();
        if (lane == 0) arrive(steps.freed[s]);
        const long long r = ticket % O;
        const int tile = static_cast<int>(ticket / O), g = tile / GROUP, place = tile % GROUP;
        const unsigned long long* word = words + 1 + r * tiles + tile;
        unsigned long long* end = words + 1 + static_cast<long long>(O) * tiles + r * groups + g;
        double found = every_lane(awaited<GROUP < 32 ? 1 : GROUP / 32>(word - place + lane, place > lane ? (place - lane + 31) / 32 : 0,
            32));
        const double mine = place == GROUP - 1 ? awaited<1>(word, 1, 1) : 0;
        if (g > 0) found += awaited<1>(end - 1, 1, 1);
        if (lane > 0) continue;
        if (place == GROUP - 1) publish(end, found + mine);
        if (i >= S) await(steps.read[s], i / S - 1);
        steps.carry[s] = found;
        arrive(steps.carried[s]);
    }
}
