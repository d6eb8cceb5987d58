// cuBLASLt by name alone: a program that only makes a handle of it runs.
#pragma once
#include "cublas_v2.h"
typedef struct cublasLtContext* cublasLtHandle_t;
typedef struct cublasLtMatmulDescOpaque_t* cublasLtMatmulDesc_t;
typedef struct cublasLtMatrixLayoutOpaque_t* cublasLtMatrixLayout_t;
typedef struct cublasLtMatmulPreferenceOpaque_t* cublasLtMatmulPreference_t;
struct cublasLtMatmulAlgo_t { unsigned long long data[8]; };
struct cublasLtMatmulHeuristicResult_t { cublasLtMatmulAlgo_t algo; size_t workspaceSize; cublasStatus_t state; float wavesCount; int reserved[4]; };
enum cublasLtMatmulDescAttributes_t { CUBLASLT_MATMUL_DESC_TRANSA = 3, CUBLASLT_MATMUL_DESC_TRANSB, CUBLASLT_MATMUL_DESC_EPILOGUE = 7, CUBLASLT_MATMUL_DESC_BIAS_POINTER, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER = 11, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, CUBLASLT_MATMUL_DESC_SCALE_TYPE = 2, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE = 26 };
enum cublasLtMatmulPreferenceAttributes_t { CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1 };
enum cublasLtMatrixLayoutAttribute_t { CUBLASLT_MATRIX_LAYOUT_TYPE, CUBLASLT_MATRIX_LAYOUT_ORDER, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT = 5, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET };
enum cublasLtEpilogue_t { CUBLASLT_EPILOGUE_DEFAULT = 1, CUBLASLT_EPILOGUE_RELU = 2, CUBLASLT_EPILOGUE_BIAS = 4, CUBLASLT_EPILOGUE_GELU = 32, CUBLASLT_EPILOGUE_GELU_BIAS = 36, CUBLASLT_EPILOGUE_GELU_AUX = 160, CUBLASLT_EPILOGUE_GELU_AUX_BIAS = 164, CUBLASLT_EPILOGUE_DGELU = 192, CUBLASLT_EPILOGUE_BGRADB = 512 };
SIMT_BLAS cublasLtCreate(cublasLtHandle_t* h) { *h = reinterpret_cast<cublasLtHandle_t>(16); return CUBLAS_STATUS_SUCCESS; }
SIMT_BLAS cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }
#define SIMT_LT(name) template <class... A> SIMT_BLAS name(A&&...) { simt::not_on_the_host(#name ": cuBLASLt"); }
SIMT_LT(cublasLtMatmulDescCreate) SIMT_LT(cublasLtMatmulDescSetAttribute) SIMT_LT(cublasLtMatmulDescDestroy) SIMT_LT(cublasLtMatrixLayoutCreate)
SIMT_LT(cublasLtMatrixLayoutSetAttribute) SIMT_LT(cublasLtMatrixLayoutDestroy) SIMT_LT(cublasLtMatmulPreferenceCreate) SIMT_LT(cublasLtMatmulPreferenceSetAttribute)
SIMT_LT(cublasLtMatmulPreferenceDestroy) SIMT_LT(cublasLtMatmulAlgoGetHeuristic) SIMT_LT(cublasLtMatmul)
