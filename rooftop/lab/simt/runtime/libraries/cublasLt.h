// cuBLASLt on the CPU: products with a bias, ReLU or GELU behind them. Attributes are kept by their numbers; those that change what is
// calculated in another way are refused.
#pragma once
#include "cublas_v2.h"
#include <cmath>
enum cublasLtMatmulDescAttributes_t {
    CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, CUBLASLT_MATMUL_DESC_SCALE_TYPE, CUBLASLT_MATMUL_DESC_POINTER_MODE, CUBLASLT_MATMUL_DESC_TRANSA,
        CUBLASLT_MATMUL_DESC_TRANSB, CUBLASLT_MATMUL_DESC_TRANSC,
    CUBLASLT_MATMUL_DESC_FILL_MODE, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
        CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE = 10, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE = 26
};
enum cublasLtMatmulPreferenceAttributes_t { CUBLASLT_MATMUL_PREF_SEARCH_MODE, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES };
enum cublasLtMatrixLayoutAttribute_t {
    CUBLASLT_MATRIX_LAYOUT_TYPE, CUBLASLT_MATRIX_LAYOUT_ORDER, CUBLASLT_MATRIX_LAYOUT_ROWS, CUBLASLT_MATRIX_LAYOUT_COLS,
        CUBLASLT_MATRIX_LAYOUT_LD, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
    CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET
};
enum cublasLtOrder_t { CUBLASLT_ORDER_COL, CUBLASLT_ORDER_ROW };
enum cublasLtEpilogue_t {
    CUBLASLT_EPILOGUE_DEFAULT = 1, CUBLASLT_EPILOGUE_RELU = 2, CUBLASLT_EPILOGUE_BIAS = 4, CUBLASLT_EPILOGUE_RELU_BIAS = 6,
        CUBLASLT_EPILOGUE_GELU = 32, CUBLASLT_EPILOGUE_GELU_BIAS = 36,
    CUBLASLT_EPILOGUE_RELU_AUX = 130, CUBLASLT_EPILOGUE_RELU_AUX_BIAS = 134, CUBLASLT_EPILOGUE_GELU_AUX = 160,
        CUBLASLT_EPILOGUE_GELU_AUX_BIAS = 164, CUBLASLT_EPILOGUE_DGELU = 192, CUBLASLT_EPILOGUE_BGRADB = 512
};
struct cublasLtMatmulDescOpaque_t { cublasComputeType_t compute; cudaDataType scale; long long set[32]; };
struct cublasLtMatrixLayoutOpaque_t { cudaDataType type; unsigned long long rows, cols; long long ld, order, batches, stride; };
struct cublasLtMatmulPreferenceOpaque_t { size_t workspace; };
typedef struct cublasLtContext* cublasLtHandle_t;
typedef cublasLtMatmulDescOpaque_t* cublasLtMatmulDesc_t;
typedef cublasLtMatrixLayoutOpaque_t* cublasLtMatrixLayout_t;
typedef cublasLtMatmulPreferenceOpaque_t* cublasLtMatmulPreference_t;
struct cublasLtMatmulAlgo_t { unsigned long long data[8]; };
struct cublasLtMatmulHeuristicResult_t { cublasLtMatmulAlgo_t algo; size_t workspaceSize; cublasStatus_t state; float wavesCount;
    int reserved[4]; };
SIMT_BLAS cublasLtCreate(cublasLtHandle_t* h) { *h = reinterpret_cast<cublasLtHandle_t>(16); return CUBLAS_STATUS_SUCCESS; }
SIMT_BLAS cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }
SIMT_BLAS cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* d, cublasComputeType_t c, cudaDataType s) {
    *d = new cublasLtMatmulDescOpaque_t{c, s, {}}; return CUBLAS_STATUS_SUCCESS; }
SIMT_BLAS cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* l, cudaDataType t, unsigned long long r, unsigned long long c, long long ld) {
    *l = new cublasLtMatrixLayoutOpaque_t{t, r, c, ld, 0, 1, 0}; return CUBLAS_STATUS_SUCCESS; }
SIMT_BLAS cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* p) { *p = new cublasLtMatmulPreferenceOpaque_t{};
    return CUBLAS_STATUS_SUCCESS; }
template <class T> SIMT_BLAS simt_lt_gone(T* p) { delete p; return CUBLAS_STATUS_SUCCESS; }
#define cublasLtMatmulDescDestroy simt_lt_gone
#define cublasLtMatrixLayoutDestroy simt_lt_gone
#define cublasLtMatmulPreferenceDestroy simt_lt_gone
SIMT_BLAS cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t, int, const void*, size_t) { return CUBLAS_STATUS_SUCCESS; }
SIMT_BLAS cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, int which, const void* value, size_t bytes) {
    if (which < 0 || which >= 32 || bytes > 8) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&d->set[which], value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}
