// What inline PTX is translated to (rooftop/lab/simt/ptx.py says which instruction becomes which call).
#pragma once
#include "halves.h"
#include "fp8.h"

namespace simt::ptx {

// -- bits between the types of operands and those of instructions -------------------------------------------------------------
template <class T, class V>
SIMT_INLINE T in(V v) {
    if constexpr (std::is_same_v<T, V>) return v;
    else if constexpr (sizeof(T) == sizeof(V) && !std::is_same_v<T, bool>) return bits<T>(v);
    else if constexpr (std::is_arithmetic_v<V> && std::is_arithmetic_v<T>) return static_cast<T>(v);
    else {
        T r{};
        std::memcpy(&r, &v, sizeof(T) < sizeof(V) ? sizeof(T) : sizeof(V));
        return r;
    }
}
template <class D, class V>
SIMT_INLINE void out(D& to, V v) { to = in<D>(v); }
template <class T, int N>
using Unused = std::conditional_t<sizeof(T) / N == 4, uint32_t, std::conditional_t<sizeof(T) / N == 2, uint16_t, uint8_t>>;
template <class D, class... A>
SIMT_INLINE void pack(D& to, A... parts) {
    static_assert((sizeof(A) + ...) == sizeof(D));
    char all[sizeof(D)], *at = all;
    ((std::memcpy(at, &parts, sizeof(A)), at += sizeof(A)), ...);
    std::memcpy(&to, all, sizeof(D));
}
template <class D, class... A>
SIMT_INLINE void unpack(D from, A&... parts) {
    static_assert((sizeof(A) + ...) == sizeof(D));
    const char* at = reinterpret_cast<const char*>(&from);
    ((std::memcpy(&parts, at, sizeof(A)), at += sizeof(A)), ...);
}
template <class T, int N>
struct alignas(sizeof(T) * N) Vector { T v[N]; };

template <class R>
SIMT_INLINE void* pointer(R at, long long offset) {
    if constexpr (std::is_pointer_v<R>) return const_cast<char*>(reinterpret_cast<const volatile char*>(at) - 0) + offset;
    else return reinterpret_cast<char*>(static_cast<uintptr_t>(at)) + offset;
}
template <class R>
SIMT_INLINE void* shared_pointer(R at, long long offset) {
    if constexpr (std::is_pointer_v<R>) return pointer(at, offset);
    else return at > 0xffffffffull ? pointer(at, offset) : simt::shared_pointer(static_cast<unsigned>(at) + static_cast<unsigned>(offset));
}
SIMT_INLINE unsigned mapa(unsigned address, unsigned rank) {
    return simt::shared_address(simt::cluster_map(simt::shared_pointer(address), rank)); }
template <class T>
SIMT_INLINE T load_atomic(const void* p, int acquire) {
    simt::note_atomic(const_cast<void*>(p), sizeof(T), 1 | (acquire ? 4 : 0));
    return simt::atomic_get(static_cast<const T*>(p));
}
template <class T>
SIMT_INLINE void store_atomic(void* p, T v, int release) {
    simt::note_atomic(p, sizeof(T), 2 | (release ? 4 : 0));
    T old = simt::atomic_get(static_cast<T*>(p));
    while (!simt::compare_and_swap(p, &old, &v, sizeof(T))) {}
}

// -- arithmetic ----------------------------------------------------------------------------------------------------------------
template <class T, class F>
SIMT_INLINE T each(T a, F f) {   // of one number or of a pair
    if constexpr (std::is_same_v<T, __half2> || std::is_same_v<T, __nv_bfloat162>) return T(decltype(a.x)(f(float(a.x))),
        decltype(a.x)(f(float(a.y))));
    else if constexpr (std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>) return T(f(float(a)));
    else return f(a);
}
template <class T> SIMT_INLINE T ex2(T a) { return each(a, [](auto v) { return std::exp2(v); }); }
template <class T> SIMT_INLINE T lg2(T a) { return each(a, [](auto v) { return std::log2(v); }); }
template <class T> SIMT_INLINE T rcp(T a) { return each(a, [](auto v) { return 1 / v; }); }
template <class T> SIMT_INLINE T rsqrt(T a) { return each(a, [](auto v) { return 1 / std::sqrt(v); }); }
template <class T> SIMT_INLINE T sqrt(T a) { return each(a, [](auto v) { return std::sqrt(v); }); }
template <class T> SIMT_INLINE T sin(T a) { return each(a, [](auto v) { return std::sin(v); }); }
template <class T> SIMT_INLINE T cos(T a) { return each(a, [](auto v) { return std::cos(v); }); }
template <class T> SIMT_INLINE T tanh(T a) { return each(a, [](auto v) { return std::tanh(v); }); }
template <class T> SIMT_INLINE T neg(T a) { return -a; }
template <class T> SIMT_INLINE T abs(T a) {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(a < 0 ? -a : a);
    else return each(a, [](auto v) { return std::fabs(v); });
}
template <class T> SIMT_INLINE bool nan(T a, T b) { return a != a || b != b; }
template <class T> SIMT_INLINE T ftz(T a) {       // by its bits: no branch, no arithmetic
    if constexpr (sizeof(T) == 4 && std::is_class_v<T>) {
        const T both = a;
        return T(ftz(both.low()), ftz(both.high()));
    } else {
        using U = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;
        constexpr U exponent = std::is_same_v<T, __half> ? static_cast<U>(0x7c00) : static_cast<U>(sizeof(T) == 4 ? 0x7f800000u : 0x7f80u);
        constexpr U sign = static_cast<U>(U(1) << (8 * sizeof(T) - 1));
        const U u = bits<U>(a);
        return bits<T>(static_cast<U>(u & (sign | static_cast<U>(0 - static_cast<U>((u & exponent) != 0)))));
    }
}
template <class T> SIMT_INLINE T sat(T a) { return each(a, [](auto v) { return decltype(v)(v > 0 ? v < 1 ? v : 1 : 0); }); }
template <class T> SIMT_INLINE T relu(T a) { return each(a, [](auto v) { return v < 0 ? decltype(v)(0) : v; }); }
/// min and max as their modifiers have them: NaN where either is, of the absolute values with the product's sign.
template <class T, int MAX, int NAN_, int XOR>
SIMT_INLINE T limit(T a, T b) {
    if constexpr (std::is_same_v<T, __half2> || std::is_same_v<T, __nv_bfloat162>) {
        using H = decltype(a.x);
        return T(limit<H, MAX, NAN_, XOR>(a.low(), b.low()), limit<H, MAX, NAN_, XOR>(a.high(), b.high()));
    } else {
        const float p = static_cast<float>(a), q = static_cast<float>(b), x = XOR ? std::fabs(p) : p, y = XOR ? std::fabs(q) : q;
        if (NAN_ && nan(p, q)) return T(bits<float>(0x7fffffffu));
        const float found = MAX ? maths::greater(x, y) : maths::lesser(x, y);
        return T(XOR && std::signbit(p) != std::signbit(q) ? -found : found);
    }
}
SIMT_INLINE int32_t add_sat(int32_t a, int32_t b) { return clamp_to<int32_t>(static_cast<int64_t>(a) + b); }
SIMT_INLINE int32_t sub_sat(int32_t a, int32_t b) { return clamp_to<int32_t>(static_cast<int64_t>(a) - b); }
template <class T> SIMT_INLINE T bit_not(T a) {
    if constexpr (std::is_same_v<T, bool>) return !a;
    else return static_cast<T>(~a);
}
template <class T> SIMT_INLINE uint32_t popc(T a) {
    return static_cast<uint32_t>(__builtin_popcountll(static_cast<std::make_unsigned_t<T>>(a))); }
template <class T> SIMT_INLINE uint32_t clz(T a) {
    return static_cast<uint32_t>(sizeof(T) == 8 ? __clzll(static_cast<long long>(a)) : __clz(static_cast<int>(a))); }
template <class T> SIMT_INLINE T brev(T a) { return static_cast<T>(sizeof(T) == 8 ? __brevll(a) : __brev(static_cast<unsigned>(a))); }
template <class T> SIMT_INLINE T cnot(T a) { return a == 0; }
template <class T> SIMT_INLINE T add(T a, T b) { return static_cast<T>(a + b); }
template <class T> SIMT_INLINE T sub(T a, T b) { return static_cast<T>(a - b); }
template <class T> SIMT_INLINE T mul(T a, T b) { return static_cast<T>(a * b); }
template <class T> SIMT_INLINE T div(T a, T b) { return static_cast<T>(a / b); }
template <class T> SIMT_INLINE T rem(T a, T b) { return static_cast<T>(a % b); }
template <class T> SIMT_INLINE T fma(T a, T b, T c) {
    if constexpr (std::is_floating_point_v<T>) return std::fma(a, b, c);
    else if constexpr (std::is_same_v<T, __half2> || std::is_same_v<T, __nv_bfloat162>) return __hfma2(a, b, c);
    else if constexpr (std::is_class_v<T>) return __hfma(a, b, c);
    else return static_cast<T>(a * b + c);
}
template <class T> SIMT_INLINE T min(T a, T b) {
    if constexpr (std::is_same_v<T, __half2> || std::is_same_v<T, __nv_bfloat162>) return __hmin2(a, b);
    else if constexpr (std::is_class_v<T>) return __hmin(a, b);
    else if constexpr (std::is_same_v<T, float>) return maths::lesser(a, b);
    else if constexpr (std::is_floating_point_v<T>) return std::fmin(a, b);
    else return b < a ? b : a;
}
template <class T> SIMT_INLINE T max(T a, T b) {
    if constexpr (std::is_same_v<T, __half2> || std::is_same_v<T, __nv_bfloat162>) return __hmax2(a, b);
    else if constexpr (std::is_class_v<T>) return __hmax(a, b);
    else if constexpr (std::is_same_v<T, float>) return maths::greater(a, b);
    else if constexpr (std::is_floating_point_v<T>) return std::fmax(a, b);
    else return a < b ? b : a;
}
template <class T> SIMT_INLINE T bit_and(T a, T b) { return static_cast<T>(a & b); }
template <class T> SIMT_INLINE T bit_or(T a, T b) { return static_cast<T>(a | b); }
template <class T> SIMT_INLINE T bit_xor(T a, T b) { return static_cast<T>(a ^ b); }
template <class T> SIMT_INLINE T mul_hi(T a, T b) {
    if constexpr (sizeof(T) == 8) return static_cast<T>(static_cast<__int128>(a) * b >> 64);
    else return static_cast<T>(static_cast<std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>(a) * b >> (8 * sizeof(T)));
}
template <class T> SIMT_INLINE T shl(T a, uint32_t n) { return n >= 8 * sizeof(T) ? 0
    : static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) << n); }
