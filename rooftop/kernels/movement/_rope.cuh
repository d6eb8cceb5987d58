// Rotary position embedding: cosines and sines from tables, and the rotation of two packs of a row, computed in float.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

/// An unsigned integer of so many bytes.
template <int BYTES>
struct Raw;
template <> struct Raw<16> { using type = uint4; };
template <> struct Raw<8> { using type = uint2; };
template <> struct Raw<4> { using type = unsigned; };
template <> struct Raw<2> { using type = unsigned short; };
template <> struct Raw<1> { using type = unsigned char; };

template <typename T>
struct Sixteen { static constexpr bool ANY = false, BRAIN = false; };
template <> struct Sixteen<__half> { static constexpr bool ANY = true, BRAIN = false; };
template <> struct Sixteen<__nv_bfloat16> { static constexpr bool ANY = true, BRAIN = true; };

/// V neighbouring elements of T, at an address that is a multiple of their bytes (of 16 if they are more than 16 bytes).
template <typename T, int V>
struct Row {
    static constexpr int BYTES = V * sizeof(T), WORD = BYTES < 16 ? BYTES : 16, WORDS = BYTES / WORD;
    static constexpr bool BRAIN = Sixteen<T>::BRAIN, PAIRS = Sixteen<T>::ANY && V % 2 == 0;  // two 16-bit elements are converted together
    using W = typename Raw<WORD>::type;
    W w[WORDS];

    __device__ void load(const T* p) {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) w[i] = reinterpret_cast<const W*>(p)[i];
    }
    __device__ void store(T* p) const {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) reinterpret_cast<W*>(p)[i] = w[i];
    }
    __device__ void widen(float (&f)[V]) const {
        if constexpr (PAIRS) {
#pragma unroll
            for (int i = 0; i < V / 2; ++i) {
                const unsigned two = reinterpret_cast<const unsigned*>(w)[i];
                if constexpr (BRAIN) {  // one instruction each
                    f[2 * i] = __uint_as_float(two << 16), f[2 * i + 1] = __uint_as_float(two & 0xffff0000u);
                } else {
                    const float2 v = __half22float2(reinterpret_cast<const __half2&>(two));
                    f[2 * i] = v.x, f[2 * i + 1] = v.y;
                }
            }
        } else {
#pragma unroll
            for (int i = 0; i < V; ++i) f[i] = static_cast<float>(reinterpret_cast<const T*>(w)[i]);
        }
    }
    __device__ void narrow(const float (&f)[V]) {
        if constexpr (PAIRS) {
#pragma unroll
            for (int i = 0; i < V / 2; ++i) {
                if constexpr (BRAIN) {
                    const __nv_bfloat162 v = __floats2bfloat162_rn(f[2 * i], f[2 * i + 1]);
                    reinterpret_cast<unsigned*>(w)[i] = reinterpret_cast<const unsigned&>(v);
                } else {
                    const __half2 v = __floats2half2_rn(f[2 * i], f[2 * i + 1]);
                    reinterpret_cast<unsigned*>(w)[i] = reinterpret_cast<const unsigned&>(v);
                }
            }
        } else {
#pragma unroll
            for (int i = 0; i < V; ++i) reinterpret_cast<T*>(w)[i] = T(f[i]);
        }
    }
};

/// Element i of an array of int32 or (wide) int64.
__device__ inline long long whole(const void* p, bool wide, long long i) {
    return wide ? static_cast<const long long*>(p)[i] : static_cast<const int*>(p)[i];
}

/// The lanes of a head of D elements, of which the first R are rotated: first ROT lanes that rotate two packs of V elements each, then
/// lanes that copy the COPY packs after them, two each.
template <int V, int ROT, int COPY>
struct Lanes {
    static constexpr int R = 2 * ROT * V, SIDE = (COPY + 1) / 2, N = ROT + SIDE;
    /// Where the two packs of a lane start. The last lane that copies may have only one.
    __device__ static int first(int lane) { return lane < ROT ? lane * V : R + (lane - ROT) * V; }
    __device__ static int second(int lane) { return lane < ROT ? (ROT + lane) * V : R + (SIDE + lane - ROT) * V; }
    __device__ static bool pair(int lane) { return lane < ROT || SIDE + lane - ROT < COPY; }
};

/// Which angle (of R / 2) rotates element i of a lane's two packs. `half`: element e is paired with e + R / 2, so both packs have the same
/// V angles.
/// Interleaved: 2e is paired with 2e + 1, so each pack has its own V / 2 angles; packs of one element are the two elements of a pair.
template <bool HALF, int V, int ROT>
__device__ int angle_of(int lane, int i) {
    if (HALF || V == 1) return lane * V + i;
    return (i < V / 2 ? lane : ROT + lane) * (V / 2) + i % (V / 2 > 0 ? V / 2 : 1);
}

/// The lanes' positions if packs of one element are the two elements of an interleaved pair.
template <bool HALF, int V, int ROT, int COPY>
struct Places : Lanes<V, ROT, COPY> {
    using L = Lanes<V, ROT, COPY>;
    static constexpr bool NEXT = !HALF && V == 1;
    __device__ static int first(int lane) { return NEXT && lane < ROT ? 2 * lane : L::first(lane); }
    __device__ static int second(int lane) { return NEXT && lane < ROT ? 2 * lane + 1 : L::second(lane); }
};

/// Cosines and sines of a lane's V angles, from one row of the tables (elements `step` apart).
template <typename C, bool HALF, int V, int ROT>
__device__ void read_angles(const C* cos, const C* sin, long long step, int lane, float (&c)[V], float (&s)[V]) {
    constexpr int RUN = HALF ? V : V / 2 > 0 ? V / 2 : 1;  // neighbours in a table
    if (step == 1 && reinterpret_cast<unsigned long long>(cos) % 16 == 0 && reinterpret_cast<unsigned long long>(sin) % 16 == 0) {
#pragma unroll
        for (int k = 0; k < V; k += RUN) {
            float f[RUN], g[RUN];
            Row<C, RUN> a, b;
            a.load(cos + angle_of<HALF, V, ROT>(lane, k));
            b.load(sin + angle_of<HALF, V, ROT>(lane, k));
            a.widen(f);
            b.widen(g);
#pragma unroll
            for (int i = 0; i < RUN; ++i) c[k + i] = f[i], s[k + i] = g[i];
        }
    } else {
#pragma unroll
        for (int i = 0; i < V; ++i) {
            const long long at = angle_of<HALF, V, ROT>(lane, i) * step;
            c[i] = static_cast<float>(cos[at]), s[i] = static_cast<float>(sin[at]);
        }
    }
}

/// Rotates (a, b) by the angle; each product and sum is rounded as in torch.
__device__ inline void turn(float& a, float& b, float c, float s) {
    const float x = __fsub_rn(__fmul_rn(a, c), __fmul_rn(b, s));
    b = __fadd_rn(__fmul_rn(b, c), __fmul_rn(a, s));
    a = x;
}

/// The two packs of a lane, rotated.
template <bool HALF, int V>
__device__ void rotate(float (&a)[V], float (&b)[V], const float (&c)[V], const float (&s)[V]) {
    if (HALF || V == 1) {
#pragma unroll
        for (int i = 0; i < V; ++i) turn(a[i], b[i], c[i], s[i]);
    } else {
#pragma unroll
        for (int i = 0; i < V / 2; ++i) {
            turn(a[2 * i], a[2 * i + 1], c[i], s[i]);
            turn(b[2 * i], b[2 * i + 1], c[V / 2 + i], s[V / 2 + i]);
        }
    }
}
