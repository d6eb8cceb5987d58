/* rooftop
idea  = "Atomics: lanes on one word are served one after another; words of one sector are not. 128 threads: four warps."
args  = ["x: i32[N]", "out: i32[N]"]

[[launch]]
kernel = "one_address"
grid   = [1]
block  = [128]

[[launch]]
kernel = "neighbours"
grid   = [1]
block  = [128]

[[launch]]
kernel = "eight_addresses"
grid   = [1]
block  = [128]

[[launch]]
kernel = "apart"
grid   = [1]
block  = [128]

[[launch]]
kernel = "two_addresses_by_warp"
grid   = [1]
block  = [128]

[[launch]]
kernel = "shared_one_address"
grid   = [1]
block  = [128]

[[launch]]
kernel = "shared_histogram"
grid   = [1]
block  = [128]
*/
__global__ void one_address(const int* __restrict__ x, int* __restrict__ out) {
    atomicAdd(out, 1);  // COUNT requests=4 sectors=4 contention=32: every lane of a warp on one word
}

__global__ void neighbours(const int* __restrict__ x, int* __restrict__ out) {
    const int t = threadIdx.x;
    atomicAdd(out + t, 1);  // COUNT requests=4 sectors=16 contention=1: a word a lane, 128 bytes
}

__global__ void eight_addresses(const int* __restrict__ x, int* __restrict__ out) {
    const int t = threadIdx.x;
    atomicAdd(out + t % 8, 1);  // COUNT requests=4 sectors=4 contention=4: eight words of one sector, four lanes each
}

__global__ void apart(const int* __restrict__ x, int* __restrict__ out) {
    const int t = threadIdx.x;
    atomicAdd(out + t * 8, 1);  // COUNT requests=4 sectors=128 contention=1: a sector a lane
}

__global__ void two_addresses_by_warp(const int* __restrict__ x, int* __restrict__ out) {
    const int t = threadIdx.x;
    atomicMax(out + t / 16 * 32, t);  // COUNT requests=4 sectors=8 contention=16: half a warp on a word
}

__global__ void shared_one_address(const int* __restrict__ x, int* __restrict__ out) {
    __shared__ int total;
    const int t = threadIdx.x;
    if (t == 0) total = 0;
    __syncthreads();
    atomicAdd(&total, x[t]);  // COUNT requests=4 contention=32: every lane of a warp on one word
    __syncthreads();
    if (t == 0) out[0] = total;
}

__global__ void shared_histogram(const int* __restrict__ x, int* __restrict__ out) {
    __shared__ int bins[16];
    const int t = threadIdx.x;
    if (t < 16) bins[t] = 0;
    __syncthreads();
    atomicAdd(&bins[t % 16], x[t]);  // COUNT requests=4 contention=2: 16 words, two lanes each
    __syncthreads();
    if (t < 16) out[t] = bins[t];
}
