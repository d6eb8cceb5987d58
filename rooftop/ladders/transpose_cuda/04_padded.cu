/* rooftop
idea    = "Padding: rows of the tile are 33 words apart, so that a column has one element in each bank."
predict = { speedup = 1.5, sectors_read = 4, sectors_written = 4, wavefronts = 1, conflicts = 1 }
limit   = "Loads of 4 bytes, four of them in flight per thread: too few bytes for the latency of the memory."
dtypes  = ["i32", "i16"]
args    = ["R: i32", "C: i32", "x: T[B1, B2, B3, R, C]", "xr: i64 = stride(x, 3)", "out: T[B1, B2, B3, R, C]", "oc: i64 = stride(out, 4)"]

[requires]
"B1 * B2 * B3 == 1" = "takes one matrix"
"R * C > 0" = "there is nothing to copy"
"stride(x, 4) == 1 and stride(out, 3) == 1" = "columns must be neighbours in x, and rows in out"

[[launch]]
kernel = "transpose<{T}>"
grid   = ["ceil(R / 32) * ceil(C / 32)"]
block  = ["32", "8"]
*/
template <typename T>
__global__ void transpose(int R, int C, const T* __restrict__ x, long long xr, T* __restrict__ out, long long oc) {
    __shared__ T tile[32][32 + 4 / sizeof(T)];  // one word of padding a row
    const int tiles_c = (C - 1) / 32 + 1, r0 = blockIdx.x / tiles_c * 32, c0 = blockIdx.x % tiles_c * 32, lane = threadIdx.x;
    for (int i = threadIdx.y; i < 32; i += 8) {
        if (r0 + i < R && c0 + lane < C) tile[i][lane] = x[(r0 + i) * xr + c0 + lane];
    }
    __syncthreads();
    for (int i = threadIdx.y; i < 32; i += 8) {
        if (c0 + i < C && r0 + lane < R) out[(c0 + i) * oc + r0 + lane] = tile[lane][i];
    }
}