template <class T> SIMT_INLINE T shr(T a, uint32_t n) { return n >= 8 * sizeof(T) ? static_cast<T>(a < 0 ? -1 : 0) : static_cast<T>(a >> n);
    }
template <class T> SIMT_INLINE T bfe(T a, T from, T n) {
    const uint32_t f = static_cast<uint32_t>(from) & 255, l = static_cast<uint32_t>(n) & 255;
    T r = 0;
    for (uint32_t i = 0; i < l && i < 8 * sizeof(T); ++i) {
        const uint32_t at = f + i < 8 * sizeof(T) ? f + i : 8 * sizeof(T) - 1;
        const bool inside = f + i < 8 * sizeof(T);
        if ((inside || std::is_signed_v<T>) && (static_cast<std::make_unsigned_t<T>>(a) >> at & 1)) r |= static_cast<T>(T(1) << i);
    }
    if (std::is_signed_v<T> && l && l < 8 * sizeof(T)
        && (static_cast<std::make_unsigned_t<T>>(r) >> (l - 1) & 1)) r |= static_cast<T>(~T(0) << l);
    return r;
}
template <class T> SIMT_INLINE T bfi(T a, T b, T from, T n) {
    const uint32_t f = static_cast<uint32_t>(from) & 255, l = static_cast<uint32_t>(n) & 255;
    for (uint32_t i = 0; i < l && f + i < 8 * sizeof(T); ++i) b = static_cast<T>((b & ~(T(1) << (f + i))) | ((a >> i & 1) << (f + i)));
    return b;
}
SIMT_INLINE uint32_t lop3(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
    uint32_t r = 0;
    if (table & 0x01) r |= ~a & ~b & ~c;
    if (table & 0x02) r |= ~a & ~b & c;
    if (table & 0x04) r |= ~a & b & ~c;
    if (table & 0x08) r |= ~a & b & c;
    if (table & 0x10) r |= a & ~b & ~c;
    if (table & 0x20) r |= a & ~b & c;
    if (table & 0x40) r |= a & b & ~c;
    if (table & 0x80) r |= a & b & c;
    return r;
}
template <class T2, class T>
SIMT_INLINE T2 two(float high, float low, bool relu, bool chopped) {
    if (relu) high = high < 0 ? 0 : high, low = low < 0 ? 0 : low;
    return chopped ? T2(directed(low, T(low), 0), directed(high, T(high), 0)) : T2(T(low), T(high));
}
SIMT_INLINE float to_tf32(float v, int away) {   // 10 bits of mantissa stay; ties away from zero (rna) or to even (rn)
    const uint32_t u = bits<uint32_t>(v);
    if ((u & 0x7f800000) == 0x7f800000) return v;
    return bits<float>((u + (away ? 0x1000u : 0xfffu + (u >> 13 & 1))) & ~0x1fffu);
}
template <class To, class From>
SIMT_INLINE To convert(From v, char mode, int whole) {
    if constexpr (std::is_integral_v<To> && !std::is_integral_v<From>) {
        using F = std::conditional_t<std::is_same_v<From, double>, double, float>;
        const F f = static_cast<F>(v);
        return to_integer<To>(mode == 'z' ? std::trunc(f) : mode == 'm' ? std::floor(f) : mode == 'p' ? std::ceil(f) : std::nearbyint(f));
    } else if constexpr (std::is_class_v<To>) {
        if constexpr (std::is_integral_v<From>) return To(static_cast<double>(v));
        else {
            const float f = static_cast<float>(v);
            if constexpr (std::is_same_v<From, double>) return To(v);
            return mode == 'n' ? To(f) : directed(f, To(f), mode == 'z' ? 0 : mode == 'p' ? 1 : -1);
        }
    } else if constexpr (std::is_class_v<From>) {
        return static_cast<To>(static_cast<float>(v));
    } else {
        if (whole) return static_cast<To>(mode == 'z' ? std::trunc(static_cast<double>(v)) : mode == 'm'
            ? std::floor(static_cast<double>(v)) : mode == 'p' ? std::ceil(static_cast<double>(v))
            : std::nearbyint(static_cast<double>(v)));
        if constexpr (std::is_same_v<To, float>) return mode == 'z' ? chop<float>(v) : mode == 'm' ? down<float>(v) : mode == 'p'
            ? up<float>(v) : static_cast<float>(v);
        else return static_cast<To>(v);
    }
}
template <class To, class From>
SIMT_INLINE To clamped(From v, char mode) {
    if constexpr (std::is_integral_v<From>) return clamp_to<To>(v);
    else return convert<To>(v, mode, 1);
}
template <int E5M2, int RELU>
SIMT_INLINE uint16_t fp8_two(float high, float low) {
    if (RELU) high = relu(high), low = relu(low);
    return static_cast<uint16_t>(fp8_of(high, E5M2) << 8 | fp8_of(low, E5M2));
}
template <int E5M2, int RELU>
SIMT_INLINE uint16_t fp8_two(const __half2& v) { return fp8_two<E5M2, RELU>(static_cast<float>(v.high()), static_cast<float>(v.low())); }
template <int E5M2>
SIMT_INLINE __half2 fp8_widen(uint16_t v) { return __half2(__half(fp8_to_float(v & 255, E5M2)), __half(fp8_to_float(v >> 8, E5M2))); }

