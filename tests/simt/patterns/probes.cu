/* rooftop
idea  = "What no document says: how wide accesses with lanes on one address, or with lanes missing, are served. One warp; the counters of a card answer."
args  = ["x: f32[N]", "out: f32[N]"]

[[launch]]
kernel = "float2_one"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float2_pairs"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float2_xor_2"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float2_fours"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float2_eights"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float2_halves"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float2_every_second"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float2_every_fourth"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float2_every_eighth"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float2_every_sixteenth"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float2_sixteen_lanes"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float2_even_lanes"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float2_lanes_by_four"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float2_eight_lanes"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float2_halves_apart"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float2_eights_apart"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float2_sgemm_a"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float2_pairs_apart"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float2_global_one"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float2_global_pairs"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float2_global_eights"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float2_global_every_eighth"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float2_global_halves"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float4_one"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float4_pairs"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float4_xor_2"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float4_fours"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float4_eights"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float4_halves"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float4_every_second"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float4_every_fourth"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float4_every_eighth"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float4_every_sixteenth"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float4_sixteen_lanes"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float4_even_lanes"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float4_lanes_by_four"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float4_eight_lanes"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float4_halves_apart"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float4_eights_apart"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float4_sgemm_a"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float4_pairs_apart"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float4_global_one"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float4_global_pairs"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float4_global_eights"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float4_global_every_eighth"
grid   = [1]
block  = [32]

[[launch]]
kernel = "float4_global_halves"
grid   = [1]
block  = [32]
*/
__global__ void float2_one(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float2 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float2*>(x)[i];
    __syncthreads();
    const float2 v = s[0];                  // COUNT requests=1
    reinterpret_cast<float2*>(out)[t] = v;  // COUNT requests=1
}

__global__ void float2_pairs(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float2 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float2*>(x)[i];
    __syncthreads();
    const float2 v = s[lane / 2];           // COUNT requests=1
    reinterpret_cast<float2*>(out)[t] = v;  // COUNT requests=1
}

__global__ void float2_xor_2(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float2 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float2*>(x)[i];
    __syncthreads();
    const float2 v = s[lane & ~2];          // COUNT requests=1
    reinterpret_cast<float2*>(out)[t] = v;  // COUNT requests=1
}

__global__ void float2_fours(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float2 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float2*>(x)[i];
    __syncthreads();
    const float2 v = s[lane / 4];           // COUNT requests=1
    reinterpret_cast<float2*>(out)[t] = v;  // COUNT requests=1
}

__global__ void float2_eights(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float2 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float2*>(x)[i];
    __syncthreads();
    const float2 v = s[lane / 8];           // COUNT requests=1
    reinterpret_cast<float2*>(out)[t] = v;  // COUNT requests=1
}

__global__ void float2_halves(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float2 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float2*>(x)[i];
    __syncthreads();
    const float2 v = s[lane / 16];          // COUNT requests=1
    reinterpret_cast<float2*>(out)[t] = v;  // COUNT requests=1
}

__global__ void float2_every_second(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float2 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float2*>(x)[i];
    __syncthreads();
    const float2 v = s[lane % 2];           // COUNT requests=1
    reinterpret_cast<float2*>(out)[t] = v;  // COUNT requests=1
}

__global__ void float2_every_fourth(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float2 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float2*>(x)[i];
    __syncthreads();
    const float2 v = s[lane % 4];           // COUNT requests=1
    reinterpret_cast<float2*>(out)[t] = v;  // COUNT requests=1
}

__global__ void float2_every_eighth(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float2 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float2*>(x)[i];
    __syncthreads();
    const float2 v = s[lane % 8];           // COUNT requests=1
    reinterpret_cast<float2*>(out)[t] = v;  // COUNT requests=1
}

__global__ void float2_every_sixteenth(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float2 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float2*>(x)[i];
    __syncthreads();
    const float2 v = s[lane % 16];          // COUNT requests=1
    reinterpret_cast<float2*>(out)[t] = v;  // COUNT requests=1
}

__global__ void float2_sixteen_lanes(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float2 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float2*>(x)[i];
    __syncthreads();
    if (lane < 16) {
        const float2 v = s[lane];               // COUNT requests=1
        reinterpret_cast<float2*>(out)[t] = v;  // COUNT requests=1
    }
}

__global__ void float2_even_lanes(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float2 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float2*>(x)[i];
    __syncthreads();
    if (lane % 2 == 0) {
        const float2 v = s[lane];               // COUNT requests=1
        reinterpret_cast<float2*>(out)[t] = v;  // COUNT requests=1
    }
}

__global__ void float2_lanes_by_four(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float2 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float2*>(x)[i];
    __syncthreads();
    if (lane % 4 == 0) {
        const float2 v = s[lane];               // COUNT requests=1
        reinterpret_cast<float2*>(out)[t] = v;  // COUNT requests=1
    }
}

