// prints: wmma and mma agree
#include <mma.h>
#include <cstdint>
#include <iostream>
#include <vector>
using namespace nvcuda;
__global__ void by_wmma(const half *a, const half *b, float *c) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
    wmma::fill_fragment(fc, 0.0f);
    wmma::load_matrix_sync(fa, a, 16), wmma::load_matrix_sync(fb, b, 16);
    wmma::mma_sync(fc, fa, fb, fc);
    wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major);
}
#define LDMATRIX_X4(R0, R1, R2, R3, addr) \
    asm volatile("ldmatrix.sync.aligned.x4.m8n8.shared.b16 {%0, %1, %2, %3}, [%4];\n" : "=r"(R0), "=r"(R1), "=r"(R2), "=r"(R3) : "r"(addr))
__global__ void by_mma(const half *a, const half *b, float *c) {
    __shared__ half sa[16][24], sb[16][24];
    for (int i = threadIdx.x; i < 256; i += 32) sa[i / 16][i % 16] = a[i], sb[i / 16][i % 16] = b[i];
    __syncthreads();
    uint32_t ra[4], rb[4];
    uint32_t pa = __cvta_generic_to_shared(&sa[threadIdx.x % 16][threadIdx.x / 16 * 8]), pb = __cvta_generic_to_shared(&sb[threadIdx.x % 16][threadIdx.x / 16 * 8]);
    LDMATRIX_X4(ra[0], ra[1], ra[2], ra[3], pa);
    LDMATRIX_X4(rb[0], rb[1], rb[2], rb[3], pb);
    for (int h = 0; h < 2; ++h) {
        float d[4] = {0, 0, 0, 0};
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[h]), "r"(rb[h + 2]));
        int g = threadIdx.x / 4, t = threadIdx.x % 4;
        c[g * 16 + h * 8 + t * 2] = d[0], c[g * 16 + h * 8 + t * 2 + 1] = d[1];
        c[(g + 8) * 16 + h * 8 + t * 2] = d[2], c[(g + 8) * 16 + h * 8 + t * 2 + 1] = d[3];
    }
}
int main() {
    std::vector<half> a(256), b(256);
    for (int i = 0; i < 256; ++i) a[i] = __float2half(i % 7 - 3), b[i] = __float2half(i % 5 - 2);
    half *da, *db;
    float *dc, x[256], y[256];
    cudaMalloc(&da, 512), cudaMalloc(&db, 512), cudaMalloc(&dc, 1024);
    cudaMemcpy(da, a.data(), 512, cudaMemcpyHostToDevice), cudaMemcpy(db, b.data(), 512, cudaMemcpyHostToDevice);
    by_wmma<<<1, 32>>>(da, db, dc);
    cudaMemcpy(x, dc, 1024, cudaMemcpyDeviceToHost);
    by_mma<<<1, 32>>>(da, db, dc);
    cudaMemcpy(y, dc, 1024, cudaMemcpyDeviceToHost);
    std::cout << (std::equal(x, x + 256, y) ? "wmma and mma agree" : "they differ") << std::endl;
    cudaFree(da), cudaFree(db), cudaFree(dc);
}
