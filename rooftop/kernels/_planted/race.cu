/* rooftop
op      = "add"
idea    = "Planted fault: threads read what other warps put into shared memory, with no barrier between. racecheck must find it."
dtypes  = ["f32"]
args    = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[config]
threads = 128

[[launch]]
kernel = "race<{T}, {threads}>"
grid   = ["ceil(n / threads)"]
block  = ["threads"]
*/
template <typename T, int THREADS>
__global__ void race(int n, const T* x, const T* y, T* out) {
    __shared__ T staged[THREADS];
    int i = blockIdx.x * THREADS + threadIdx.x;
    int mirrored = blockIdx.x * THREADS + THREADS - 1 - threadIdx.x;
    staged[threadIdx.x] = i < n ? x[i] : T(0);
    // the fault: __syncthreads() is missing here
    if (mirrored < n) out[mirrored] = staged[THREADS - 1 - threadIdx.x] + y[mirrored];
}
