/* rooftop
idea    = "Coalesced loads: a warp reads 32 neighbouring elements of a row, and writes each to a different row."
predict = { sectors_read = 4, sectors_written = 32 }
limit   = "Every store of a warp touches 32 sectors with 4 bytes each. L2 merges them only while it holds the lines of as many rows as are in flight."
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
    const int tiles_c = (C - 1) / 32 + 1, c = blockIdx.x % tiles_c * 32 + threadIdx.x, first = blockIdx.x / tiles_c * 32;
    if (c >= C) return;
    for (int r = first + threadIdx.y; r < min(R, first + 32); r += 8) out[c * oc + r] = x[r * xr + c];
}
