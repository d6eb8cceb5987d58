// cuFFT on the CPU (libraries.cpp): transforms of one to three dimensions, in batches, in double precision.
#pragma once
#include "library_types.h"
enum cufftResult {
    CUFFT_SUCCESS = 0, CUFFT_INVALID_PLAN, CUFFT_ALLOC_FAILED, CUFFT_INVALID_TYPE, CUFFT_INVALID_VALUE, CUFFT_INTERNAL_ERROR,
        CUFFT_EXEC_FAILED, CUFFT_SETUP_FAILED,
    CUFFT_INVALID_SIZE, CUFFT_UNALIGNED_DATA, CUFFT_INCOMPLETE_PARAMETER_LIST, CUFFT_INVALID_DEVICE, CUFFT_PARSE_ERROR, CUFFT_NO_WORKSPACE,
        CUFFT_NOT_IMPLEMENTED,
    CUFFT_LICENSE_ERROR, CUFFT_NOT_SUPPORTED
};
typedef cufftResult cufftResult_t;
enum cufftType { CUFFT_R2C = 0x2a, CUFFT_C2R = 0x2c, CUFFT_C2C = 0x29, CUFFT_D2Z = 0x6a, CUFFT_Z2D = 0x6c, CUFFT_Z2Z = 0x69 };
#define CUFFT_FORWARD (-1)
#define CUFFT_INVERSE 1
typedef int cufftHandle;
typedef float cufftReal;
typedef double cufftDoubleReal;
typedef float2 cufftComplex;
typedef double2 cufftDoubleComplex;
namespace simt {
// 0: a new one
SIMT_API int fft_plan(int plan, int rank, const int* n, const int* in, int in_stride, int in_step, const int* out, int out_stride,
    int out_step, int type, int batch);
SIMT_API int fft(int plan, const void* from, void* to, int type, int sign);
}
#define SIMT_FFT SIMT_PLAIN static inline __attribute__((unused)) cufftResult
SIMT_FFT cufftPlanMany(cufftHandle* p, int rank, int* n, int* in, int is, int id, int* out, int os, int od, cufftType t, int batch) {
    *p = simt::fft_plan(0, rank, n, in, is, id, out, os, od, t, batch); return *p ? CUFFT_SUCCESS : CUFFT_INVALID_SIZE; }
SIMT_FFT cufftPlan1d(cufftHandle* p, int n, cufftType t, int batch) {
    return cufftPlanMany(p, 1, &n, nullptr, 1, 0, nullptr, 1, 0, t, batch); }
SIMT_FFT cufftPlan2d(cufftHandle* p, int x, int y, cufftType t) { int n[] = {x, y};
    return cufftPlanMany(p, 2, n, nullptr, 1, 0, nullptr, 1, 0, t, 1); }
SIMT_FFT cufftPlan3d(cufftHandle* p, int x, int y, int z, cufftType t) { int n[] = {x, y, z};
    return cufftPlanMany(p, 3, n, nullptr, 1, 0, nullptr, 1, 0, t, 1); }
SIMT_FFT cufftCreate(cufftHandle* p) { int n = 1; return cufftPlan1d(p, n, CUFFT_C2C, 1); }
SIMT_FFT cufftMakePlanMany(cufftHandle p, int rank, int* n, int* in, int is, int id, int* out, int os, int od, cufftType t, int batch,
    size_t* work) { *work = 0; return simt::fft_plan(p, rank, n, in, is, id, out, os, od, t, batch) ? CUFFT_SUCCESS : CUFFT_INVALID_SIZE; }
SIMT_FFT cufftMakePlan1d(cufftHandle p, int n, cufftType t, int batch, size_t* work) {
    return cufftMakePlanMany(p, 1, &n, nullptr, 1, 0, nullptr, 1, 0, t, batch, work); }
SIMT_FFT cufftMakePlan2d(cufftHandle p, int x, int y, cufftType t, size_t* work) { int n[] = {x, y};
    return cufftMakePlanMany(p, 2, n, nullptr, 1, 0, nullptr, 1, 0, t, 1, work); }
SIMT_FFT cufftMakePlan3d(cufftHandle p, int x, int y, int z, cufftType t, size_t* work) { int n[] = {x, y, z};
    return cufftMakePlanMany(p, 3, n, nullptr, 1, 0, nullptr, 1, 0, t, 1, work); }
SIMT_FFT cufftDestroy(cufftHandle) { return CUFFT_SUCCESS; }
SIMT_FFT cufftSetStream(cufftHandle, cudaStream_t) { return CUFFT_SUCCESS; }
SIMT_FFT cufftGetVersion(int* v) { *v = 12000; return CUFFT_SUCCESS; }
SIMT_FFT cufftExecC2C(cufftHandle p, cufftComplex* a, cufftComplex* b, int sign) {
    return static_cast<cufftResult>(simt::fft(p, a, b, CUFFT_C2C, sign)); }
SIMT_FFT cufftExecZ2Z(cufftHandle p, cufftDoubleComplex* a, cufftDoubleComplex* b, int sign) {
    return static_cast<cufftResult>(simt::fft(p, a, b, CUFFT_Z2Z, sign)); }
SIMT_FFT cufftExecR2C(cufftHandle p, cufftReal* a, cufftComplex* b) { return static_cast<cufftResult>(simt::fft(p, a, b, CUFFT_R2C, -1)); }
SIMT_FFT cufftExecD2Z(cufftHandle p, cufftDoubleReal* a, cufftDoubleComplex* b) {
    return static_cast<cufftResult>(simt::fft(p, a, b, CUFFT_D2Z, -1)); }
SIMT_FFT cufftExecC2R(cufftHandle p, cufftComplex* a, cufftReal* b) { return static_cast<cufftResult>(simt::fft(p, a, b, CUFFT_C2R, 1)); }
SIMT_FFT cufftExecZ2D(cufftHandle p, cufftDoubleComplex* a, cufftDoubleReal* b) {
    return static_cast<cufftResult>(simt::fft(p, a, b, CUFFT_Z2D, 1)); }
