/* rooftop
idea    = """FMAs on the CUDA cores, for inputs that tensor cores do not support: float32, and rows at any address. If a is contiguous \
  along K, a warp computes a few rows, so that each load of the vectors is used for all of them, and prefetches the next step before it \
  multiplies. Many vectors of float32 form a small matrix product: tiles of a and x go through a ring of buffers in shared memory. If a is \
  contiguous along its columns, a thread computes a few rows of y and loops over K, with the vectors in shared memory."""
limit   = """the read of a, up to 4 vectors; 16 vectors of float32 need two thirds of the FMAs that could be issued in that time, and three \
  quarters of the shared-memory wavefronts"""
dtypes  = ["f32", "f16", "bf16"]
args    = ["a: T[B, M, K]", "x: T[B, R, K]", "y: T[B, R, M]"]
demands = { has = ["FFMA"], spills = 0 }
python  = ["supports", "choose", "launches", "scratch"]
*/
#include "pdl.cuh"
#include "packs.cuh"

/// CH elements of one lane as they are in memory: one access if TOGETHER, else every 32nd element.
template <typename T, int CH, bool TOGETHER>
struct Piece;
template <typename T, int CH>
struct Piece<T, CH, true> {
    uint4 v;
    __device__ void load(const T* p, int, int) { v = *reinterpret_cast<const uint4*>(p); }
    __device__ void widen(float (&f)[CH]) const { Pack<T>::widen(v, f); }
    __device__ void clear() { v = make_uint4(0, 0, 0, 0); }
};
template <typename T, int CH>
struct Piece<T, CH, false> {
    T v[CH];
    __device__ void load(const T* p, int k, int last) {  // k: the index of *p; zeros from `last` on
#pragma unroll
        for (int j = 0; j < CH; ++j) v[j] = k + j * 32 < last ? p[j * 32] : T(0.0f);
    }
    __device__ void widen(float (&f)[CH]) const {
#pragma unroll
        for (int j = 0; j < CH; ++j) f[j] = static_cast<float>(v[j]);
    }
    __device__ void clear() {
#pragma unroll
        for (int j = 0; j < CH; ++j) v[j] = T(0.0f);
    }
};

/// Writes a result, or one of its parts, which blocks along the grid's y compute.
template <typename T>
__device__ void put(void* y, long long at, long long plane, float v) {
    if (gridDim.y == 1) static_cast<T*>(y)[at] = static_cast<T>(v);
    else static_cast<float*>(y)[blockIdx.y * plane + at] = v;
}

/// Rows of a are contiguous along K. A warp has ROWS of them, and UNROLL steps of 32 · CH elements of each in flight. Strides of batches
/// (ab, xb), of rows of a (am) and of vectors (xr); this block has `per` elements along K; plane: elements of y.
template <typename T, int R, int ROWS, int UNROLL, bool TOGETHER>
__global__ void __launch_bounds__(256, 2)
    rows(const T* __restrict__ a, const T* __restrict__ x, void* y, int M, int K, int per, long long plane, long long ab, long long am,
        long long xb,
         long long xr) {
    constexpr int CH = TOGETHER ? 16 / sizeof(T) : 4, STEP = 32 * CH * UNROLL;
    constexpr bool AHEAD = ROWS * R * CH < 192;  // whether registers hold the next step as well
    using P = Piece<T, CH, TOGETHER>;
    gdc_wait();
    const int lane = threadIdx.x % 32, m0 = (blockIdx.x * 8 + threadIdx.x / 32) * ROWS;
    if (m0 >= M) return;
    const int first = blockIdx.y * per, last = min(K, first + per);
    const T* from[ROWS];
#pragma unroll
    for (int w = 0; w < ROWS; ++w) from[w] = a + blockIdx.z * ab + static_cast<long long>(min(m0 + w, M - 1)) * am;
    x += blockIdx.z * xb;
    const auto place = [&](int k0, int u) { return k0 + u * 32 * CH + (TOGETHER ? lane * CH : lane); };
    const auto load = [&](int k0, P (&p)[UNROLL][ROWS]) {
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int k = place(k0, u);
#pragma unroll
            for (int w = 0; w < ROWS; ++w) {
                if (k < last) p[u][w].load(from[w] + k, k, last);
                else p[u][w].clear();
            }
        }
    };
    float acc[ROWS][R] = {};
    P now[UNROLL][ROWS], next[UNROLL][ROWS];
    if (AHEAD) load(first, now);
