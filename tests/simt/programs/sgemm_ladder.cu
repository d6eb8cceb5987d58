// prints: all kernels agree with cuBLAS
#include <cmath>
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <iostream>
#include <random>
#include <vector>
#define CEIL_DIV(m, n) (((m) + (n)-1) / (n))
using namespace std;
__global__ void naive(int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C) {
    const uint row = blockIdx.x * blockDim.x + threadIdx.x, col = blockIdx.y * blockDim.y + threadIdx.y;
    if (row < M && col < N) {
        float sum = 0;
        for (int i = 0; i < K; ++i) sum += A[row * K + i] * B[i * N + col];
        C[row * N + col] = alpha * sum + beta * C[row * N + col];
    }
}
template <const int BS>
__global__ void tiled(int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C) {
    __shared__ float As[BS * BS], Bs[BS * BS];
    const int tx = threadIdx.x % BS, ty = threadIdx.x / BS;
    A += blockIdx.x * BS * K, B += blockIdx.y * BS, C += blockIdx.x * BS * N + blockIdx.y * BS;
    float sum = 0;
    for (int k = 0; k < K; k += BS, A += BS, B += BS * N) {
        As[ty * BS + tx] = A[ty * K + tx], Bs[ty * BS + tx] = B[ty * N + tx];
        __syncthreads();
        for (int i = 0; i < BS; ++i) sum += As[ty * BS + i] * Bs[i * BS + tx];
        __syncthreads();
    }
    C[ty * N + tx] = alpha * sum + beta * C[ty * N + tx];
}
void run_kernel(int number, int M, int N, int K, float alpha, float *A, float *B, float beta, float *C, cublasHandle_t handle) {
    switch (number) {
        case 0: cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, N, M, K, &alpha, B, N, A, K, &beta, C, N); break;
        case 1: {
            dim3 gridDim(CEIL_DIV(M, 16), CEIL_DIV(N, 16)), blockDim(16, 16);
            naive<<<gridDim, blockDim>>>(M, N, K, alpha, A, B, beta, C);
            break;
        }
        case 2: {
            dim3 gridDim(CEIL_DIV(M, 16), CEIL_DIV(N, 16));
            dim3 blockDim(16 * 16);
            tiled<16><<<gridDim, blockDim>>>(M, N, K, alpha, A, B, beta, C);
            break;
        }
        default: throw std::invalid_argument("Unknown kernel number");
    }
}
int main() {
    const int M = 64, N = 48, K = 32;
    cublasHandle_t handle;
    cublasCreate(&handle);
    vector<float> a(M * K), b(K * N), c(M * N, 1.f), want(M * N), got(M * N);
    mt19937 gen(random_device{}());
    uniform_real_distribution<float> dist(-1, 1);
    for (auto &x : a) x = dist(gen);
    for (auto &x : b) x = dist(gen);
    float *dA, *dB, *dC;
    cudaMalloc(&dA, a.size() * 4), cudaMalloc(&dB, b.size() * 4), cudaMalloc(&dC, c.size() * 4);
    cudaMemcpy(dA, a.data(), a.size() * 4, cudaMemcpyHostToDevice);
    cudaMemcpy(dB, b.data(), b.size() * 4, cudaMemcpyHostToDevice);
    cudaEvent_t beg, end;
    cudaEventCreate(&beg), cudaEventCreate(&end);
    bool same = true;
    for (int k = 0; k < 3; ++k) {
        cudaMemcpy(dC, c.data(), c.size() * 4, cudaMemcpyHostToDevice);
        run_kernel(k, M, N, K, 0.5f, dA, dB, 3.f, dC, handle);
        cudaMemcpy(k ? got.data() : want.data(), dC, c.size() * 4, cudaMemcpyDeviceToHost);
        for (int i = 0; k && i < M * N; ++i) same &= fabs(got[i] - want[i]) < 1e-4;
        cudaEventRecord(beg);
        for (int r = 0; r < 50; ++r) run_kernel(k, M, N, K, 0.5f, dA, dB, 0.f, dC, handle);
        cudaEventRecord(end);
        cudaEventSynchronize(beg), cudaEventSynchronize(end);
        float ms;
        cudaEventElapsedTime(&ms, beg, end);
        if (ms <= 0) same = false;
    }
    cout << (same ? "all kernels agree with cuBLAS" : "they differ") << endl;
    cudaFree(dA), cudaFree(dB), cudaFree(dC), cublasDestroy(handle);
    return same ? 0 : 1;
}
