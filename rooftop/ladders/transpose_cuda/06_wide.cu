/* rooftop
idea    = "Global loads and stores of 16 bytes. A thread reads 16 bytes of a row and stores its elements to shared memory one by one; another thread gathers 16 bytes of a column. Element c of row r is stored at c ^ swizzle(r), so that both accesses use all banks."
predict = { speedup = 1.4, sectors_read = 16, sectors_written = 16 }
limit   = "Shared memory is still accessed element by element: with 16-bit elements, 16 accesses for each 16 bytes moved."
dtypes  = ["i32", "i16"]
demands = { has = ["LDG.E.128", "STG.E.128"], spills = 0 }
args    = ["R: i32", "C: i32", "x: T[B1, B2, B3, R, C]", "xr: i64 = stride(x, 3)", "out: T[B1, B2, B3, R, C]", "oc: i64 = stride(out, 4)"]

[requires]
"B1 * B2 * B3 == 1" = "takes one matrix"
"R * C > 0" = "there is nothing to copy"
"stride(x, 4) == 1 and stride(out, 3) == 1" = "columns must be neighbours in x, and rows in out"
"C % (16 // bytes(x)) == 0 and R % (16 // bytes(x)) == 0 and aligned(x, 16) and aligned(out, 16)" = "rows must start on 16-byte boundaries on both sides"

[[launch]]
kernel = "transpose<{T}>"
grid   = ["ceil(R / 64) * ceil(C / 64)"]
block  = [256]
*/
template <typename T>
struct alignas(16) Pack {
    static constexpr int N = 16 / sizeof(T);
    T v[N];
};

/// Tiles of 64 x 64. N elements a pack; 64 / N packs a row.
template <typename T>
__global__ void __launch_bounds__(256) transpose(int R, int C, const T* __restrict__ x, long long xr, T* __restrict__ out, long long oc) {
    using P = Pack<T>;
    constexpr int PACKS = 64 / P::N, EACH = 64 * PACKS / 256;
    __shared__ T tile[64 * 64];
    const auto place = [](int r, int c) { return r * 64 + (c ^ (r / P::N * (4 / static_cast<int>(sizeof(T))) + r % P::N * P::N) % 64); };
    const int tiles_c = (C - 1) / 64 + 1, r0 = blockIdx.x / tiles_c * 64, c0 = blockIdx.x % tiles_c * 64;
    P p[EACH];
#pragma unroll
    for (int q = 0; q < EACH; ++q) {
        const int k = threadIdx.x + q * 256, r = k / PACKS, c = k % PACKS * P::N;
        if (r0 + r < R && c0 + c < C) p[q] = *reinterpret_cast<const P*>(x + (r0 + r) * xr + c0 + c);
    }
#pragma unroll
    for (int q = 0; q < EACH; ++q) {
        const int k = threadIdx.x + q * 256, r = k / PACKS, c = k % PACKS * P::N;
        if (r0 + r >= R || c0 + c >= C) continue;
#pragma unroll
        for (int j = 0; j < P::N; ++j) tile[place(r, c + j)] = p[q].v[j];
    }
    __syncthreads();
#pragma unroll
    for (int q = 0; q < EACH; ++q) {
        const int k = threadIdx.x + q * 256, c = k / PACKS, r = k % PACKS * P::N;
        if (r0 + r >= R || c0 + c >= C) continue;
        P o;
#pragma unroll
        for (int j = 0; j < P::N; ++j) o.v[j] = tile[place(r + j, c)];
        *reinterpret_cast<P*>(out + (c0 + c) * oc + r0 + r) = o;
    }
}
