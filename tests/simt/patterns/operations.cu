/* rooftop
idea  = "Operations, and branches at which warps part: those of the source, not of what it calls. One block; a warp where nothing else is said."
args  = ["x: f32[N]", "out: f32[N]"]

[[launch]]
kernel = "half_pairs"
grid   = [1]
block  = [32]

[[launch]]
kernel = "half_products"
grid   = [1]
block  = [32]

[[launch]]
kernel = "halves_one_by_one"
grid   = [1]
block  = [32]

[[launch]]
kernel = "bfloat_pairs"
grid   = [1]
block  = [32]

[[launch]]
kernel = "functions"
grid   = [1]
block  = [32]

[[launch]]
kernel = "reductions"
grid   = [1]
block  = [32]

[[launch]]
kernel = "branches"
grid   = [1]
block  = [32]

[[launch]]
kernel = "early_return"
grid   = [1]
block  = [128]

[[launch]]
kernel = "loops"
grid   = [1]
block  = [32]

[[launch]]
kernel = "groups"
grid   = [1]
block  = [64]

[[launch]]
kernel = "copies_of_pairs"
grid   = [1]
block  = [32]
*/
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
namespace cg = cooperative_groups;

__global__ void half_pairs(const float* __restrict__ x, float* __restrict__ out) {
    const __half2* const pairs = reinterpret_cast<const __half2*>(x);
    const int t = threadIdx.x;
    const __half2 v = __hadd2(__hmul2(pairs[t], pairs[t]), pairs[t]);  // COUNT requests=1 sectors=4 ideal=4 flops=128: one read; a product and a sum of two
    const __half2 w = v * v - v;                                       // COUNT flops=128: a product and a difference of two
    reinterpret_cast<__half2*>(out)[t] = __hmax2(v, w);                // COUNT requests=1 sectors=4 ideal=4 flops=64: two maxima
}

__global__ void half_products(const float* __restrict__ x, float* __restrict__ out) {
    const __half2* const pairs = reinterpret_cast<const __half2*>(x);
    const int t = threadIdx.x;
    const __half2 v = __hfma2(pairs[t], pairs[t], pairs[t]);           // COUNT requests=1 sectors=4 ideal=4 fma=64: two a thread
    reinterpret_cast<__half2*>(out)[t] = v;                            // COUNT requests=1 sectors=4 ideal=4: a word a lane
}

__global__ void halves_one_by_one(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    const float f = __half2float(reinterpret_cast<const __half*>(x)[t]);  // COUNT requests=1 sectors=2 ideal=2 flops=0: a conversion
    const __half h = __float2half(f);                                     // COUNT flops=0: another
    const __half v = __hmul(h, h) + __hsub(h, __int2half_rn(t));          // COUNT flops=96: a product, a sum, a difference
    out[t] = __half2float(__hdiv(v, h));                                  // COUNT requests=1 sectors=4 ideal=4 flops=32: a quotient
}

__global__ void bfloat_pairs(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    const __nv_bfloat162 v = reinterpret_cast<const __nv_bfloat162*>(x)[t];  // COUNT requests=1 sectors=4 ideal=4: a word a lane
    const float2 f = __bfloat1622float2(v);                                  // COUNT flops=0: a conversion
    const __nv_bfloat162 w = __hmul2(v, v);                                  // COUNT flops=64: two products
    out[t] = f.x * __low2float(w) * __high2float(w);                         // COUNT requests=1 sectors=4 ideal=4 flops=64: two products
}

__global__ void functions(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    float v = rsqrtf(x[t]);                // COUNT requests=1 sectors=4 ideal=4 flops=32: one a thread, as any function
    v = fmaxf(v, __expf(v));               // COUNT flops=64: two functions
    v = fmaf(v, v, 1.0f);                  // COUNT fma=32: one a thread
    const int n = __float2int_rn(v);       // COUNT flops=0 parted=0: a conversion
    v = __saturatef(v);                    // COUNT flops=0 parted=0: done with what made the number
    out[t] = v + static_cast<float>(n);    // COUNT requests=1 sectors=4 ideal=4 flops=32: a sum
}

