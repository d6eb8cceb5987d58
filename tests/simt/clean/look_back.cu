/* rooftop
op     = "add"
idea   = "Right, though it looks wrong: blocks look back for the sums of those before them, in words that hold a flag and a sum and are volatile, so they need no fence."
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "begin"
grid   = [1]
block  = [128]
args   = []

[[launch]]
kernel = "look_back"
grid   = ["ceil(n / 128)"]
block  = [128]
*/
__device__ unsigned long long state[128];  // by tile: 1 its own sum or 2 that of all up to it, and the sum in the low half
__device__ unsigned next_tile;

__global__ void begin() {
    state[threadIdx.x] = 0;
    if (threadIdx.x == 0) next_tile = 0;
}

// How many elements the tiles before have is where this one's begin.
__global__ void look_back(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    __shared__ int tile, first;
    const int t = threadIdx.x;
    if (t == 0) tile = atomicAdd(&next_tile, 1u);
    __syncthreads();
    if (t == 0) {
        volatile unsigned long long* s = state;
        const unsigned own = min(128, n - tile * 128);
        unsigned before = 0;
        s[tile] = (tile ? 1ull : 2ull) << 32 | own;
        for (int p = tile - 1; p >= 0;) {
            const unsigned long long word = s[p];
            if (word >> 32 == 0) continue;
            before += static_cast<unsigned>(word);
            if (word >> 32 == 2) break;
            --p;
        }
        if (tile) s[tile] = 2ull << 32 | (before + own);
        first = before;
    }
    __syncthreads();
    const int i = first + t;
    if (i < n) out[i] = x[i] + y[i];
}