__global__ void float2_eight_lanes(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float2 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float2*>(x)[i];
    __syncthreads();
    if (lane < 8) {
        const float2 v = s[lane];               // COUNT requests=1
        reinterpret_cast<float2*>(out)[t] = v;  // COUNT requests=1
    }
}

__global__ void float2_halves_apart(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float2 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float2*>(x)[i];
    __syncthreads();
    const float2 v = s[lane / 16 * 32];     // COUNT requests=1
    reinterpret_cast<float2*>(out)[t] = v;  // COUNT requests=1
}

__global__ void float2_eights_apart(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float2 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float2*>(x)[i];
    __syncthreads();
    const float2 v = s[lane / 8 * 32];      // COUNT requests=1
    reinterpret_cast<float2*>(out)[t] = v;  // COUNT requests=1
}

__global__ void float2_sgemm_a(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float2 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float2*>(x)[i];
    __syncthreads();
    const float2 v = s[lane / 8 * 2 + lane % 2];  // COUNT requests=1
    reinterpret_cast<float2*>(out)[t] = v;        // COUNT requests=1
}

__global__ void float2_pairs_apart(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float2 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float2*>(x)[i];
    __syncthreads();
    const float2 v = s[lane / 2 * 8];       // COUNT requests=1
    reinterpret_cast<float2*>(out)[t] = v;  // COUNT requests=1
}

__global__ void float2_global_one(const float* __restrict__ x, float* __restrict__ out) {
    const int lane = threadIdx.x;
    const float2 v = reinterpret_cast<const float2*>(x)[0];  // COUNT requests=1
    reinterpret_cast<float2*>(out)[lane] = v;                // COUNT requests=1
}

__global__ void float2_global_pairs(const float* __restrict__ x, float* __restrict__ out) {
    const int lane = threadIdx.x;
    const float2 v = reinterpret_cast<const float2*>(x)[lane / 2];  // COUNT requests=1
    reinterpret_cast<float2*>(out)[lane] = v;                       // COUNT requests=1
}

__global__ void float2_global_eights(const float* __restrict__ x, float* __restrict__ out) {
    const int lane = threadIdx.x;
    const float2 v = reinterpret_cast<const float2*>(x)[lane / 8];  // COUNT requests=1
    reinterpret_cast<float2*>(out)[lane] = v;                       // COUNT requests=1
}

__global__ void float2_global_every_eighth(const float* __restrict__ x, float* __restrict__ out) {
    const int lane = threadIdx.x;
    const float2 v = reinterpret_cast<const float2*>(x)[lane % 8];  // COUNT requests=1
    reinterpret_cast<float2*>(out)[lane] = v;                       // COUNT requests=1
}

__global__ void float2_global_halves(const float* __restrict__ x, float* __restrict__ out) {
    const int lane = threadIdx.x;
    const float2 v = reinterpret_cast<const float2*>(x)[lane / 16];  // COUNT requests=1
    reinterpret_cast<float2*>(out)[lane] = v;                        // COUNT requests=1
}

__global__ void float4_one(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float4 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float4*>(x)[i];
    __syncthreads();
    const float4 v = s[0];                  // COUNT requests=1
    reinterpret_cast<float4*>(out)[t] = v;  // COUNT requests=1
}

__global__ void float4_pairs(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float4 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float4*>(x)[i];
    __syncthreads();
    const float4 v = s[lane / 2];           // COUNT requests=1
    reinterpret_cast<float4*>(out)[t] = v;  // COUNT requests=1
}

__global__ void float4_xor_2(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float4 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float4*>(x)[i];
    __syncthreads();
    const float4 v = s[lane & ~2];          // COUNT requests=1
    reinterpret_cast<float4*>(out)[t] = v;  // COUNT requests=1
}

__global__ void float4_fours(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float4 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float4*>(x)[i];
    __syncthreads();
    const float4 v = s[lane / 4];           // COUNT requests=1
    reinterpret_cast<float4*>(out)[t] = v;  // COUNT requests=1
}

__global__ void float4_eights(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float4 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float4*>(x)[i];
    __syncthreads();
    const float4 v = s[lane / 8];           // COUNT requests=1
    reinterpret_cast<float4*>(out)[t] = v;  // COUNT requests=1
}

__global__ void float4_halves(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float4 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float4*>(x)[i];
    __syncthreads();
    const float4 v = s[lane / 16];          // COUNT requests=1
    reinterpret_cast<float4*>(out)[t] = v;  // COUNT requests=1
}

__global__ void float4_every_second(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float4 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float4*>(x)[i];
    __syncthreads();
    const float4 v = s[lane % 2];           // COUNT requests=1
    reinterpret_cast<float4*>(out)[t] = v;  // COUNT requests=1
}

