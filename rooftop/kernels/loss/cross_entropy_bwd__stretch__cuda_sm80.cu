/* rooftop
idea    = "The gradient of a logit needs only four numbers of its row. So adjacent rows are treated as one contiguous range, which each block takes a piece of: whole vectors of 16 bytes that ignore row boundaries. The block computes the four numbers once for each row of its piece, in shared memory, while its vectors are in flight. A thread finds the row of a vector with one multiplication by a reciprocal. A vector that belongs to two rows is left to the thread that computed the second one's numbers, so all other vectors take the same short path. The cost of an element is the same for all lengths and alignments of a row."
limit   = "Predicted, not yet measured: within a few percent of the copy of the same bytes. 16-bit rows of 64 to 1500 classes should take 9 to 13 instructions an element; a copy leaves time for 27."
dtypes  = ["f16", "bf16"]
args    = ["C: i32", "input: T[R, C]"]
tensors = ["dinput: T[R, C]", "target: i64[R]", "normaliser: f32[R, 2]"]
demands = { has = ["LDG.E.128", "STG.E.128", "LDS.128"], spills = 0 }
python  = ["supports", "prefers", "choose", "configs", "launches"]
valid   = "vectors > 0"

[config]
vectors = 4
*/
#include <math_constants.h>

#include "chain.cuh"
#include "exponential.cuh"
#include "packs.cuh"

constexpr int THREADS = 256, IGNORED = -2, UNKNOWN = -1;  // targets of rows that are ignored, and out of range

/// What the gradient of one row's logits depends on: e^(z - shift) and its factor; the gradient of the row's loss; the target's column.
struct alignas(16) State {
    float shift, factor, g;
    int target;

    /// The gradient of logit v in column `column`. smoothed: the smoothing of one class; hit: what the target's has less.
    template <typename T>
    __device__ float of(float v, int column, float smoothed, float hit) const {
        float d = fmaf(exponential<T>(v - shift), factor, -smoothed * g);
        if (column == target) d -= hit * g;
        return target == IGNORED ? 0 : d;
    }
};

/// A block has THREADS · VECTORS vectors of R rows of C >= 8 elements, one after another. Positions in this piece count elements. part, part_long: 2^32 / C and
/// 2^64 / C, rounded up.
template <typename T, int VECTORS>
__global__ void __launch_bounds__(THREADS, VECTORS <= 4 ? 6 : 4)
    cross_entropy_bwd_stretch(int C, const T* x, long long elements, unsigned part, unsigned long long part_long, const float* __restrict__ dloss, long long gs,
                              const long long* __restrict__ targets, const float2* __restrict__ normalisers, const float* __restrict__ divisor, T* dx,
                              long long ignore, float smoothing, float scale) {
    using P = Pack<T>;
    constexpr int N = P::N, PIECE = THREADS * VECTORS * N;
    extern __shared__ State states[];
    const int tid = threadIdx.x;
    const long long start = static_cast<long long>(blockIdx.x) * PIECE;
    const long long first = static_cast<long long>(__umul64hi(start, part_long));  // row of the piece's first element
    const int off = static_cast<int>(start - first * C);                           // its column
    const int left = static_cast<int>(min(elements - start, static_cast<long long>(PIECE)));
    const int rows = static_cast<int>(__umulhi(off + left - 1, part)) + 1;
    x += start, dx += start;
    const auto vector = [&](int i) { return (i * THREADS + tid) * N; };
    const auto row_at = [&](int place) { return static_cast<int>(__umulhi(off + place, part)); };
    // The vector that contains the end of row k - 1 and the start of row k, if it is a whole one.
    const auto begin = [&](int k) { return k * C - off; };
    const auto shared = [&](int k) { return k > 0 && begin(k) % N != 0 && begin(k) / N * N + N <= left; };
    const auto load = [&](int place) { return __ldcs(reinterpret_cast<const uint4*>(x + place)); };

    gdc_wait();
    uint4 packs[VECTORS], edge = make_uint4(0, 0, 0, 0);
    int column[VECTORS];
    const State* state[VECTORS];
    bool mine[VECTORS];  // it is a whole vector of one row
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const int k = row_at(vector(i));
        column[i] = off + vector(i) - k * C, state[i] = states + k;
        mine[i] = vector(i) + N <= left && column[i] + N <= C;
        packs[i] = mine[i] ? load(vector(i)) : make_uint4(0, 0, 0, 0);
    }
    if (tid < rows && shared(tid)) edge = load(begin(tid) / N * N);
    const float of_all = *divisor;
    for (int k = tid; k < rows; k += THREADS) {
        const long long row = first + k, t = targets[row];
        const float2 n = normalisers[row];
        const bool known = t >= 0 && t < C;
        State s;
        s.g = known ? dloss[row * gs] / of_all : CUDART_NAN_F;
        s.shift = n.x, s.factor = s.g * ((scale == 0 ? 1 : 1 + 2 * scale * (n.x + logf(n.y))) / n.y);
        s.target = t == ignore ? IGNORED : known ? static_cast<int>(t) : UNKNOWN;
        states[k] = s;
    }
    __syncthreads();

    const float smoothed = smoothing / static_cast<float>(C), hit = 1 - smoothing;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        if (!mine[i]) continue;
        const State s = *state[i];
        const float less = -smoothed * s.g;
        float f[N];
        P::widen(packs[i], f);
#pragma unroll
        for (int j = 0; j < N; ++j) f[j] = fmaf(exponential<T>(f[j] - s.shift), s.factor, less);
        const int at = s.target - column[i];
        if (static_cast<unsigned>(at) < N) {
#pragma unroll
            for (int j = 0; j < N; ++j) {
                if (at == j) f[j] -= hit * s.g;
            }
        }
        P::store(dx + vector(i), true, s.target == IGNORED ? make_uint4(0, 0, 0, 0) : P::narrow(f));
    }
    for (int k = tid; k < rows; k += THREADS) {
        if (!shared(k)) continue;
        const int cut = begin(k) % N, place = begin(k) - cut;
        const State one = states[k - 1], two = states[k];
        float f[N];
        P::widen(k == tid ? edge : load(place), f);
#pragma unroll
        for (int j = 0; j < N; ++j) f[j] = (j < cut ? one : two).template of<T>(f[j], j < cut ? C - cut + j : j - cut, smoothed, hit);
        P::store(dx + place, true, P::narrow(f));
    }
    if (tid < left % N) {  // the elements after the last whole vector
        const int place = left - left % N + tid, k = row_at(place);
        dx[place] = T(states[k].template of<T>(static_cast<float>(x[place]), off + place - k * C, smoothed, hit));
    }
}
