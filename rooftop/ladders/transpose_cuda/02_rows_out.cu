/* rooftop
idea    = "Coalesced stores instead: a warp writes 32 neighbouring elements and reads each from a different row. A sector that is read brings 32 bytes, and the rest of them stays in L1 for the neighbouring warps; stores have no such cache near the multiprocessor."
predict = { speedup = 2, sectors_read = 32, sectors_written = 4 }
limit   = "Every load of a warp touches 32 sectors, and L1 serves one line at a time."
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
    const int tiles_c = (C - 1) / 32 + 1, r = blockIdx.x / tiles_c * 32 + threadIdx.x, first = blockIdx.x % tiles_c * 32;
    if (r >= R) return;
    for (int c = first + threadIdx.y; c < min(C, first + 32); c += 8) out[c * oc + r] = x[r * xr + c];
}
