/* rooftop
idea    = """The gradient of a logit needs only four numbers of its row. So adjacent rows are treated as one contiguous range, which each \
  block takes a piece of: whole vectors of 16 bytes that ignore row boundaries. The block computes the four numbers once for each row of \
  its piece, in shared memory, while its vectors are in flight. A thread finds the row of a vector with one multiplication by a reciprocal. \
  A vector that belongs to two rows is left to the thread that computed the second one's numbers, so all other vectors take the same short \
  path. The cost of an element is the same for all lengths and alignments of a row."""
limit   = """0.96 of the copy of the same bytes on an H200, with 144 and with 1200 classes of bf16. 16-bit rows of 64 to 1500 classes take \
  12 to 16 instructions an element, by the machine code; a copy leaves time for 27."""
dtypes  = ["f16", "bf16"]
args    = ["C: i32", "input: T[R, C]"]
tensors = ["dinput: T[R, C]", "target: i64[R]", "normaliser: f32[R, 2]"]
demands = { has = ["LDG.E.128", "STG.E.128", "LDS.128"], spills = 0 }
python  = ["supports", "choose", "configs", "launches"]
valid   = "vectors > 0"

[config]
vectors = 4
*/
#include <math_constants.h>

#include "pdl.cuh"
#include "packs.cuh"

constexpr int THREADS = 256, IGNORED = -(1 << 30), UNKNOWN = -(1 << 29);  // targets of rows that are ignored, and out of range

template <bool VALUE>
struct Flag {
    static constexpr bool value = VALUE;
};

/// What the gradient of one row's logits depends on: e^(z - shift) and its factor; the gradient of the row's loss; the target's position.
struct alignas(16) State {
    float shift, each, g;
    int target;

    /// The gradient of logit v at position `place`. smoothed: the smoothing of one class; hit: what the target's has less.
    template <typename T>
    __device__ float of(float v, int place, float smoothed, float hit) const {
        float d = exponential<T>(v - shift) * each - smoothed;
        if (place == target) d -= hit;
        return target == IGNORED ? 0 : d * g;
    }
};

/// A block has THREADS · VECTORS vectors of R rows of C >= 8 elements, one after another. Positions in this piece count elements. part,
/// part_long: 2^32 / C and 2^64 / C, rounded up. smoothed: the smoothing of one class; hit: 1 - label_smoothing.
template <typename T, int VECTORS>
__global__ void __launch_bounds__(THREADS, VECTORS <= 4 ? 5 : VECTORS <= 6 ? 4 : 3)
    cross_entropy_bwd_stretch(int C, const T* x, long long elements, unsigned part, unsigned long long part_long,
        const float* __restrict__ dloss, long long gs,
                              const long long* __restrict__ targets, const float2* __restrict__ normalisers,
                              const float* __restrict__ divisor, T* dx,
                              long long ignore, float smoothed, float hit, float scale) {
    using P = Pack<T>;
    constexpr int N = P::N, STEP = THREADS * N, PIECE = STEP * VECTORS;
    extern __shared__ State states[];
    const int tid = threadIdx.x;
    const int own = tid * N;  // position of this thread's first vector; the next are STEP apart
    const long long start = static_cast<long long>(blockIdx.x) * PIECE;
    const long long first = static_cast<long long>(__umul64hi(start, part_long));  // row of the piece's first element
    const int off = static_cast<int>(start - first * C);                           // its column
    const int left = static_cast<int>(min(elements - start, static_cast<long long>(PIECE)));
    const int rows = static_cast<int>(__umulhi(off + left - 1, part)) + 1;
    const auto begin = [&](int k) { return k * C - off; };  // of row k
    // Whether a whole vector contains the end of row k - 1 and the start of row k.
    const auto divided = [&](int k) { return k > 0 && begin(k) % N != 0 && (begin(k) & -N) + N <= left; };
    const auto load = [](const T* from) { return __ldcs(reinterpret_cast<const uint4*>(from)); };
    x += start, dx += start;
    const T* const from = x + own;
    T* to = dx + own;
    asm volatile("" : "+l"(to));  // kept in registers: otherwise the compiler computes it again for every vector

    gdc_wait();
    uint4 packs[VECTORS], edge;
    int its[VECTORS];    // the row of vector i
    bool mine[VECTORS];  // it is a whole vector of one row
    const int last = left - N - own;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const int place = off + own + i * STEP;
        its[i] = static_cast<int>(__umulhi(place, part));
        mine[i] = i * STEP <= last && place - its[i] * C <= C - N;
        if (mine[i]) packs[i] = load(from + i * STEP);
    }
    if (tid < rows && divided(tid)) edge = load(x + (begin(tid) & -N));
    const Divisor by(*divisor);
    bool rare = false;
#pragma unroll 1
    for (int k = tid; k < rows; k += THREADS) {
        const long long row = first + k, t = targets[row];
        const float2 n = normalisers[row];
        const float above = dloss[row * gs], each = over(scale == 0 ? 1 : 1 + 2 * scale * (n.x + logf(n.y)), n.y);
        const bool known = t >= 0 && t < C;
        const float g = known ? over(above, by) : CUDART_NAN_F;
        rare |= t == ignore || isinf(g);
        states[k] = {n.x, each, g, t == ignore ? IGNORED : known ? begin(k) + static_cast<int>(t) : UNKNOWN};
    }
    const auto write = [&](auto of_rare) {
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            if (!mine[i]) continue;
            const State s = states[its[i]];
            const float factor = of_rare.value ? s.each : s.each * s.g, less = of_rare.value ? smoothed : smoothed * s.g;
            const float of_hit = of_rare.value ? hit : hit * s.g;
            float f[N];
            P::widen(packs[i], f);
#pragma unroll
            for (int j = 0; j < N; ++j) f[j] = exponential<T>(f[j] - s.shift) * factor - less;
            const int at = s.target - own - i * STEP;
            if (static_cast<unsigned>(at) < N) {
#pragma unroll
                for (int j = 0; j < N; ++j) {
                    if (at == j) f[j] -= of_hit;
                }
            }
#pragma unroll
            for (int j = 0; j < N && of_rare.value; ++j) f[j] *= s.g;
            P::store(to + i * STEP, true, of_rare.value && s.target == IGNORED ? make_uint4(0, 0, 0, 0) : P::narrow(f));
        }
    };
    // Most pieces have neither ignored rows nor an infinite g: then g is multiplied into what it would otherwise be multiplied with in
    // every element.
    if (__syncthreads_or(rare)) write(Flag<true>());
    else write(Flag<false>());
#pragma unroll 1
    for (int k = tid; k < rows; k += THREADS) {
        if (!divided(k)) continue;
        const int cut = begin(k) % N, place = begin(k) - cut;
        const State one = states[k - 1], two = states[k];
        if (k != tid) edge = load(x + place);
        float f[N];
        P::widen(edge, f);
#pragma unroll
        for (int j = 0; j < N; ++j) {
            const bool before = j < cut;
            const State s = {before ? one.shift : two.shift, before ? one.each : two.each, before ? one.g : two.g,
                before ? one.target : two.target};
            f[j] = s.of<T>(f[j], place + j, smoothed, hit);
        }
        P::store(dx + place, true, P::narrow(f));
    }
    if (tid < left % N) {  // the elements after the last whole vector
        const int place = left - left % N + tid, k = static_cast<int>(__umulhi(off + place, part));
        dx[place] = T(states[k].template of<T>(static_cast<float>(x[place]), place, smoothed, hit));
    }
}
