// cuFFT by its stand-in: a batch of complex transforms against sums, and a real one of two dimensions there and back.
// prints: each as its sum; restored; its sum
#include <cmath>
#include <cstdio>
#include <cufft.h>
#include <vector>

__global__ void scale(float *x, int n, float by) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= by;
}

int main() {
    const int batch = 3, n = 15, rows = 6, cols = 20;
    std::vector<cufftComplex> z(batch * n), w(batch * n);
    for (int i = 0; i < batch * n; ++i) z[i] = {std::sin(0.7f * i), std::cos(1.3f * i)};
    cufftComplex *d_z, *d_f;
    cudaMalloc(&d_z, z.size() * sizeof(cufftComplex));
    cudaMalloc(&d_f, rows * (cols / 2 + 1) * sizeof(cufftComplex));
    cudaMemcpy(d_z, z.data(), z.size() * sizeof(cufftComplex), cudaMemcpyHostToDevice);
    cufftHandle many, forward, inverse;
    if (cufftPlan1d(&many, n, CUFFT_C2C, batch) != CUFFT_SUCCESS) return 1;
    cufftExecC2C(many, d_z, d_z, CUFFT_FORWARD);
    cudaMemcpy(w.data(), d_z, w.size() * sizeof(cufftComplex), cudaMemcpyDeviceToHost);
    double worst = 0;
    for (int b = 0; b < batch; ++b)
        for (int k = 0; k < n; ++k) {
            double re = 0, im = 0;
            for (int j = 0; j < n; ++j) {
                const double a = -2 * 3.14159265358979 * j * k / n, x = z[b * n + j].x, y = z[b * n + j].y;
                re += x * std::cos(a) - y * std::sin(a), im += x * std::sin(a) + y * std::cos(a);
            }
            worst = std::fmax(worst, std::fabs(re - w[b * n + k].x) + std::fabs(im - w[b * n + k].y));
        }
    float h[rows * cols], back[rows * cols], *d_x, total = 0, off = 0;
    for (int i = 0; i < rows * cols; ++i) total += h[i] = std::sin(0.3f * i) + i % 7;
    cudaMalloc(&d_x, sizeof h);
    cudaMemcpy(d_x, h, sizeof h, cudaMemcpyHostToDevice);
    cufftPlan2d(&forward, rows, cols, CUFFT_R2C);
    cufftPlan2d(&inverse, rows, cols, CUFFT_C2R);
    cufftExecR2C(forward, d_x, d_f);
    cufftComplex first;
    cudaMemcpy(&first, d_f, sizeof first, cudaMemcpyDeviceToHost);
    cufftExecC2R(inverse, d_f, d_x);
    scale<<<1, 128>>>(d_x, rows * cols, 1.0f / (rows * cols));
    cudaMemcpy(back, d_x, sizeof back, cudaMemcpyDeviceToHost);
    for (int i = 0; i < rows * cols; ++i) off = std::fmax(off, std::fabs(back[i] - h[i]));
    printf("%s; %s; %s\n", worst < 1e-4 ? "each as its sum" : "wrong", off < 1e-4f ? "restored" : "wrong", std::fabs(first.x - total) < 1e-2f ? "its sum" : "wrong");
    cufftDestroy(many), cufftDestroy(forward), cufftDestroy(inverse);
    cudaFree(d_z), cudaFree(d_f), cudaFree(d_x);
}