// -- warps ---------------------------------------------------------------------------------------------------------------------
SIMT_INLINE uint32_t shfl(char mode, uint32_t v, uint32_t by, uint32_t c, uint32_t mask, bool& inside) {
    const uint32_t lane = lane_index(), segment = c >> 8 & 31, clamp = c & 31;
    const uint32_t most = (lane & segment) | (clamp & ~segment), least = lane & segment;
    int j = 0;
    switch (mode) {
        case 'u': j = static_cast<int>(lane) - static_cast<int>(by & 31), inside = j >= static_cast<int>(most); break;
        case 'd': j = static_cast<int>(lane + (by & 31)), inside = j <= static_cast<int>(most); break;
        case 'b': j = static_cast<int>(lane ^ (by & 31)), inside = j <= static_cast<int>(most); break;
        default: j = static_cast<int>(least | (by & ~segment & 31)), inside = j <= static_cast<int>(most);
    }
    return shuffle(mask, v, inside ? j : -1);
}
SIMT_INLINE uint32_t leader(uint32_t mask) { return static_cast<uint32_t>(__builtin_ctz(__ballot_sync(mask, 1))); }

// -- matrices of 8 x 8 16-bit elements: lane l holds elements 2 (l % 4) and the next of row l / 4 ---------------------------------
template <int N>
struct Rows {
    const void* row;       // of matrix lane / 8, row lane % 8
    uint32_t words[N];
};
template <int N, int TRANS>
SIMT_PLAIN void ldmatrix_all(Group& g) {
    if (!whole(g)) return;
    for (int lane = 0; lane < 32; ++lane) {
        Rows<N>& mine = *static_cast<Rows<N>*>(g.record[lane]);
        for (int m = 0; m < N; ++m) {
            uint16_t pair[2] = {};
            for (int i = 0; i < 2; ++i) {
                const int r = TRANS ? lane % 4 * 2 + i : lane / 4, c = TRANS ? lane / 4 : lane % 4 * 2 + i;
                pair[i] = static_cast<const uint16_t*>(static_cast<Rows<N>*>(g.record[8 * m + r])->row)[c];
            }
            mine.words[m] = static_cast<uint32_t>(pair[1]) << 16 | pair[0];
        }
    }
}
template <int N, int TRANS>
SIMT_INLINE void ldmatrix(const void* row, uint32_t (&to)[N]) {
    if (lane_index() < 8 * N) check_aligned(row, 16), note_read(row, 16);
    Rows<N> record{};
    record.row = row;
    collective(~0u, ldmatrix_all<N, TRANS>, &record, true);   // all lanes have read when one goes on, as in wmma's load_matrix_sync
    for (int i = 0; i < N; ++i) to[i] = record.words[i];
}
template <int N, int TRANS>
SIMT_PLAIN void stmatrix_all(Group& g) {
    if (!whole(g)) return;
    for (int lane = 0; lane < 32; ++lane) {
        Rows<N>& mine = *static_cast<Rows<N>*>(g.record[lane]);
        for (int m = 0; m < N; ++m)
            for (int i = 0; i < 2; ++i) {
                const int r = TRANS ? lane % 4 * 2 + i : lane / 4, c = TRANS ? lane / 4 : lane % 4 * 2 + i;
                static_cast<uint16_t*>(const_cast<void*>(static_cast<Rows<N>*>(g.record[8 * m + r])->row))[c] = static_cast<uint16_t>(mine.words[m] >> 16 * i);
            }
    }
}
template <int N, int TRANS>
SIMT_INLINE void stmatrix(void* row, const uint32_t (&from)[N]) {
    if (lane_index() < 8 * N) check_aligned(row, 16), note_write(row, 16);
    Rows<N> record;
    record.row = row;
    for (int i = 0; i < N; ++i) record.words[i] = from[i];
    collective(~0u, stmatrix_all<N, TRANS>, &record, false);
}

