/* rooftop
idea    = """Each thread finds the source of each of its packs of the result (the past or the new part) with three 32-bit divisions, and \
  keeps several packs in flight. One launch, for any strides of the two inputs."""
predict = { speedup = 1.0 }
limit   = "The copy of the same bytes."
dtypes  = [
    "f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2", "f8e8m0", "f4e2m1x2", "c64", "u64", "u32", "u16", "i64", "i32", "i16", "i8", "u8",
    "bool",
]
python  = ["supports", "choose", "launches"]
args    = ["past: T[A, B, P, C]", "new: T[A, B, N, C]", "out: T[A, B, S, C]"]
demands = { spills = 0 }

[config]
width = 16
reps  = 2
*/
#include "pdl.cuh"
#include "_rope.cuh"

// out [A, B, S, L] in words of BYTES bytes, contiguous; tokens below P come from past, the others from new. Strides in words. REPS words a
// thread.
template <int BYTES, int REPS>
__global__ void __launch_bounds__(256) concat(
    const void* past, long long pa, long long pb, long long ps, const void* added, long long na, long long nb, long long ns, void* out,
    unsigned total, unsigned B, unsigned S, unsigned P, unsigned L) {
    using W = typename Raw<BYTES>::type;
    const unsigned first = blockIdx.x * (256 * REPS) + threadIdx.x;
    W w[REPS];
    gdc_wait();
#pragma unroll
    for (int u = 0; u < REPS; ++u) {
        const unsigned at = first + u * 256;
        if (at >= total) continue;
        const unsigned row = at / L, lane = at - row * L, pair = row / S, token = row - pair * S, a = pair / B, b = pair - a * B;
        const W* from = token < P ? static_cast<const W*>(past) + a * pa + b * pb + token * ps : static_cast<const W*>(added) + a * na
            + b * nb + (token - P) * ns;
        w[u] = from[lane];
    }
#pragma unroll
    for (int u = 0; u < REPS; ++u) {
        const unsigned at = first + u * 256;
        if (at < total) static_cast<W*>(out)[at] = w[u];
    }
}
