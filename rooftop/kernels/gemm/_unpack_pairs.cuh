// Unpacks pairs of codes of a low-bit weight (rooftop/formats/packed.py) to two 16-bit floats with one shift a field: 3 instructions a pair
// of int4 or int2, 4 of int8, 5 of fp4 or fp8, 7 of fp6. The values are those of pair_of in _unpack.cuh.
#pragma once
#include "_unpack.cuh"

/// (~a & mask) | or_
__device__ inline unsigned masked_not(unsigned a, unsigned mask, unsigned or_) {
    unsigned d;
    asm("lop3.b32 %0, %1, %2, %3, 0xae;" : "=r"(d) : "r"(a), "r"(mask), "r"(or_));
    return d;
}

/// a shifted left by BY bits, or right if BY is negative.
template <int BY>
__device__ inline unsigned moved(unsigned a) {
    if constexpr (BY >= 0) return a << BY;
    else return a >> -BY;
}

/// The offset that `unpacked` leaves in u with RAW: the smallest power of two from which neighbouring bf16 numbers are 1 apart.
constexpr int RAW_OFFSET = 128;

/// Pair Q of a lane's share of a block of 128 columns. Int formats: u - MIDDLE, or with RAW (bf16, int4 and int2) u + 128, which saves an
/// instruction; float
/// formats: the value. `words`: the lane's words, plane by plane.
template <typename T, int F, int Q, bool RAW>
__device__ inline unsigned unpacked(const unsigned* words) {
    using C = Code<F>;
    constexpr bool HALF = Pair<T>::MANTISSA == 10;
    if constexpr (F == INT8) {
        const unsigned u = words[Q / 2] >> 8 * (Q % 2);
        if constexpr (HALF) return less<T>(masked(u, 0x00ff00ffu, 0x64006400u), 0x64806480u);                 // 1024 + u - 1152
        // 128 + the low seven bits, less 128 or 256
        else return less<T>(masked(u, 0x007f007fu, 0x43004300u), masked_not(u, 0x00800080u, 0x43004300u));
    } else if constexpr (C::INT) {
        constexpr int PER = 16 / C::BITS;
        constexpr unsigned MASK = ((1u << C::BITS) - 1) * 0x10001u, MAGIC = HALF ? 0x64006400u : 0x43004300u;
        const unsigned above = masked(words[Q / PER] >> C::BITS * (Q % PER), MASK, MAGIC);
        return RAW ? above : less<T>(above, MAGIC + C::MIDDLE * 0x10001u);
    } else {
        // Sign and magnitude bits are moved to their positions in T; a multiplication by a power of two then corrects the exponent's bias.
        // Subnormal numbers become right too.
        constexpr int UP = Pair<T>::MANTISSA - C::MANTISSA, BY = Pair<T>::BIAS - C::BIAS;
        constexpr unsigned SIGN = 0x80008000u, POWER = (static_cast<unsigned>(BY + Pair<T>::BIAS) << Pair<T>::MANTISSA) * 0x10001u;
        unsigned placed;
        if constexpr (C::BITS == 6) {
            constexpr int LOW = 4 * (Q % 4), HIGH = 2 * (Q % 8);  // the positions of the low four and of the high two bits
            const unsigned top = words[8 + Q / 8];
            placed = moved<UP - LOW>(words[Q / 4]) & (0xfu << UP) * 0x10001u;
            placed = masked(moved<UP + 4 - HIGH>(top), (0x10u << UP) * 0x10001u, placed);
            placed = masked(moved<14 - HIGH>(top), SIGN, placed);
        } else {
            constexpr int PER = 16 / C::BITS, AT = C::BITS * (Q % PER);
            constexpr unsigned SIZE = (((1u << (C::BITS - 1)) - 1) << UP) * 0x10001u;
            const unsigned word = words[Q / PER];
            placed = masked(moved<16 - C::BITS - AT>(word), SIGN, moved<UP - AT>(word) & SIZE);
        }
        if constexpr (BY == 0) return placed;
        else return times<T>(placed, POWER);
    }
}

/// The same product as `multiply`, with an accumulator of zero.
__device__ inline void multiply_first(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, const __half*) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.f));
}
__device__ inline void multiply_first(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, const __nv_bfloat16*) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.f));
}

/// cp.async of 16 bytes that bypasses the L1; the first `size` bytes are copied, the rest is filled with zeros.
__device__ inline void copy_async(unsigned to,
    const void* from) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory"); }
__device__ inline void copy_async(unsigned to, const void* from, int size) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(size) : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT>
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

/// ldmatrix: four 8 x 8 matrices of 16-bit numbers; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline uint4 load_matrices(unsigned from) {
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z),
        "=r"(v.w) : "r"(from) : "memory");
    return v;
}
