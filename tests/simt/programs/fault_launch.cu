// prints: done
#include <cstdio>
__global__ void one(int *p) { *p = 1; }
int main() {
    int *p, n = 0;
    cudaMalloc(&p, 4);
    one<<<n / 256, 256>>>(p); // BUG: launch
    one<<<1, 2048>>>(p);      // BUG: launch
    one<<<1, 1, 100000>>>(p); // BUG: launch
    puts("done");
    cudaFree(p);
}
