// Kernels alone: their launches are assumed.
// assumed: scale<<<4, 256>>>(x=f32:4096, n=1024, by=1.0f); tiled<<<2x2, 32x32>>>(a=f16:4096, b=f16:4096, width=64); rows<float><<<64, 256>>>(x=f32:4096, rows=64, columns=64)
#include <cuda_fp16.h>
#define TILE_SIZE 32

__global__ void scale(float* x, int n, float by) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= by;
}

__global__ void tiled(const half* a, half* b, int width) {
    __shared__ half tile[TILE_SIZE][TILE_SIZE];
    const int x = blockIdx.x * TILE_SIZE + threadIdx.x, y = blockIdx.y * TILE_SIZE + threadIdx.y;
    tile[threadIdx.y][threadIdx.x] = a[y * width + x];
    __syncthreads();
    b[y * width + x] = tile[threadIdx.x][threadIdx.y];
}

template <typename T>
__global__ void rows(T* x, int rows, int columns) {
    for (int c = threadIdx.x; c < columns; c += blockDim.x) x[blockIdx.x * columns + c] += 1;
}
