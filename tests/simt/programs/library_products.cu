// prints: lt 1 1
// prints: xt 1
// prints: sorted 1 0.5
// prints: twice 1
#include <cstdio>
#include <cublasLt.h>
#include <cublasXt.h>
#include <thrust/binary_search.h>
#include <thrust/detail/type_traits.h>
#include <thrust/device_vector.h>
#include <thrust/random.h>
#include <thrust/sort.h>
#include <vector>

// What a benchmark calls beside its own kernel: cuBLASLt with rows and a bias, cuBLASXt, random numbers and sorting of Thrust's.
#define SAID(name, ...) printf(""name" "__VA_ARGS__)

__global__ void product(const float* a, const float* b, float* c, int m, int n, int k) {
    const int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= m || column >= n) return;
    float sum = 0;
    for (int p = 0; p < k; ++p) sum += a[row * k + p] * b[p * n + column];
    c[row * n + column] = sum;
}

int main() {
    const int m = 5, n = 7, k = 6;
    std::vector<float> a(m * k), b(k * n), bias(m), own(m * n), theirs(m * n);
    for (int i = 0; i < m * k; ++i) a[i] = float(i % 5) - 2;
    for (int i = 0; i < k * n; ++i) b[i] = float(i % 7) - 3;
    for (int i = 0; i < m; ++i) bias[i] = float(i);
    float *da, *db, *dc, *dd, *dbias, one = 1, zero = 0;
    cudaMalloc(&da, 4 * m * k), cudaMalloc(&db, 4 * k * n), cudaMalloc(&dc, 4 * m * n), cudaMalloc(&dd, 4 * m * n), cudaMalloc(&dbias, 4 * m);
    cudaMemcpy(da, a.data(), 4 * m * k, cudaMemcpyHostToDevice), cudaMemcpy(db, b.data(), 4 * k * n, cudaMemcpyHostToDevice);
    cudaMemcpy(dbias, bias.data(), 4 * m, cudaMemcpyHostToDevice);
    product<<<dim3(1, 1), dim3(8, 8)>>>(da, db, dc, m, n, k);
    cudaMemcpy(own.data(), dc, 4 * m * n, cudaMemcpyDeviceToHost);

    cublasLtHandle_t handle;
    cublasLtCreate(&handle);
    cublasLtMatmulDesc_t what;
    cublasLtMatrixLayout_t la, lb, lc;
    cublasLtOrder_t rows = CUBLASLT_ORDER_ROW;
    cublasLtMatmulDescCreate(&what, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatrixLayoutCreate(&la, CUDA_R_32F, m, k, k), cublasLtMatrixLayoutCreate(&lb, CUDA_R_32F, k, n, n), cublasLtMatrixLayoutCreate(&lc, CUDA_R_32F, m, n, n);
    for (auto l : {la, lb, lc}) cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_ORDER, &rows, sizeof rows);
    bool right[2] = {true, true};
    for (int with = 0; with < 2; ++with) {
        cublasLtEpilogue_t after = with ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
        cublasLtMatmulDescSetAttribute(what, CUBLASLT_MATMUL_DESC_EPILOGUE, &after, sizeof after);
        cublasLtMatmulDescSetAttribute(what, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &dbias, sizeof dbias);
        cublasLtMatmul(handle, what, &one, da, la, db, lb, &zero, dd, lc, dd, lc, nullptr, nullptr, 0, 0);
        cudaMemcpy(theirs.data(), dd, 4 * m * n, cudaMemcpyDeviceToHost);
        for (int i = 0; i < m * n; ++i) right[with] &= theirs[i] == (with ? fmaxf(own[i] + bias[i / n], 0) : own[i]);
    }
    SAID("lt", "%d %d\n", right[0], right[1]);
    cublasLtMatrixLayoutDestroy(la), cublasLtMatrixLayoutDestroy(lb), cublasLtMatrixLayoutDestroy(lc), cublasLtMatmulDescDestroy(what), cublasLtDestroy(handle);

    cublasXtHandle_t across;
    cublasXtCreate(&across);
    cublasXtSgemm(across, CUBLAS_OP_N, CUBLAS_OP_N, n, m, k, &one, b.data(), n, a.data(), k, &zero, theirs.data(), n);   // of the host's memory
    SAID("xt", "%d\n", theirs == own);
    cublasXtDestroy(across);

    thrust::default_random_engine engine(7);
    thrust::uniform_real_distribution<float> draw(0, 1);
    thrust::host_vector<float> drawn(1000);
    for (float& x : drawn) x = draw(engine);
    drawn[10] = 0.5f;
    thrust::device_vector<float> sorted = drawn;
    thrust::stable_sort(sorted.begin(), sorted.end());
    const auto at = thrust::lower_bound(sorted.begin(), sorted.end(), 0.5f);
    printf("sorted %d %g\n", int(thrust::is_sorted(sorted.begin(), sorted.end())), float(*at));

    // The same product again is left out; not where what it reads has changed.
    cublasHandle_t plain;
    cublasCreate(&plain);
    cublasSgemm(plain, CUBLAS_OP_N, CUBLAS_OP_N, n, m, k, &one, db, n, da, k, &zero, dd, n);
    cublasSgemm(plain, CUBLAS_OP_N, CUBLAS_OP_N, n, m, k, &one, db, n, da, k, &zero, dd, n);
    cudaMemset(da, 0, 4 * m * k);
    cublasSgemm(plain, CUBLAS_OP_N, CUBLAS_OP_N, n, m, k, &one, db, n, da, k, &zero, dd, n);
    cudaMemcpy(theirs.data(), dd, 4 * m * n, cudaMemcpyDeviceToHost);
    bool none = true;
    for (float x : theirs) none &= x == 0;
    printf("twice %d\n", none);
    cublasDestroy(plain);
    cudaFree(da), cudaFree(db), cudaFree(dc), cudaFree(dd), cudaFree(dbias);
}
