// What a program calls of CUDA's libraries on the host, where it is only the reference: cuBLAS and cuRAND, by plain code on the CPU.
#define SIMT_PROGRAM 1
#include "scheduler.h"
#include "libraries/cublas_v2.h"
#include "libraries/curand.h"

namespace simt {
static double get(const void* p, size_t i, cudaDataType t) {
    switch (t) {
        case CUDA_R_16F: return __half2float(static_cast<const __half*>(p)[i]);
        case CUDA_R_16BF: return __bfloat162float(static_cast<const __nv_bfloat16*>(p)[i]);
        case CUDA_R_64F: return static_cast<const double*>(p)[i];
        case CUDA_R_8I: return static_cast<const signed char*>(p)[i];
        case CUDA_R_32I: return static_cast<const int*>(p)[i];
        default: return static_cast<const float*>(p)[i];
    }
}
static void put(void* p, size_t i, cudaDataType t, double v) {
    switch (t) {
        case CUDA_R_16F: static_cast<__half*>(p)[i] = __float2half(static_cast<float>(v)); break;
        case CUDA_R_16BF: static_cast<__nv_bfloat16*>(p)[i] = __float2bfloat16(static_cast<float>(v)); break;
        case CUDA_R_64F: static_cast<double*>(p)[i] = v; break;
        case CUDA_R_8I: static_cast<signed char*>(p)[i] = static_cast<signed char>(v); break;
        case CUDA_R_32I: static_cast<int*>(p)[i] = static_cast<int>(v); break;
        default: static_cast<float*>(p)[i] = static_cast<float>(v);
    }
}
size_t size_of(cudaDataType t) { return t == CUDA_R_64F ? 8 : t == CUDA_R_16F || t == CUDA_R_16BF ? 2 : t == CUDA_R_8I ? 1 : 4; }

template <class T>
__attribute__((optimize("O3"))) static void multiply(T* c, const T* a, const T* b, int m, int n, int k) {   // C (m x n) += A (m x k) B (k x n), by columns
    for (int j = 0; j < n; ++j)
        for (int p = 0; p < k; ++p) {
            const T v = b[static_cast<size_t>(j) * k + p];
            const T* from = a + static_cast<size_t>(p) * m;
            T* to = c + static_cast<size_t>(j) * m;
            for (int i = 0; i < m; ++i) to[i] += v * from[i];
        }
}
template <class T>
static void gemm_of(bool ta, bool tb, int m, int n, int k, double alpha, const void* a, cudaDataType at, int lda, const void* b, cudaDataType bt, int ldb, double beta, void* c, cudaDataType ct, int ldc) {
    std::vector<T> x(static_cast<size_t>(m) * k), y(static_cast<size_t>(k) * n), z(static_cast<size_t>(m) * n);
    for (int p = 0; p < k; ++p)
        for (int i = 0; i < m; ++i) x[static_cast<size_t>(p) * m + i] = static_cast<T>(get(a, ta ? static_cast<size_t>(i) * lda + p : static_cast<size_t>(p) * lda + i, at));
    for (int j = 0; j < n; ++j)
        for (int p = 0; p < k; ++p) y[static_cast<size_t>(j) * k + p] = static_cast<T>(get(b, tb ? static_cast<size_t>(p) * ldb + j : static_cast<size_t>(j) * ldb + p, bt));
    multiply(z.data(), x.data(), y.data(), m, n, k);
    for (int j = 0; j < n; ++j)
        for (int i = 0; i < m; ++i) {
            const size_t place = static_cast<size_t>(j) * ldc + i;
            put(c, place, ct, alpha * z[static_cast<size_t>(j) * m + i] + (beta == 0 ? 0 : beta * get(c, place, ct)));
        }
}
void gemm(int ta, int tb, int m, int n, int k, double alpha, const void* a, cudaDataType at, int lda, const void* b, cudaDataType bt, int ldb, double beta, void* c, cudaDataType ct, int ldc, long long sa, long long sb, long long sc, int batches) {
    Library here;
    for (int i = 0; i < batches; ++i) {
        const void *x = static_cast<const char*>(a) + i * sa * static_cast<long long>(size_of(at)), *y = static_cast<const char*>(b) + i * sb * static_cast<long long>(size_of(bt));
        void* z = static_cast<char*>(c) + i * sc * static_cast<long long>(size_of(ct));
        if (at == CUDA_R_64F || at == CUDA_R_8I) gemm_of<double>(ta, tb, m, n, k, alpha, x, at, lda, y, bt, ldb, beta, z, ct, ldc);
        else gemm_of<float>(ta, tb, m, n, k, alpha, x, at, lda, y, bt, ldb, beta, z, ct, ldc);
        here.wrote(z, (static_cast<size_t>(n - 1) * ldc + m) * size_of(ct));
    }
}

static u64 drawn(u64& state) {
    state += 0x9e3779b97f4a7c15u;
    u64 v = (state ^ state >> 30) * 0xbf58476d1ce4e5b9u;
    v = (v ^ v >> 27) * 0x94d049bb133111ebu;
    return v ^ v >> 31;
}
double uniform(u64& state) { return (static_cast<double>(drawn(state) >> 11) + 1) / 9007199254740992.0; }
double normal(u64& state) {
    const double r = std::sqrt(-2 * std::log(uniform(state)));
    return r * std::cos(6.283185307179586 * uniform(state));
}
}  // namespace simt
