/* Calibration kernels: what this card can do at best. They fulfil no op; rooftop/lab/timing/roofline.py times them.

copy, read, write: `n` vectors of 16 bytes. A block handles tiles of UNROLL * blockDim.x vectors; each thread has UNROLL
loads in flight before its first use of one. The launch decides between one tile a block and a resident grid that strides.
HINT 0: ordinary loads and stores; 1: ld.global.cs / st.global.cs, evicted first as nothing is used twice.

fma: CHAINS independent chains a thread, x <- x * x + c, which is one FFMA. With c = -1.9 a chain that starts in (-1.9, 1.9)
stays there and wanders without a pattern, so the multipliers toggle as they do on random data.

All but fma use programmatic dependent launch (docs/head.md), as the kernels do that are measured against them. */
#include "pdl.cuh"

constexpr int FMA_UNROLL = 32;

template <int HINT> __device__ __forceinline__ uint4 load(const uint4* p) {
    if constexpr (HINT == 1) return __ldcs(p);
    return *p;
}

template <int HINT> __device__ __forceinline__ void store(uint4* p, uint4 v) {
    if constexpr (HINT == 1) __stcs(p, v);
    else *p = v;
}

template <int UNROLL, int HINT>
__global__ void __launch_bounds__(256) copy(const uint4* x, uint4* y, long long n) {
    gdc_wait();
    const long long tile = static_cast<long long>(UNROLL) * blockDim.x;
    for (long long at = blockIdx.x * tile; at < n; at += gridDim.x * tile) {
        const long long first = at + threadIdx.x;
        uint4 v[UNROLL];
        if (at + tile <= n) {
#pragma unroll
            for (int i = 0; i < UNROLL; ++i) v[i] = load<HINT>(x + first + i * blockDim.x);
#pragma unroll
            for (int i = 0; i < UNROLL; ++i) store<HINT>(y + first + i * blockDim.x, v[i]);
        } else {
            for (long long k = first; k < n; k += blockDim.x) store<HINT>(y + k, load<HINT>(x + k));
        }
    }
}

// `never`: a value that the exclusive-or of a thread's words practically never takes. If it does, it is written, which does no harm; the
// store keeps the loads from being removed.
template <int UNROLL, int HINT>
__global__ void __launch_bounds__(256) read(const uint4* __restrict__ x, unsigned* sink, unsigned never, long long n) {
    gdc_wait();
    const long long tile = static_cast<long long>(UNROLL) * blockDim.x;
    unsigned folded = 0;
    for (long long at = blockIdx.x * tile; at < n; at += gridDim.x * tile) {
        const long long first = at + threadIdx.x;
        uint4 v[UNROLL];
        if (at + tile <= n) {
#pragma unroll
            for (int i = 0; i < UNROLL; ++i) v[i] = load<HINT>(x + first + i * blockDim.x);
#pragma unroll
            for (int i = 0; i < UNROLL; ++i) folded ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
        } else {
            for (long long k = first; k < n; k += blockDim.x) {
                const uint4 w = load<HINT>(x + k);
                folded ^= w.x ^ w.y ^ w.z ^ w.w;
            }
        }
    }
    if (folded == never) *sink = folded;
}

// The words differ from each other: the index times an odd constant (Knuth's multiplicative hash).
template <int UNROLL, int HINT>
__global__ void __launch_bounds__(256) write(uint4* __restrict__ y, unsigned seed, long long n) {
    gdc_wait();
    const long long tile = static_cast<long long>(UNROLL) * blockDim.x;
    for (long long at = blockIdx.x * tile; at < n; at += gridDim.x * tile) {
        const long long end = at + tile < n ? at + tile : n;
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) {
            const long long k = at + threadIdx.x + i * blockDim.x;
            const unsigned h = (static_cast<unsigned>(k) + seed) * 2654435761u;
            if (k < end) store<HINT>(y + k, make_uint4(h, h ^ 0x9e3779b9u, h * 5u, ~h));
        }
    }
}

__global__ void empty() { gdc_wait(); }

template <int CHAINS>
__global__ void __launch_bounds__(256) fma(float* __restrict__ out, float c, int steps) {
    float x[CHAINS];
#pragma unroll
    for (int i = 0; i < CHAINS; ++i)
        x[i] = 1.8f * __sinf(static_cast<float>((blockIdx.x * blockDim.x + threadIdx.x) * CHAINS + i));
    for (int s = 0; s < steps; ++s) {
#pragma unroll
        for (int u = 0; u < FMA_UNROLL; ++u) {
#pragma unroll
            for (int i = 0; i < CHAINS; ++i) x[i] = fmaf(x[i], x[i], c);
        }
    }
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < CHAINS; ++i) sum += x[i];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