__global__ void reductions(const float* __restrict__ x, float* __restrict__ out) {
    const cg::thread_block_tile<32> tile = cg::tiled_partition<32>(cg::this_thread_block());
    const int t = threadIdx.x;
    float v = x[t];
    v = cg::reduce(tile, v, cg::plus<float>());                                            // COUNT flops=160 parted=0: five steps
    for (int by = tile.size() / 2; by > 0; by /= 2) v += tile.shfl_down(v, by);            // COUNT flops=160 parted=0: five steps
    for (int by = 16; by > 0; by /= 2) v += __shfl_xor_sync(~0u, v, by);                   // COUNT flops=160 parted=0: five steps
    for (int by = 16; by > 0; by /= 2) v += __shfl_down_sync(~0u, v, by);                  // COUNT flops=160 parted=0: five steps
    out[t] = v;                                                                            // COUNT requests=1 sectors=4 ideal=4: a word a lane
}

__global__ void branches(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float s[64];
    const int t = threadIdx.x;
    s[t] = x[t];
    if (t < 3) {                           // COUNT parted=1: three lanes, and the others
        s[t + 32] = x[t + 3];              // COUNT requests=1 wavefronts=1: three lanes
    }
    __syncthreads();
    if (t < 20)                            // COUNT parted=1: behind a barrier
        out[t] = s[t];                     // COUNT requests=1 sectors=3 ideal=3: 80 bytes
    if (t & 1) {                           // COUNT parted=1: odd lanes, even lanes
        out[t] = s[t] * 2;                 // COUNT requests=1 sectors=4 ideal=2 flops=16: every second word
    } else {
        out[t] = s[t] + 1;                 // COUNT requests=1 sectors=4 ideal=2 flops=16: every second word
    }
    __syncthreads();
    if (t / 32 == 0) out[t + 32] = s[t];   // COUNT requests=1 sectors=4 ideal=4 parted=0: all lanes
    for (int i = t; i < 40; i += 32)       // COUNT parted=1: lanes 0 to 7 come round again
        s[i] = s[i] + 1;                   // COUNT requests=2 wavefronts=2 flops=40: once for all, once for eight
}

__global__ void early_return(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    if (t >= 80) return;                        // COUNT parted=1: the third warp alone has both
    const float v = t % 4 ? x[t] : 0.0f;        // COUNT requests=3 sectors=10 ideal=8 parted=3: every warp that is left
    out[t] = v;                                 // COUNT requests=3 sectors=10 ideal=10: 320 bytes
}

__global__ void loops(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    float v = x[t];
    for (int i = 0; i < t % 4; ++i)             // COUNT parted=3: before the first time, and after the first and second
        v = fmaf(v, 0.5f, 1.0f);                // COUNT fma=48: 0, 1, 2 and 3 times, by eight lanes each
    out[t] = v;                                 // COUNT requests=1 sectors=4 ideal=4: together again
}

__global__ void groups(const float* __restrict__ x, float* __restrict__ out) {
    const cg::thread_block_tile<8> tile = cg::tiled_partition<8>(cg::this_thread_block());
    const int t = threadIdx.x;
    int v = static_cast<int>(x[t]) & 1;
    v += tile.shfl_xor(v, 4), v += tile.shfl_xor(v, 2), v += tile.shfl_up(v, 1);  // COUNT parted=0: the branches are the simulator's
    const unsigned some = tile.ballot(v > 3) + tile.match_any(v);                 // COUNT parted=0: and these
    if (t % 8 == 0)                                                               // COUNT parted=2: in both warps
        out[t] = static_cast<float>(some);                                        // COUNT requests=2 sectors=8 ideal=2: every eighth word
}

struct Both { __half2 a, b; };
__global__ void copies_of_pairs(const float* __restrict__ x, float* __restrict__ out) {
    const __half2* const pairs = reinterpret_cast<const __half2*>(x);
    const int t = threadIdx.x;
    const __half2 first = pairs[t];                             // COUNT requests=1 sectors=4 ideal=4: a word a lane
    const __half2 sum = __hadd2(first, pairs[t]);               // COUNT flops=64: what was read is at hand
    reinterpret_cast<Both*>(out)[t] = {sum, first};             // COUNT flops=0: moves
}
