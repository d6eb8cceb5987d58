/* rooftop
idea    = "The formula as written, in three kernels: one computes the scores, one thread each; one turns each row of scores into weights; one computes the result, one thread per element."
predict = { registers = 40 }
limit   = "Float32 scores are written once, read four times and written again. And each thread of the products reads whole rows; neighbouring threads share none of these reads."
dtypes  = ["bf16", "f16"]
args    = [
    "Sq: i32", "Sk: i32", "H: i32", "GROUP: i32 = H // Hk", "D: i32", "Dv: i32", "right: i32", "scale: f32",
    "q: T[B, Sq, H, D]", "qb: i64 = stride(q, 0)", "qs: i64 = stride(q, 1)", "qh: i64 = stride(q, 2)",
    "k: T[B, Sk, Hk, D]", "kb: i64 = stride(k, 0)", "ks: i64 = stride(k, 1)", "kh: i64 = stride(k, 2)",
    "v: T[B, Sk, Hk, Dv]", "vb: i64 = stride(v, 0)", "vs: i64 = stride(v, 1)", "vh: i64 = stride(v, 2)",
    "out: T[B, Sq, H, Dv]", "ob: i64 = stride(out, 0)", "os: i64 = stride(out, 1)", "oh: i64 = stride(out, 2)",
    "lse: f32[B, H, Sq]", "z: f32[B, H, Sq, Sk]"]
without = ["bias", "mask", "cu_seqlens_q", "cu_seqlens_k", "page_table", "cache_lengths", "alibi_slopes", "q_scale", "k_scale", "v_scale", "sinks"]

[requires]
"left == -1 and -1 <= right <= 0 and softcap == 0 and dropout_p == 0" = "this ladder takes plain and causal attention"
"B * Sq * H * Sk > 0" = "there is nothing to compute"
"stride(q, 3) == 1 and stride(k, 3) == 1 and stride(v, 3) == 1 and stride(out, 3) == 1" = "the columns of a head must be neighbours"
"B * H <= 65535 and Sq <= 65535 * 16" = "the grid has 65535 blocks in its second dimension"

[scratch]
z = "f32[B, H, Sq, Sk]"

[config]
threads = 128

[[launch]]
kernel = "scores<{T}>"
grid   = ["ceil(Sk / threads)", "Sq", "B * H"]
block  = ["threads"]

[[launch]]
kernel = "weights<{T}, {threads}>"
grid   = ["Sq", "B * H"]
block  = ["threads"]

[[launch]]
kernel = "result<{T}>"
grid   = ["ceil(Dv / threads)", "Sq", "B * H"]
block  = ["threads"]
*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>

template <typename T>
__global__ void scores(
    int Sq, int Sk, int H, int GROUP, int D, int Dv, int right, float scale, const T* __restrict__ q, long long qb, long long qs, long long qh, const T* __restrict__ k,
    long long kb, long long ks, long long kh, const T* __restrict__ v, long long vb, long long vs, long long vh, T* __restrict__ out, long long ob, long long os,
    long long oh, float* __restrict__ lse, float* __restrict__ z) {
    const int j = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y, b = blockIdx.z / H, h = blockIdx.z % H;
    if (j >= Sk) return;
    const bool seen = right < 0 || j <= i + Sk - Sq;
    float sum = 0;
    if (seen)
        for (int d = 0; d < D; ++d) sum += static_cast<float>(q[b * qb + i * qs + h * qh + d]) * static_cast<float>(k[b * kb + j * ks + h / GROUP * kh + d]);
    z[(static_cast<long long>(blockIdx.z) * Sq + i) * Sk + j] = seen ? sum * scale : -CUDART_INF_F;
}

template <typename T, int THREADS>
__global__ void weights(
    int Sq, int Sk, int H, int GROUP, int D, int Dv, int right, float scale, const T* __restrict__ q, long long qb, long long qs, long long qh, const T* __restrict__ k,
    long long kb, long long ks, long long kh, const T* __restrict__ v, long long vb, long long vs, long long vh, T* __restrict__ out, long long ob, long long os,
    long long oh, float* __restrict__ lse, float* __restrict__ z) {
    __shared__ float shared[THREADS];
    const int tid = threadIdx.x;
    z += (static_cast<long long>(blockIdx.y) * Sq + blockIdx.x) * Sk;
    float most = -CUDART_INF_F;
    for (int j = tid; j < Sk; j += THREADS) most = fmaxf(most, z[j]);
    shared[tid] = most;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (tid < half) shared[tid] = fmaxf(shared[tid], shared[tid + half]);
        __syncthreads();
    }
    most = shared[0] == -CUDART_INF_F ? 0.0f : shared[0];
    __syncthreads();
    float sum = 0;
    for (int j = tid; j < Sk; j += THREADS) sum += expf(z[j] - most);
    shared[tid] = sum;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (tid < half) shared[tid] += shared[tid + half];
        __syncthreads();
    }
    sum = shared[0];
    for (int j = tid; j < Sk; j += THREADS) z[j] = expf(z[j] - most) / (sum == 0 ? 1.0f : sum);
    if (tid == 0) lse[static_cast<long long>(blockIdx.y) * Sq + blockIdx.x] = most + logf(sum);
}

template <typename T>
__global__ void result(
    int Sq, int Sk, int H, int GROUP, int D, int Dv, int right, float scale, const T* __restrict__ q, long long qb, long long qs, long long qh, const T* __restrict__ k,
    long long kb, long long ks, long long kh, const T* __restrict__ v, long long vb, long long vs, long long vh, T* __restrict__ out, long long ob, long long os,
    long long oh, float* __restrict__ lse, float* __restrict__ z) {
    const int d = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y, b = blockIdx.z / H, h = blockIdx.z % H;
    if (d >= Dv) return;
    z += (static_cast<long long>(blockIdx.z) * Sq + i) * Sk;
    float sum = 0;
    for (int j = 0; j < Sk; ++j) sum += z[j] * static_cast<float>(v[b * vb + j * vs + h / GROUP * vh + d]);
    out[b * ob + i * os + h * oh + d] = static_cast<T>(sum);
}
