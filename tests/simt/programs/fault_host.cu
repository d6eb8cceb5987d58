// prints: copied
#include <cstdio>
#include <cstdlib>
__global__ void one(int *p) { *p = 1; } // BUG: out-of-bounds
int main() {
    int *p, *q, h[32];
    cudaMalloc(&p, 64);
    cudaMemcpy(h, p, sizeof h, cudaMemcpyDeviceToHost); // BUG: host
    cudaFree(p);
    cudaFree(p); // BUG: host
    puts("copied");
    one<<<1, 1>>>(p);
    cudaDeviceSynchronize();
    cudaMalloc(&q, 64);
    printf("%d\n", q[0]); // BUG: host
}
