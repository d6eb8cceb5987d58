/* rooftop
idea    = """Few columns: the product is bound by the memory of S. A block streams 128 rows, 256 columns a stage, through a deep ring of \
  shared memory (cp.async), the metadata beside the values, so that no load is waited for. A warp multiplies 16 rows by all columns with \
  mma.sp; of more than 16 columns 32 or 64 rows by a half or a quarter of the stage, so that fewer warps read b. Where blocks of rows are too few to draw all of the bandwidth, K is divided among several (split-K), and a second launch adds \
  the parts, in order."""
limit   = "device memory"
dtypes  = ["f16", "bf16"]
args    = ["values: T[M, H]", "meta: i32[S, C, 32, 4]", "b: T[K, N]", "out: T[P, Q]"]
python  = ["supports", "choose", "configs", "launches", "scratch"]
demands = { has = ["HMMA.SP", "LDSM"], spills = 0 }

[config]
wide   = 16
stages = 4
split  = 1
*/
#include "pdl.cuh"
#include "_epilogue.cuh"
#include "_sparse_mma.cuh"

/// Rows of 256 bytes in shared memory (128 values), and of 512 (256 elements of b along K): a piece of 16 bytes is at its index xor the
/// row's last three bits. NEAR: a row is a column of b; else rows are along N, WIDE elements. Warp (down, along) has STRIPES stripes of 16
/// rows and STEPS of the eight steps of 32 columns; the sums of the warps of a stripe are added in order at the end.
template <typename T, int WIDE, int STAGES, bool NEAR, bool WHOLE_A, bool WHOLE_B, bool TURNED, bool PAIRS, int ACT, int BIAS, bool SPLIT>
__global__ void __launch_bounds__(256, 1)
few_columns(int M, int N, int K, int kept, int slices, int each, const T* __restrict__ values, const uint4* __restrict__ meta, int stripes,
            const T* __restrict__ b, long long bs, float alpha, const T* __restrict__ bias, long long bias_step, T* __restrict__ out,
            long long pitch, float* __restrict__ parts) {
    constexpr int A = 128 * 128, B = 256 * WIDE, WORDS = 8 * 32 * 8, STAGE = A + B + WORDS, TILES = WIDE / 8;  // in elements of T
    constexpr int ALONG = WIDE <= 16 ? 1 : WIDE / 16, STRIPES = ALONG, STEPS = 8 / ALONG;
    extern __shared__ __align__(128) unsigned char raw[];
    T* shared = reinterpret_cast<T*>(raw);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, m0 = blockIdx.x * 128;
    const int down = warp / ALONG * STRIPES, along = warp % ALONG;  // the warp's first stripe
    const int first = blockIdx.y * each, last = min(slices, first + each);
    const auto turn = [](int row) { return WIDE == 8 ? 0 : WIDE == 16 ? row / 4 % 2 : WIDE == 32 ? row / 2 % 4 : row % 8; };  // of rows along N
    const auto load = [&](int slice) {
        T* a = shared + (slice - first) % STAGES * STAGE;
        T* c = a + A;
        uint4* words = reinterpret_cast<uint4*>(c + B);
#pragma unroll
        for (int i = threadIdx.x; i < 128 * 16; i += 256) {
            const int row = i / 16, piece = i % 16;
            bring<T, WHOLE_A>(a + row * 128 + (piece ^ (row % 8)) * 8, values, kept, m0 + row, slice * 128 + piece * 8, M, kept);
        }
        const int stripe = min(m0 / 16 + warp, stripes - 1);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address_of(words + threadIdx.x)),
                     "l"(meta + (static_cast<long long>(stripe) * slices + slice) * 32 + lane) : "memory");
