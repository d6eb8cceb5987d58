/* rooftop
idea  = "Four bytes a lane of shared memory: a wavefront serves each of the 32 banks with one word, to as many lanes as ask for it. 128 threads: four warps."
args  = ["x: f32[N]", "out: f32[N]"]

[[launch]]
kernel = "linear"
grid   = [1]
block  = [128]

[[launch]]
kernel = "stride_2"
grid   = [1]
block  = [128]

[[launch]]
kernel = "stride_4"
grid   = [1]
block  = [128]

[[launch]]
kernel = "stride_8"
grid   = [1]
block  = [128]

[[launch]]
kernel = "stride_16"
grid   = [1]
block  = [128]

[[launch]]
kernel = "stride_32"
grid   = [1]
block  = [128]

[[launch]]
kernel = "stride_3"
grid   = [1]
block  = [128]

[[launch]]
kernel = "stride_33"
grid   = [1]
block  = [128]

[[launch]]
kernel = "stride_6"
grid   = [1]
block  = [128]

[[launch]]
kernel = "broadcast"
grid   = [1]
block  = [128]

[[launch]]
kernel = "pairs"
grid   = [1]
block  = [128]

[[launch]]
kernel = "two_words_of_a_bank"
grid   = [1]
block  = [128]

[[launch]]
kernel = "reversed"
grid   = [1]
block  = [128]

[[launch]]
kernel = "permuted"
grid   = [1]
block  = [128]

[[launch]]
kernel = "column_of_32"
grid   = [1]
block  = [128]

[[launch]]
kernel = "column_of_33"
grid   = [1]
block  = [128]

[[launch]]
kernel = "column_swizzled"
grid   = [1]
block  = [128]

[[launch]]
kernel = "store_stride_32"
grid   = [1]
block  = [128]

[[launch]]
kernel = "sixteen_lanes_stride_2"
grid   = [1]
block  = [128]

[[launch]]
kernel = "sixteen_lanes_stride_4"
grid   = [1]
block  = [128]

[[launch]]
kernel = "block_16x8_rows_of_16"
grid   = [1]
block  = [16, 8]

[[launch]]
kernel = "block_16x8_rows_of_17"
grid   = [1]
block  = [16, 8]
*/
__global__ void linear(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float s[128];
    const int t = threadIdx.x;
    for (int i = t; i < 128; i += 128) s[i] = x[i];
    __syncthreads();
    const float v = s[t];  // COUNT requests=4 wavefronts=4: 32 banks, a word each
    out[t] = v;            // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void stride_2(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float s[256];
    const int t = threadIdx.x;
    for (int i = t; i < 256; i += 128) s[i] = x[i];
    __syncthreads();
    const float v = s[t * 2];  // COUNT requests=4 wavefronts=8: 16 banks, 2 words each
    out[t] = v;                // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void stride_4(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float s[512];
    const int t = threadIdx.x;
    for (int i = t; i < 512; i += 128) s[i] = x[i];
    __syncthreads();
    const float v = s[t * 4];  // COUNT requests=4 wavefronts=16: 8 banks, 4 words each
    out[t] = v;                // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void stride_8(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float s[1024];
    const int t = threadIdx.x;
    for (int i = t; i < 1024; i += 128) s[i] = x[i];
    __syncthreads();
    const float v = s[t * 8];  // COUNT requests=4 wavefronts=32: 4 banks, 8 words each
    out[t] = v;                // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void stride_16(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float s[2048];
    const int t = threadIdx.x;
    for (int i = t; i < 2048; i += 128) s[i] = x[i];
    __syncthreads();
    const float v = s[t * 16];  // COUNT requests=4 wavefronts=64: 2 banks, 16 words each
    out[t] = v;                 // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void stride_32(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float s[4096];
    const int t = threadIdx.x;
    for (int i = t; i < 4096; i += 128) s[i] = x[i];
    __syncthreads();
    const float v = s[t * 32];  // COUNT requests=4 wavefronts=128: 1 bank, 32 words each
    out[t] = v;                 // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void stride_3(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float s[384];
    const int t = threadIdx.x;
    for (int i = t; i < 384; i += 128) s[i] = x[i];
    __syncthreads();
    const float v = s[t * 3];  // COUNT requests=4 wavefronts=4: an odd stride meets every bank once
    out[t] = v;                // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void stride_33(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float s[4224];
    const int t = threadIdx.x;
    for (int i = t; i < 4224; i += 128) s[i] = x[i];
    __syncthreads();
    const float v = s[t * 33];  // COUNT requests=4 wavefronts=4: the same
    out[t] = v;                 // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void stride_6(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float s[768];
    const int t = threadIdx.x;
    for (int i = t; i < 768; i += 128) s[i] = x[i];
    __syncthreads();
    const float v = s[t * 6];  // COUNT requests=4 wavefronts=8: gcd(6, 32) = 2: 16 banks, two words each
    out[t] = v;                // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void broadcast(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float s[128];
    const int t = threadIdx.x;
    for (int i = t; i < 128; i += 128) s[i] = x[i];
    __syncthreads();
    const float v = s[0];  // COUNT requests=4 wavefronts=4: one word for all lanes
    out[t] = v;            // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void pairs(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float s[128];
    const int t = threadIdx.x;
    for (int i = t; i < 128; i += 128) s[i] = x[i];
    __syncthreads();
    const float v = s[t / 2];  // COUNT requests=4 wavefronts=4: two lanes a word, 16 banks
    out[t] = v;                // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void two_words_of_a_bank(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float s[128];
    const int t = threadIdx.x;
    for (int i = t; i < 128; i += 128) s[i] = x[i];
    __syncthreads();
    const float v = s[t % 2 * 32];  // COUNT requests=4 wavefronts=8: two words, both of bank 0
    out[t] = v;                     // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void reversed(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float s[128];
    const int t = threadIdx.x;
    for (int i = t; i < 128; i += 128) s[i] = x[i];
    __syncthreads();
    const float v = s[127 - t];  // COUNT requests=4 wavefronts=4: the order of lanes does not matter
    out[t] = v;                  // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void permuted(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float s[128];
    const int t = threadIdx.x;
    for (int i = t; i < 128; i += 128) s[i] = x[i];
    __syncthreads();
    const float v = s[t ^ 13];  // COUNT requests=4 wavefronts=4: a permutation within 16 neighbours
    out[t] = v;                 // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void column_of_32(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float s[1024];
    const int t = threadIdx.x;
    for (int i = t; i < 1024; i += 128) s[i] = x[i];
    __syncthreads();
    const float v = s[t % 32 * 32 + t / 32];  // COUNT requests=4 wavefronts=128: a column of [32][32]: one bank
    out[t] = v;                               // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void column_of_33(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float s[1056];
    const int t = threadIdx.x;
    for (int i = t; i < 1056; i += 128) s[i] = x[i];
    __syncthreads();
    const float v = s[t % 32 * 33 + t / 32];  // COUNT requests=4 wavefronts=4: a column of [32][33]: bank (lane + column) % 32
    out[t] = v;                               // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void column_swizzled(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float s[1024];
    const int t = threadIdx.x;
    for (int i = t; i < 1024; i += 128) s[i] = x[i];
    __syncthreads();
    const float v = s[t % 32 * 32 + (t / 32 ^ t % 32)];  // COUNT requests=4 wavefronts=4: column ^ row: every bank once
    out[t] = v;                                          // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void store_stride_32(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float s[4096];
    const int t = threadIdx.x;
    const float u = x[t];               // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
    s[t * 32] = u;                      // COUNT requests=4 wavefronts=128: one bank, 32 words
    __syncthreads();
    const float v = s[(127 - t) * 32];  // COUNT requests=4 wavefronts=128: the same, backwards
    out[t] = v;                         // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void sixteen_lanes_stride_2(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float s[256];
    const int t = threadIdx.x;
    for (int i = t; i < 256; i += 128) s[i] = x[i];
    __syncthreads();
    if (t % 32 < 16) {
        const float v = s[t * 2];  // COUNT requests=4 wavefronts=4: 16 lanes, 16 even banks
        out[t] = v;                // COUNT requests=4 sectors=8 ideal=8: 64 bytes
    }
}

__global__ void sixteen_lanes_stride_4(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float s[512];
    const int t = threadIdx.x;
    for (int i = t; i < 512; i += 128) s[i] = x[i];
    __syncthreads();
    if (t % 32 < 16) {
        const float v = s[t * 4];  // COUNT requests=4 wavefronts=8: 8 banks, two words each
        out[t] = v;                // COUNT requests=4 sectors=8 ideal=8: 64 bytes
    }
}

__global__ void block_16x8_rows_of_16(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float s[8][16];
    const int t = threadIdx.y * 16 + threadIdx.x;
    s[threadIdx.y][threadIdx.x] = x[t];
    __syncthreads();
    const float v = s[7 - threadIdx.y][threadIdx.x];  // COUNT requests=4 wavefronts=4: two rows of 16 are 32 neighbours
    out[t] = v;                                       // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void block_16x8_rows_of_17(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float s[8][17];
    const int t = threadIdx.y * 16 + threadIdx.x;
    s[threadIdx.y][threadIdx.x] = x[t];
    __syncthreads();
    const float v = s[7 - threadIdx.y][threadIdx.x];  // COUNT requests=4 wavefronts=8: two rows span 33 words: the first and the last meet in a bank
    out[t] = v;                                       // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}
