// prints: max error below 1e-5
// args: 8 100
#include <cfloat>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>
__global__ void softmax(const float* __restrict__ x, float* __restrict__ y, int cols) {
    __shared__ float red[32];
    const float* row = x + (size_t)blockIdx.x * cols;
    float m = -FLT_MAX, s = 0.f;
    for (int i = threadIdx.x; i < cols; i += blockDim.x) m = fmaxf(m, row[i]);
    for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
    if (threadIdx.x % 32 == 0) red[threadIdx.x / 32] = m;
    __syncthreads();
    m = red[0];
    for (int w = 1; w < blockDim.x / 32; ++w) m = fmaxf(m, red[w]);
    __syncthreads();
    for (int i = threadIdx.x; i < cols; i += blockDim.x) s += __expf(row[i] - m);
    for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
    if (threadIdx.x % 32 == 0) red[threadIdx.x / 32] = s;
    __syncthreads();
    s = 0.f;
    for (int w = 0; w < blockDim.x / 32; ++w) s += red[w];
    for (int i = threadIdx.x; i < cols; i += blockDim.x) y[(size_t)blockIdx.x * cols + i] = __expf(row[i] - m) / s;
}
void reference(const float* x, float* y, int rows, int cols) {
    for (int r = 0; r < rows; ++r) {
        double s = 0, m = -1e30;
        for (int i = 0; i < cols; ++i) m = std::max<double>(m, x[r * cols + i]);
        for (int i = 0; i < cols; ++i) s += std::exp(x[r * cols + i] - m);
        for (int i = 0; i < cols; ++i) y[r * cols + i] = std::exp(x[r * cols + i] - m) / s;
    }
}
int main(int argc, const char* argv[]) {
    const int rows = argc > 1 ? std::atoi(argv[1]) : 4096, cols = argc > 2 ? std::atoi(argv[2]) : 4096;
    std::vector<float> x(rows * cols), y(x.size()), want(x.size());
    for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(float(i));
    float *dx, *dy;
    cudaMalloc(&dx, x.size() * sizeof(float)), cudaMalloc(&dy, x.size() * sizeof(float));
    cudaMemcpy(dx, x.data(), x.size() * sizeof(float), cudaMemcpyDefault);
    softmax<<<rows, 128>>>(dx, dy, cols);
    cudaMemcpy(y.data(), dy, y.size() * sizeof(float), cudaMemcpyDefault);
    reference(x.data(), want.data(), rows, cols);
    float worst = 0;
    for (size_t i = 0; i < x.size(); ++i) worst = std::max(worst, std::abs(y[i] - want[i]));
    std::printf(worst < 1e-5f ? "max error below 1e-5\n" : "max error %g\n", worst);
    cudaFree(dx), cudaFree(dy);
    return 0;
}
