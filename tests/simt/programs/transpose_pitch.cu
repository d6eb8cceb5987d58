// prints: transposed
#include <cstdio>
#define TILE 32
__global__ void transpose(const float *in, size_t pitch, float *out, int w, int h) {
    __shared__ float tile[TILE][TILE + 1];
    int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += 8)
        if (x < w && y + j < h) tile[threadIdx.y + j][threadIdx.x] = *((const float *)((const char *)in + (y + j) * pitch) + x);
    __syncthreads();
    x = blockIdx.y * TILE + threadIdx.x, y = blockIdx.x * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += 8)
        if (x < h && y + j < w) out[(y + j) * h + x] = tile[threadIdx.x][threadIdx.y + j];
}
int main() {
    const int w = 50, h = 70;
    static float a[h][w], b[w][h];
    for (int i = 0; i < h; i++) for (int j = 0; j < w; j++) a[i][j] = i * w + j;
    float *d, *o;
    size_t pitch;
    cudaMallocPitch(&d, &pitch, w * sizeof(float), h);
    cudaMalloc(&o, sizeof b);
    cudaMemcpy2D(d, pitch, a, w * sizeof(float), w * sizeof(float), h, cudaMemcpyHostToDevice);
    transpose<<<dim3((w + TILE - 1) / TILE, (h + TILE - 1) / TILE), dim3(TILE, 8)>>>(d, pitch, o, w, h);
    cudaMemcpy(b, o, sizeof b, cudaMemcpyDeviceToHost);
    bool ok = true;
    for (int i = 0; i < h; i++) for (int j = 0; j < w; j++) ok &= b[j][i] == a[i][j];
    puts(ok ? "transposed" : "wrong");
    cudaFree(d), cudaFree(o);
}
