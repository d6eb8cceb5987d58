/* rooftop
idea  = "Four bytes a lane of global memory: strides, offsets, orders, and warps that are not full. 128 threads: four warps, four requests."
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
kernel = "offset_1"
grid   = [1]
block  = [128]

[[launch]]
kernel = "offset_8"
grid   = [1]
block  = [128]

[[launch]]
kernel = "broadcast"
grid   = [1]
block  = [128]

[[launch]]
kernel = "broadcast_by_warp"
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
kernel = "pairs"
grid   = [1]
block  = [128]

[[launch]]
kernel = "store_stride_2"
grid   = [1]
block  = [128]

[[launch]]
kernel = "store_column"
grid   = [1]
block  = [128]

[[launch]]
kernel = "ten_lanes"
grid   = [1]
block  = [128]

[[launch]]
kernel = "even_lanes"
grid   = [1]
block  = [128]

[[launch]]
kernel = "one_warp_of_four"
grid   = [1]
block  = [128]

[[launch]]
kernel = "one_lane"
grid   = [1]
block  = [128]
*/
__global__ void linear(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    const float v = x[t];  // COUNT requests=4 sectors=16 ideal=16: 32 neighbours are 128 bytes
    out[t] = v;            // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void stride_2(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    const float v = x[t * 2];  // COUNT requests=4 sectors=32 ideal=16: 256 bytes, every second float
    out[t] = v;                // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void stride_4(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    const float v = x[t * 4];  // COUNT requests=4 sectors=64 ideal=16: 512 bytes, two floats of each sector
    out[t] = v;                // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void stride_8(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    const float v = x[t * 8];  // COUNT requests=4 sectors=128 ideal=16: a sector a lane
    out[t] = v;                // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void stride_16(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    const float v = x[t * 16];  // COUNT requests=4 sectors=128 ideal=16: a sector a lane
    out[t] = v;                 // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void stride_32(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    const float v = x[t * 32];  // COUNT requests=4 sectors=128 ideal=16: a sector a lane
    out[t] = v;                 // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void stride_3(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    const float v = x[t * 3];  // COUNT requests=4 sectors=48 ideal=16: 94 floats are 376 bytes, from a multiple of 384: 12 sectors
    out[t] = v;                // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void offset_1(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    const float v = x[t + 1];  // COUNT requests=4 sectors=20 ideal=16: bytes 4 to 131 of each 128: the four sectors and one more
    out[t] = v;                // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void offset_8(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    const float v = x[t + 8];  // COUNT requests=4 sectors=16 ideal=16: a sector further, nothing cut
    out[t] = v;                // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void broadcast(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    const float v = x[0];  // COUNT requests=4 sectors=4: one word, one sector
    out[t] = v;            // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void broadcast_by_warp(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    const float v = x[t / 32 * 32];  // COUNT requests=4 sectors=4: one word a warp
    out[t] = v;                      // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void reversed(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    const float v = x[127 - t];  // COUNT requests=4 sectors=16 ideal=16: the order of lanes does not matter
    out[t] = v;                  // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void permuted(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    const float v = x[t ^ 13];  // COUNT requests=4 sectors=16 ideal=16: a permutation within 16 neighbours
    out[t] = v;                 // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void pairs(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    const float v = x[t / 2];  // COUNT requests=4 sectors=8: 16 words, 64 bytes
    out[t] = v;                // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void store_stride_2(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    const float v = x[t];  // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
    out[t * 2] = v;        // COUNT requests=4 sectors=32 ideal=16: 256 bytes, every second float
}

__global__ void store_column(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    const float v = x[t];  // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
    out[t * 32] = v;       // COUNT requests=4 sectors=128 ideal=16: a column of a matrix of 32 floats a row: a sector a lane
}

__global__ void ten_lanes(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    if (t % 32 < 10) {
        const float v = x[t];  // COUNT requests=4 sectors=8 ideal=8: 40 bytes from a multiple of 128: two sectors
        out[t] = v;            // COUNT requests=4 sectors=8 ideal=8: the same
    }
}

__global__ void even_lanes(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    if (t % 2 == 0) {
        const float v = x[t];  // COUNT requests=4 sectors=16 ideal=8: 64 useful bytes out of 128
        out[t] = v;            // COUNT requests=4 sectors=16 ideal=8: the same
    }
}

__global__ void one_warp_of_four(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    if (t < 32) {
        const float v = x[t];  // COUNT requests=1 sectors=4 ideal=4: the other warps do not get here
        out[t] = v;            // COUNT requests=1 sectors=4 ideal=4: the same
    }
}

__global__ void one_lane(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    if (t == 0) {
        const float v = x[0];  // COUNT requests=1 sectors=1 ideal=1: four bytes of one sector
        out[0] = v;            // COUNT requests=1 sectors=1 ideal=1: the same
    }
}
