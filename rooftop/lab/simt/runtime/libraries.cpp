// What a program calls of CUDA's libraries on the host, where it is only the reference: cuBLAS, cuRAND and cuFFT, by plain code on the CPU.
#include "program.h"
#include "libraries/cublas_v2.h"
#include "libraries/curand.h"
#include "libraries/cufft.h"
#include <complex>
#include <thread>

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

/// C (m x n) += A (m x k) B (k x n), by columns, from column `j` to `end`: some columns of C at a time, in blocks of rows that stay in the
/// cache.
template <class T>
__attribute__((optimize("O3"))) static void multiply(T* c, const T* a, const T* b, int m, int n, int k, int j, int end) {
    constexpr int ROWS = 1024, COLUMNS = 4;
    (void)n;
    for (; j < end; j += COLUMNS)
        for (int first = 0; first < m; first += ROWS) {
            const int rows = std::min(ROWS, m - first), columns = std::min(COLUMNS, end - j);
            T* to = c + static_cast<size_t>(j) * m + first;
            for (int p = 0; p < k; ++p) {
                const T* from = a + static_cast<size_t>(p) * m + first;
                for (int q = 0; q < columns; ++q) {
                    const T v = b[static_cast<size_t>(j + q) * k + p];
                    T* own = to + static_cast<size_t>(q) * m;
                    for (int i = 0; i < rows; ++i) own[i] += v * from[i];
                }
            }
        }
}
template <class T>
static void gemm_of(bool ta, bool tb, int m, int n, int k, double alpha, const void* a, cudaDataType at, int lda, const void* b,
    cudaDataType bt, int ldb, double beta, void* c, cudaDataType ct, int ldc) {
    std::vector<T> x(static_cast<size_t>(m) * k), y(static_cast<size_t>(k) * n), z(static_cast<size_t>(m) * n);
    for (int p = 0; p < k; ++p)
        for (int i = 0; i < m; ++i) x[static_cast<size_t>(p) * m + i] = static_cast<T>(get(a, ta ? static_cast<size_t>(i) * lda + p
            : static_cast<size_t>(p) * lda + i, at));
    for (int j = 0; j < n; ++j)
        for (int p = 0; p < k; ++p) y[static_cast<size_t>(j) * k + p] = static_cast<T>(get(b, tb ? static_cast<size_t>(p) * ldb + j
            : static_cast<size_t>(j) * ldb + p, bt));
    const int parts = static_cast<int>(std::min<u64>(program.workers, 1 + u64(m) * n * k / (1 << 22))), each = (n + parts - 1) / parts;
    std::vector<std::thread> others;
    for (int i = 1; i < parts; ++i) others.emplace_back([&, i] {
        multiply(z.data(), x.data(), y.data(), m, n, k, i * each, std::min(n, (i + 1) * each)); });
    multiply(z.data(), x.data(), y.data(), m, n, k, 0, std::min(n, each));
    for (std::thread& other : others) other.join();
    for (int j = 0; j < n; ++j)
        for (int i = 0; i < m; ++i) {
            const size_t place = static_cast<size_t>(j) * ldc + i;
            put(c, place, ct, alpha * z[static_cast<size_t>(j) * m + i] + (beta == 0 ? 0 : beta * get(c, place, ct)));
        }
}
void gemm(int ta, int tb, int m, int n, int k, double alpha, const void* a, cudaDataType at, int lda, const void* b, cudaDataType bt,
    int ldb, double beta, void* c, cudaDataType ct, int ldc, long long sa, long long sb, long long sc, int batches) {
    // The same product again, after nothing else was done, or when the program's time is over: it is left out.
    static std::string last;
    static u64 done = 0;
    std::string call;
    put(call, "%d %d %d %d %d %.17g %.17g %p %p %p ", ta, tb, m, n, k, alpha, beta, a, b, static_cast<const void*>(c));
    put(call, "%d %d %d %d %d %d %lld %lld %lld %d", at, lda, bt, ldb, ct, ldc, sa, sb, sc, batches);
    // which the host cannot write unseen
    const bool devices = allocation_of(a) && allocation_of(b) && allocation_of(c) && !program.shared_at;
    if (!beta && devices && call == last && program.changes == done) return;
    // Of all products together half of the program's time; those that would take longer are left out, and said.
    const double began = now_seconds(), needs = 2.0 * m * n * k * batches / 4e9;
    if (program.cut || program.library + needs > program.most / 2) {
        if (!program.left_out) put(program.journal, "%s{\"left\":\"%dx%dx%d\"}", program.journal.empty() ? "" : ",\n", m, n, k);
        program.left_out = true;
        return;
    }
    Library here;
    for (int i = 0; i < batches; ++i) {
        const void *x = static_cast<const char*>(a) + i * sa * static_cast<long long>(size_of(at)),
            *y = static_cast<const char*>(b) + i * sb * static_cast<long long>(size_of(bt));
        void* z = static_cast<char*>(c) + i * sc * static_cast<long long>(size_of(ct));
        if (at == CUDA_R_64F || at == CUDA_R_8I) gemm_of<double>(ta, tb, m, n, k, alpha, x, at, lda, y, bt, ldb, beta, z, ct, ldc);
        else gemm_of<float>(ta, tb, m, n, k, alpha, x, at, lda, y, bt, ldb, beta, z, ct, ldc);
        here.wrote(z, (static_cast<size_t>(n - 1) * ldc + m) * size_of(ct));
    }
    last = call, done = program.changes, program.library += now_seconds() - began;
}
void epilogue(void* c, cudaDataType t, bool by_rows, long long m, long long n, long long ld, long long stride, long long batches,
    const void* bias, int function) {
    Library here;
    for (long long b = 0; b < batches; ++b)
        for (long long i = 0; i < m; ++i)
            for (long long j = 0; j < n; ++j) {
                const size_t place = static_cast<size_t>(b * stride + (by_rows ? i * ld + j : j * ld + i));
                const double v = get(c, place, t) + (bias ? get(bias, static_cast<size_t>(i), t) : 0);
                put(c, place, t, function == 1 ? std::max(v, 0.0) : function == 2
                    ? v / 2 * (1 + std::tanh(0.7978845608028654 * (v + 0.044715 * v * v * v))) : v);
            }
    ++program.changes;
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

using Complex = std::complex<double>;
struct Side { int embed[3], stride, step; };                     // how a batch of arrays lies: elements
struct Plan { int n[3], type, batch; Side in, out; bool packed; };
static std::vector<Plan> plans(1);

/// A discrete Fourier transform of n numbers, in place, by the smallest factor of n.
static void transform(Complex* x, int n, int sign) {
    if (n < 2) return;
    int p = 2;
    while (n % p && p * p <= n) ++p;
    if (n % p) p = n;
    const int m = n / p;
    std::vector<Complex> part(static_cast<size_t>(n)), root(static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) part[static_cast<size_t>(i % p * m + i / p)] = x[i],
        root[static_cast<size_t>(i)] = std::polar(1.0, sign * 2 * M_PI * i / n);
    for (int r = 0; r < p; ++r) transform(&part[static_cast<size_t>(r) * m], m, sign);
    for (int k = 0; k < n; ++k) {
        x[k] = 0;
        for (int r = 0; r < p; ++r) x[k] += part[static_cast<size_t>(r * m + k % m)] * root[static_cast<size_t>(static_cast<long long>(r) * k % n)];
    }
}

int fft_plan(int plan, int rank, const int* n, const int* in, int in_stride, int in_step, const int* out, int out_stride, int out_step,
    int type, int batch) {
    if (rank < 1 || rank > 3 || batch < 1) return 0;
    Plan p = {{1, 1, 1}, type, batch, {}, {}, !in && !out};
    for (int i = 0; i < rank; ++i)
        if ((p.n[3 - rank + i] = n[i]) < 1) return 0;
    const auto side = [&](Side& s, const int* embed, int stride, int step, bool half) {
        for (int i = 0; i < 3; ++i) s.embed[i] = i >= 3 - rank && embed ? embed[i - 3 + rank] : i == 2 && half ? p.n[2] / 2 + 1 : p.n[i];
        s.stride = embed ? stride : 1, s.step = embed ? step : s.embed[0] * s.embed[1] * s.embed[2];
    };
    side(p.in, in, in_stride, in_step, type == CUFFT_C2R || type == CUFFT_Z2D);
    side(p.out, out, out_stride, out_step, type == CUFFT_R2C || type == CUFFT_D2Z);
    if (!plan) plans.push_back(p), plan = static_cast<int>(plans.size()) - 1;
    else plans[static_cast<size_t>(plan)] = p;
    return plan;
}

int fft(int plan, const void* from, void* to, int type, int sign) {
    if (plan < 1 || static_cast<size_t>(plan) >= plans.size()) return CUFFT_INVALID_PLAN;
    Plan p = plans[static_cast<size_t>(plan)];
    if (p.type != type) return CUFFT_INVALID_TYPE;
    const bool real_in = type == CUFFT_R2C || type == CUFFT_D2Z, real_out = type == CUFFT_C2R || type == CUFFT_Z2D;
    const cudaDataType kind = type == CUFFT_D2Z || type == CUFFT_Z2D || type == CUFFT_Z2Z ? CUDA_R_64F : CUDA_R_32F;
    if (p.packed && from == to && (real_in || real_out)) {       // rows of real numbers are padded to those of complex ones
        Side& s = real_in ? p.in : p.out;
        s.embed[2] = 2 * (p.n[2] / 2 + 1), s.step = s.embed[0] * s.embed[1] * s.embed[2];
    }
    const auto at = [&p](const Side& s, int b, int i, int j, int k) {
        return static_cast<size_t>(b) * s.step + ((static_cast<size_t>(i) * s.embed[1] + j) * s.embed[2] + k) * static_cast<size_t>(s.stride); };
    Library here;
    const auto [n0, n1, n2] = p.n;
    const int half = n2 / 2 + 1;
    std::vector<Complex> x(static_cast<size_t>(n0) * n1 * n2), line;
    for (int b = 0; b < p.batch; ++b) {
        const auto element = [&](int i, int j, int k) -> Complex& { return x[(static_cast<size_t>(i) * n1 + j) * n2 + k]; };
        for (int i = 0; i < n0; ++i)
            for (int j = 0; j < n1; ++j)
                for (int k = 0; k < n2; ++k) {
                    const bool mirrored = real_out && k >= half;
                    const size_t e = mirrored ? at(p.in, b, (n0 - i) % n0, (n1 - j) % n1, n2 - k) : at(p.in, b, i, j, k);
                    element(i, j, k) = real_in ? Complex(get(from, e, kind))
                        : Complex(get(from, 2 * e, kind), (mirrored ? -1 : 1) * get(from, 2 * e + 1, kind));
                }
        for (int axis = 0; axis < 3; ++axis) {
            const int n = p.n[axis], step = axis == 2 ? 1 : axis == 1 ? n2 : n1 * n2;
            line.resize(static_cast<size_t>(n));
            for (size_t first = 0; n > 1 && first < x.size(); ++first) {
                if (first / static_cast<size_t>(step) % static_cast<size_t>(n)) continue;
                for (int i = 0; i < n; ++i) line[static_cast<size_t>(i)] = x[first + static_cast<size_t>(i) * step];
                transform(line.data(), n, sign);
                for (int i = 0; i < n; ++i) x[first + static_cast<size_t>(i) * step] = line[static_cast<size_t>(i)];
            }
        }
        for (int i = 0; i < n0; ++i)
            for (int j = 0; j < n1; ++j)
                for (int k = 0; k < (real_in ? half : n2); ++k) {
                    const size_t e = at(p.out, b, i, j, k), parts = real_out ? 1 : 2, size = size_of(kind);
                    put(to, e * parts, kind, element(i, j, k).real());
                    if (parts == 2) put(to, e * 2 + 1, kind, element(i, j, k).imag());
                    here.wrote(static_cast<char*>(to) + e * parts * size, parts * size);
                }
    }
    return CUFFT_SUCCESS;
}
}  // namespace simt
