// Rows of a CSR matrix: vectors of W elements, and which row an element is in.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <int BYTES>
struct Bits;
template <> struct Bits<2> { using type = unsigned short; };
template <> struct Bits<4> { using type = unsigned; };
template <> struct Bits<8> { using type = uint2; };
template <> struct Bits<16> { using type = uint4; };

/// W neighbours in memory, at an address that is a multiple of their bytes.
template <typename T, int W>
struct alignas(sizeof(T) * W) Vector {
    T v[W];
    __device__ static Vector load(const T* p) {
        using B = typename Bits<sizeof(T) * W>::type;
        B bits = *reinterpret_cast<const B*>(p);
        return *reinterpret_cast<Vector*>(&bits);
    }
    __device__ void store(T* p) const {
        using B = typename Bits<sizeof(T) * W>::type;
        *reinterpret_cast<B*>(p) = *reinterpret_cast<const B*>(this);
    }
};

/// The row of element x: the last m with offsets[m] <= x. By a whole warp, a 32-ary search; 0 <= x < offsets[M].
__device__ inline int row_of(const int* __restrict__ offsets, int M, int x) {
    int low = 0, high = M;
    while (high - low > 1) {
        const int step = (high - low + 31) / 32, probe = low + (threadIdx.x % 32 + 1) * step;
        const int count = __popc(__ballot_sync(~0u, probe < high && offsets[probe] <= x));
        low += count * step;
        high = min(high, low + step);
    }
    return low;
}
