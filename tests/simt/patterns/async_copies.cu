/* rooftop
idea  = "Asynchronous copies: what their writes to shared memory cost by where they come from and where they go. One warp; the counters of a card answer."
args  = ["x: f32[N]", "out: f32[N]"]

[[launch]]
kernel = "copy4_line"
grid   = [1]
block  = [32]

[[launch]]
kernel = "copy4_two_lines"
grid   = [1]
block  = [32]

[[launch]]
kernel = "copy4_four_lines"
grid   = [1]
block  = [32]

[[launch]]
kernel = "copy4_own_lines"
grid   = [1]
block  = [32]

[[launch]]
kernel = "copy4_one_word"
grid   = [1]
block  = [32]

[[launch]]
kernel = "copy4_one_bank"
grid   = [1]
block  = [32]

[[launch]]
kernel = "copy4_turned"
grid   = [1]
block  = [32]

[[launch]]
kernel = "copy4_turned_unpadded"
grid   = [1]
block  = [32]

[[launch]]
kernel = "copy8_lines"
grid   = [1]
block  = [32]

[[launch]]
kernel = "copy8_eights"
grid   = [1]
block  = [32]

[[launch]]
kernel = "copy8_one_bank"
grid   = [1]
block  = [32]

[[launch]]
kernel = "copy16_lines"
grid   = [1]
block  = [32]

[[launch]]
kernel = "copy16_halves"
grid   = [1]
block  = [32]

[[launch]]
kernel = "copy16_halves_apart"
grid   = [1]
block  = [32]

[[launch]]
kernel = "copy16_own_lines"
grid   = [1]
block  = [32]

[[launch]]
kernel = "copy16_across"
grid   = [1]
block  = [32]

[[launch]]
kernel = "copy16_across_from"
grid   = [1]
block  = [32]

[[launch]]
kernel = "copy16_swizzled"
grid   = [1]
block  = [32]

[[launch]]
kernel = "copy16_column"
grid   = [1]
block  = [32]

[[launch]]
kernel = "copy16_rows_mixed"
grid   = [1]
block  = [32]
*/
#include <cuda_pipeline.h>

__global__ void copy4_line(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(128) float s[1280];
    const int lane = threadIdx.x;
    __pipeline_memcpy_async(s + lane, x + lane, 4);  // COUNT requests=1 sectors=4 ideal=4: a whole line of global memory
    __pipeline_commit();
    __pipeline_wait_prior(0);
    out[lane] = s[lane];
}

__global__ void copy4_two_lines(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(128) float s[1280];
    const int lane = threadIdx.x;
    __pipeline_memcpy_async(s + lane, x + lane / 16 * 64 + lane % 16, 4);  // COUNT requests=1 sectors=4 ideal=4: two sectors of each of two lines
    __pipeline_commit();
    __pipeline_wait_prior(0);
    out[lane] = s[lane];
}

__global__ void copy4_four_lines(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(128) float s[1280];
    const int lane = threadIdx.x;
    __pipeline_memcpy_async(s + lane, x + lane / 8 * 64 + lane % 8, 4);  // COUNT requests=1 sectors=4 ideal=4: one sector of each of four lines
    __pipeline_commit();
    __pipeline_wait_prior(0);
    out[lane] = s[lane];
}

__global__ void copy4_own_lines(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(128) float s[1280];
    const int lane = threadIdx.x;
    __pipeline_memcpy_async(s + lane, x + lane * 32, 4);  // COUNT requests=1 sectors=32 ideal=4: a sector of a line each
    __pipeline_commit();
    __pipeline_wait_prior(0);
    out[lane] = s[lane];
}

__global__ void copy4_one_word(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(128) float s[1280];
    const int lane = threadIdx.x;
    __pipeline_memcpy_async(s + lane, x, 4);  // COUNT requests=1 sectors=1: one word for all
    __pipeline_commit();
    __pipeline_wait_prior(0);
    out[lane] = s[lane];
}

__global__ void copy4_one_bank(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(128) float s[1280];
    const int lane = threadIdx.x;
    __pipeline_memcpy_async(s + lane * 32, x + lane, 4);  // COUNT requests=1 sectors=4 ideal=4: a whole line, into one bank
    __pipeline_commit();
    __pipeline_wait_prior(0);
    out[lane] = s[lane * 32];
}

__global__ void copy4_turned(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(128) float s[1280];
    const int lane = threadIdx.x;
    __pipeline_memcpy_async(s + lane % 8 * 132 + lane / 8, x + lane / 8 * 64 + lane % 8, 4);  // COUNT requests=1 sectors=4 ideal=4: four rows of eight, turned, with rows of shared memory that are padded
    __pipeline_commit();
    __pipeline_wait_prior(0);
    out[lane] = s[lane % 8 * 132 + lane / 8];
}

__global__ void copy4_turned_unpadded(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(128) float s[1280];
    const int lane = threadIdx.x;
    __pipeline_memcpy_async(s + lane % 8 * 128 + lane / 8, x + lane / 8 * 64 + lane % 8, 4);  // COUNT requests=1 sectors=4 ideal=4: four rows of eight, turned
    __pipeline_commit();
    __pipeline_wait_prior(0);
    out[lane] = s[lane % 8 * 128 + lane / 8];
}