struct Turned { uint32_t word; };
template <int = 0>
SIMT_PLAIN void movmatrix_all(Group& g) {
    if (!whole(g)) return;
    uint32_t given[32];
    for (int lane = 0; lane < 32; ++lane) given[lane] = static_cast<Turned*>(g.record[lane])->word;
    for (int lane = 0; lane < 32; ++lane) {
        const int column = lane / 4;
        uint32_t found = 0;
        for (int i = 0; i < 2; ++i) found |= (given[(lane % 4 * 2 + i) * 4 + column / 2] >> 16 * (column % 2) & 0xffffu) << 16 * i;
        static_cast<Turned*>(g.record[lane])->word = found;
    }
}
SIMT_INLINE uint32_t movmatrix(uint32_t word) {
    Turned record{word};
    collective(~0u, movmatrix_all<0>, &record, false);
    return record.word;
}

// -- mma.sync m16n8k: of lane l, g = l / 4 and t = l % 4. Register r of a holds row g + 8 (r % 2) and, with P elements in a register,
// columns P t + i + 4 P (r / 2); of b rows P t + i + 4 P r of column g; c has rows g and g + 8, columns 2 t and 2 t + 1.
// -------------------------
struct F16 { static constexpr int P = 2; static double of(uint32_t w, int i) { return half_to_float(static_cast<uint16_t>(w >> 16 * i)); }
    };
