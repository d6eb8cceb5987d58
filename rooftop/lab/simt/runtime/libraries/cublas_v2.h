// cuBLAS on the CPU (libraries.cpp): the products and sums that programs compare their own with.
#pragma once
#include "../include/cuda_bf16.h"
#include "../include/cuda_fp16.h"
#include "library_types.h"
enum cublasStatus_t {
    CUBLAS_STATUS_SUCCESS = 0, CUBLAS_STATUS_NOT_INITIALIZED = 1, CUBLAS_STATUS_ALLOC_FAILED = 3, CUBLAS_STATUS_INVALID_VALUE = 7,
        CUBLAS_STATUS_ARCH_MISMATCH = 8,
    CUBLAS_STATUS_MAPPING_ERROR = 11, CUBLAS_STATUS_EXECUTION_FAILED = 13, CUBLAS_STATUS_INTERNAL_ERROR = 14,
        CUBLAS_STATUS_NOT_SUPPORTED = 15, CUBLAS_STATUS_LICENSE_ERROR = 16
};
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_OP_C };
enum cublasFillMode_t { CUBLAS_FILL_MODE_LOWER, CUBLAS_FILL_MODE_UPPER };
enum cublasSideMode_t { CUBLAS_SIDE_LEFT, CUBLAS_SIDE_RIGHT };
enum cublasDiagType_t { CUBLAS_DIAG_NON_UNIT, CUBLAS_DIAG_UNIT };
enum cublasPointerMode_t { CUBLAS_POINTER_MODE_HOST, CUBLAS_POINTER_MODE_DEVICE };
enum cublasMath_t { CUBLAS_DEFAULT_MATH = 0, CUBLAS_TENSOR_OP_MATH = 1, CUBLAS_PEDANTIC_MATH = 2, CUBLAS_TF32_TENSOR_OP_MATH = 3 };
enum cublasComputeType_t { CUBLAS_COMPUTE_16F = 64, CUBLAS_COMPUTE_16F_PEDANTIC = 65, CUBLAS_COMPUTE_32F = 68,
    CUBLAS_COMPUTE_32F_PEDANTIC = 69, CUBLAS_COMPUTE_64F = 70, CUBLAS_COMPUTE_32I = 72, CUBLAS_COMPUTE_32F_FAST_16F = 74,
    CUBLAS_COMPUTE_32F_FAST_16BF = 75, CUBLAS_COMPUTE_32F_FAST_TF32 = 77 };
enum cublasGemmAlgo_t { CUBLAS_GEMM_DFALT = -1, CUBLAS_GEMM_DEFAULT = -1, CUBLAS_GEMM_ALGO0 = 0, CUBLAS_GEMM_DEFAULT_TENSOR_OP = 99,
    CUBLAS_GEMM_DFALT_TENSOR_OP = 99 };
typedef struct cublasContext* cublasHandle_t;
typedef cudaDataType cublasDataType_t;
namespace simt {
SIMT_API void gemm(int ta, int tb, int m, int n, int k, double alpha, const void* a, cudaDataType at, int lda, const void* b,
    cudaDataType bt, int ldb, double beta, void* c, cudaDataType ct, int ldc, long long sa, long long sb, long long sc, int batches);
SIMT_API void epilogue(void* c, cudaDataType t, bool by_rows, long long m, long long n, long long ld, long long stride, long long batches,
    const void* bias, int function);
SIMT_API size_t size_of(cudaDataType t);
}
#define SIMT_BLAS SIMT_PLAIN static inline __attribute__((unused)) cublasStatus_t
SIMT_BLAS cublasCreate(cublasHandle_t* h) { *h = reinterpret_cast<cublasHandle_t>(16); return CUBLAS_STATUS_SUCCESS; }
#define SIMT_BLAS_NO_OP(name, ...) SIMT_BLAS name(__VA_ARGS__) { return CUBLAS_STATUS_SUCCESS; }
SIMT_BLAS_NO_OP(cublasDestroy, cublasHandle_t) SIMT_BLAS_NO_OP(cublasSetStream, cublasHandle_t,
    cudaStream_t) SIMT_BLAS_NO_OP(cublasSetMathMode, cublasHandle_t, cublasMath_t)
SIMT_BLAS_NO_OP(cublasSetPointerMode, cublasHandle_t, cublasPointerMode_t) SIMT_BLAS_NO_OP(cublasSetWorkspace, cublasHandle_t, void*,
    size_t)
