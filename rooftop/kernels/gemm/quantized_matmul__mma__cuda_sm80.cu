/* rooftop
idea    = """The packed weight is operand A of mma.sync. A lane copies its own 16 bytes of codes to shared memory with cp.async, several \
  blocks ahead, and unpacks them to the fragment layout of the tensor core, so that no warp waits for the codes of another. 8 rows of x are \
  operand B, loaded once for all warps in slabs, so that one row costs the same as eight."""
limit   = """int4, one row, 8192 x 8192 on an H200: 12.5 us, where a read of the same bytes is 8.9. The schedulers issue half of the time \
  (145 instructions for 2048 codes are 5.1 us) and memory is half busy; a quarter of the time no block runs on a multiprocessor. From 32 \
  rows on, mma.sync and the loads of its operands are the limit; codes are unpacked again for every 64 rows"""
dtypes  = ["f16", "bf16"]
args    = ["x: T[M, K]", "codes: u8[STRIPES, BLOCKS, BYTES]"]
tensors = ["out: T[M, N]"]
python  = ["supports", "choose", "configs", "launches", "scratch", "for_any_rows"]
demands = { has = ["HMMA.16816.F32", "LDGSTS", "LDSM"], spills = 0 }

[config]
format = 1
tokens = 1
tiles  = 1
high   = 1
down   = 1
along  = 8
deep   = 4
slab   = 4
split  = 1
resident = 1
raw    = 0
*/
#include "pdl.cuh"
#include "_unpack_pairs.cuh"

/// Eight neighbours of a row of x from column k on; zeros from column `past` on.
template <typename T>
__device__ inline uint4 eight(const T* __restrict__ row, int k, int past) {
    uint4 v = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        if (k + i < past) reinterpret_cast<T*>(&v)[i] = row[k + i];
    }
    return v;
}

template <typename T, int F, bool RAW, int STEP>
__device__ inline void unpack_step(unsigned (&a)[4], const unsigned* words) {
    a[0] = unpacked<T, F, 4 * STEP, RAW>(words), a[1] = unpacked<T, F, 4 * STEP + 1, RAW>(words);
    a[2] = unpacked<T, F, 4 * STEP + 2, RAW>(words), a[3] = unpacked<T, F, 4 * STEP + 3, RAW>(words);
}

/// Two mma steps of 16 columns: 2 TWO and 2 TWO + 1.
template <typename T, int F, bool RAW, int TWO = 0>
__device__ inline void unpack_two(int two, unsigned (&a)[2][4], const unsigned* words) {
    if constexpr (TWO < 4) {
        if (two == TWO) {
            unpack_step<T, F, RAW, 2 * TWO>(a[0], words);
            unpack_step<T, F, RAW, 2 * TWO + 1>(a[1], words);
        } else unpack_two<T, F, RAW, TWO + 1>(two, a, words);
    }
}

/// Warp (down, along) of a block multiplies HIGH stripes of 16 rows of the weight by every ALONG-th block of 128 columns. F: the format; S,
/// Z: types of scales and zero points; ZEROS: whether there are zero points. GROUP: 32, 64 or 128 columns share a scale (128 also for
/// more), 0: one scale a row. TOKENS: rows of x that the config supports, a power of two; TILES: groups of eight of them. DEEP: slots of a
/// warp's ring buffer of codes, scales and zero points.
/// SLAB: iterations for which x is loaded together. RESIDENT: resident blocks a multiprocessor. RAW: codes are multiplied with an offset of
/// 128. WHOLE: rows of x start on 16 bytes and K is a multiple of 8. PARTS: sums are written to `parts` (split-K). CODED: x is quantised
/// too, with a scale a row.
template <typename T, int F, typename S, typename Z, bool ZEROS, int GROUP, int TOKENS, int TILES, int HIGH, int DOWN, int ALONG, int DEEP,
    int SLAB, int RESIDENT,
          bool RAW, bool WHOLE, bool PARTS, bool CODED>
