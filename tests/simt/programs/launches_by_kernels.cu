// Kernels that launch kernels: these run when the launch that made them has ended, with the arguments of then, and are watched.
// prints: 400 numbers rose by 1000, after 2 levels
#include <cstdio>

__global__ void add(int* p, int n, int by) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) p[i] += by;
}

template <typename T>
__global__ void halves(T* p, int n, int by, int deep) {
    if (threadIdx.x != 0) return;
    if (deep == 0) add<<<(n + 63) / 64, 64>>>(p, n, by);
    else for (int half = 0; half < 2; ++half) halves<T><<<1, 32>>>(p + half * n / 2, n / 2, by, deep - 1);
}

int main() {
    int *p, h[400], sum = 0;
    cudaMalloc(&p, sizeof h);
    cudaMemset(p, 0, sizeof h);
    for (int block = 0; block < 4; ++block) halves<int><<<1, 32>>>(p + 100 * block, 100, 1 + block, block % 2 + 1);
    cudaMemcpy(h, p, sizeof h, cudaMemcpyDeviceToHost);
    for (int i = 0; i < 400; ++i) sum += h[i];
    printf("%d numbers rose by %d, after %d levels\n", 400, sum, 2);
    cudaFree(p);
}
