// Prefix sums: the types of the sums, and the words by which blocks pass their sums to later blocks of a single-pass scan (decoupled
// look-back).
#pragma once

/// The accumulator type of long sums of T.
template <typename T>
struct Sum { using type = float; };
template <>
struct Sum<float> { using type = double; };

/// The sum of all earlier elements, to which float32 sums of a few elements are added. For float32 elements it is a pair of numbers (high
/// and low part), so that it is not rounded before the addition.
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

/// The running sums of a pack of V elements behind `base`, in place of them. float32 is enough within a pack: this sum is not passed on.
template <bool REVERSE, int V, typename B>
__device__ void run_along(float (&f)[V], const B& base) {
    float run = 0;
#pragma unroll
    for (int i = 0; i < V; ++i) {
        const int k = REVERSE ? V - 1 - i : i;
        run += f[k];
        f[k] = base.plus(run);
    }
}

/// A published word is the complement of a number's bits, with one NaN pattern, so it is never 0. A word of 0 is not published yet.
__device__ inline void publish(unsigned long long* word, double v) {
    *reinterpret_cast<volatile unsigned long long*>(word) =
        ~(v == v ? static_cast<unsigned long long>(__double_as_longlong(v)) : 0x7ff8000000000000ull);
}

/// The sum of `count` words, `step` apart, added in order; waits until each of them is published. EACH loads are in flight together.
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
