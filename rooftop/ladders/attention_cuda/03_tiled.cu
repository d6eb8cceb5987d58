/* rooftop
idea    = "The block loads keys and values into shared memory, 16 at a time and each once, and its queries too: one read from memory serves 64 threads."
predict = { speedup = 4.0 }
limit   = "A thread computes a whole row: its result occupies 128 registers, so few such threads fit a multiprocessor, and each product is one FMA behind one load from shared memory."
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
"D <= 128 and Dv <= 128" = "the result of a query must fit the registers of a thread"

[config]
ROWS = 64
KEYS = 16
SIZE = 128

[[choice]]
when = "Dv <= 64 and D <= 64"
SIZE = 64

[[launch]]
kernel = "attention<{T}, {ROWS}, {KEYS}, {SIZE}>"
grid   = ["ceil(Sq / ROWS)", "B * H"]
block  = ["ROWS"]
*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>

template <typename T, int ROWS, int KEYS, int SIZE>
__global__ __launch_bounds__(ROWS) void attention(
    int Sq, int Sk, int H, int GROUP, int D, int Dv, int right, float scale, const T* __restrict__ q, long long qb, long long qs, long long qh, const T* __restrict__ k,
    long long kb, long long ks, long long kh, const T* __restrict__ v, long long vb, long long vs, long long vh, T* __restrict__ out, long long ob, long long os,
    long long oh, float* __restrict__ lse) {
    __shared__ T rows[ROWS][SIZE + 2];  // two columns of padding: the 32 rows that a warp reads are in different banks
    __shared__ T keys[KEYS][SIZE], values[KEYS][SIZE];
    const int tid = threadIdx.x, first = blockIdx.x * ROWS, i = first + tid, b = blockIdx.y / H, h = blockIdx.y % H;
    q += b * qb + h * qh;
    k += b * kb + h / GROUP * kh;
    v += b * vb + h / GROUP * vh;
    const T zero = static_cast<T>(0.0f);
    for (int n = tid; n < ROWS * SIZE; n += ROWS) {
        const int r = n / SIZE, d = n % SIZE;
        rows[r][d] = first + r < Sq && d < D ? q[(first + r) * qs + d] : zero;
    }
    float acc[SIZE] = {}, most = -CUDART_INF_F, sum = 0;
    const int mine = right < 0 ? Sk : min(Sk, i + Sk - Sq + 1), last = min(first + ROWS, Sq) - 1, end = right < 0 ? Sk : min(Sk, last + Sk - Sq + 1);
    for (int start = 0; start < end; start += KEYS) {
        __syncthreads();
        for (int n = tid; n < KEYS * SIZE; n += ROWS) {
            const int j = start + n / SIZE, d = n % SIZE;
            keys[n / SIZE][d] = j < Sk && d < D ? k[j * ks + d] : zero;
            values[n / SIZE][d] = j < Sk && d < Dv ? v[j * vs + d] : zero;
        }
        __syncthreads();
        for (int j = 0; j < KEYS && start + j < mine; ++j) {
            float z = 0;
            for (int d = 0; d < SIZE; ++d) z += static_cast<float>(rows[tid][d]) * static_cast<float>(keys[j][d]);
            z *= scale;
            const float next = fmaxf(most, z), base = next == -CUDART_INF_F ? 0.0f : next;
            const float p = expf(z - base), shrink = expf(most - base);
            sum = sum * shrink + p;
#pragma unroll
            for (int d = 0; d < SIZE; ++d) acc[d] = acc[d] * shrink + p * static_cast<float>(values[j][d]);
            most = next;
        }
    }
    if (i >= Sq) return;
    lse[static_cast<long long>(blockIdx.y) * Sq + i] = most + logf(sum);
    const float norm = 1 / (sum == 0 ? 1.0f : sum);
#pragma unroll
    for (int d = 0; d < SIZE; ++d)
        if (d < Dv) out[b * ob + i * os + h * oh + d] = static_cast<T>(acc[d] * norm);
}
