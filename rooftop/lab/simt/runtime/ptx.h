// What inline PTX is translated to (rooftop/lab/simt/ptx.py says which instruction becomes which call).
#pragma once
namespace simt::ptx {
SIMT_INLINE float ex2(float x) { return exp2f(x); }
SIMT_INLINE float lg2(float x) { return log2f(x); }
}  // namespace simt::ptx
