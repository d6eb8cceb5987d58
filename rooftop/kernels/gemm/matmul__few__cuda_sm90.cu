/* rooftop
idea    = """For few tiles, in one launch. The blocks of a cluster divide K: each multiplies its slices by wgmma, sends a share of its sums to \
  each of the others over shared memory, and adds the shares that it receives, always in the order of K. A tile is 64 or 128 rows of one \
  operand by any multiple of 8 rows of the other, so that few rows are padded little. Operands whose rows start on 16 bytes come by TMA; \
  others are loaded word by word and shifted in registers by eight producer warps, on their way to the same place in shared memory."""
limit   = """predicted: latency. Launch, first bytes from device memory, the exchange and the store take most of the time; at odd addresses \
  the instructions of the producers, about 40 bytes a cycle and multiprocessor"""
arch    = 90
dtypes  = ["f16", "bf16"]
args    = ["alpha: f32", "beta: f32", "act: i32 = 0 if activation == 'none' else 1", "wide: i32 = 0 if to == '' else 1"]
demands = { has = ["HGMMA"], spills = 0 }
python  = ["supports", "choose", "configs", "launches", "explains", "for_any_rows"]

[config]
WIDE   = 64
GROUPS = 1
STAGES = 4
SPLIT  = 1
SWAP   = 0
*/
#include "pdl.cuh"
#include "wgmma.cuh"

constexpr int BK = 64, LINE = 128;  // k of a slice, and its bytes in a line of shared memory
constexpr int FETCHERS = 8;         // producer warps of an operand at any address
constexpr int MOST = 12;            // stages

/// How an operand lies: along K or ACROSS (rows of it are along K), and whether TMA reads it.
constexpr int ACROSS = 2, ANY = 1;

struct None {
    int nothing;
};
template <int MODE>
struct Mapped {
    using Map = CUtensorMap;
};
template <>
struct Mapped<ANY> {
    using Map = None;
};
template <>
struct Mapped<ANY | ACROSS> {
    using Map = None;
};

__device__ inline unsigned at_block(unsigned address, unsigned rank) {
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
/// Copies shared memory of this block to that of another, whose mbarrier at `bar` counts the bytes. Both addresses are at_block's.
__device__ inline void send(unsigned to, unsigned from, unsigned bytes, unsigned bar) {
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "r"(from), "r"(bytes), "r"(bar)
                 : "memory");
}
/// Makes this thread's writes to shared memory visible to wgmma and bulk copies.
__device__ inline void before_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ inline void store_word(unsigned to, unsigned word) { asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(word) : "memory"); }

/// An operand at any address: lines of 64 elements in memory, EXT rows along K, or ACROSS: 64 rows of k for each 64 of EXT. Warp w has lines
/// w, w + 8, ...; lane l holds word l of each. Eight lines are a multiple of 16 bytes, so all lines of a warp start on an odd element or none
/// does: then an element comes from the word's high half and from the next word's low half. A word that holds one element of the matrix is
/// read whole: it lies in one page.
template <typename T, int EXT, bool ALONG>
struct Lines {
    static constexpr int COUNT = (ALONG ? EXT : (EXT + 63) / 64 * 64) / FETCHERS, OF_PANEL = ALONG ? COUNT : 8;
    unsigned word[COUNT], last;  // last: of this warp's line number `lane`, the word after those of the lanes

    /// Elements of a line of a panel, and lines of this warp there; extent: rows (columns) of the tile that are there; depth: k from this
    /// slice on.
    __device__ static int elements(int panel, int extent, int depth) { return ALONG ? depth : min(extent, EXT) - panel * 64; }
    __device__ static int lines(int extent, int depth, int warp) { return ((ALONG ? extent : depth) - warp + FETCHERS - 1) / FETCHERS; }

    /// x: the first element of line `warp`. apart: bytes from a line of this warp to the next.
    __device__ void load(const T* x, long long apart, int extent, int depth, int warp, int lane) {
        const int odd = reinterpret_cast<unsigned long long>(x) & 2 ? 1 : 0, there = lines(extent, depth, warp);
#pragma unroll
        for (int panel = 0; panel < COUNT / OF_PANEL; ++panel) {
            const char* from = reinterpret_cast<const char*>(x - odd) + panel * LINE + lane * 4;
            const int mine = 2 * lane - odd < elements(panel, extent, depth) ? there : 0;
#pragma unroll
            for (int i = 0; i < OF_PANEL; ++i, from += apart) word[panel * OF_PANEL + i] = i < mine ? __ldg(reinterpret_cast<const unsigned*>(from)) : 0u;
        }
        last = 0;
        const int panel = lane / OF_PANEL, i = lane % OF_PANEL;
        if (odd && lane < COUNT && i < there && elements(panel, extent, depth) > 63)
            last = __ldg(reinterpret_cast<const unsigned*>(reinterpret_cast<const char*>(x - 1) + (panel + 1) * LINE + i * apart));
    }

