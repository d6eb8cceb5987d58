/* rooftop
idea    = "One thread per element of the result: it finds each code of its row by the packing's formula, one byte at a time."
predict = { speedup = 4 }
limit   = "Some twenty instructions of index arithmetic and two narrow loads for each product."
dtypes  = ["bf16"]
args    = ["M: i32", "N: i32", "K: i32", "per: i32 = group // 128", "G: i32", "x: T[M, K]", "xs: i64 = stride(x, 0)", "codes: u8[S, B, BYTES]", "scale: T[S, G, 16]", "out: T[M, N]"]

[requires]
"format == 'int4' and not present(zero) and not present(x_scale) and not present(bias)" = "int4 without zero points, scales of rows of x and bias"
"K % 128 == 0 and group % 128 == 0" = "whole blocks of 128 columns, whole in a group"
"stride(x, 1) == 1" = "neighbours of a row of x must be neighbours"
"M >= 1" = "there must be rows"

[[launch]]
kernel = "naive<{T}>"
grid   = ["ceil(N / 128)", "M"]
block  = [128]
*/
#include <cuda_bf16.h>

template <typename T>
__global__ void naive(int M, int N, int K, int per, int G, const T* __restrict__ x, long long xs, const unsigned char* __restrict__ codes,
                      const T* __restrict__ scale, T* __restrict__ out) {
    const int n = blockIdx.x * 128 + threadIdx.x, m = blockIdx.y;
    if (n >= N) return;
    const int stripe = n / 16, r = n / 8 % 2, g = n % 8, blocks = K / 128;
    float total = 0;
    for (int block = 0; block < blocks; ++block) {
        float sum = 0;
        for (int k = 0; k < 128; ++k) {
            const int chunk = k / 64, step = k / 16 % 4, h = k / 8 % 2, t = k / 2 % 4, second = k % 2;
            const long long at = (static_cast<long long>(stripe) * blocks + block) * 1024 + chunk * 512 + (4 * g + t) * 16 + step * 4 + second * 2 + h;
            const int code = codes[at] >> (4 * r) & 15;
            sum += static_cast<float>(x[m * xs + block * 128 + k]) * (code - 8);
        }
        total += sum * static_cast<float>(scale[(static_cast<long long>(stripe) * G + block / per) * 16 + n % 16]);
    }
    out[static_cast<long long>(m) * N + n] = T(total);
}
