/* rooftop
idea    = "A row is divided among four lanes of a warp: each holds a quarter of its query and of its result in registers, and two shuffles complete a score. Sixteen keys are scored before the maximum is updated: one rescaling for all of them."
predict = { speedup = 2.0 }
limit   = "Float32 FMAs: a multiprocessor executes 128 per clock, its tensor cores sixteen times as many."
dtypes  = ["bf16", "f16"]
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
"D <= 128 and Dv <= 128" = "a quarter of a row must fit the registers of a lane"

[config]
ROWS = 32
KEYS = 16
SIZE = 128

[[choice]]
when = "Dv <= 64 and D <= 64"
SIZE = 64

[[launch]]
kernel = "attention<{T}, {ROWS}, {KEYS}, {SIZE}>"
grid   = ["ceil(Sq / ROWS)", "B * H"]
block  = ["4 * ROWS"]
*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>

template <typename T, int ROWS, int KEYS, int SIZE>
__global__ __launch_bounds__(4 * ROWS, 3) void attention(
    int Sq, int Sk, int H, int GROUP, int D, int Dv, int right, float scale, const T* __restrict__ q, long long qb, long long qs, long long qh, const T* __restrict__ k,
    long long kb, long long ks, long long kh, const T* __restrict__ v, long long vb, long long vs, long long vh, T* __restrict__ out, long long ob, long long os,
    long long oh, float* __restrict__ lse) {
    constexpr int PART = SIZE / 4;  // columns of a lane: lane, lane + 4, ...
    __shared__ float keys[KEYS][SIZE], values[KEYS][SIZE];
    const int tid = threadIdx.x, lane = tid % 4, first = blockIdx.x * ROWS, i = first + tid / 4, b = blockIdx.y / H, h = blockIdx.y % H;
    q += b * qb + h * qh;
    k += b * kb + h / GROUP * kh;
    v += b * vb + h / GROUP * vh;
    float mine[PART], acc[PART] = {}, most = -CUDART_INF_F, sum = 0;
#pragma unroll
    for (int n = 0; n < PART; ++n) mine[n] = i < Sq && 4 * n + lane < D ? static_cast<float>(q[i * qs + 4 * n + lane]) * scale : 0.0f;
    const int last = min(first + ROWS, Sq) - 1, seen = right < 0 ? Sk : min(Sk, i + Sk - Sq + 1), end = right < 0 ? Sk : min(Sk, last + Sk - Sq + 1);
    for (int start = 0; start < end; start += KEYS) {
        __syncthreads();
        for (int n = tid; n < KEYS * SIZE; n += 4 * ROWS) {
            const int j = start + n / SIZE, d = n % SIZE;
            keys[n / SIZE][d] = j < Sk && d < D ? static_cast<float>(k[j * ks + d]) : 0.0f;
            values[n / SIZE][d] = j < Sk && d < Dv ? static_cast<float>(v[j * vs + d]) : 0.0f;
        }
        __syncthreads();
        float z[KEYS], next = most;
#pragma unroll
        for (int j = 0; j < KEYS; ++j) {
            z[j] = 0;
#pragma unroll
            for (int n = 0; n < PART; ++n) z[j] += mine[n] * keys[j][4 * n + lane];
            z[j] += __shfl_xor_sync(0xffffffff, z[j], 1);
            z[j] += __shfl_xor_sync(0xffffffff, z[j], 2);
            if (start + j >= seen) z[j] = -CUDART_INF_F;
            next = fmaxf(next, z[j]);
        }
        const float base = next == -CUDART_INF_F ? 0.0f : next, shrink = expf(most - base);
        sum *= shrink;
#pragma unroll
        for (int n = 0; n < PART; ++n) acc[n] *= shrink;
#pragma unroll
        for (int j = 0; j < KEYS; ++j) {
            const float p = expf(z[j] - base);
            sum += p;
#pragma unroll
            for (int n = 0; n < PART; ++n) acc[n] += p * values[j][4 * n + lane];
        }
        most = next;
    }
    if (i >= Sq) return;
    if (lane == 0) lse[static_cast<long long>(blockIdx.y) * Sq + i] = most + logf(sum);
    const float norm = 1 / (sum == 0 ? 1.0f : sum);
#pragma unroll
    for (int n = 0; n < PART; ++n)
        if (4 * n + lane < Dv) out[b * ob + i * os + h * oh + 4 * n + lane] = static_cast<T>(acc[n] * norm);
}
