/* rooftop
idea    = "Each thread loads and stores vectors of 16 bytes if rows start on 16-byte boundaries, and divides once for each vector: the vector's mean and sum of squares are merged into the thread's moments in one step."
predict = { speedup = 1.7, sectors_read = 16 }
limit   = "The row is read twice: from 32768 columns on 1.54 to 1.73 times the time of a copy; two reads and a write, where a copy has one of each, would be 1.5. Each vector costs two divisions, in bf16 with one load of the first pass in flight per thread: 1.21 times the copy at 8192 columns. In float32 there are twice as many divisions per element: 1.48."
dtypes  = ["f32", "bf16"]
demands = { has = ["LDG.E.128", "STG.E.128"], spills = 0 }
args   = ["R: i64", "C: u32", "x: T[R, C]", "xs: i64 = stride(x, 0)", "weight: T[C]?", "bias: T[C]?", "y: T[R, C]", "ys: i64 = stride(y, 0)", "eps: f32"]

[requires]
"not present(residual)" = "this rung adds nothing before"

[config]
threads = 256

[[launch]]
kernel = "layer_norm<{T}, {threads}>"
grid   = ["R"]
block  = ["threads"]
*/
#include <cuda_bf16.h>

/// The number of elements, their mean and the sum of squares about it. Adds an element (Welford 1962), or combines two sets (Chan et al. 1979).
struct Moments {
    float n = 0, mean = 0, squares = 0;
    __device__ void add(float v) {
        n += 1;
        const float off = v - mean;
        mean += off / n;
        squares += off * (v - mean);
    }
    __device__ void join(const Moments& o) {
        const float all = n + o.n, off = o.mean - mean;
        if (all == 0) return;
        mean += off * (o.n / all);
        squares += o.squares + off * off * (n * o.n / all);
        n = all;
    }
    __device__ void join_across(int width) {
        for (int step = width / 2; step > 0; step /= 2) {
            Moments o;
            o.n = __shfl_xor_sync(~0u, n, step), o.mean = __shfl_xor_sync(~0u, mean, step), o.squares = __shfl_xor_sync(~0u, squares, step);
            join(o);
        }
    }
};

/// The moments of the whole block, in every thread.
template <int WARPS>
__device__ Moments fold(Moments m, Moments* shared) {
    m.join_across(32);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = m;
    __syncthreads();
    m = shared[threadIdx.x % WARPS];
    m.join_across(WARPS);
    return m;
}

/// v · weight + bias of column c.
template <typename T>
__device__ T affine(float v, const T* w, const T* b, unsigned c) {
    return T(v * (w ? static_cast<float>(w[c]) : 1) + (b ? static_cast<float>(b[c]) : 0));
}

/// A pack: 16 bytes of a row, one vector access.
template <typename T>
struct alignas(16) Pack {
    static constexpr int N = 16 / sizeof(T);
    T v[N];
};

template <typename T, int THREADS>
__global__ void layer_norm(long long R, unsigned C, const T* __restrict__ x, long long xs, const T* __restrict__ w, const T* __restrict__ b,
                           T* __restrict__ y, long long ys, float eps) {
    using P = Pack<T>;
    __shared__ alignas(16) unsigned char memory[THREADS / 32 * sizeof(Moments)];  // Moments has a constructor, which shared memory may not
    const unsigned tid = threadIdx.x;
    x += blockIdx.x * xs;
    y += blockIdx.x * ys;
    const auto bits = [](const void* p) { return reinterpret_cast<unsigned long long>(p); };
    const bool aligned = (bits(x) | bits(y) | bits(w) | bits(b)) % 16 == 0;
    const unsigned packs = aligned ? C / P::N : 0;  // the rest element by element

    Moments m;
    for (unsigned k = tid; k < packs; k += THREADS) {
        const P p = reinterpret_cast<const P*>(x)[k];
        Moments few;
        few.n = P::N;
#pragma unroll
        for (int j = 0; j < P::N; ++j) few.mean += static_cast<float>(p.v[j]) / P::N;
#pragma unroll
        for (int j = 0; j < P::N; ++j) few.squares += (static_cast<float>(p.v[j]) - few.mean) * (static_cast<float>(p.v[j]) - few.mean);
        m.join(few);
    }
    for (unsigned c = packs * P::N + tid; c < C; c += THREADS) m.add(static_cast<float>(x[c]));
    m = fold<THREADS / 32>(m, reinterpret_cast<Moments*>(memory));
    const float scale = 1 / sqrtf(m.squares / C + eps);

    for (unsigned k = tid; k < packs; k += THREADS) {
        P p = reinterpret_cast<const P*>(x)[k], q, a;
        if (w) q = reinterpret_cast<const P*>(w)[k];
        if (b) a = reinterpret_cast<const P*>(b)[k];
#pragma unroll
        for (int j = 0; j < P::N; ++j) {
            const float n = (static_cast<float>(p.v[j]) - m.mean) * scale;
            p.v[j] = T(n * (w ? static_cast<float>(q.v[j]) : 1) + (b ? static_cast<float>(a.v[j]) : 0));
        }
        reinterpret_cast<P*>(y)[k] = p;
    }
    for (unsigned c = packs * P::N + tid; c < C; c += THREADS) y[c] = affine((static_cast<float>(x[c]) - m.mean) * scale, w, b, c);
}
