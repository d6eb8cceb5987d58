// prints: done
#include <cstdio>
__global__ void shift(const int *in, int *out) { int i = threadIdx.x; out[i] = in[i + 1]; } // BUG: out-of-bounds
int main() {
    int *a, *b;
    cudaMalloc(&a, 64 * sizeof(int)), cudaMalloc(&b, 64 * sizeof(int));
    cudaMemset(a, 0, 64 * sizeof(int));
    shift<<<1, 64>>>(a, b);
    puts("done");
    cudaFree(a), cudaFree(b);
}
