// prints: end
#include <cstdio>
__global__ void half_of_it(float *p) { if (threadIdx.x % 2) p[threadIdx.x] = 1; }
__global__ void scale(const float *p, float *o) { o[threadIdx.x] = 2 * p[threadIdx.x]; } // BUG: uninitialised
int main() {
    float *p, *o, h[64];
    cudaMalloc(&p, 256), cudaMalloc(&o, 256);
    half_of_it<<<1, 64>>>(p);
    scale<<<1, 64>>>(p, o);
    cudaMemcpy(h, o, 256, cudaMemcpyDeviceToHost);
    puts("end");
    cudaFree(p), cudaFree(o);
}