    /// Writes the lines to a stage, swizzled as TMA does.
    template <bool ODD>
    __device__ void store(unsigned to, int extent, int depth, int warp, int lane) const {
        to += warp * LINE + ((lane / 4) ^ warp) * 16 + lane % 4 * 4;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            unsigned w = word[i];
            if (ODD) {
                const unsigned end = __shfl_sync(~0u, last, i), next = __shfl_sync(~0u, lane == 0 ? end : w, (lane + 1) % 32);
                w = __funnelshift_r(w, next, 16);
            }
            const int there = elements(i / OF_PANEL, extent, depth) - 2 * lane;
            store_word(to + i * FETCHERS * LINE, w & (there >= 2 ? ~0u : there == 1 ? 0xffffu : 0u));
        }
    }
    __device__ void store(unsigned to, const T* x, int extent, int depth, int warp, int lane) const {
        if (reinterpret_cast<unsigned long long>(x) & 2) store<true>(to, extent, depth, warp, lane);
        else store<false>(to, extent, depth, warp, lane);
    }
};

/// use(q, value) of V elements from number i on of a tensor of type 0 (float32), 1 (float16) or 2 (bfloat16), where there is one.
/// Here and below the branches stand around the loops: one around each element takes the compiler minutes.
template <int V, typename Use>
__device__ __forceinline__ void each(const void* x, int type, long long i, Use use) {
    if (x == nullptr) return;
    if (type == 0) {
#pragma unroll
        for (int q = 0; q < V; ++q) use(q, static_cast<const float*>(x)[i + q]);
    } else if (type == 1) {
#pragma unroll
        for (int q = 0; q < V; ++q) use(q, __half2float(static_cast<const __half*>(x)[i + q]));
    } else {
#pragma unroll
        for (int q = 0; q < V; ++q) use(q, __bfloat162float(static_cast<const __nv_bfloat16*>(x)[i + q]));
    }
}

