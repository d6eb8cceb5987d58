// 8-bit floating types: e4m3 (no infinity, largest 448) and e5m2 (largest 57344); conversions saturate, as CUDA's types do.
#pragma once
namespace simt {
SIMT_API float fp8_to_float(unsigned v, int e5m2) __attribute__((const));
SIMT_API unsigned fp8_of(float v, int e5m2, bool saturate = true) __attribute__((const));   // to the nearest, ties to even
}  // namespace simt
