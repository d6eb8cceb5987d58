/* rooftop
idea    = "A block scans a tile: a strip of neighbouring columns, 128 bytes wide, and some hundred rows of it. The tile is in registers, and all its loads are in flight together: 224 bytes per thread. Each thread scans its own rows, the sums of the threads are scanned in shared memory, and the sums of the tiles above are read as one word per tile and column. Tiles form groups: a tile waits for the sums of its group and for one running sum, so that the order of summation is the same in each run. The threads of the block divide these words among them, so that groups may be long and few: each group adds the latency of passing a running sum from block to block."
predict = { speedup = 2.2 }
limit   = "On an H200 0.83 of a copy at 16384x8192 bfloat16. Columns with rows of a few bytes are read with narrow loads: 0.62 at 1048576x64 float32."
dtypes  = ["f32", "f16", "bf16"]
args    = ["x: T[O, N, I]", "out: T[O, N, I]"]
demands = { spills = 0 }
python  = ["supports", "prefers", "choose", "configs", "scratch", "zeroed", "launches"]

[config]
vector = 1
tx     = 32
rows   = 8
group  = 8
*/
#include "chain.cuh"
#include "rotate.cuh"
#include "running_sums.cuh"

/// Tiles of ty · U rows (ty = 256 / tx) and tx · V columns; thread (along, down) has the V columns from along · V on and the U rows from down · U on, in the
/// order of the sum. A chain is the tiles of one strip of columns. words: a counter; sums of tiles [chains, tiles, columns]; running sums at the ends of
/// groups [chains, groups, columns]. A reverse sum has negative row strides (xn, on) and starts from the last row (xb, ob). WHOLE: a strip is one tile.
template <typename T, int V, int U, bool WHOLE>
__global__ void __launch_bounds__(256, sizeof(T) > 2 || U * V * sizeof(T) > 128 ? 2 : 3)
    columns(const T* x, T* out, unsigned long long* words, int N, int I, int tx, int strips, int chains, int tiles, int group, long long xo, long long xn,
            long long xb, long long oo, long long on, long long ob) {
    using A = typename Sum<T>::type;
    __shared__ __align__(16) A sums[256 * V];  // [down, column]
    __shared__ double shares[256];  // [part, column]
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
    const int column = (chain % strips) * wide + along * V, first = (tile * ty + down) * U, rows = down < ty && column < I ? min(U, N - first) : 0;
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
    double carry = 0;
    if (!WHOLE) {  // the sums of the tiles above: every thread waits for a part of the words of one column, every part of the words with all in flight
        const long long each = static_cast<long long>(wide);
        const int parts = max(1, 256 / wide), part = threadIdx.x / wide, here = threadIdx.x % wide;
        unsigned long long* mine = words + 1 + (static_cast<long long>(chain) * tiles + tile) * each + here;
        const int groups = (tiles + group - 1) / group, g = tile / group, before = tile % group;
        unsigned long long* end = words + 1 + static_cast<long long>(chains) * tiles * each + (static_cast<long long>(chain) * groups + g) * each + here;
        double total = 0;
        if (part == 0) {
            A sum = 0;
#pragma unroll 4
            for (int d = 0; d < ty; ++d) sum += sums[d * wide + here];
            total = sum;
            publish(mine, total);
        }
        if (part < parts) {
            double share = awaited<sizeof(T) == 4 ? 8 : 4>(mine - (before - part) * each, max(0, before - part + parts - 1) / parts, parts * each);
            if (part == parts - 1 && g > 0) share += awaited<1>(end - each, 1, each);
            shares[threadIdx.x] = share;
        }
        __syncthreads();
        if (part == 0) {
            for (int k = 0; k < parts; ++k) carry += shares[k * wide + here];
            if (before == group - 1) publish(end, carry + total);
        }
    }
    if (threadIdx.x < wide) {  // one thread a column: the sums of the threads above
        A above = static_cast<A>(carry);
#pragma unroll 4
        for (int d = 0; d < ty; ++d) {
            const A s = sums[d * wide + threadIdx.x];
            sums[d * wide + threadIdx.x] = above;
            above += s;
        }
    }
    __syncthreads();
    if (rows <= 0) return;
    Base<T> base[V];
    float run[V] = {};  // float32 is enough within a thread's own rows, at most 32: this sum is not passed on
#pragma unroll
    for (int i = 0; i < V; ++i) base[i] = Base<T>(sums[down * wide + along * V + i]);
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
