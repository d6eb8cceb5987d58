/* rooftop
idea    = "A block scans a tile: a strip of neighbouring columns, 128 bytes wide, and some hundred rows of it. The tile lies in registers, and all its loads are in flight together: 224 bytes per thread. Each thread scans its own rows, the sums of the threads are scanned in shared memory, and the prefix of the tiles above is read as one word per column. Tiles form groups: a tile waits for the sums of its group and for one running sum, so that the order of summation is the same in each run."
predict = { speedup = 2.2 }
limit   = "The copy of the same bytes; columns with rows of a few bytes are read with narrow loads."
dtypes  = ["f32", "f16", "bf16"]
args    = ["x: T[O, N, I]", "out: T[O, N, I]"]
demands = { spills = 0 }
python  = ["supports", "prefers", "choose", "configs", "scratch", "zeroed", "launches"]
*/
#include "chain.cuh"
#include "rotate.cuh"

template <typename T>
struct Sum { using type = float; };
template <>
struct Sum<float> { using type = double; };

/// A published word is the complement of a number's bits, with one NaN pattern, so it is never 0 (which means: not there yet).
__device__ inline void publish(unsigned long long* word, double v) {
    *reinterpret_cast<volatile unsigned long long*>(word) = ~(v == v ? static_cast<unsigned long long>(__double_as_longlong(v)) : 0x7ff8000000000000ull);
}

/// The sum of `count` words, `step` apart, added in their order; waits for each of them.
__device__ inline double awaited(const unsigned long long* words, int count, long long step) {
    constexpr int EACH = 4;  // loads in flight
    double sum = 0;
    for (int k = 0; k < count; k += EACH) {
        unsigned long long found[EACH];
        bool absent = true;
        while (absent) {
            absent = false;
#pragma unroll
            for (int u = 0; u < EACH; ++u) {
                found[u] = k + u < count ? reinterpret_cast<const volatile unsigned long long*>(words)[(k + u) * step] : ~0ull;
            }
#pragma unroll
            for (int u = 0; u < EACH; ++u) absent = absent || found[u] == 0;
        }
#pragma unroll
        for (int u = 0; u < EACH; ++u) sum += __longlong_as_double(static_cast<long long>(~found[u]));
    }
    return sum;
}

/// Tiles of ty · U rows (ty = 256 / tx) and tx · V columns; thread (along, down) has the V columns from along · V on and the U rows from down · U on, in the
/// order of the sum. A chain is the tiles of one strip of columns. words: a counter; sums of tiles [chains, tiles, columns]; running sums at the ends of
/// groups [chains, groups, columns]. A reverse sum has negative row strides (xn, on) and starts from the last row (xb, ob). WHOLE: a strip is one tile.
template <typename T, int V, int U, bool WHOLE>
__global__ void __launch_bounds__(256, sizeof(T) > 2 || U * V * sizeof(T) > 128 ? 2 : 3)
    columns(const T* x, T* out, unsigned long long* words, int N, int I, int tx, int strips, int chains, int tiles, int group, long long xo, long long xn,
            long long xb, long long oo, long long on, long long ob) {
    using A = typename Sum<T>::type;
    __shared__ __align__(16) A sums[256 * V];  // [down, column]
    __shared__ unsigned ticket;
    const int along = threadIdx.x % tx, down = threadIdx.x / tx, ty = 256 / tx, wide = tx * V;
    wait_for_before();
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
    float run[V] = {};  // float32 is enough for a thread's own rows, at most 32; sums from above are of type A
#pragma unroll
    for (int u = 0; u < U; ++u) {
        float f[V];
        v[u].widen(f);
#pragma unroll
        for (int i = 0; i < V; ++i) run[i] += f[i];
    }
    if (down < ty) {
#pragma unroll
        for (int i = 0; i < V; ++i) sums[down * wide + along * V + i] = static_cast<A>(run[i]);
    }
    __syncthreads();
    if (threadIdx.x < wide) {  // one thread a column: the sums of the threads above, and of the tiles above
        A total = 0;
#pragma unroll 4
        for (int d = 0; d < ty; ++d) total += sums[d * wide + threadIdx.x];
        double carry = 0;
        if (!WHOLE) {
            const long long each = static_cast<long long>(wide);
            unsigned long long* mine = words + 1 + (static_cast<long long>(chain) * tiles + tile) * each + threadIdx.x;
            const int groups = (tiles + group - 1) / group, g = tile / group, before = tile % group;
            unsigned long long* end = words + 1 + static_cast<long long>(chains) * tiles * each + (static_cast<long long>(chain) * groups + g) * each + threadIdx.x;
            publish(mine, total);
            carry = awaited(mine - before * each, before, each);
            if (g > 0) carry += awaited(end - each, 1, each);
            if (before == group - 1) publish(end, carry + total);
        }
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
    A base[V];
#pragma unroll
    for (int i = 0; i < V; ++i) base[i] = sums[down * wide + along * V + i], run[i] = 0;
    T* to = out + outer * oo + ob + first * on + column;
#pragma unroll
    for (int u = 0; u < U; ++u) {
        float f[V];
        v[u].widen(f);
#pragma unroll
        for (int i = 0; i < V; ++i) {
            run[i] += f[i];
            f[i] = static_cast<float>(base[i] + static_cast<A>(run[i]));
        }
        v[u].narrow(f);
        if (u < rows) v[u].store(to + u * on);
    }
}
