// CUtensorMap, for which NVRTC has no header (cuda.h needs the host's C library). A kernel takes one by value, as `const __grid_constant__
// CUtensorMap map`; the head says which tensor it describes: "map: map = x[64, 64] swizzle 128" (docs/head.md).
#pragma once

#ifndef __cuda_cuda_h__
struct alignas(128) CUtensorMap {
    unsigned long long opaque[16];
};
#endif

/// Prefetches the map itself, 128 bytes, before the first copy that uses it. Called by one thread; may precede gdc_wait(), since no kernel
/// writes it.
__device__ inline void prefetch_map(const CUtensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<unsigned long long>(&map)) : "memory");
}
