/* rooftop
idea    = "A warp computes 16 x 8 outputs with one tensor-core instruction for each 16 of K. Its operands are loaded straight from global memory, number by number, into the registers of the instruction's fragment layout."
predict = { registers = 40 }
limit   = "Loads: 12 of 2 bytes for one instruction, and every number of a is read by N / 8 warps. L1 and L2 serve them; the tensor cores wait."
dtypes  = ["bf16", "f16"]
args    = ["M: i32", "N: i32", "K: i32", "alpha: f32", "a: T[M, K]", "lda: i64 = stride(a, 0)", "b: T[K, N]", "ldb: i64 = stride(b, 1)", "beta: f32", "c: T[M, N]?", "ldc: i64 = stride(c, 0)", "out: T[M, N]", "ldo: i64 = stride(out, 0)"]
demands = { has = ["HMMA"], spills = 0 }

[requires]
"M * N > 0" = "there is nothing to compute"
"stride(a, 1) == 1 or K <= 1" = "the elements of a row of a must be neighbours"
"stride(b, 0) == 1 or K <= 1" = "the elements of a column of b must be neighbours"
"not present(c) or stride(c, 1) == 1 or N == 1" = "the elements of a row of c must be neighbours"
"stride(out, 1) == 1 or N == 1" = "the elements of a row of out must be neighbours"

[config]
WARPS = 4

[[launch]]
kernel = "hgemm<{T}, {WARPS}>"
grid   = ["ceil(M / 16) * ceil(N / (8 * WARPS))"]
block  = ["32 * WARPS"]
*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

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
__device__ void mma(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    if constexpr (IS_HALF<T>)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <typename T, int WARPS>
__global__ __launch_bounds__(32 * WARPS) void hgemm(
    int M, int N, int K, float alpha, const T* __restrict__ a, long long lda, const T* __restrict__ b, long long ldb, float beta, const T* c,
    long long ldc, T* out, long long ldo) {
    const int across = (N - 1) / (8 * WARPS) + 1;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4 * 2;
    const int m = static_cast<int>(blockIdx.x) / across * 16, n = (static_cast<int>(blockIdx.x) % across * WARPS + static_cast<int>(threadIdx.x) / 32) * 8;
    if (n >= N) return;
    const T zero = static_cast<T>(0.0f);
    auto at_a = [&](int row, int k) { return row < M && k < K ? a[row * lda + k] : zero; };
    auto at_b = [&](int k, int column) { return column < N && k < K ? b[column * ldb + k] : zero; };
    float sum[4] = {};
    for (int k = t; k - t < K; k += 16) {
        const unsigned x[4] = {pair(at_a(m + g, k), at_a(m + g, k + 1)), pair(at_a(m + g + 8, k), at_a(m + g + 8, k + 1)),
                               pair(at_a(m + g, k + 8), at_a(m + g, k + 9)), pair(at_a(m + g + 8, k + 8), at_a(m + g + 8, k + 9))};
        const unsigned y[2] = {pair(at_b(k, n + g), at_b(k + 1, n + g)), pair(at_b(k + 8, n + g), at_b(k + 9, n + g))};
        mma<T>(sum, x, y);
    }
    for (int i = 0; i < 4; ++i) {
        const int row = m + g + i / 2 * 8, column = n + t + i % 2;
        if (row >= M || column >= N) continue;
        float x = alpha * sum[i];
        if (beta != 0 && c != nullptr) x += beta * static_cast<float>(c[row * ldc + column]);
        out[row * ldo + column] = static_cast<T>(x);
    }
}
