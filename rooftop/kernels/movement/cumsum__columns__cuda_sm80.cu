/* rooftop
idea    = """A block scans a tile: a strip of neighbouring columns, 128 bytes wide, and some hundred rows of it. The tile is in registers, \
  and all its loads are in flight together: 224 bytes per thread. Each thread scans its own rows, a few threads a column scan the sums of \
  the threads, and the sums of the tiles above are read as one word per tile and column. Tiles form groups: a tile waits for the sums of \
  its group and for one running sum, so that the order of summation is the same in each run. The threads of the block divide these words \
  among them, so that groups may be long and few: each group adds the latency of passing a running sum from block to block."""
predict = { speedup = 2.2 }
limit   = """The bytes in flight: 56 KiB a block, two blocks a multiprocessor, while a block waits for its ticket, its loads and the sums \
  above, one after the other."""
dtypes  = ["f32", "f16", "bf16"]
args    = ["x: T[O, N, I]", "out: T[O, N, I]"]
demands = { spills = 0 }
python  = ["supports", "choose", "configs", "scratch", "zeroed", "launches"]

[config]
vector = 1
tx     = 32
rows   = 8
group  = 8
*/
#include "pdl.cuh"
#include "_rope.cuh"
#include "_prefix_sums.cuh"

/// Tiles of ty · U rows (ty = 256 / tx) and tx · V columns; thread (along, down) has the V columns from along · V on and the U rows from
/// down · U on, in the order of the sum. A chain is the tiles of one strip of columns. words: a counter; sums of tiles [chains, tiles,
/// columns]; running sums at the ends of groups [chains, groups, columns]. A reverse sum has negative row strides (xn, on) and starts from
/// the last row (xb, ob). WHOLE: a strip is one tile.
template <typename T, int V, int U, bool WHOLE>
__global__ void __launch_bounds__(256, sizeof(T) > 2 || U * V * sizeof(T) > 128 ? 2 : 3)
    columns(const T* x, T* out, unsigned long long* words, int N, int I, int tx, int strips, int chains, int tiles, int group, long long xo,
        long long xn,
            long long xb, long long oo, long long on, long long ob) {
    using A = typename Sum<T>::type;
    __shared__ __align__(16) A sums[256 * V];  // [down, column]
    __shared__ A totals[256], starts[256];  // [part, column]
    __shared__ double shares[256];
    __shared__ unsigned ticket;
    const int along = threadIdx.x % tx, down = threadIdx.x / tx, ty = 256 / tx, wide = tx * V;
    gdc_wait();
    unsigned at = blockIdx.x;
    if (!WHOLE) {  // tiles are taken by a counter: the tiles that this one waits for have started
        if (threadIdx.x == 0) ticket = atomicAdd(reinterpret_cast<unsigned*>(words), 1u);
        __syncthreads();
        at = ticket;
    }
    const int chain = WHOLE ? at : at % chains, tile = WHOLE ? 0 : at / chains, outer = chain / strips;
    const int column = (chain % strips) * wide + along * V, first = (tile * ty + down) * U,
        rows = down < ty && column < I ? min(U, N - first) : 0;
    const T* from = x + outer * xo + xb + first * xn + column;
    Row<T, V> v[U] = {};
    if (rows == U) {
#pragma unroll
        for (int u = 0; u < U; ++u) v[u].load(from + u * xn);
    } else {
#pragma unroll
        for (int u = 0; u < U; ++u) {
            if (u < rows) v[u].load(from + u * xn);
        }
    }
    A all[V] = {};  // of a thread's own rows
#pragma unroll
    for (int u = U - 1; u >= 0; --u) {  // from below: sums from above would be kept in registers until they are needed again
        float f[V];
        v[u].widen(f);
#pragma unroll
        for (int i = 0; i < V; ++i) all[i] += static_cast<A>(f[i]);
    }
    if (down < ty) {
#pragma unroll
        for (int i = 0; i < V; ++i) sums[down * wide + along * V + i] = all[i];
    }
    __syncthreads();
    // Every thread adds the sums of `per` threads of one column, and keeps the sum before each in its place.
    const int parts = max(1, 256 / wide), part = threadIdx.x / wide, here = threadIdx.x % wide, per = (ty + parts - 1) / parts;
    if (part < parts) {
        A s[2 * V], run = 0;
#pragma unroll
        for (int k = 0; k < 2 * V; ++k) s[k] = k < per && part * per + k < ty ? sums[(part * per + k) * wide + here] : A(0);
#pragma unroll
        for (int k = 0; k < 2 * V; ++k) {
            if (k < per && part * per + k < ty) sums[(part * per + k) * wide + here] = run;
            run += s[k];
        }
        totals[threadIdx.x] = run;
    }
    __syncthreads();
    double before = 0;  // of the column: the sum of the parts before this one; then with all tiles above
    if (part < parts) {
        A total = 0;
#pragma unroll 4
        for (int k = 0; k < parts; ++k) {
            if (k == part) before = total;
            total += totals[k * wide + here];
        }
        // the sums of the tiles above: every thread waits for a part of the words of one column, every part of the words with all in flight
        if (!WHOLE) {
            const long long each = static_cast<long long>(wide);
            unsigned long long* mine = words + 1 + (static_cast<long long>(chain) * tiles + tile) * each + here;
            if (part == 0) publish(mine, total);
            const int groups = (tiles + group - 1) / group, g = tile / group, place = tile % group;
            unsigned long long* end = words + 1 + static_cast<long long>(chains) * tiles * each
                + (static_cast<long long>(chain) * groups + g) * each + here;
            const bool ends = part == parts - 1 && g > 0;
            // in flight with the others
            const unsigned long long early = ends ? *reinterpret_cast<volatile unsigned long long*>(end - each) : 0;
            double share = awaited<sizeof(T) == 4 ? 8 : 4>(mine - (place - part) * each, max(0, place - part + parts - 1) / parts,
                parts * each);
            if (ends) share += early ? __longlong_as_double(static_cast<long long>(~early)) : awaited<1>(end - each, 1, each);
            shares[threadIdx.x] = share;
        }
    }
    if (!WHOLE) {
        __syncthreads();
        if (part < parts) {
            double carry = 0;
#pragma unroll 4
            for (int k = 0; k < parts; ++k) carry += shares[k * wide + here];
            before += carry;
            if (part == parts - 1 && tile % group == group - 1) {
                const int groups = (tiles + group - 1) / group;
                const long long end = static_cast<long long>(chains) * tiles + static_cast<long long>(chain) * groups + tile / group;
                publish(words + 1 + end * wide + here, before + totals[threadIdx.x]);
            }
        }
    }
    if (part < parts) starts[threadIdx.x] = static_cast<A>(before);
    __syncthreads();
    if (rows <= 0) return;
    Base<T> base[V];
    float run[V] = {};  // float32 is enough within a thread's own rows, at most 32: this sum is not passed on
#pragma unroll
    for (int i = 0; i < V; ++i) base[i] = Base<T>(starts[down / per * wide + along * V + i] + sums[down * wide + along * V + i]);
    T* to = out + outer * oo + ob + first * on + column;
#pragma unroll
    for (int u = 0; u < U; ++u) {
        float f[V];
        v[u].widen(f);
#pragma unroll
        for (int i = 0; i < V; ++i) {
            run[i] += f[i];
            f[i] = base[i].plus(run[i]);
        }
        v[u].narrow(f);
        if (u < rows) v[u].store(to + u * on);
    }
}