__global__ void float4_every_fourth(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float4 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float4*>(x)[i];
    __syncthreads();
    const float4 v = s[lane % 4];           // COUNT requests=1
    reinterpret_cast<float4*>(out)[t] = v;  // COUNT requests=1
}

__global__ void float4_every_eighth(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float4 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float4*>(x)[i];
    __syncthreads();
    const float4 v = s[lane % 8];           // COUNT requests=1
    reinterpret_cast<float4*>(out)[t] = v;  // COUNT requests=1
}

__global__ void float4_every_sixteenth(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float4 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float4*>(x)[i];
    __syncthreads();
    const float4 v = s[lane % 16];          // COUNT requests=1
    reinterpret_cast<float4*>(out)[t] = v;  // COUNT requests=1
}

__global__ void float4_sixteen_lanes(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float4 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float4*>(x)[i];
    __syncthreads();
    if (lane < 16) {
        const float4 v = s[lane];               // COUNT requests=1
        reinterpret_cast<float4*>(out)[t] = v;  // COUNT requests=1
    }
}

__global__ void float4_even_lanes(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float4 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float4*>(x)[i];
    __syncthreads();
    if (lane % 2 == 0) {
        const float4 v = s[lane];               // COUNT requests=1
        reinterpret_cast<float4*>(out)[t] = v;  // COUNT requests=1
    }
}

__global__ void float4_lanes_by_four(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float4 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float4*>(x)[i];
    __syncthreads();
    if (lane % 4 == 0) {
        const float4 v = s[lane];               // COUNT requests=1
        reinterpret_cast<float4*>(out)[t] = v;  // COUNT requests=1
    }
}

__global__ void float4_eight_lanes(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float4 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float4*>(x)[i];
    __syncthreads();
    if (lane < 8) {
        const float4 v = s[lane];               // COUNT requests=1
        reinterpret_cast<float4*>(out)[t] = v;  // COUNT requests=1
    }
}

__global__ void float4_halves_apart(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float4 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float4*>(x)[i];
    __syncthreads();
    const float4 v = s[lane / 16 * 32];     // COUNT requests=1
    reinterpret_cast<float4*>(out)[t] = v;  // COUNT requests=1
}

__global__ void float4_eights_apart(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float4 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float4*>(x)[i];
    __syncthreads();
    const float4 v = s[lane / 8 * 32];      // COUNT requests=1
    reinterpret_cast<float4*>(out)[t] = v;  // COUNT requests=1
}

__global__ void float4_sgemm_a(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float4 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float4*>(x)[i];
    __syncthreads();
    const float4 v = s[lane / 8 * 2 + lane % 2];  // COUNT requests=1
    reinterpret_cast<float4*>(out)[t] = v;        // COUNT requests=1
}

__global__ void float4_pairs_apart(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float4 s[256];
    const int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 256; i += 32) s[i] = reinterpret_cast<const float4*>(x)[i];
    __syncthreads();
    const float4 v = s[lane / 2 * 8];       // COUNT requests=1
    reinterpret_cast<float4*>(out)[t] = v;  // COUNT requests=1
}

__global__ void float4_global_one(const float* __restrict__ x, float* __restrict__ out) {
    const int lane = threadIdx.x;
    const float4 v = reinterpret_cast<const float4*>(x)[0];  // COUNT requests=1
    reinterpret_cast<float4*>(out)[lane] = v;                // COUNT requests=1
}

__global__ void float4_global_pairs(const float* __restrict__ x, float* __restrict__ out) {
    const int lane = threadIdx.x;
    const float4 v = reinterpret_cast<const float4*>(x)[lane / 2];  // COUNT requests=1
    reinterpret_cast<float4*>(out)[lane] = v;                       // COUNT requests=1
}

__global__ void float4_global_eights(const float* __restrict__ x, float* __restrict__ out) {
    const int lane = threadIdx.x;
    const float4 v = reinterpret_cast<const float4*>(x)[lane / 8];  // COUNT requests=1
    reinterpret_cast<float4*>(out)[lane] = v;                       // COUNT requests=1
}

__global__ void float4_global_every_eighth(const float* __restrict__ x, float* __restrict__ out) {
    const int lane = threadIdx.x;
    const float4 v = reinterpret_cast<const float4*>(x)[lane % 8];  // COUNT requests=1
    reinterpret_cast<float4*>(out)[lane] = v;                       // COUNT requests=1
}

__global__ void float4_global_halves(const float* __restrict__ x, float* __restrict__ out) {
    const int lane = threadIdx.x;
    const float4 v = reinterpret_cast<const float4*>(x)[lane / 16];  // COUNT requests=1
    reinterpret_cast<float4*>(out)[lane] = v;                        // COUNT requests=1
}
