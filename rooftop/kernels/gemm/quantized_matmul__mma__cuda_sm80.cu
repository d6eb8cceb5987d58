/* rooftop
idea    = "The packed weight is operand A of mma.sync: a lane loads 16 bytes of codes and unpacks them in registers to what the tensor core asks of it, so that the weight never passes shared memory; 8 rows of x are the other operand, so that one row costs what eight do."
limit   = "predicted: device memory for up to 16 rows of x (0.85 of a copy of the same bytes at 8192 x 8192, the rest is the start); mma.sync and reads of x from shared memory from 64 rows on; codes are unpacked again for every 64 rows"
dtypes  = ["f16", "bf16"]
args    = ["x: T[M, K]", "codes: u8[STRIPES, BLOCKS, BYTES]"]
tensors = ["out: T[M, N]"]
python  = ["supports", "prefers", "choose", "configs", "launches", "scratch"]
demands = { has = ["HMMA.16816.F32", "LDG.128"], spills = 0 }

[config]
format = 1
tokens = 1
tiles  = 1
down   = 1
along  = 8
deep   = 3
split  = 1
resident = 1
*/
#include "chain.cuh"
#include "lowbit.cuh"

/// x of one chunk of K in shared memory: for each block of 128 columns, each 8 rows and each two steps of 16, lane 4 g + t finds its 16 bytes at slot
/// lane ^ (lane >> 3): x[g] at columns 2 t, 2 t + 1, 2 t + 8, 2 t + 9 of the first step, then of the second. Reads and writes are free of bank conflicts.
__device__ inline int slot_of(int lane) { return lane ^ (lane >> 3); }

/// Eight neighbours of a row of x from column k on; zeros past K.
template <typename T, bool WHOLE>
__device__ inline uint4 eight(const T* __restrict__ row, int k, int K) {
    if (WHOLE && k + 8 <= K) return *reinterpret_cast<const uint4*>(row + k);
    uint4 v = make_uint4(0, 0, 0, 0);
    if (!WHOLE) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (k + i < K) reinterpret_cast<T*>(&v)[i] = row[k + i];
        }
    }
    return v;
}

