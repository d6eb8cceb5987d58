/* rooftop
idea  = "Layouts of data and of blocks: structures, rows of 64 floats, two-dimensional blocks. 128 threads: four warps."
args  = ["x: f32[N]", "out: f32[N]"]

[[launch]]
kernel = "array_of_structures"
grid   = [1]
block  = [128]

[[launch]]
kernel = "structure_of_arrays"
grid   = [1]
block  = [128]

[[launch]]
kernel = "block_32x4"
grid   = [1]
block  = [32, 4]

[[launch]]
kernel = "block_16x8"
grid   = [1]
block  = [16, 8]

[[launch]]
kernel = "block_8x16"
grid   = [1]
block  = [8, 16]

[[launch]]
kernel = "block_4x32"
grid   = [1]
block  = [4, 32]

[[launch]]
kernel = "block_2x64"
grid   = [1]
block  = [2, 64]

[[launch]]
kernel = "turned_block"
grid   = [1]
block  = [32, 4]
*/

struct Particle {
    float x, y, z, w;
};

__global__ void array_of_structures(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    const Particle* p = reinterpret_cast<const Particle*>(x);
    const float v = p[t].x;  // COUNT requests=4 sectors=64 ideal=16: 16 bytes from one lane to the next, two a sector
    const float w = p[t].w;  // COUNT requests=4 sectors=64 ideal=16: the same sectors again
    out[t] = v + w;          // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void structure_of_arrays(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    const float v = x[t];            // COUNT requests=4 sectors=16 ideal=16: all the x lie side by side
    const float w = x[3 * 128 + t];  // COUNT requests=4 sectors=16 ideal=16: all the w too
    out[t] = v + w;                  // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}

__global__ void block_32x4(const float* __restrict__ x, float* __restrict__ out) {
    const int at = threadIdx.y * 64 + threadIdx.x;
    const float v = x[at];  // COUNT requests=4 sectors=16 ideal=16: a warp is a row of 128 bytes
    out[at] = v;            // COUNT requests=4 sectors=16 ideal=16: the same
}

__global__ void block_16x8(const float* __restrict__ x, float* __restrict__ out) {
    const int at = threadIdx.y * 64 + threadIdx.x;
    const float v = x[at];  // COUNT requests=4 sectors=16 ideal=16: a warp is two rows of 64 bytes
    out[at] = v;            // COUNT requests=4 sectors=16 ideal=16: the same
}

__global__ void block_8x16(const float* __restrict__ x, float* __restrict__ out) {
    const int at = threadIdx.y * 64 + threadIdx.x;
    const float v = x[at];  // COUNT requests=4 sectors=16 ideal=16: a warp is four rows of 32 bytes
    out[at] = v;            // COUNT requests=4 sectors=16 ideal=16: the same
}

__global__ void block_4x32(const float* __restrict__ x, float* __restrict__ out) {
    const int at = threadIdx.y * 64 + threadIdx.x;
    const float v = x[at];  // COUNT requests=4 sectors=32 ideal=16: a warp is eight rows of 16 bytes, a sector each
    out[at] = v;            // COUNT requests=4 sectors=32 ideal=16: the same
}

__global__ void block_2x64(const float* __restrict__ x, float* __restrict__ out) {
    const int at = threadIdx.y * 64 + threadIdx.x;
    const float v = x[at];  // COUNT requests=4 sectors=64 ideal=16: 16 rows of 8 bytes
    out[at] = v;            // COUNT requests=4 sectors=64 ideal=16: the same
}

__global__ void turned_block(const float* __restrict__ x, float* __restrict__ out) {
    const int at = threadIdx.x * 64 + threadIdx.y;
    const float v = x[at];                    // COUNT requests=4 sectors=128 ideal=16: a lane a row of 256 bytes
    out[threadIdx.y * 32 + threadIdx.x] = v;  // COUNT requests=4 sectors=16 ideal=16: 128 bytes a warp
}
