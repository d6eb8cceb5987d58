// What coding and decoding of `ratio` share of a value's arithmetic: float64, one IEEE operation at a time.
#pragma once
#include "_ratio.cuh"

__device__ inline double number_of(unsigned z) { return z & 1 ? -(static_cast<double>(z >> 1) + 1.0) : static_cast<double>(z >> 1); }
__device__ inline double finite_or(double v, double other) { return fabs(v) < __longlong_as_double(0x7FF0000000000000ll) ? v : other; }
/// +0 and normal, finite numbers.
__device__ inline bool plain(float v) {
    const unsigned size = __float_as_uint(v) & 0x7FFFFFFFu;
    return __float_as_uint(v) == 0 || (size >= 0x00800000u && size < 0x7F800000u);
}
__device__ inline bool finite(float v) { return (__float_as_uint(v) & 0x7F800000u) != 0x7F800000u; }

/// What the known values along one dimension predict for number i of those between: known[0], known[step], ... are m.
__device__ inline double along(const double* known, long long step, int i, int m, int count) {
    const double b = known[i * step];
    if (i + 1 >= m) return count == m && m >= 2 ? __dadd_rn(b, __dmul_rn(__dadd_rn(b, -known[(i - 1) * step]), 0.5)) : b;
    const double c = known[(i + 1) * step];
    if (i < 1 || i + 2 >= m) return __dmul_rn(__dadd_rn(b, c), 0.5);
    return __dmul_rn(__dadd_rn(__dmul_rn(__dadd_rn(b, c), 9.0), -__dadd_rn(known[(i - 1) * step], known[(i + 2) * step])), 0.0625);
}

/// Number i of a set: where it lies, and what the mean over the set's odd dimensions predicts. `plane`, `row`: strides of z and y in r.
struct Spot {
    int at[3], c[3], here;
    double p;

    __device__ Spot(const Set& set, int i, const int (&n)[3], const double* r, int plane, int row) {
        const int line = i / set.count[2], s = set.s;
        at[0] = line / set.count[1], at[1] = line % set.count[1], at[2] = i % set.count[2];
#pragma unroll
        for (int a = 0; a < 3; ++a) c[a] = set.begin[a] + 2 * s * at[a];
        here = c[0] * plane + c[1] * row + c[2];
        p = 0;
        bool begun = false;
#pragma unroll
        for (int a = 0; a < 3; ++a) {
            if (!(set.axes >> a & 1)) continue;
            const int stride = a == 0 ? plane : a == 1 ? row : 1;
            const double v = along(r + (here - c[a] * stride), 2ll * s * stride, at[a], (n[a] + 2 * s - 1) / (2 * s), set.count[a]);
            p = begun ? __dadd_rn(p, v) : v, begun = true;
        }
        const int odd = __popc(set.axes);
        p = finite_or(__dmul_rn(p, odd == 3 ? 1.0 / 3 : odd == 2 ? 0.5 : 1.0), 0.0);
    }
};

/// Twice the bound of a level: coarse values are predicted from, so they are kept nearer.
__device__ inline double step_of_level(double eb, int level) {
    return __dmul_rn(2.0, __ddiv_rn(eb, level == 0 ? 1.0 : level == 1 ? 1.5 : level == 2 ? 2.25 : level == 3 ? 3.375 : 4.0));
}