#pragma unroll 1
    for (int k0 = first; k0 < last; k0 += STEP) {
        if (AHEAD) load(k0 + STEP, next);
        else load(k0, now);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int k = place(k0, u);
            float f[ROWS][CH];
#pragma unroll
            for (int w = 0; w < ROWS; ++w) now[u][w].widen(f[w]);
#pragma unroll
            for (int r = 0; r < R; ++r) {
                P p;
                p.clear();
                if (k < last) p.load(x + r * xr + k, k, last);
                float v[CH];
                p.widen(v);
#pragma unroll
                for (int w = 0; w < ROWS; ++w) {
#pragma unroll
                    for (int j = 0; j < CH; ++j) acc[w][r] = fmaf(f[w][j], v[j], acc[w][r]);
                }
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
#pragma unroll
            for (int w = 0; AHEAD && w < ROWS; ++w) now[u][w] = next[u][w];
        }
    }
#pragma unroll
    for (int w = 0; w < ROWS; ++w) {
        lanes_sums<32>(acc[w]);
        if (m0 + w >= M) break;
#pragma unroll
        for (int r = 0; r < R; ++r) {
            if (lane == r) put<T>(y, (static_cast<long long>(blockIdx.z) * R + r) * M + m0 + w, plane, acc[w][r]);
        }
    }
}

template <int BYTES>
__device__ void copy(float* to, const float* from, bool there) {  // zeros if not `there`
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from),
        "n"(BYTES),
                 "r"(there ? BYTES : 0)
                 : "memory");
}

