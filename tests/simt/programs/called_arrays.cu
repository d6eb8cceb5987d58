// No main() and no solve(): the functions of the host's that take arrays and launch are called, but for those that others call.
// assumed: scaled(x: 1,000 elements, y: 1,000 elements, n = 1000); both(h_x: 1,000 elements, n = 1000)
// prints: both of 1000
#include <cstdio>
#include <cuda_runtime.h>

__global__ void scale(const float* x, float* y, size_t n) {
    const size_t stride = blockDim.x * gridDim.x;
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) y[i] = 2 * x[i];
}

static void launch(float* x, int n) { scale<<<(n + 255) / 256, 256>>>(x, x, n); }

extern "C" void scaled(const float* x, float* y, size_t n) {
    const int blocks = (n + 255) / 256;
    scale<<<blocks, 256>>>(x, y, n);
    cudaDeviceSynchronize();
}

void both(float* h_x, int n) {
    float* d;
    cudaMalloc(&d, n * sizeof(float));
    cudaMemcpy(d, h_x, n * sizeof(float), cudaMemcpyHostToDevice);
    launch(d, n);
    scale<<<1, 32>>>(d, d, n);
    cudaMemcpy(h_x, d, n * sizeof(float), cudaMemcpyDeviceToHost);
    cudaFree(d);
    printf("both of %d\n", n);
}