struct BF16 { static constexpr int P = 2; static double of(uint32_t w, int i) { return bfloat_to_float(static_cast<uint16_t>(w >> 16 * i));
    } };
struct TF32 { static constexpr int P = 1; static double of(uint32_t w, int) { return bits<float>(w & ~0x1fffu); } };
struct S8 { static constexpr int P = 4; static double of(uint32_t w, int i) { return static_cast<int8_t>(w >> 8 * i); } };
struct U8 { static constexpr int P = 4; static double of(uint32_t w, int i) { return static_cast<uint8_t>(w >> 8 * i); } };
struct E4M3 { static constexpr int P = 4; static double of(uint32_t w, int i) { return fp8_to_float(w >> 8 * i & 255, 0); } };
struct E5M2 { static constexpr int P = 4; static double of(uint32_t w, int i) { return fp8_to_float(w >> 8 * i & 255, 1); } };
template <int NA, int NB, int NC>
struct Fragments { uint32_t a[NA], b[NB], c[NC]; };

template <int K, class A, class B, class D, int NA, int NB, int NC>
SIMT_PLAIN void mma_all(Group& g) {
    using F = Fragments<NA, NB, NC>;
    if (!whole(g)) return;
    double a[16][K], b[K][8];
    for (int lane = 0; lane < 32; ++lane) {
        const F& f = *static_cast<F*>(g.record[lane]);
        for (int r = 0; r < NA; ++r)
            for (int i = 0; i < A::P; ++i) a[lane / 4 + 8 * (r % 2)][A::P * (lane % 4) + i + 4 * A::P * (r / 2)] = A::of(f.a[r], i);
        for (int r = 0; r < NB; ++r)
            for (int i = 0; i < B::P; ++i) b[B::P * (lane % 4) + i + 4 * B::P * r][lane / 4] = B::of(f.b[r], i);
    }
    for (int lane = 0; lane < 32; ++lane) {
        F& f = *static_cast<F*>(g.record[lane]);
        for (int e = 0; e < 4; ++e) {
            const int row = lane / 4 + 8 * (e / 2), column = lane % 4 * 2 + e % 2;
            double sum = 0;
            for (int k = 0; k < K; ++k) sum += a[row][k] * b[k][column];
            if constexpr (std::is_same_v<D, float>) f.c[e] = bits<uint32_t>(static_cast<float>(sum + bits<float>(f.c[e])));
            else if constexpr (std::is_same_v<D, int32_t>) f.c[e] = static_cast<uint32_t>(static_cast<int64_t>(sum) + static_cast<int32_t>(f.c[e]));
            else {
                const int shift = 16 * (e % 2);
                const double old = half_to_float(static_cast<uint16_t>(f.c[e / 2] >> shift));
                f.c[e / 2] = (f.c[e / 2] & ~(0xffffu << shift)) | static_cast<uint32_t>(float_to_half(to_odd(sum + old))) << shift;
            }
        }
    }
}
template <int K, class A, class B, class D, int NA, int NB, int NC>
SIMT_INLINE void mma(const uint32_t (&a)[NA], const uint32_t (&b)[NB], uint32_t (&c)[NC]) {
    static_assert(NA * A::P * 32 == 16 * K && NB * B::P * 32 == 8 * K && NC == (sizeof(D) == 2 ? 2 : 4),
        "the registers that mma.sync of this shape takes");
    Fragments<NA, NB, NC> record;
    for (int i = 0; i < NA; ++i) record.a[i] = a[i];
    for (int i = 0; i < NB; ++i) record.b[i] = b[i];
    for (int i = 0; i < NC; ++i) record.c[i] = c[i];
    collective(~0u, mma_all<K, A, B, D, NA, NB, NC>, &record, false);
    for (int i = 0; i < NC; ++i) c[i] = record.c[i];
    note_float(16 * 8 * K / 32, 0);
}

