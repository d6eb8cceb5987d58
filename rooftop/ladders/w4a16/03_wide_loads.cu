/* rooftop
idea    = "One warp per stripe of 16 rows: a lane loads 16 bytes of codes with one instruction and converts each pair to bf16 by a shift, one lop3 and one subtraction; four rows of x share the unpacked codes."
predict = { speedup = 6 }
limit   = "One warp per stripe is four per multiprocessor: too few to hide the latency of memory."
dtypes  = ["bf16"]
args    = ["M: i32", "N: i32", "K: i32", "per: i32 = group // 128", "G: i32", "x: T[M, K]", "xs: i64 = stride(x, 0)", "codes: u8[S, B, BYTES]", "scale: T[S, G, 16]", "out: T[M, N]"]
demands = { has = ["LDG.128"] }

[requires]
"format == 'int4' and not present(zero) and not present(x_scale) and not present(bias)" = "int4 without zero points, scales of rows of x and bias"
"K % 128 == 0 and group % 128 == 0" = "whole blocks of 128 columns, whole in a group"
"stride(x, 1) == 1" = "neighbours of a row of x must be neighbours"
"M >= 1" = "there must be rows"
"aligned(x, 4)" = "pairs of x are read at once"

[[launch]]
kernel = "wide<{T}>"
grid   = ["ceil(S / 4)", "ceil(M / 4)"]
block  = [128]
*/
#include "_unpack.cuh"

/// A lane's part of one chunk of 64 columns: its 16 bytes of codes, times four rows of x.
template <typename T>
__device__ inline void add_chunk(float (&sum)[4][2], const uint4& held, const T* const (&rows)[4], int column) {
    const unsigned words[4] = {held.x, held.y, held.z, held.w};
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float w[2][2];
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const unsigned pair = pair_of<T, INT4>(words, 4 * step + 2 * h + r);
                w[r][0] = __uint_as_float(pair << 16), w[r][1] = __uint_as_float(pair & 0xffff0000u);
            }
#pragma unroll
            for (int m = 0; m < 4; ++m) {
                const unsigned two = *reinterpret_cast<const unsigned*>(rows[m] + column + 16 * step + 8 * h);
                const float x0 = __uint_as_float(two << 16), x1 = __uint_as_float(two & 0xffff0000u);
#pragma unroll
                for (int r = 0; r < 2; ++r) sum[m][r] += w[r][0] * x0, sum[m][r] += w[r][1] * x1;
            }
        }
    }
}

template <typename T>
__global__ void __launch_bounds__(128) wide(int M, int N, int K, int per, int G, const T* __restrict__ x, long long xs, const unsigned char* __restrict__ codes,
                                            const T* __restrict__ scale, T* __restrict__ out) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, stripe = blockIdx.x * 4 + threadIdx.x / 32, blocks = K / 128, first = blockIdx.y * 4;
    if (stripe * 16 >= N) return;
    const T* rows[4];
#pragma unroll
    for (int m = 0; m < 4; ++m) rows[m] = x + min(first + m, M - 1) * xs + 2 * t;
    float total[4][2] = {};
    for (int block = 0; block < blocks; ++block) {
        const uint4* from = reinterpret_cast<const uint4*>(codes) + (static_cast<long long>(stripe) * blocks + block) * 64 + lane;
        float sum[4][2] = {};
        add_chunk<T>(sum, from[0], rows, block * 128);
        add_chunk<T>(sum, from[32], rows, block * 128 + 64);
        const T* s = scale + (static_cast<long long>(stripe) * G + block / per) * 16 + g;
#pragma unroll
        for (int m = 0; m < 4; ++m) total[m][0] += sum[m][0] * static_cast<float>(s[0]), total[m][1] += sum[m][1] * static_cast<float>(s[8]);
    }
#pragma unroll
    for (int m = 0; m < 4; ++m) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float v = total[m][r];
            v += __shfl_xor_sync(~0u, v, 1);
            v += __shfl_xor_sync(~0u, v, 2);
            const int n = stripe * 16 + 8 * r + g;
            if (t == 0 && first + m < M && n < N) out[static_cast<long long>(first + m) * N + n] = T(v);
        }
    }
}
