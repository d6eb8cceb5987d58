// A fault of a launch that a kernel makes.
__global__ void fill(int* p, int n) {
    if (threadIdx.x <= n) p[threadIdx.x] = 1;                    // BUG: out-of-bounds
}
__global__ void rows(int* p, int n) {
    if (threadIdx.x == 0) fill<<<1, 32>>>(p + blockIdx.x * n, n);
}
int main() {
    int* p;
    cudaMalloc(&p, 4 * 16 * sizeof(int));
    rows<<<4, 32>>>(p, 16);
    cudaDeviceSynchronize();
    cudaFree(p);
}
