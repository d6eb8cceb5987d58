/* rooftop
idea    = """mma.sp with operands in registers. Asynchronous copies (cp.async) bring values and b to swizzled shared memory, and ldmatrix \
  loads them from there. The metadata are stored in the order that the lanes need and are loaded straight to registers."""
limit   = """predicted: shared-memory bandwidth, which feeds the tensor cores at about half of their rate; on Hopper mma.sp also has half \
  the rate of wgmma.sp"""
dtypes  = ["f16", "bf16"]
args    = ["values: T[M, H]", "meta: i32[S, C, 32, 4]", "b: T[K, N]", "out: T[P, Q]"]
python  = ["supports", "choose", "configs", "launches"]
demands = { has = ["HMMA.SP", "LDSM"], spills = 0 }

[config]
wide   = 128
stages = 4
*/
#include "_epilogue.cuh"
#include "_sparse_mma.cuh"

/// A tile is 128 rows by WIDE columns, 64 columns of K at a time; 8 warps, 64 rows by WIDE / 4 columns each. In shared memory the rows of
/// values have 4 pieces of 16 bytes, those of b 8 (NEAR: a row is a column of b, along K) or WIDE / 8; a piece is at its index xor a
/// function of the row (swizzle), free of bank conflicts.
template <typename T, int WIDE, int STAGES, bool NEAR, bool WHOLE_A, bool WHOLE_B, bool TURNED, bool PAIRS, int ACT, int BIAS>
__global__ void __launch_bounds__(256, 1)
spmm(int M, int N, int K, int kept, int slices, int across, const T* __restrict__ values, const unsigned* __restrict__ meta, int stripes,
    int blocks,
     const T* __restrict__ b, long long bs, float alpha, const T* __restrict__ bias, long long bias_step, T* __restrict__ out,
     long long pitch) {
    constexpr int A = 128 * 32, B = 64 * WIDE, COLUMNS = WIDE / 4, TILES = COLUMNS / 8;
    extern __shared__ __align__(128) unsigned char raw[];
    T* shared = reinterpret_cast<T*>(raw);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, m0 = blockIdx.x / across * 128, n0 = blockIdx.x % across * WIDE;
    const int down = warp / 4 * 64, right = warp % 4 * COLUMNS;
    const auto turn = [](int row) { return WIDE == 32 ? row / 2 % 4 : row % 8; };  // of rows along N
    const auto load = [&](int slice) {
        T* a = shared + slice % STAGES * (A + B);
        T* c = a + A;
#pragma unroll
        for (int i = threadIdx.x; i < 128 * 4; i += 256) {
            const int row = i / 4, piece = i % 4;
            bring<T, WHOLE_A>(a + row * 32 + (piece ^ (row / 2 % 4)) * 8, values, kept, m0 + row, slice * 32 + piece * 8, M, kept);
        }
#pragma unroll
        for (int i = threadIdx.x; i < WIDE * 8; i += 256) {
            if (NEAR) {
                const int row = i / 8, piece = i % 8;
                bring<T, WHOLE_B>(c + row * 64 + (piece ^ (row % 8)) * 8, b, bs, n0 + row, slice * 64 + piece * 8, N, K);
            } else {
                const int row = i / (WIDE / 8), piece = i % (WIDE / 8);
                bring<T, WHOLE_B>(c + row * WIDE + (piece ^ turn(row)) * 8, b, bs, slice * 64 + row, n0 + piece * 8, K, N);
            }
        }
    };
    const auto next = [&](int slice) {
        if (slice < slices) load(slice);
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    float sum[4][TILES][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < TILES; ++j) sum[i][j][0] = sum[i][j][1] = sum[i][j][2] = sum[i][j][3] = 0.f;
    }
    const unsigned* words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = meta + (static_cast<long long>(min((m0 + down) / 16 + i, stripes - 1)) * blocks * 32 + lane) * 4;
    for (int s = 0; s < STAGES - 1; ++s) next(s);
#pragma unroll 1
    for (int slice = 0; slice < slices; ++slice) {
        unsigned word[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) word[i] = words[i][slice / 4 * 128 + slice % 4];
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        next(slice + STAGES - 1);
        const T* a = shared + slice % STAGES * (A + B);
        const T* c = a + A;
#pragma unroll
        for (int step = 0; step < 2; ++step) {
            unsigned x[4][4], y[TILES][4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = down + i * 16 + lane % 16, piece = step * 2 + lane / 16;
                four(x[i], address_of(a + row * 32 + (piece ^ (row / 2 % 4)) * 8));
            }
#pragma unroll
            for (int j = 0; j < TILES; ++j) {
                if (NEAR) {
                    const int row = right + j * 8 + lane % 8, piece = step * 4 + lane / 8;
                    four(y[j], address_of(c + row * 64 + (piece ^ (row % 8)) * 8));
                } else {
                    const int row = step * 32 + lane, piece = right / 8 + j;
                    four_turned(y[j], address_of(c + row * WIDE + (piece ^ turn(row)) * 8));
                }
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int j = 0; j < TILES; ++j) {
                    if (step == 0) multiply<0>(sum[i][j], x[i], y[j], word[i], static_cast<const T*>(nullptr));
                    else multiply<1>(sum[i][j], x[i], y[j], word[i], static_cast<const T*>(nullptr));
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < TILES; ++j) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                put_8x8<T, TURNED, PAIRS, ACT, BIAS>(sum[i][j][half * 2], sum[i][j][half * 2 + 1], m0 + down + i * 16 + half * 8,
                    n0 + right + j * 8, M, N, alpha, bias,
                                                     bias_step, out, pitch);
            }
        }
    }
}
