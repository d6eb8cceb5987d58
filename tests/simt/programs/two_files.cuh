#ifndef TWO_FILES_CUH
#define TWO_FILES_CUH
template <int N> __global__ void times(const int *in, int *out) { *out = N * *in; }
inline int twice_on_device(int v) {
    int *p, r;
    cudaMalloc(&p, 2 * sizeof(int));
    cudaMemcpy(p, &v, sizeof v, cudaMemcpyHostToDevice);
    times<2><<<1, 1>>>(p, p + 1);
    cudaMemcpy(&r, p + 1, sizeof r, cudaMemcpyDeviceToHost);
    cudaFree(p);
    return r;
}
#endif
