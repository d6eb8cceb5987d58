// prints: 7 2 1.5 2.5
#include <cuda_fp16.h>
#include <cstdio>
__global__ void k(half* a, int n) { a[0] = n; }
int main() { half b[4]; int i = 3; b[0] = i; b[1] = 2u; b[2] = 1.5f; b[3] = 2.5; half* d; cudaMalloc(&d, 8); cudaMemcpy(d, b, 8, cudaMemcpyHostToDevice); k<<<1, 1>>>(d, 7); cudaMemcpy(b, d, 8, cudaMemcpyDeviceToHost); printf("%g %g %g %g\n", float(b[0]), float(b[1]), float(b[2]), float(b[3])); cudaFree(d); }
