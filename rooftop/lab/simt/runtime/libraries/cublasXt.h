// cuBLASXt on the CPU: products of matrices of either side.
#pragma once
#include "cublas_v2.h"
typedef struct cublasXtContext* cublasXtHandle_t;
SIMT_BLAS cublasXtCreate(cublasXtHandle_t* h) { *h = reinterpret_cast<cublasXtHandle_t>(16); return CUBLAS_STATUS_SUCCESS; }
SIMT_BLAS cublasXtDestroy(cublasXtHandle_t) { return CUBLAS_STATUS_SUCCESS; }
SIMT_BLAS cublasXtDeviceSelect(cublasXtHandle_t, int, int*) { return CUBLAS_STATUS_SUCCESS; }
SIMT_BLAS cublasXtSetBlockDim(cublasXtHandle_t, int) { return CUBLAS_STATUS_SUCCESS; }
SIMT_BLAS cublasXtSgemm(cublasXtHandle_t, cublasOperation_t ta, cublasOperation_t tb, size_t m, size_t n, size_t k, const float* alpha,
    const float* a, size_t lda, const float* b, size_t ldb, const float* beta, float* c, size_t ldc) {
    return cublasSgemm(nullptr, ta, tb, static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), alpha, a, static_cast<int>(lda), b,
    static_cast<int>(ldb), beta, c, static_cast<int>(ldc)); }
SIMT_BLAS cublasXtDgemm(cublasXtHandle_t, cublasOperation_t ta, cublasOperation_t tb, size_t m, size_t n, size_t k, const double* alpha,
    const double* a, size_t lda, const double* b, size_t ldb, const double* beta, double* c, size_t ldc) {
    return cublasDgemm(nullptr, ta, tb, static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), alpha, a, static_cast<int>(lda), b,
    static_cast<int>(ldb), beta, c, static_cast<int>(ldc)); }
