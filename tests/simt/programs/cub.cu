// prints: 5050 100 45 10 9 0 2 99
// CUB's reductions and scans of a warp, of a block (its last warp not whole) and of a device, sums of parts, and keys that are sorted.
#include <cub/cub.cuh>
#include <cub/block/block_scan.cuh>
#include <cstdio>
constexpr int N = 100;
__global__ void sums(const int *x, int *total, int *largest, int *scan, float *first) {
    typedef cub::BlockReduce<int, 128> Reduce;
    using Scan = cub::BlockScan<int, 128>;
    __shared__ union { typename Reduce::TempStorage reduce; Scan::TempStorage scan; } temp;
    __shared__ typename cub::WarpReduce<float>::TempStorage warps[4];
    const int i = threadIdx.x, v = i < N ? x[i] : 0;
    const int sum = Reduce(temp.reduce).Sum(v);
    __syncthreads();
    const int most = Reduce(temp.reduce).Reduce(v, cub::Max(), N);
    if (i == 0) *total = sum, *largest = most;
    __syncthreads();
    int before, all;
    Scan(temp.scan).ExclusiveSum(v, before, all);
    if (i < N) scan[i] = all == sum || i ? before : -1;
    const float part = cub::WarpReduce<float>(warps[i / 32]).Sum(1.0f, 10);
    if (i == 96) *first = part;
}
__global__ void again(const int *x, int *total) {
    typedef cub::BlockReduce<int, 128> Reduce;
    __shared__ typename Reduce::TempStorage temp;
    const int one = Reduce(temp).Sum(x[threadIdx.x % N]);  // BUG: shared-race
    const int two = Reduce(temp).Sum(one);  // MAY: shared-race
    if (threadIdx.x == 0) *total = one + two;
}
int main() {
    int host[N], *x, *total, *largest, *scan, *sorted, *count;
    float *first;
    for (int i = 0; i < N; ++i) host[i] = i + 1;
    cudaMalloc(&x, sizeof host), cudaMalloc(&scan, sizeof host), cudaMalloc(&sorted, sizeof host);
    cudaMalloc(&total, 4), cudaMalloc(&largest, 4), cudaMalloc(&first, 4), cudaMalloc(&count, 4);
    cudaMemcpy(x, host, sizeof host, cudaMemcpyHostToDevice);
    sums<<<1, 128>>>(x, total, largest, scan, first);
    int sum, most, out[N], kept, back;
    float ones;
    cudaMemcpy(&sum, total, 4, cudaMemcpyDeviceToHost), cudaMemcpy(&most, largest, 4, cudaMemcpyDeviceToHost);
    cudaMemcpy(out, scan, sizeof out, cudaMemcpyDeviceToHost), cudaMemcpy(&ones, first, 4, cudaMemcpyDeviceToHost);
    printf("%d %d %d %g ", sum, most, out[9], ones);
    void *temp = nullptr;
    size_t bytes = 0, sort_bytes = 0;
    cub::DeviceReduce::Sum(temp, bytes, x, total, N);
    cub::DeviceRadixSort::SortKeysDescending(temp, sort_bytes, x, sorted, N);
    cudaMalloc(&temp, bytes + sort_bytes);
    cub::DeviceRadixSort::SortKeysDescending(temp, sort_bytes, x, sorted, N);
    cub::DeviceScan::InclusiveSum(temp, bytes, sorted, scan, N);
    cub::DeviceSelect::If(temp, bytes, x, sorted, count, N, [] __host__ __device__(int v) { return v > 91; });
    cub::DeviceReduce::Sum(temp, bytes, x, total, N);
    cudaMemcpy(&kept, count, 4, cudaMemcpyDeviceToHost), cudaMemcpy(&back, total, 4, cudaMemcpyDeviceToHost);
    cudaMemcpy(out, scan, sizeof out, cudaMemcpyDeviceToHost);
    printf("%d %d %d %d\n", kept, back - sum, out[1] == 199 ? 2 : 0, out[1] - out[0]);
    again<<<1, 128>>>(x, total);
    cudaFree(x), cudaFree(scan), cudaFree(sorted), cudaFree(total), cudaFree(largest), cudaFree(first), cudaFree(count), cudaFree(temp);
}