SIMT_BLAS cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l, int which, const void* value, size_t bytes) {
    long long v = 0;
    std::memcpy(&v, value, bytes < 8 ? bytes : 8);
    switch (which) {
        case CUBLASLT_MATRIX_LAYOUT_TYPE: l->type = static_cast<cudaDataType>(v); break;
        case CUBLASLT_MATRIX_LAYOUT_ORDER: l->order = v; break;
        case CUBLASLT_MATRIX_LAYOUT_ROWS: l->rows = static_cast<unsigned long long>(v); break;
        case CUBLASLT_MATRIX_LAYOUT_COLS: l->cols = static_cast<unsigned long long>(v); break;
        case CUBLASLT_MATRIX_LAYOUT_LD: l->ld = v; break;
        case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: l->batches = v; break;
        case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: l->stride = v; break;
        default: simt::not_on_the_host("an attribute of cuBLASLt's layouts that is not simulated");
    }
    return CUBLAS_STATUS_SUCCESS;
}
SIMT_BLAS cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
    cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int asked, cublasLtMatmulHeuristicResult_t* found, int* n) {
    if ((*n = asked > 0)) *found = {};
    return CUBLAS_STATUS_SUCCESS;
}
SIMT_BLAS cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t d, const void* alpha, const void* a, cublasLtMatrixLayout_t la,
    const void* b, cublasLtMatrixLayout_t lb, const void* beta, const void* c, cublasLtMatrixLayout_t lc, void* to,
    cublasLtMatrixLayout_t ld, const cublasLtMatmulAlgo_t*, void*, size_t, cudaStream_t) {
    const long long epilogue = d->set[CUBLASLT_MATMUL_DESC_EPILOGUE], m = static_cast<long long>(ld->rows),
        n = static_cast<long long>(ld->cols);
    if (epilogue & ~(1LL | 2 | 4 | 32)) simt::not_on_the_host("cublasLtMatmul with an epilogue other than bias, ReLU and GELU");
    const bool ta = (d->set[CUBLASLT_MATMUL_DESC_TRANSA] != 0) != (la->order == CUBLASLT_ORDER_ROW),
        tb = (d->set[CUBLASLT_MATMUL_DESC_TRANSB] != 0) != (lb->order == CUBLASLT_ORDER_ROW);
    const int k = static_cast<int>(d->set[CUBLASLT_MATMUL_DESC_TRANSA] ? la->rows : la->cols);
    if (k != static_cast<int>(d->set[CUBLASLT_MATMUL_DESC_TRANSB] ? lb->cols : lb->rows)) return CUBLAS_STATUS_INVALID_VALUE;
    const double by = simt::scalar(alpha, d->scale, ld->type), kept = simt::scalar(beta, d->scale, ld->type);
    if (c != to && kept != 0) {
        if (lc->ld != ld->ld || lc->order != ld->order || lc->type != ld->type
            || lc->stride != ld->stride) simt::not_on_the_host("cublasLtMatmul with C laid out unlike D");
        const long long outer = ld->order == CUBLASLT_ORDER_ROW ? m : n;
        cudaMemcpy(to, c, simt::size_of(ld->type) * static_cast<size_t>((ld->batches - 1) * ld->stride + outer * ld->ld),
            cudaMemcpyDeviceToDevice);
    }
    const bool rows = ld->order == CUBLASLT_ORDER_ROW;           // then D's transpose is calculated, from the operands in turn
    if (rows) simt::gemm(!tb, !ta, static_cast<int>(n), static_cast<int>(m), k, by, b, lb->type, static_cast<int>(lb->ld), a, la->type,
        static_cast<int>(la->ld), kept, to, ld->type, static_cast<int>(ld->ld), lb->stride, la->stride, ld->stride,
        static_cast<int>(ld->batches));
    else simt::gemm(ta, tb, static_cast<int>(m), static_cast<int>(n), k, by, a, la->type, static_cast<int>(la->ld), b, lb->type,
        static_cast<int>(lb->ld), kept, to, ld->type, static_cast<int>(ld->ld), la->stride, lb->stride, ld->stride,
        static_cast<int>(ld->batches));
    if (epilogue > 1) simt::epilogue(to, ld->type, rows, m, n, ld->ld, ld->stride, ld->batches, epilogue & 4
        ? reinterpret_cast<const void*>(d->set[CUBLASLT_MATMUL_DESC_BIAS_POINTER]) : nullptr, epilogue & 2 ? 1 : epilogue & 32 ? 2 : 0);
    return CUBLAS_STATUS_SUCCESS;
}