__global__ void __launch_bounds__(32 * DOWN * ALONG, RESIDENT)
few_rows(int M, int N, int K, int stripes, int blocks, int groups, int per_group, int each, const T* __restrict__ x, long long xs,
         const unsigned char* __restrict__ codes, const S* __restrict__ scale, const Z* __restrict__ zero,
         const float* __restrict__ x_scale, const T* __restrict__ bias,
         T* __restrict__ out, float* __restrict__ parts) {
    using C = Code<F>;
    constexpr bool CHANNEL = GROUP == 0, ONES = ZEROS || RAW;
    constexpr float OFFSET = RAW ? -RAW_OFFSET : C::MIDDLE;  // what is subtracted from zero points
    constexpr int THREADS = 32 * DOWN * ALONG, GROUPS = CHANNEL ? 1 : 128 / GROUP, WIDE = SLAB * ALONG;
    constexpr int STAGES = 1 + (DEEP - 1 + SLAB - 1) / SLAB;  // x of a slab is loaded at least DEEP - 1 iterations ahead
    constexpr int STAGE = WIDE * TOKENS * 256;                // bytes of x: [block][row][16 packs of 8 columns, pack j at j ^ (row % 8)]
    constexpr int CODES = C::BITS * 256, SCALES = CHANNEL ? 0 : GROUPS * 16 * sizeof(S), ZERO_BYTES = ZEROS ? GROUPS * 16 * sizeof(Z) : 0;
    constexpr int SHARE = CODES + SCALES + ZERO_BYTES, SLOT = HIGH * SHARE;  // bytes of a stripe's block; of a warp's iteration
    extern __shared__ uint4 shared[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, along = warp % ALONG, down = warp / ALONG;
    const int stripe = (blockIdx.x * DOWN + down) * HIGH, first = blockIdx.z * each, end = min(blocks, first + each),
        token = blockIdx.y * (8 * TILES);
    const int rounds = (end - first + ALONG - 1) / ALONG;
    const bool here = stripe < stripes;
    char* const x_ring = reinterpret_cast<char*>(shared);
    char* const ring = x_ring + STAGES * STAGE + warp * (DEEP * SLOT) + lane * 16;
    const unsigned x_at = static_cast<unsigned>(__cvta_generic_to_shared(x_ring)),
        ring_at = static_cast<unsigned>(__cvta_generic_to_shared(ring));
    gdc_wait();

    int next = first + along, put = 0;  // the block of codes that is loaded next, and its slot in the ring
    const unsigned char* from[HIGH];
    int row_of_scales[HIGH];
#pragma unroll
    for (int h = 0; h < HIGH; ++h) {
        const int s = min(stripe + h, stripes - 1);  // past the last stripe: computed again, not stored
        from[h] = codes + (static_cast<long long>(s) * blocks + next) * CODES + lane * 16;
        row_of_scales[h] = s * groups;
    }
    const auto ask = [&] {
        if (here && next < end) {
#pragma unroll
            for (int h = 0; h < HIGH; ++h) {
                const unsigned to = ring_at + put + h * SHARE;
#pragma unroll
                for (int i = 0; i < C::LOADS; ++i) copy_async(to + i * 512, from[h] + i * 512);
                if constexpr (!CHANNEL) {
                    constexpr int A = sizeof(S), B = sizeof(Z);  // times 16 bytes: a group's scales, a group's zero points
                    if (lane < GROUPS * A) {
                        const int g = GROUPS > 1 ? min(next * GROUPS + lane / A, groups - 1) : per_group == 1 ? next : next / per_group;
                        copy_async(to + CODES, reinterpret_cast<const char*>(scale + (static_cast<long long>(row_of_scales[h]) + g) * 16)
                            + lane % A * 16);
                    }
                    if (ZEROS && lane < GROUPS * B) {
                        const int g = GROUPS > 1 ? min(next * GROUPS + lane / B, groups - 1) : per_group == 1 ? next : next / per_group;
                        copy_async(to + CODES + SCALES,
                            reinterpret_cast<const char*>(zero + (static_cast<long long>(row_of_scales[h]) + g) * 16) + lane % B * 16);
                    }
                }
            }
        }
        next += ALONG;
#pragma unroll
        for (int h = 0; h < HIGH; ++h) from[h] += ALONG * CODES;
    };
    const int past = min(K, end * 128);
    const auto bring = [&](int stage) {
        constexpr int PACKS = TOKENS * WIDE * 16;
        const int begin = (first + stage * WIDE) * 128, base = stage % STAGES * STAGE;
        if (begin >= past) return;
#pragma unroll
        for (int i = 0; i < (PACKS + THREADS - 1) / THREADS; ++i) {
            const int pack = i * THREADS + threadIdx.x, j = pack % (WIDE * 16), m = pack / (WIDE * 16), k = begin + j * 8;
            if (PACKS % THREADS != 0 && pack >= PACKS) break;
            const int to = base + ((j / 16 * TOKENS + m) * 16 + (j % 16 ^ m % 8)) * 16;
            const T* row = x + min(token + m, M - 1) * xs;  // past the last row: computed again, not stored
            if (WHOLE) copy_async(x_at + to, row + min(k, K - 8), k < past ? 16 : 0);
            else *reinterpret_cast<uint4*>(x_ring + to) = eight(row, k, past);
        }
    };

    float total[HIGH][TILES][4];
#pragma unroll
    for (int h = 0; h < HIGH; ++h) {
#pragma unroll
        for (int n = 0; n < TILES; ++n) total[h][n][0] = total[h][n][1] = total[h][n][2] = total[h][n][3] = 0;
    }
    const int my_row = TOKENS < 8 ? lane % TOKENS : lane % 8;  // of ldmatrix; missing rows repeat others and are not stored
    const auto add = [&](unsigned x_block, const char* slot) {
        uint4 held[HIGH][C::LOADS];
#pragma unroll
        for (int h = 0; h < HIGH; ++h) {
#pragma unroll
            for (int i = 0; i < C::LOADS; ++i) held[h][i] = *reinterpret_cast<const uint4*>(slot + h * SHARE + i * 512);
        }
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            float sum[HIGH][TILES][4], ones[TILES][4];
#pragma unroll
            for (int two = g * 4 / GROUPS; two < (g + 1) * 4 / GROUPS; ++two) {
                unsigned a[HIGH][2][4];
#pragma unroll
                for (int h = 0; h < HIGH; ++h) unpack_two<T, F, RAW>(two, a[h], reinterpret_cast<const unsigned*>(held[h]));
                const int pack = (4 * two + lane / 8 ^ my_row) * 16;
#pragma unroll
                for (int n = 0; n < TILES; ++n) {
                    const uint4 b = load_matrices(x_block + (n * 8 + my_row) * 256 + pack);
#pragma unroll
                    for (int step = 0; step < 2; ++step) {
                        const unsigned b0 = step ? b.z : b.x, b1 = step ? b.w : b.y;
                        const bool begin = two == g * 4 / GROUPS && step == 0;
#pragma unroll
                        for (int h = 0; h < HIGH; ++h) {
                            if constexpr (CHANNEL) multiply(total[h][n], a[h][step], b0, b1, static_cast<const T*>(nullptr));
                            else if (begin) multiply_first(sum[h][n], a[h][step], b0, b1, static_cast<const T*>(nullptr));
                            else multiply(sum[h][n], a[h][step], b0, b1, static_cast<const T*>(nullptr));
                        }
                        if constexpr (ONES) {  // sums of x, by multiplication with ones
                            constexpr unsigned ONE = (static_cast<unsigned>(Pair<T>::BIAS) << Pair<T>::MANTISSA) * 0x10001u;
                            const unsigned u[4] = {ONE, ONE, ONE, ONE};
                            if (begin) multiply_first(ones[n], u, b0, b1, static_cast<const T*>(nullptr));
                            else multiply(ones[n], u, b0, b1, static_cast<const T*>(nullptr));
                        }
                    }
                }
            }
            if constexpr (!CHANNEL) {
#pragma unroll
                for (int h = 0; h < HIGH; ++h) {
                    const S* factors = reinterpret_cast<const S*>(slot - lane * 16 + h * SHARE + CODES) + g * 16 + lane / 4;
                    const Z* offsets = reinterpret_cast<const Z*>(slot - lane * 16 + h * SHARE + CODES + SCALES)
                        + (ZEROS ? g * 16 + lane / 4 : 0);
#pragma unroll
                    for (int r = 0; r < 2; ++r) {
                        const float s = scale_value(factors[8 * r]);
                        float z = C::MIDDLE - OFFSET;
                        if constexpr (ZEROS) z = zero_value(offsets[8 * r]) - OFFSET;
#pragma unroll
                        for (int n = 0; n < TILES; ++n) {
#pragma unroll
                            for (int e = 2 * r; e < 2 * r + 2; ++e) {
                                if constexpr (ONES) total[h][n][e] += s * (sum[h][n][e] - z * ones[n][e]);
                                else total[h][n][e] += s * sum[h][n][e];
                            }
                        }
                    }
                }
            }
        }
    };

#pragma unroll
    for (int d = 0; d < DEEP - 1; ++d) {
        if (d % SLAB == 0) bring(d / SLAB);
        ask();
        commit_copies();
        put += SLOT;
    }
    int get = 0, in_slab = 0, stage = 0;  // `put` is the slot before `get`
    unsigned x_block = x_at + along * (TOKENS * 256);
    for (int c = 0; c < rounds; ++c) {
        wait_for_copies<DEEP - 2>();
        if (in_slab == 0) {
            __syncthreads();
            bring(stage + STAGES - 1);
        } else {
            __syncwarp();  // other lanes of the warp copied its scales, and have read the slot that is overwritten now
        }
        ask();
        commit_copies();
        if (here && first + c * ALONG + along < end) add(x_block + in_slab * (ALONG * TOKENS * 256), ring + get);
        put = get;
        get = get == (DEEP - 1) * SLOT ? 0 : get + SLOT;
        if (++in_slab == SLAB) {
            in_slab = 0, ++stage;
            x_block = x_at + stage % STAGES * STAGE + along * (TOKENS * 256);
        }
    }
    gdc_launch_dependents();

    float* sums = reinterpret_cast<float*>(shared);  // [ALONG - 1][DOWN][HIGH][TILES][4][32]
    constexpr int RESULTS = HIGH * TILES * 4;
    if (ALONG > 1) {
        wait_for_copies<0>();
        __syncthreads();
        if (along > 0) {
#pragma unroll
            for (int i = 0; i < RESULTS; ++i) sums[(((along - 1) * DOWN + down) * RESULTS + i) * 32 + lane] =
                total[i / 4 / TILES][i / 4 % TILES][i % 4];
        }
        __syncthreads();
        if (along > 0) return;
#pragma unroll
        for (int other = 0; other < ALONG - 1; ++other) {
#pragma unroll
            for (int i = 0; i < RESULTS; ++i) total[i / 4 / TILES][i / 4 % TILES][i % 4] += sums[((other * DOWN + down) * RESULTS + i) * 32
                + lane];
        }
    }
#pragma unroll
    for (int h = 0; h < HIGH; ++h) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = (stripe + h) * 16 + lane / 4 + r * 8;
            if (row >= N) continue;
            const float s = CHANNEL ? scale_value(scale[row]) : 1.f, plus = bias ? static_cast<float>(bias[row]) : 0.f;
#pragma unroll
            for (int n = 0; n < TILES; ++n) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int m = token + n * 8 + lane % 4 * 2 + e;
                    if (m >= M) continue;
                    const long long at = static_cast<long long>(m) * N + row;
                    const float sum = s * total[h][n][2 * r + e] * (CODED ? x_scale[m] : 1.f);
                    if (PARTS) parts[static_cast<long long>(blockIdx.z) * M * N + at] = sum;
                    else out[at] = T(sum + plus);
                }
            }
        }
    }
}

/// The reduction of split-K: the sum of `split` parts, in the order of K.
template <typename T>
__global__ void __launch_bounds__(256) add_parts(long long count, int N, int split, const float* __restrict__ parts,
    const T* __restrict__ bias, T* __restrict__ out) {
    gdc_wait();
    const long long i = static_cast<long long>(blockIdx.x) * 256 + threadIdx.x;
    if (i >= count) return;
    float sum = parts[i];
    for (int s = 1; s < split; ++s) sum += parts[s * count + i];
    out[i] = T(sum + (bias ? static_cast<float>(bias[i % N]) : 0.f));
}
