// prints: 499500 499500 499500
#include <stdio.h>
template <unsigned int blockSize>
__device__ void warpReduce(volatile int *sdata, unsigned int tid) {
    if (blockSize >= 64) sdata[tid] += sdata[tid + 32]; // MAY: warp-race
    for (int o = 16; o; o >>= 1) { __syncwarp(); int v = sdata[tid + o]; __syncwarp(); sdata[tid] += v; }
}
__global__ void shared_sum(const int *in, int *out, int n) {
    extern __shared__ int sdata[];
    int tid = threadIdx.x, i = blockIdx.x * blockDim.x + tid;
    sdata[tid] = i < n ? in[i] : 0;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (tid < s) sdata[tid] += sdata[tid + s];
        __syncthreads();
    }
    if (tid == 0) atomicAdd(out, sdata[0]);
}
__inline__ __device__ int warp_sum(int v) {
    for (int offset = warpSize / 2; offset > 0; offset /= 2) v += __shfl_down_sync(0xffffffff, v, offset);
    return v;
}
__global__ void shuffle_sum(const int *in, int *out, int n) {
    static __shared__ int part[32];
    int lane = threadIdx.x % warpSize, wid = threadIdx.x / warpSize, sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) sum += in[i];
    sum = warp_sum(sum);
    if (lane == 0) part[wid] = sum;
    __syncthreads();
    sum = threadIdx.x < blockDim.x / warpSize ? part[lane] : 0;
    if (wid == 0) sum = warp_sum(sum);
    if (threadIdx.x == 0) atomicAdd(out, sum);
}
__global__ void old_shuffle_sum(const int *in, int *out, int n) {
    int v = 0;
    for (int i = threadIdx.x; i < n; i += 32) v += in[i];
    for (int o = 16; o; o /= 2) v += __shfl_down(v, o);
    if (threadIdx.x == 0) *out = v;
}
int main(void) {
    const int n = 1000;
    int h[n], sums[3];
    for (int i = 0; i < n; i++) h[i] = i;
    int *in, *out;
    cudaMalloc(&in, sizeof(h));
    cudaMalloc(&out, 3 * sizeof(int));
    cudaMemcpy(in, h, sizeof(h), cudaMemcpyHostToDevice);
    cudaMemset(out, 0, 3 * sizeof(int));
    shared_sum<<<(n + 127) / 128, 128, 128 * sizeof(int)>>>(in, out, n);
    shuffle_sum<<<2, 256>>>(in, out + 1, n);
    old_shuffle_sum<<<1, 32>>>(in, out + 2, n);
    cudaMemcpy(sums, out, sizeof(sums), cudaMemcpyDeviceToHost);
    printf("%d %d %d\n", sums[0], sums[1], sums[2]);
    cudaFree(in);
    cudaFree(out);
    return 0;
}