#undef SIMT_BLAS_NO_OP
SIMT_BLAS cublasGetVersion(cublasHandle_t, int* v) { *v = 130000; return CUBLAS_STATUS_SUCCESS; }
static inline const char* cublasGetStatusString(cublasStatus_t s) { return s ? "CUBLAS error" : "CUBLAS_STATUS_SUCCESS"; }
static inline const char* cublasGetStatusName(cublasStatus_t s) { return cublasGetStatusString(s); }
SIMT_BLAS cublasSetVector(int n, int size, const void* from, int ix, void* to, int iy) { return ix == 1 && iy == 1
    && !cudaMemcpy(to, from, static_cast<size_t>(n) * size, cudaMemcpyHostToDevice) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_MAPPING_ERROR; }
SIMT_BLAS cublasGetVector(int n, int size, const void* from, int ix, void* to, int iy) { return ix == 1 && iy == 1
    && !cudaMemcpy(to, from, static_cast<size_t>(n) * size, cudaMemcpyDeviceToHost) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_MAPPING_ERROR; }
SIMT_BLAS cublasSetMatrix(int r, int c, int size, const void* from, int lda, void* to, int ldb) {
    return cudaMemcpy2D(to, static_cast<size_t>(ldb) * size, from, static_cast<size_t>(lda) * size, static_cast<size_t>(r) * size, c,
    cudaMemcpyHostToDevice) ? CUBLAS_STATUS_MAPPING_ERROR : CUBLAS_STATUS_SUCCESS; }
SIMT_BLAS cublasGetMatrix(int r, int c, int size, const void* from, int lda, void* to, int ldb) {
    return cudaMemcpy2D(to, static_cast<size_t>(ldb) * size, from, static_cast<size_t>(lda) * size, static_cast<size_t>(r) * size, c,
    cudaMemcpyDeviceToHost) ? CUBLAS_STATUS_MAPPING_ERROR : CUBLAS_STATUS_SUCCESS; }
#define SIMT_GEMM(letter, T, type, read) \
    SIMT_BLAS cublas##letter##gemm(cublasHandle_t, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const T* alpha, const T* a, int lda, const T* b, int ldb, const T* beta, T* c, int ldc) { \
        simt::gemm(ta != 0, tb != 0, m, n, k, read(*alpha), a, type, lda, b, type, ldb, read(*beta), c, type, ldc, 0, 0, 0, 1); \
        return CUBLAS_STATUS_SUCCESS; \
    } \
    SIMT_BLAS cublas##letter##gemmStridedBatched(cublasHandle_t, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const T* alpha, const T* a, int lda, long long sa, const T* b, int ldb, long long sb, const T* beta, T* c, int ldc, long long sc, int batches) { \
        simt::gemm(ta != 0, tb != 0, m, n, k, read(*alpha), a, type, lda, b, type, ldb, read(*beta), c, type, ldc, sa, sb, sc, batches); \
        return CUBLAS_STATUS_SUCCESS; \
    }