/// Many vectors of float32, a contiguous along K. A block has 128 rows of y, a warp 16, and R vectors padded to VS. Tiles of DEPTH along K
/// go through a ring buffer of STAGES in shared memory: a [128][DEPTH], then x [VS][DEPTH]. A warp has 8 lanes along K, 4 floats each, 2
/// along rows and 2 along vectors; a lane has 8 rows by VS / 2 vectors. COPY: copies of 16 bytes if rows of a and x are aligned to 16, else
/// of 4.
template <int R, int COPY, int STAGES>
__global__ void __launch_bounds__(256, 2)
    skinny(const float* __restrict__ a, const float* __restrict__ x, void* y, int M, int K, int per, long long plane, long long ab,
        long long am,
           long long xb, long long xr) {
    // ALONG: copies a row of a tile
    constexpr int DEPTH = 64, VS = (R + 1) / 2 * 2, STAGE = (128 + VS) * DEPTH, N = COPY / 4, ALONG = DEPTH / N;
    extern __shared__ __align__(128) float ring[];
    gdc_wait();
    const int lane = threadIdx.x % 32, kk = lane % 8, down = threadIdx.x / 32 * 16 + lane / 8 % 2 * 8, across = lane / 16 * (VS / 2);
    const int m0 = blockIdx.x * 128, first = blockIdx.y * per, last = min(K, first + per), tiles = (last - first + DEPTH - 1) / DEPTH;
    const int at = threadIdx.x % ALONG * N, row = threadIdx.x / ALONG;
    a += blockIdx.z * ab;
    x += blockIdx.z * xb;
    const auto ask = [&](int tile) {
        if (tile < tiles) {
            float* to = ring + tile % STAGES * STAGE;
            const int k = first + tile * DEPTH + at;
            const bool there = k < last;
            const auto ask_row = [&](int i) {
                const int m = min(m0 + i + row, M - 1);
                copy<COPY>(to + (i + row) * DEPTH + at, a + (there ? m * am + k : 0), there);
            };
            if (COPY == 4 && m0 + 128 <= M) {  // so many copies that computing their addresses takes time
                const float* from = a + (there ? (m0 + row) * am + k : 0);
                const long long step = there ? 256 / ALONG * am : 0;
#pragma unroll
                for (int i = 0; i < 128; i += 256 / ALONG) {
                    copy<COPY>(to + (i + row) * DEPTH + at, from, there);
                    from += step;
                }
            } else if (COPY == 4) {
#pragma unroll 4
                for (int i = 0; i < 128; i += 256 / ALONG) ask_row(i);
            } else {
#pragma unroll
                for (int i = 0; i < 128; i += 256 / ALONG) ask_row(i);
            }
#pragma unroll
            for (int i = 0; i < VS; i += 256 / ALONG) {
                const int v = i + row;
                if (v < VS) copy<COPY>(to + (128 + v) * DEPTH + at, x + (there && v < R ? v * xr + k : 0), there && v < R);
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) ask(s);
    float acc[8][VS / 2] = {};
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();  // the tile has arrived for all threads, and the stage that is filled next has been read by all
        ask(tile + STAGES - 1);
        const float *as = ring + tile % STAGES * STAGE + down * DEPTH + kk * 4,
            *xs = ring + tile % STAGES * STAGE + (128 + across) * DEPTH + kk * 4;
#pragma unroll
        for (int k = 0; k < DEPTH; k += 32) {
            float4 v[VS / 2];
#pragma unroll
            for (int j = 0; j < VS / 2; ++j) v[j] = *reinterpret_cast<const float4*>(xs + j * DEPTH + k);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const float4 f = *reinterpret_cast<const float4*>(as + i * DEPTH + k);
#pragma unroll
                for (int j = 0; j < VS / 2; ++j) acc[i][j] =
                    fmaf(f.x, v[j].x, fmaf(f.y, v[j].y, fmaf(f.z, v[j].z, fmaf(f.w, v[j].w, acc[i][j]))));
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int m = m0 + down + i;
#pragma unroll
        for (int j = 0; j < VS / 2; ++j) {
            float sum = acc[i][j];
#pragma unroll
            for (int step = 4; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
            if (kk == i && m < M && across + j < R) put<float>(y, (static_cast<long long>(blockIdx.z) * R + across + j) * M + m, plane,
                sum);
        }
    }
}

template <typename T, int V>
struct __align__(sizeof(T) * V) Some {
    T e[V];
};

/// Columns of a are contiguous along M. A block is tx threads along M, V rows of y each, and ty along K; this block has `per` of K. Strides
/// of batches (ab, xb), of K (ak, xk) and of vectors (xr).
template <typename T, int R, int V>
__global__ void __launch_bounds__(256, 2)
    columns(const T* __restrict__ a, const T* __restrict__ x, void* y, int M, int K, int per, int tx, int ty, long long plane, long long ab,
        long long ak,
            long long xb, long long xr, long long xk) {
    constexpr int CHUNK = 4096 / R, EACH = V * sizeof(T) >= 8 ? 8 : 16;  // EACH: loads in flight
    __shared__ __align__(16) float xs[CHUNK * R];                         // [k, vector]
    __shared__ float sums[256];
    gdc_wait();
    const int along = threadIdx.x % tx, down = threadIdx.x / tx, m = (blockIdx.x * tx + along) * V;
    const int first = blockIdx.y * per, last = min(K, first + per);
    const bool some = down < ty && m < M;
    a += blockIdx.z * ab + m;
    x += blockIdx.z * xb;
    float acc[V][R] = {};
#pragma unroll 1
    for (int begin = first; begin < last; begin += CHUNK) {
        const int count = min(CHUNK, last - begin);
        __syncthreads();
        for (int i = threadIdx.x; i < count * R; i += 256) {
            const int r = i / count, k = i % count;
            xs[k * R + r] = static_cast<float>(x[r * xr + (begin + k) * xk]);
        }
        __syncthreads();
        if (!some) continue;
#pragma unroll 1
        for (int k = down; k < count; k += EACH * ty) {
            Some<T, V> v[EACH];
#pragma unroll
            for (int u = 0; u < EACH; ++u) {
                if (k + u * ty < count) v[u] = *reinterpret_cast<const Some<T, V>*>(a + (begin + k + u * ty) * ak);
            }
#pragma unroll
            for (int u = 0; u < EACH; ++u) {
                if (k + u * ty >= count) break;
#pragma unroll
                for (int r = 0; r < R; ++r) {
                    const float w = xs[(k + u * ty) * R + r];
#pragma unroll
                    for (int i = 0; i < V; ++i) acc[i][r] = fmaf(static_cast<float>(v[u].e[i]), w, acc[i][r]);
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < V; ++i) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
            float sum = acc[i][r];
            if (ty > 1) {
                __syncthreads();
                sums[threadIdx.x] = sum;
                __syncthreads();
                if (down == 0) {
                    for (int k = 1; k < ty; ++k) sum += sums[k * tx + along];
                }
            }
            if (some && down == 0) put<T>(y, (static_cast<long long>(blockIdx.z) * R + r) * M + m + i, plane, sum);
        }
    }
}

/// y from its split-K parts [splits, n]: 32 elements a block, eight threads for each.
template <typename T>
__global__ void __launch_bounds__(256) add_parts(const float* __restrict__ parts, T* y, long long n, int splits) {
    __shared__ float sums[256];
    gdc_wait();
    const int along = threadIdx.x % 32, down = threadIdx.x / 32;
    const long long at = blockIdx.x * 32ll + along;
    float sum = 0;
    if (at < n) {
#pragma unroll 8
        for (int s = down; s < splits; s += 8) sum += parts[s * n + at];
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (down > 0 || at >= n) return;
#pragma unroll
    for (int k = 1; k < 8; ++k) sum += sums[k * 32 + along];
    y[at] = static_cast<T>(sum);
}
