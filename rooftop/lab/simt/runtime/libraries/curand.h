// cuRAND's host generators on the CPU: other numbers than cuRAND's, of the same distributions.
#pragma once
#include "library_types.h"
enum curandStatus_t { CURAND_STATUS_SUCCESS = 0, CURAND_STATUS_VERSION_MISMATCH = 100, CURAND_STATUS_NOT_INITIALIZED,
    CURAND_STATUS_ALLOCATION_FAILED, CURAND_STATUS_TYPE_ERROR, CURAND_STATUS_OUT_OF_RANGE, CURAND_STATUS_LENGTH_NOT_MULTIPLE,
    CURAND_STATUS_DOUBLE_PRECISION_REQUIRED, CURAND_STATUS_LAUNCH_FAILURE = 201, CURAND_STATUS_PREEXISTING_FAILURE,
    CURAND_STATUS_INITIALIZATION_FAILED, CURAND_STATUS_ARCH_MISMATCH, CURAND_STATUS_INTERNAL_ERROR = 999 };
typedef curandStatus_t curandStatus;
enum curandRngType_t { CURAND_RNG_TEST = 0, CURAND_RNG_PSEUDO_DEFAULT = 100, CURAND_RNG_PSEUDO_XORWOW = 101,
    CURAND_RNG_PSEUDO_MRG32K3A = 121, CURAND_RNG_PSEUDO_MTGP32 = 141, CURAND_RNG_PSEUDO_MT19937 = 142,
    CURAND_RNG_PSEUDO_PHILOX4_32_10 = 161, CURAND_RNG_QUASI_DEFAULT = 200, CURAND_RNG_QUASI_SOBOL32 = 201 };
typedef unsigned long long* curandGenerator_t;
namespace simt {
SIMT_API double uniform(unsigned long& state);
SIMT_API double normal(unsigned long& state);
}
#define SIMT_RAND SIMT_PLAIN static inline __attribute__((unused)) curandStatus_t
SIMT_RAND curandCreateGenerator(curandGenerator_t* g, curandRngType_t) { *g = new unsigned long long(0); return CURAND_STATUS_SUCCESS; }
SIMT_RAND curandCreateGeneratorHost(curandGenerator_t* g, curandRngType_t t) { return curandCreateGenerator(g, t); }
SIMT_RAND curandDestroyGenerator(curandGenerator_t g) { delete g; return CURAND_STATUS_SUCCESS; }
SIMT_RAND curandSetPseudoRandomGeneratorSeed(curandGenerator_t g, unsigned long long seed) { *g = seed; return CURAND_STATUS_SUCCESS; }
SIMT_RAND curandSetGeneratorOffset(curandGenerator_t g, unsigned long long n) { *g += n; return CURAND_STATUS_SUCCESS; }
SIMT_RAND curandSetStream(curandGenerator_t, cudaStream_t) { return CURAND_STATUS_SUCCESS; }
#define SIMT_DRAWN(name, T, value, ...)                                                      \
    SIMT_RAND name(curandGenerator_t g, T* p, size_t n __VA_ARGS__) {                        \
        simt::Library here;                                                                  \
        unsigned long& s = *reinterpret_cast<unsigned long*>(g);                             \
        for (size_t i = 0; i < n; ++i) p[i] = static_cast<T>(value);                         \
        here.wrote(p, n * sizeof(T));                                                        \
        return CURAND_STATUS_SUCCESS;                                                        \
    }
SIMT_DRAWN(curandGenerateUniform, float, simt::uniform(s)) SIMT_DRAWN(curandGenerateUniformDouble, double, simt::uniform(s))
SIMT_DRAWN(curandGenerate, unsigned, simt::uniform(s) * 4294967295.0)
SIMT_DRAWN(curandGenerateNormal, float, mean + sd * simt::normal(s), , float mean, float sd) SIMT_DRAWN(curandGenerateNormalDouble, double,
    mean + sd * simt::normal(s), , double mean, double sd)
#undef SIMT_DRAWN
