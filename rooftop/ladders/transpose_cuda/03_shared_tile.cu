/* rooftop
idea    = "A block stores a tile of 32 x 32 elements to shared memory by rows and loads it by columns: global loads and global stores are both coalesced."
predict = { speedup = 1.5, sectors_read = 4, sectors_written = 4, wavefronts = 16.5, conflicts = 32 }
limit   = "Bank conflicts: a column of the tile lies in one bank, so a load of 32 lanes takes 32 wavefronts instead of one."
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
    __shared__ T tile[32][32];
    const int tiles_c = (C - 1) / 32 + 1, r0 = blockIdx.x / tiles_c * 32, c0 = blockIdx.x % tiles_c * 32, lane = threadIdx.x;
    for (int i = threadIdx.y; i < 32; i += 8) {
        if (r0 + i < R && c0 + lane < C) tile[i][lane] = x[(r0 + i) * xr + c0 + lane];
    }
    __syncthreads();
    for (int i = threadIdx.y; i < 32; i += 8) {
        if (c0 + i < C && r0 + lane < R) out[(c0 + i) * oc + r0 + lane] = tile[lane][i];
    }
}