// -- mma.sp m16n8k32 of 16 bits: a holds columns 2 t + i + 8 (r / 2) of the 16 kept ones; of each two kept, which belong to a group of four
// columns, the metadata have the places. Lane 4 g + 2 selector + h has those of groups 4 h to 4 h + 3: of row g in the low half, of row g +
// 8 in the high half, the first group lowest. ---------------
struct SparseFragments { uint32_t a[4], b[4], c[4], meta, selector; };
template <class A, class B>
SIMT_PLAIN void sparse_mma_all(Group& g) {
    if (!whole(g)) return;
    double a[16][32] = {}, b[32][8];
    const auto of = [&](int lane) -> SparseFragments& { return *static_cast<SparseFragments*>(g.record[lane]); };
    for (int lane = 0; lane < 32; ++lane) {
        const SparseFragments& f = of(lane);
        for (int r = 0; r < 4; ++r)
            for (int i = 0; i < 2; ++i) {
                const int row = lane / 4 + 8 * (r % 2), kept = 2 * (lane % 4) + i + 8 * (r / 2), group = kept / 2,
                    from = lane / 4 * 4 + 2 * f.selector + group / 4;
                const uint32_t code = of(from).meta >> (16 * (row / 8) + 4 * (group % 4)) & 15;
                a[row][4 * group + (kept % 2 ? code >> 2 : code & 3)] = A::of(f.a[r], i);
                b[2 * (lane % 4) + i + 8 * r][lane / 4] = B::of(f.b[r], i);
            }
    }
    for (int lane = 0; lane < 32; ++lane) {
        for (int e = 0; e < 4; ++e) {
            double sum = 0;
            for (int k = 0; k < 32; ++k) sum += a[lane / 4 + 8 * (e / 2)][k] * b[k][lane % 4 * 2 + e % 2];
            of(lane).c[e] = bits<uint32_t>(static_cast<float>(sum + bits<float>(of(lane).c[e])));
        }
    }
}
template <class A, class B>
SIMT_INLINE void sparse_mma(const uint32_t (&a)[4], const uint32_t (&b)[4], uint32_t (&c)[4], uint32_t meta, uint32_t selector) {
    if (selector > 1) simt::trap("mma.sp m16n8k32: a sparsity selector other than 0 and 1");
    for (int i = 0; i < 32 && lane_index() % 4 / 2 == selector; i += 4)
        if ((meta >> i & 3) >= (meta >> i >> 2 & 3)) simt::trap("mma.sp::ordered_metadata: metadata whose two places in a group of four do not rise");
    SparseFragments record;
    for (int i = 0; i < 4; ++i) record.a[i] = a[i], record.b[i] = b[i], record.c[i] = c[i];
    record.meta = meta, record.selector = selector;
    collective(~0u, sparse_mma_all<A, B>, &record, false);
    for (int i = 0; i < 4; ++i) c[i] = record.c[i];
    note_float(16 * 8 * 16 / 32, 0);
}
}  // namespace simt::ptx