#pragma unroll
        for (int i = threadIdx.x; i < WIDE * 32; i += 256) {
            if (NEAR) {
                const int row = i / 32, piece = i % 32;
                bring<T, WHOLE_B>(c + row * 256 + (piece ^ (row % 8)) * 8, b, bs, row, slice * 256 + piece * 8, N, K);
            } else {
                const int row = i / (WIDE / 8), piece = i % (WIDE / 8);
                bring<T, WHOLE_B>(c + row * WIDE + (piece ^ turn(row)) * 8, b, bs, slice * 256 + row, piece * 8, K, N);
            }
        }
    };
    const auto next = [&](int slice) {
        if (slice < last) load(slice);
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    gdc_wait();
    float sum[STRIPES][TILES][4];
#pragma unroll
    for (int i = 0; i < STRIPES; ++i) {
#pragma unroll
        for (int j = 0; j < TILES; ++j) sum[i][j][0] = sum[i][j][1] = sum[i][j][2] = sum[i][j][3] = 0.f;
    }
    for (int s = 0; s < STAGES - 1; ++s) next(first + s);
#pragma unroll 1
    for (int slice = first; slice < last; ++slice) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        next(slice + STAGES - 1);
        const T* a = shared + (slice - first) % STAGES * STAGE;
        const T* c = a + A;
        const unsigned* words = reinterpret_cast<const unsigned*>(c + B);
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            const int step = along * STEPS + s;
            unsigned x[STRIPES][4], word[STRIPES];
#pragma unroll
            for (int i = 0; i < STRIPES; ++i) {
                const int row = (down + i) * 16 + lane % 16, piece = step * 2 + lane / 16;
                four(x[i], address_of(a + row * 128 + (piece ^ (row % 8)) * 8));
                word[i] = words[((down + i) * 32 + lane) * 4 + step / 2];
            }
#pragma unroll
            for (int j = 0; j < TILES; ++j) {
                unsigned y[4];
                if (NEAR) {
                    const int column = j * 8 + lane % 8, part = step * 4 + lane / 8;
                    four(y, address_of(c + column * 256 + (part ^ (column % 8)) * 8));
                } else {
                    const int k = step * 32 + lane;
                    four_turned(y, address_of(c + k * WIDE + (j ^ turn(k)) * 8));
                }
#pragma unroll
                for (int i = 0; i < STRIPES; ++i) {
                    if (s % 2 == 0) multiply<0>(sum[i][j], x[i], y, word[i], static_cast<const T*>(nullptr));
                    else multiply<1>(sum[i][j], x[i], y, word[i], static_cast<const T*>(nullptr));
                }
            }
        }
    }
    if constexpr (ALONG > 1) {  // the warp keeps the stripe of its number, of which it adds what all have
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        float4* all = reinterpret_cast<float4*>(raw);  // [stripe][along][tile][lane]
#pragma unroll
        for (int i = 0; i < STRIPES; ++i) {
#pragma unroll
            for (int j = 0; j < TILES; ++j) {
                all[(((down + i) * ALONG + along) * TILES + j) * 32 + lane] = make_float4(sum[i][j][0], sum[i][j][1], sum[i][j][2], sum[i][j][3]);
            }
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < TILES; ++j) {
            float4 t = all[((down + along) * ALONG * TILES + j) * 32 + lane];
#pragma unroll
            for (int from = 1; from < ALONG; ++from) {
                const float4 v = all[(((down + along) * ALONG + from) * TILES + j) * 32 + lane];
                t.x += v.x, t.y += v.y, t.z += v.z, t.w += v.w;
            }
            sum[0][j][0] = t.x, sum[0][j][1] = t.y, sum[0][j][2] = t.z, sum[0][j][3] = t.w;
        }
    }
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float p = sum[0][j][half * 2], q = sum[0][j][half * 2 + 1];
            const int row = m0 + (down + along) * 16 + half * 8, column = j * 8;
            if constexpr (SPLIT) {
                const int r = row + lane / 4, n = column + lane % 4 * 2;
                float* to = parts + (static_cast<long long>(blockIdx.y) * N + n) * M + r;
                if (r < M && n < N) to[0] = p;
                if (r < M && n + 1 < N) to[M] = q;
            } else put_8x8<T, TURNED, PAIRS, ACT, BIAS>(p, q, row, column, M, N, alpha, bias, bias_step, out, pitch);
        }
    }
}

/// out = act(alpha · Σ parts + bias); parts [split, N, M].
template <typename T, bool TURNED, int ACT, int BIAS>
__global__ void __launch_bounds__(256)
add_parts(int M, int N, int split, const float* __restrict__ parts, float alpha, const T* __restrict__ bias, long long bias_step,
          T* __restrict__ out, long long pitch) {
    gdc_wait();
    const int m = blockIdx.x * 256 + threadIdx.x, n = blockIdx.y;
    if (m >= M) return;
    const long long all = static_cast<long long>(M) * N;
    const float* from = parts + static_cast<long long>(n) * M + m;
    float s = from[0];
    for (int i = 1; i < split; ++i) s += from[i * all];
    out[TURNED ? n * pitch + m : m * pitch + n] = T(finished<ACT, BIAS>(s, alpha, bias, bias_step, m, n));
}
