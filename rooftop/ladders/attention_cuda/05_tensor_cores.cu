/* rooftop
idea    = "The plan of FlashAttention-2: a warp computes 16 queries, and both products are mma.sync. The accumulator layout of the scores is the layout of the left operand of the second product, so the weights are rounded in place, in registers."
predict = { speedup = 8.0 }
limit   = "Loads of keys and values do not overlap with products, and each 16-bit number of the values is a load of its own: ldmatrix.trans would load sixteen times as many."
dtypes  = ["bf16", "f16"]
demands = { has = ["HMMA"], spills = 0 }
args    = [
    "Sq: i32", "Sk: i32", "H: i32", "GROUP: i32 = H // Hk", "D: i32", "Dv: i32", "right: i32", "scale: f32",
    "q: T[B, Sq, H, D]", "qb: i64 = stride(q, 0)", "qs: i64 = stride(q, 1)", "qh: i64 = stride(q, 2)",
    "k: T[B, Sk, Hk, D]", "kb: i64 = stride(k, 0)", "ks: i64 = stride(k, 1)", "kh: i64 = stride(k, 2)",
    "v: T[B, Sk, Hk, Dv]", "vb: i64 = stride(v, 0)", "vs: i64 = stride(v, 1)", "vh: i64 = stride(v, 2)",
    "out: T[B, Sq, H, Dv]", "ob: i64 = stride(out, 0)", "os: i64 = stride(out, 1)", "oh: i64 = stride(out, 2)",
    "lse: f32[B, H, Sq]"]
without = ["bias", "mask", "cu_seqlens_q", "cu_seqlens_k", "page_table", "cache_lengths", "alibi_slopes", "q_scale", "k_scale", "v_scale", "sinks"]

[requires]
"left == -1 and -1 <= right <= 0 and softcap == 0 and dropout_p == 0" = "this ladder takes plain and causal attention"
"B * Sq * H * Sk > 0" = "there is nothing to compute"
"stride(q, 3) == 1 and stride(k, 3) == 1 and stride(v, 3) == 1 and stride(out, 3) == 1" = "the columns of a head must be neighbours"
"B * H <= 65535 and Sq <= 65535 * 16" = "the grid has 65535 blocks in its second dimension"
"D <= 128 and Dv <= 128" = "the result of 16 queries must fit the registers of a warp"

[config]
WARPS = 4
KEYS  = 32
SIZE  = 128

[[choice]]
when = "Dv <= 64 and D <= 64"
SIZE = 64

[[launch]]
kernel = "attention<{T}, {WARPS}, {KEYS}, {SIZE}>"
grid   = ["ceil(Sq / (16 * WARPS))", "B * H"]
block  = ["32 * WARPS"]
*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>

/// Two neighbouring numbers of 16 bits, as a register of an operand holds them.
template <typename T>
__device__ unsigned pair(T low, T high) {
    return static_cast<unsigned>(__builtin_bit_cast(unsigned short, low)) | static_cast<unsigned>(__builtin_bit_cast(unsigned short, high)) << 16;
}

template <typename T>
constexpr bool IS_HALF = false;
template <>
constexpr bool IS_HALF<__half> = true;

/// c [16, 8] += a [16, 16] b [16, 8]. Lane l holds, with g = l / 4 and t = l % 4, of a the rows g and g + 8 at columns 2t, 2t + 1, 2t + 8, 2t + 9, of b the
/// column g at these as rows, of c the rows g and g + 8 at columns 2t, 2t + 1.
template <typename T>
__device__ void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    if constexpr (IS_HALF<T>)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <typename T, int WARPS, int KEYS, int SIZE>
__global__ __launch_bounds__(32 * WARPS) void attention(
    int Sq, int Sk, int H, int GROUP, int D, int Dv, int right, float scale, const T* __restrict__ q, long long qb, long long qs, long long qh, const T* __restrict__ k,
    long long kb, long long ks, long long kh, const T* __restrict__ v, long long vb, long long vs, long long vh, T* __restrict__ out, long long ob, long long os,
    long long oh, float* __restrict__ lse) {
    constexpr int WIDE = SIZE + 8;  // padded columns in shared memory: eight rows start in eight different groups of banks
    __shared__ alignas(16) T keys[KEYS][WIDE];
    __shared__ alignas(16) T values[KEYS][WIDE];
    const int tid = threadIdx.x, lane = tid % 32, g = lane / 4, t = lane % 4 * 2, b = blockIdx.y / H, h = blockIdx.y % H;
    const int first = blockIdx.x * 16 * WARPS, row = first + tid / 32 * 16 + g;
    q += b * qb + h * qh;
    k += b * kb + h / GROUP * kh;
    v += b * vb + h / GROUP * vh;
    const T zero = static_cast<T>(0.0f);
    auto at = [&](int r, int d) { return r < Sq && d < D ? q[r * qs + d] : zero; };
    unsigned mine[SIZE / 16][4];
#pragma unroll
    for (int n = 0; n < SIZE / 16; ++n) {
        const int d = 16 * n + t;
        mine[n][0] = pair(at(row, d), at(row, d + 1));
        mine[n][1] = pair(at(row + 8, d), at(row + 8, d + 1));
        mine[n][2] = pair(at(row, d + 8), at(row, d + 9));
        mine[n][3] = pair(at(row + 8, d + 8), at(row + 8, d + 9));
    }
    float acc[SIZE / 8][4] = {}, most[2] = {-CUDART_INF_F, -CUDART_INF_F}, sum[2] = {};
    const float factor = scale * 1.4426950408889634f;
    const int last = min(first + 16 * WARPS, Sq) - 1, end = right < 0 ? Sk : min(Sk, last + Sk - Sq + 1);
    for (int start = 0; start < end; start += KEYS) {
        __syncthreads();
        for (int n = tid; n < KEYS * SIZE; n += 32 * WARPS) {
            const int j = start + n / SIZE, d = n % SIZE;
            keys[n / SIZE][d] = j < Sk && d < D ? k[j * ks + d] : zero;
            values[n / SIZE][d] = j < Sk && d < Dv ? v[j * vs + d] : zero;
        }
        __syncthreads();
        float z[KEYS / 8][4] = {};
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
            for (int d = 0; d < SIZE / 16; ++d) {
                const T* at_key = &keys[8 * n + g][16 * d + t];
                mma<T>(z[n], mine[d], *reinterpret_cast<const unsigned*>(at_key), *reinterpret_cast<const unsigned*>(at_key + 8));
            }
#pragma unroll
        for (int half = 0; half < 2; ++half) {  // rows g and g + 8
            const int i = row + 8 * half, seen = right < 0 ? Sk : min(Sk, i + Sk - Sq + 1);
            float next = most[half];
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float& x = z[n][2 * half + e];
                    x = start + 8 * n + t + e < seen ? x * factor : -CUDART_INF_F;
                    next = fmaxf(next, x);
                }
            next = fmaxf(next, __shfl_xor_sync(0xffffffff, next, 1));
            next = fmaxf(next, __shfl_xor_sync(0xffffffff, next, 2));
            const float base = next == -CUDART_INF_F ? 0.0f : next, shrink = exp2f(most[half] - base);
            most[half] = next;
            sum[half] *= shrink;
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
                for (int e = 0; e < 2; ++e) sum[half] += z[n][2 * half + e] = exp2f(z[n][2 * half + e] - base);
#pragma unroll
            for (int n = 0; n < SIZE / 8; ++n) {
                acc[n][2 * half] *= shrink;
                acc[n][2 * half + 1] *= shrink;
            }
        }
#pragma unroll
        for (int n = 0; n < KEYS / 16; ++n) {
            const float(&x)[4] = z[2 * n], (&y)[4] = z[2 * n + 1];
            const unsigned p[4] = {pair(static_cast<T>(x[0]), static_cast<T>(x[1])), pair(static_cast<T>(x[2]), static_cast<T>(x[3])),
                                   pair(static_cast<T>(y[0]), static_cast<T>(y[1])), pair(static_cast<T>(y[2]), static_cast<T>(y[3]))};
            const int j = 16 * n + t;
#pragma unroll
            for (int d = 0; d < SIZE / 8; ++d)
                mma<T>(acc[d], p, pair(values[j][8 * d + g], values[j + 1][8 * d + g]), pair(values[j + 8][8 * d + g], values[j + 9][8 * d + g]));
        }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int i = row + 8 * half;
        float total = sum[half];
        total += __shfl_xor_sync(0xffffffff, total, 1);
        total += __shfl_xor_sync(0xffffffff, total, 2);
        if (t == 0 && i < Sq) lse[static_cast<long long>(blockIdx.y) * Sq + i] = (most[half] + log2f(total)) / 1.4426950408889634f;
        const float norm = 1 / (total == 0 ? 1.0f : total);
#pragma unroll
        for (int n = 0; n < SIZE / 8; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e)
                if (i < Sq && 8 * n + t + e < Dv) out[b * ob + i * os + h * oh + 8 * n + t + e] = static_cast<T>(acc[n][2 * half + e] * norm);
    }
}
