// Running sums: their types, and words by which blocks hand sums to later blocks of a scan in one pass (decoupled look-back).
#pragma once

/// The type of long sums of T.
template <typename T>
struct Sum { using type = float; };
template <>
struct Sum<float> { using type = double; };

/// What is added to the float32 sums of a few elements: of float32 elements the sum of all before them as two numbers, so that it is not rounded first.
template <typename T>
struct Base {
    float sum;
    Base() = default;
    __device__ explicit Base(float s) : sum(s) {}
    __device__ float plus(float run) const { return sum + run; }
};
template <>
struct Base<float> {
    float high, low;
    Base() = default;
    __device__ explicit Base(double s) : high(static_cast<float>(s)) {
        low = fabsf(high) <= 3.402823466e38f ? static_cast<float>(s - static_cast<double>(high)) : 0.0f;
    }
    __device__ float plus(float run) const { return high + (low + run); }
};

/// A published word is the complement of a number's bits, with one NaN pattern, so it is never 0 (which means: not there yet).
__device__ inline void publish(unsigned long long* word, double v) {
    *reinterpret_cast<volatile unsigned long long*>(word) = ~(v == v ? static_cast<unsigned long long>(__double_as_longlong(v)) : 0x7ff8000000000000ull);
}

/// The sum of `count` words, `step` apart, added in their order; waits for each of them. EACH loads are in flight together.
template <int EACH>
__device__ inline double awaited(const unsigned long long* words, int count, long long step) {
    double sum = 0;
    for (int k = 0; k < count; k += EACH) {
        unsigned long long found[EACH];
        bool absent = true;
        while (absent) {
            absent = false;
#pragma unroll
            for (int u = 0; u < EACH; ++u) {
                found[u] = k + u < count ? reinterpret_cast<const volatile unsigned long long*>(words)[(k + u) * step] : ~0ull;
            }
#pragma unroll
            for (int u = 0; u < EACH; ++u) absent = absent || found[u] == 0;
        }
#pragma unroll
        for (int u = 0; u < EACH; ++u) sum += __longlong_as_double(static_cast<long long>(~found[u]));
    }
    return sum;
}
