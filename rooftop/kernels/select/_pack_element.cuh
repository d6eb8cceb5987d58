// Element number i of a pack of 16 bytes, by selections: registers cannot be indexed.
#pragma once

template <typename B>
__device__ B picked_bits(const uint4& v, unsigned j) {
    if constexpr (sizeof(B) == 8) {
        const unsigned low = j ? v.z : v.x, high = j ? v.w : v.y;
        return static_cast<B>(high) << 32 | low;
    } else {
        const unsigned w = sizeof(B) == 4 ? j : j / 2, a = w & 1 ? v.y : v.x, b = w & 1 ? v.w : v.z, word = w & 2 ? b : a;
        return sizeof(B) == 4 ? static_cast<B>(word) : static_cast<B>(j & 1 ? word >> 16 : word);
    }
}