/// Warp (down, along) of a block: stripes of 16 rows of the weight by every ALONG-th block of 128 columns. F: the format; S, Z: types of scales and zero points,
/// ZEROS: whether there are any; GROUP: 32, 64 or 128 columns share a scale, the last also where more do; TOKENS: rows of x that there can be, a power of two; TILES:
/// eights of them; DEEP: blocks of codes a warp has in flight; RESIDENT: blocks of warps a multiprocessor
/// has registers for; WHOLE: rows of x begin at 16 bytes and K is a multiple of 8; PARTS: sums go to `parts`.
template <typename T, int F, typename S, typename Z, bool ZEROS, int GROUP, int TOKENS, int TILES, int DOWN, int ALONG, int DEEP, int RESIDENT, bool WHOLE, bool PARTS>
__global__ void __launch_bounds__(32 * DOWN * ALONG, RESIDENT)
few_rows(int M, int N, int K, int stripes, int blocks, int groups, int per_group, int each, const T* __restrict__ x, long long xs,
         const uint4* __restrict__ codes, const S* __restrict__ scale, const Z* __restrict__ zero, const T* __restrict__ bias, T* __restrict__ out,
         float* __restrict__ parts) {
    using C = Code<F>;
    constexpr int THREADS = 32 * DOWN * ALONG, GROUPS = 128 / GROUP, PACKS = TOKENS * 16 * ALONG, MINE = (PACKS + THREADS - 1) / THREADS;
    constexpr int CHUNK = ALONG * TILES * 128;  // uint4 of x
    extern __shared__ uint4 shared[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, along = warp % ALONG, down = warp / ALONG;
    const int stripe = blockIdx.x * DOWN + down, first = blockIdx.z * each, end = min(blocks, first + each), token = blockIdx.y * (8 * TILES);
    const int chunks = (end - first + ALONG - 1) / ALONG;
    const bool here = stripe < stripes;
    for (int i = threadIdx.x; i < 2 * CHUNK; i += THREADS) shared[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    wait_for_before();

    uint4 held[DEEP][C::LOADS], brought[MINE];
    S factor[DEEP][GROUPS][2];
    Z offset[DEEP][GROUPS][2];
    int next = first + along;  // the block of codes that is asked for next
    const uint4* code_at = codes + (static_cast<long long>(stripe) * blocks + next) * (C::BITS * 16) + lane;
    const S* const scale_at = scale + static_cast<long long>(stripe) * groups * 16 + lane / 4;
    const Z* const zero_at = zero + (ZEROS ? static_cast<long long>(stripe) * groups * 16 + lane / 4 : 0);
    const auto ask = [&](uint4 (&codes_of)[C::LOADS], S (&factors)[GROUPS][2], Z (&offsets)[GROUPS][2]) {
        if (here && next < end) {
#pragma unroll
            for (int i = 0; i < C::LOADS; ++i) codes_of[i] = __ldcs(code_at + i * 32);
#pragma unroll
            for (int g = 0; g < GROUPS; ++g) {
                const int at = 16 * (GROUP < 128 ? min(next * GROUPS + g, groups - 1) : per_group == 1 ? next : next / per_group);
                factors[g][0] = scale_at[at], factors[g][1] = scale_at[at + 8];
                if (ZEROS) offsets[g][0] = zero_at[at], offsets[g][1] = zero_at[at + 8];
            }
        }
        next += ALONG, code_at += ALONG * C::BITS * 16;
    };
    const T* row[MINE];
    int column[MINE];  // of the pack that is brought next; past every K where there is none
#pragma unroll
    for (int i = 0; i < MINE; ++i) {
        const int pack = i * THREADS + threadIdx.x, m = pack % TOKENS, j = pack / TOKENS;
        const bool mine = (PACKS % THREADS == 0 || pack < PACKS) && token + m < M;
        row[i] = x + (mine ? (token + m) * xs : 0);
        column[i] = mine ? first * 128 + j * 8 : 1 << 30;
    }
    const int past = min(K, end * 128);
    const auto bring = [&] {
#pragma unroll
        for (int i = 0; i < MINE; ++i) {
            brought[i] = column[i] < past ? eight<T, WHOLE>(row[i], column[i], K) : make_uint4(0, 0, 0, 0);
            column[i] += ALONG * 128;
        }
    };
    const auto put = [&](int c) {
        unsigned* to = reinterpret_cast<unsigned*>(shared + (c & 1) * CHUNK);
#pragma unroll
        for (int i = 0; i < MINE; ++i) {
            const int pack = i * THREADS + threadIdx.x, m = pack % TOKENS, j = pack / TOKENS, step = j % 16 / 2;
            if (PACKS % THREADS != 0 && pack >= PACKS) break;
            const int base = (((j / 16) * TILES + m / 8) * 4 + step / 2) * 128 + step % 2 * 2 + j % 2, g = m % 8;
            to[base + slot_of(4 * g) * 4] = brought[i].x;
            to[base + slot_of(4 * g + 1) * 4] = brought[i].y;
            to[base + slot_of(4 * g + 2) * 4] = brought[i].z;
            to[base + slot_of(4 * g + 3) * 4] = brought[i].w;
        }
    };

    float total[TILES][4];
#pragma unroll
    for (int n = 0; n < TILES; ++n) total[n][0] = total[n][1] = total[n][2] = total[n][3] = 0;
    const auto add = [&](int c, const uint4 (&codes_of)[C::LOADS], const S (&factors)[GROUPS][2], const Z (&offsets)[GROUPS][2]) {
        if (!here || first + c * ALONG + along >= end) return;
        const unsigned* words = reinterpret_cast<const unsigned*>(codes_of);
        const uint4* from = shared + (c & 1) * CHUNK + along * TILES * 128 + slot_of(lane);
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            float sum[TILES][4], ones[TILES][4];
#pragma unroll
            for (int n = 0; n < TILES; ++n) {
                sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0;
                ones[n][0] = ones[n][1] = ones[n][2] = ones[n][3] = 0;
            }
#pragma unroll
            for (int two = g * 4 / GROUPS; two < (g + 1) * 4 / GROUPS; ++two) {
                uint4 b[TILES];
#pragma unroll
                for (int n = 0; n < TILES; ++n) b[n] = from[(n * 4 + two) * 32];
#pragma unroll
                for (int step = 2 * two; step < 2 * two + 2; ++step) {
                    unsigned a[4];
#pragma unroll
                    for (int r = 0; r < 4; ++r) a[r] = pair_of<T, F>(words, 4 * step + (r & 1) + (r & 2));
#pragma unroll
                    for (int n = 0; n < TILES; ++n) {
                        const unsigned b0 = step % 2 ? b[n].z : b[n].x, b1 = step % 2 ? b[n].w : b[n].y;
                        multiply(sum[n], a, b0, b1, static_cast<const T*>(nullptr));
                        if (ZEROS) {  // sums of x alone, by a weight of ones
                            constexpr unsigned ONE = static_cast<unsigned>(Pair<T>::BIAS) << Pair<T>::MANTISSA;
                            const unsigned u[4] = {ONE * 0x10001u, ONE * 0x10001u, ONE * 0x10001u, ONE * 0x10001u};
                            multiply(ones[n], u, b0, b1, static_cast<const T*>(nullptr));
                        }
                    }
                }
            }
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const float s = scale_value(factors[g][r]), z = ZEROS ? zero_value(offsets[g][r]) - C::MIDDLE : 0.f;
#pragma unroll
                for (int n = 0; n < TILES; ++n) {
#pragma unroll
                    for (int e = 2 * r; e < 2 * r + 2; ++e) total[n][e] += s * (ZEROS ? sum[n][e] - z * ones[n][e] : sum[n][e]);
                }
            }
        }
    };

#pragma unroll
    for (int d = 0; d < DEEP; ++d) ask(held[d], factor[d], offset[d]);
    bring();
    put(0);
    __syncthreads();
    for (int c = 0; c < chunks; c += DEEP) {
#pragma unroll
        for (int d = 0; d < DEEP; ++d) {
            if (c + d < chunks) {
                bring();
                add(c + d, held[d], factor[d], offset[d]);
                ask(held[d], factor[d], offset[d]);
                put(c + d + 1);
                __syncthreads();
            }
        }
    }

    float* sums = reinterpret_cast<float*>(shared);  // [ALONG - 1][DOWN][TILES][4][32]
    if (ALONG > 1) {
        if (along > 0) {
#pragma unroll
            for (int n = 0; n < TILES; ++n) {
#pragma unroll
                for (int e = 0; e < 4; ++e) sums[((((along - 1) * DOWN + down) * TILES + n) * 4 + e) * 32 + lane] = total[n][e];
            }
        }
        __syncthreads();
        if (along > 0) return;
#pragma unroll
        for (int other = 0; other < ALONG - 1; ++other) {
#pragma unroll
            for (int n = 0; n < TILES; ++n) {
#pragma unroll
                for (int e = 0; e < 4; ++e) total[n][e] += sums[(((other * DOWN + down) * TILES + n) * 4 + e) * 32 + lane];
            }
        }
    }
    if (!here) return;
#pragma unroll
    for (int n = 0; n < TILES; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int m = token + n * 8 + lane % 4 * 2 + e % 2, row = stripe * 16 + lane / 4 + e / 2 * 8;
            if (m >= M || row >= N) continue;
            const long long at = static_cast<long long>(m) * N + row;
            if (PARTS) parts[static_cast<long long>(blockIdx.z) * M * N + at] = total[n][e];
            else out[at] = T(total[n][e] + (bias ? static_cast<float>(bias[row]) : 0.f));
        }
    }
}

/// The sum of `split` parts, in the order of K.
template <typename T>
__global__ void __launch_bounds__(256) add_parts(long long count, int N, int split, const float* __restrict__ parts, const T* __restrict__ bias, T* __restrict__ out) {
    wait_for_before();
    const long long i = static_cast<long long>(blockIdx.x) * 256 + threadIdx.x;
    if (i >= count) return;
    float sum = parts[i];
    for (int s = 1; s < split; ++s) sum += parts[s * count + i];
    out[i] = T(sum + (bias ? static_cast<float>(bias[i % N]) : 0.f));
}