SIMT_GEMM(S, float, CUDA_R_32F, ) SIMT_GEMM(D, double, CUDA_R_64F, ) SIMT_GEMM(H, __half, CUDA_R_16F, __half2float)
#undef SIMT_GEMM
namespace simt {
SIMT_PLAIN inline double scalar(const void* p, int compute, cudaDataType c) { return compute == CUBLAS_COMPUTE_16F || compute == CUDA_R_16F
    ? __half2float(*static_cast<const __half*>(p)) : compute == CUBLAS_COMPUTE_64F || compute == CUDA_R_64F
    ? *static_cast<const double*>(p) : compute == CUBLAS_COMPUTE_32I || compute == CUDA_R_32I ? *static_cast<const int*>(p)
    : *static_cast<const float*>(p); }
}
template <class Compute>
SIMT_BLAS cublasGemmEx(cublasHandle_t, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void* alpha, const void* a,
    cudaDataType at, int lda, const void* b, cudaDataType bt, int ldb, const void* beta, void* c, cudaDataType ct, int ldc, Compute compute,
    cublasGemmAlgo_t) {
    simt::gemm(ta != 0, tb != 0, m, n, k, simt::scalar(alpha, compute, ct), a, at, lda, b, bt, ldb, simt::scalar(beta, compute, ct), c, ct,
        ldc, 0, 0, 0, 1);
    return CUBLAS_STATUS_SUCCESS;
}
template <class Compute>
SIMT_BLAS cublasGemmStridedBatchedEx(cublasHandle_t, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void* alpha,
    const void* a, cudaDataType at, int lda, long long sa, const void* b, cudaDataType bt, int ldb, long long sb, const void* beta, void* c,
    cudaDataType ct, int ldc, long long sc, int batches, Compute compute, cublasGemmAlgo_t) {
    simt::gemm(ta != 0, tb != 0, m, n, k, simt::scalar(alpha, compute, ct), a, at, lda, b, bt, ldb, simt::scalar(beta, compute, ct), c, ct,
        ldc, sa, sb, sc, batches);
    return CUBLAS_STATUS_SUCCESS;
}
#define SIMT_LEVELS(letter, small, T, type) \
    SIMT_BLAS cublas##letter##gemv(cublasHandle_t, cublasOperation_t t, int m, int n, const T* alpha, const T* a, int lda, const T* x, int ix, const T* beta, T* y, int iy) { \
        simt::gemm(t != 0, 1, t ? n : m, 1, t ? m : n, *alpha, a, type, lda, x, type, ix, *beta, y, type, t ? n : m, 0, 0, 0, iy == 1 ? 1 : 0); \
        return iy == 1 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED; \
    } \
    SIMT_BLAS cublas##letter##axpy(cublasHandle_t, int n, const T* alpha, const T* x, int ix, T* y, int iy) { \
        simt::Library here; \
        for (int i = 0; i < n; ++i) y[i * iy] += *alpha * x[i * ix]; \
        here.wrote(y, sizeof(T) * static_cast<size_t>(n) * iy); \
        return CUBLAS_STATUS_SUCCESS; \
    } \
    SIMT_BLAS cublas##letter##scal(cublasHandle_t, int n, const T* alpha, T* x, int ix) { \
        simt::Library here; \
        for (int i = 0; i < n; ++i) x[i * ix] *= *alpha; \
        return CUBLAS_STATUS_SUCCESS; \
    } \
    SIMT_BLAS cublas##letter##dot(cublasHandle_t, int n, const T* x, int ix, const T* y, int iy, T* result) { \
        simt::Library here; \
        double sum = 0; \
        for (int i = 0; i < n; ++i) sum += static_cast<double>(x[i * ix]) * y[i * iy]; \
        *result = static_cast<T>(sum), here.wrote(result, sizeof(T)); \
        return CUBLAS_STATUS_SUCCESS; \
    } \
    SIMT_BLAS cublas##letter##asum(cublasHandle_t, int n, const T* x, int ix, T* result) { \
        simt::Library here; \
        double sum = 0; \
        for (int i = 0; i < n; ++i) sum += std::abs(static_cast<double>(x[i * ix])); \
        *result = static_cast<T>(sum), here.wrote(result, sizeof(T)); \
        return CUBLAS_STATUS_SUCCESS; \
    } \
    SIMT_BLAS cublas##letter##nrm2(cublasHandle_t, int n, const T* x, int ix, T* result) { \
        simt::Library here; \
        double sum = 0; \
        for (int i = 0; i < n; ++i) sum += static_cast<double>(x[i * ix]) * x[i * ix]; \
        *result = static_cast<T>(std::sqrt(sum)), here.wrote(result, sizeof(T)); \
        return CUBLAS_STATUS_SUCCESS; \
    } \
    SIMT_BLAS cublas##letter##geam(cublasHandle_t, cublasOperation_t ta, cublasOperation_t tb, int m, int n, const T* alpha, const T* a, int lda, const T* beta, const T* b, int ldb, T* c, int ldc) { \
        simt::Library here; \
        for (int j = 0; j < n; ++j) \
            for (int i = 0; i < m; ++i) { \
                T v = *alpha * (ta ? a[i * lda + j] : a[j * lda + i]); \
                if (*beta != 0) v += *beta * (tb ? b[i * ldb + j] : b[j * ldb + i]); \
                c[j * ldc + i] = v; \
            } \
        here.wrote(c, sizeof(T) * (static_cast<size_t>(n - 1) * ldc + m)); \
        return CUBLAS_STATUS_SUCCESS; \
    }
SIMT_LEVELS(S, s, float, CUDA_R_32F) SIMT_LEVELS(D, d, double, CUDA_R_64F)
#undef SIMT_LEVELS