/// act: index in `rooftop.ops.matmul.ACTIVATIONS`.
template <int V>
__device__ __forceinline__ void activate(float (&r)[V], int act) {
    if (act == 1) {
#pragma unroll
        for (float& x : r) x = x < 0 ? 0.0f : x;
    } else if (act == 2) {
#pragma unroll
        for (float& x : r) x = x / (1 + __expf(-x));
    } else if (act == 3) {
#pragma unroll
        for (float& x : r) x = 0.5f * x * (1 + erff(x * 0.70710678f));
    } else if (act == 4) {
#pragma unroll
        for (float& x : r) x = 0.5f * x * (1 + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    }
}

template <int N, typename E>
struct alignas(N * sizeof(E)) Pack {
    E v[N];
};

/// out = act(alpha · a b + beta · c + bias) · gate + residual. x [R, K]: the operand with 64 · GROUPS rows in a tile, y [C, K]: that with WIDE.
/// SWAP: x is bᵀ, so that the rows of x are the columns of out. X, Y: modes. Block `part` of cluster `tile` multiplies a part of the slices.
/// The sums of a tile have room in the stages. V: results in a store. MORE: the epilogue is more than alpha. x_map, y_map: boxes of a tile's rows by 64 of K, or ACROSS of 64 of K by 64.
template <typename T, typename O, int WIDE, int GROUPS, int X, int Y, bool SWAP, int V, bool MORE>
__global__ void __launch_bounds__(GROUPS * 128 + ((X | Y) & ANY ? FETCHERS * 32 : 32), 1)
few(int R, int C, int K, int splits, int stages, const __grid_constant__ typename Mapped<X>::Map x_map, const __grid_constant__ typename Mapped<Y>::Map y_map,
    const T* __restrict__ x, long long ldx, const T* __restrict__ y, long long ldy, O* __restrict__ out, long long ldo, float alpha, float beta,
    const void* c, int c_type, long long ldc, const void* bias, int bias_type, int act, const void* gate, int gate_type, long long ldg,
    const void* residual, int residual_type, long long ldr) {
    constexpr bool FETCH = (X | Y) & ANY, COPY = !(X & ANY) || !(Y & ANY);
    constexpr int HIGH = GROUPS * 64, THREADS = GROUPS * 128 + (FETCH ? FETCHERS * 32 : 32);
    constexpr int X_BYTES = HIGH * LINE, PANELS = (WIDE + 63) / 64, Y_BYTES = Y & ACROSS ? PANELS * 64 * LINE : WIDE * LINE, STAGE = X_BYTES + Y_BYTES;
    constexpr int COPIED = (X & ANY ? 0 : X_BYTES) + (Y & ANY ? 0 : Y_BYTES);
    // Sums in float32, by rows of out; the pitch keeps the lanes that write them in different banks.
    constexpr int ROWS = SWAP ? WIDE : HIGH, COLUMNS = SWAP ? HIGH : WIDE, PITCH = SWAP ? HIGH + 4 : WIDE % 16 == 8 ? WIDE : WIDE + 8;
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ __align__(8) unsigned long long barriers[2 * MOST + 1];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned base = shared_address(shared), full = shared_address(barriers), empty = full + 8 * MOST, arrived = empty + 8 * MOST;
    float* const sums = reinterpret_cast<float*>(shared);
    float* const received = reinterpret_cast<float*>(shared + stages * STAGE);
    const int tile = blockIdx.x / splits, part = blockIdx.x % splits, slices = (K + BK - 1) / BK;
    // Tiles that share rows of the larger operand are neighbours, so that device memory is read once for all of them.
    const int tall = (R + HIGH - 1) / HIGH, across = (C + WIDE - 1) / WIDE;
    const int r0 = (R > C ? tile / across : tile % tall) * HIGH, c0 = (R > C ? tile % across : tile / tall) * WIDE;
    const int first = slices / splits * part + min(part, slices % splits), end = first + slices / splits + (part < slices % splits);
    const int mine = ROWS / splits;  // rows of sums that this block adds

    if (COPY && threadIdx.x == GROUPS * 128) {
        if constexpr (!(X & ANY)) prefetch_map(x_map);
        if constexpr (!(Y & ANY)) prefetch_map(y_map);
    }
    if (threadIdx.x == 0) {
        for (int i = 0; i < stages; ++i) barrier_init(full + 8 * i, COPY + (FETCH ? FETCHERS : 0)), barrier_init(empty + 8 * i, 4 * GROUPS);
        barrier_init(arrived, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        barrier_expect(arrived, splits * mine * PITCH * 4);
    }
    __syncthreads();
    if (splits > 1) cluster_arrive();
    gdc_wait();

    if (warp >= 4 * GROUPS) {
        const int fetcher = warp - 4 * GROUPS;
        int stage = 0, parity = 1;
        const auto copy = [&](int slice) {
            const unsigned bar = full + 8 * stage, to = base + stage * STAGE;
            barrier_expect(bar, COPIED);
            if constexpr (X == 0) copy_box(to, x_map, bar, slice * BK, r0);
            if constexpr (X == ACROSS) {
                for (int i = 0; i < GROUPS; ++i) copy_box(to + i * 64 * LINE, x_map, bar, r0 + i * 64, slice * BK);
            }
            if constexpr (Y == 0) copy_box(to + X_BYTES, y_map, bar, slice * BK, c0);
            if constexpr (Y == ACROSS) {
                for (int i = 0; i < PANELS; ++i) copy_box(to + X_BYTES + i * 64 * LINE, y_map, bar, c0 + i * 64, slice * BK);
            }
        };
        if constexpr (!FETCH) {
            if (lane == 0) {
                for (int s = first; s < end; ++s) {
                    barrier_wait(empty + 8 * stage, parity);
                    copy(s);
                    if (++stage == stages) stage = 0, parity ^= 1;
                }
            }
            __syncwarp();
        } else {
            Lines<T, HIGH, !(X & ACROSS)> of_x[2];
            Lines<T, WIDE, !(Y & ACROSS)> of_y[2];
            const T* const x0 = x + (X & ACROSS ? r0 + fetcher * ldx : (r0 + fetcher) * ldx);
            const T* const y0 = y + (Y & ACROSS ? c0 + fetcher * ldy : (c0 + fetcher) * ldy);
            const auto load = [&](int slice, int set) {
                if (slice >= end) return;
                if constexpr (X & ANY) of_x[set].load(x0 + slice * BK * (X & ACROSS ? ldx : 1ll), ldx * (2 * FETCHERS), R - r0, K - slice * BK, fetcher, lane);
                if constexpr (Y & ANY) of_y[set].load(y0 + slice * BK * (Y & ACROSS ? ldy : 1ll), ldy * (2 * FETCHERS), C - c0, K - slice * BK, fetcher, lane);
            };
            const auto store = [&](int slice, int set) {
                const unsigned to = base + stage * STAGE;
                barrier_wait(empty + 8 * stage, parity);
                if (COPY && fetcher == 0 && lane == 0) copy(slice);
                __syncwarp();
                if constexpr (X & ANY) of_x[set].store(to, x0, R - r0, K - slice * BK, fetcher, lane);
                if constexpr (Y & ANY) of_y[set].store(to + X_BYTES, y0, C - c0, K - slice * BK, fetcher, lane);
                before_async();
                __syncwarp();
                if (lane == 0) barrier_arrive(full + 8 * stage);
                if (++stage == stages) stage = 0, parity ^= 1;
            };
            load(first, 0);
#pragma unroll 1
            for (int s = first; s < end; s += 2) {  // the next slice is on its way while one is written
                load(s + 1, 1);
                store(s, 0);
                if (s + 1 == end) break;
                load(s + 2, 0);
                store(s + 1, 1);
            }
        }
    } else {
        const int group = warp / 4;
        float sum[WIDE / 2];
#pragma unroll
        for (int i = 0; i < WIDE / 2; ++i) sum[i] = 0.f;
        int stage = 0, parity = 0, before = -1;
#pragma unroll 1
        for (int s = first; s < end; ++s) {
            barrier_wait(full + 8 * stage, parity);
            const unsigned of_x = base + stage * STAGE + group * 64 * LINE, of_y = base + stage * STAGE + X_BYTES;
            products_begin();
#pragma unroll
            for (int k = 0; k < BK / 16; ++k) {
                const unsigned long long p = X & ACROSS ? operand(of_x + k * 16 * LINE, 64 * LINE, 1024) : rows_along_k<128>(of_x) + 2 * k;
                const unsigned long long q = Y & ACROSS ? operand(of_y + k * 16 * LINE, 64 * LINE, 1024) : rows_along_k<128>(of_y) + 2 * k;
                product<T, X / ACROSS, Y / ACROSS>(sum, p, q);
            }
            products_commit();
            products_wait<1>();
            if (before >= 0 && lane == 0) barrier_arrive(empty + 8 * before);
            before = stage;
            if (++stage == stages) stage = 0, parity ^= 1;
        }
        products_wait<0>();
        asm volatile("bar.sync 1, %0;" ::"n"(GROUPS * 128) : "memory");  // the stages are free
        const int row = warp * 16 + lane / 4, column = lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < WIDE / 8; ++j) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float u = sum[j * 4 + h * 2], v = sum[j * 4 + h * 2 + 1];
                const int r = row + h * 8, n = j * 8 + column;
                if (SWAP) sums[n * PITCH + r] = u, sums[(n + 1) * PITCH + r] = v;
                else *reinterpret_cast<float2*>(sums + r * PITCH + n) = make_float2(u, v);
            }
        }
        if (splits > 1) {
            before_async();
            asm volatile("bar.sync 1, %0;" ::"n"(GROUPS * 128) : "memory");
        }
    }
    if (splits > 1) {
        cluster_wait();  // the others' mbarriers are there
        if (static_cast<int>(threadIdx.x) < splits) {
            const unsigned share = mine * PITCH * 4;
            send(at_block(shared_address(received) + part * share, threadIdx.x), base + threadIdx.x * share, share, at_block(arrived, threadIdx.x));
        }
        __syncwarp();
        barrier_wait(arrived, 0);
        __syncwarp();
        cluster_arrive();  // what the others sent is here
    } else {
        __syncthreads();
    }
    const float* const from = splits > 1 ? received : sums;
    const int m_end = SWAP ? C : R, n_end = SWAP ? R : C;
    for (int i = threadIdx.x; i < mine * (COLUMNS / V); i += THREADS) {
        const int row = i / (COLUMNS / V), column = i % (COLUMNS / V) * V;
        const long long m = (SWAP ? c0 : r0) + part * mine + row, n = (SWAP ? r0 : c0) + column;
        if (m >= m_end || n >= n_end) continue;
        float r[V] = {};
#pragma unroll 4
        for (int s = 0; s < splits; ++s) {
            constexpr int W = V < 4 ? V : 4;
#pragma unroll
            for (int q = 0; q < V; q += W) {
                const auto v = *reinterpret_cast<const Pack<W, float>*>(from + (s * mine + row) * PITCH + column + q);
#pragma unroll
                for (int w = 0; w < W; ++w) r[q + w] += v.v[w];
            }
        }
#pragma unroll
        for (float& x : r) x *= alpha;
        if constexpr (MORE) {
            if (beta != 0) each<V>(c, c_type, m * ldc + n, [&](int q, float x) { r[q] = fmaf(beta, x, r[q]); });
            each<V>(bias, bias_type, n, [&](int q, float x) { r[q] += x; });
            activate(r, act);
            each<V>(gate, gate_type, m * ldg + n, [&](int q, float x) { r[q] *= x; });
            each<V>(residual, residual_type, m * ldr + n, [&](int q, float x) { r[q] += x; });
        }
        Pack<V, O> made;
#pragma unroll
        for (int q = 0; q < V; ++q) made.v[q] = static_cast<O>(r[q]);
        *reinterpret_cast<Pack<V, O>*>(out + m * ldo + n) = made;
    }
    if (splits > 1) cluster_wait();  // until the others have what this block sent
}