__global__ void copy8_lines(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(128) float s[1280];
    const int lane = threadIdx.x;
    __pipeline_memcpy_async(s + lane * 2, x + lane * 2, 8);  // COUNT requests=1 sectors=8 ideal=8: two whole lines
    __pipeline_commit();
    __pipeline_wait_prior(0);
    out[lane] = s[lane * 2];
}

__global__ void copy8_eights(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(128) float s[1280];
    const int lane = threadIdx.x;
    __pipeline_memcpy_async(s + lane * 2, x + lane / 8 * 64 + lane % 8 * 2, 8);  // COUNT requests=1 sectors=8 ideal=8: two sectors of each of four lines
    __pipeline_commit();
    __pipeline_wait_prior(0);
    out[lane] = s[lane * 2];
}

__global__ void copy8_one_bank(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(128) float s[1280];
    const int lane = threadIdx.x;
    __pipeline_memcpy_async(s + lane * 32, x + lane * 2, 8);  // COUNT requests=1 sectors=8 ideal=8: two whole lines, into two banks
    __pipeline_commit();
    __pipeline_wait_prior(0);
    out[lane] = s[lane * 32];
}

__global__ void copy16_lines(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(128) float s[1280];
    const int lane = threadIdx.x;
    __pipeline_memcpy_async(s + lane * 4, x + lane * 4, 16);  // COUNT requests=1 sectors=16 ideal=16: four whole lines
    __pipeline_commit();
    __pipeline_wait_prior(0);
    out[lane] = s[lane * 4];
}

__global__ void copy16_halves(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(128) float s[1280];
    const int lane = threadIdx.x;
    __pipeline_memcpy_async(s + lane * 4, x + lane / 4 * 64 + lane % 4 * 4, 16);  // COUNT requests=1 sectors=16 ideal=16: half of each of eight lines, side by side
    __pipeline_commit();
    __pipeline_wait_prior(0);
    out[lane] = s[lane * 4];
}

__global__ void copy16_halves_apart(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(128) float s[1280];
    const int lane = threadIdx.x;
    __pipeline_memcpy_async(s + lane / 4 * 32 + lane % 4 * 4, x + lane / 4 * 64 + lane % 4 * 4, 16);  // COUNT requests=1 sectors=16 ideal=16: half of each of eight lines, into a row each
    __pipeline_commit();
    __pipeline_wait_prior(0);
    out[lane] = s[lane / 4 * 32 + lane % 4 * 4];
}

__global__ void copy16_own_lines(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(128) float s[1280];
    const int lane = threadIdx.x;
    __pipeline_memcpy_async(s + lane * 4, x + lane * 32, 16);  // COUNT requests=1 sectors=32 ideal=16: a sector of a line each, side by side
    __pipeline_commit();
    __pipeline_wait_prior(0);
    out[lane] = s[lane * 4];
}

__global__ void copy16_across(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(128) float s[1280];
    const int lane = threadIdx.x;
    __pipeline_memcpy_async(s + 16 + lane * 4, x + lane * 4, 16);  // COUNT requests=1 sectors=16 ideal=16: four whole lines, each across two rows of shared memory
    __pipeline_commit();
    __pipeline_wait_prior(0);
    out[lane] = s[16 + lane * 4];
}

__global__ void copy16_across_from(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(128) float s[1280];
    const int lane = threadIdx.x;
    __pipeline_memcpy_async(s + lane * 4, x + 16 + lane * 4, 16);  // COUNT requests=1 sectors=16 ideal=16: half a line, three whole ones and half a line
    __pipeline_commit();
    __pipeline_wait_prior(0);
    out[lane] = s[lane * 4];
}

__global__ void copy16_swizzled(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(128) float s[1280];
    const int lane = threadIdx.x;
    __pipeline_memcpy_async(s + lane / 8 * 32 + (lane % 8 ^ lane / 8) * 4, x + lane * 4, 16);  // COUNT requests=1 sectors=16 ideal=16: four whole lines, in another order in each row
    __pipeline_commit();
    __pipeline_wait_prior(0);
    out[lane] = s[lane / 8 * 32 + (lane % 8 ^ lane / 8) * 4];
}

__global__ void copy16_column(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(128) float s[1280];
    const int lane = threadIdx.x;
    __pipeline_memcpy_async(s + lane * 32, x + lane * 4, 16);  // COUNT requests=1 sectors=32 ideal=16: four whole lines, each lane to another row: each asks for its sector
    __pipeline_commit();
    __pipeline_wait_prior(0);
    out[lane] = s[lane * 32];
}

__global__ void copy16_rows_mixed(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(128) float s[1280];
    const int lane = threadIdx.x;
    __pipeline_memcpy_async(s + lane % 4 * 32 + lane / 4 * 4, x + lane * 4, 16);  // COUNT requests=1 sectors=32 ideal=16: four whole lines, no two neighbours to one row: each lane asks for its sector
    __pipeline_commit();
    __pipeline_wait_prior(0);
    out[lane] = s[lane % 4 * 32 + lane / 4 * 4];
}
