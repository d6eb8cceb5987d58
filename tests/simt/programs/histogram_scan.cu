// prints: scan and histogram agree
#include <algorithm>
#include <cassert>
#include <iostream>
#include <numeric>
#include <vector>
#define BINS 16
__global__ void histogram(const unsigned char *data, unsigned *bins, int n) {
    __shared__ unsigned local[BINS];
    if (threadIdx.x < BINS) local[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) atomicAdd(&local[data[i] % BINS], 1u);
    __syncthreads();
    if (threadIdx.x < BINS) atomicAdd(&bins[threadIdx.x], local[threadIdx.x]);
}
__global__ void blelloch(unsigned *data) {
    extern unsigned __shared__ temp[];
    int t = threadIdx.x, offset = 1, n = 2 * blockDim.x;
    temp[2 * t] = data[2 * t], temp[2 * t + 1] = data[2 * t + 1];
    for (int d = n >> 1; d > 0; d >>= 1, offset *= 2) {
        __syncthreads();
        if (t < d) temp[offset * (2 * t + 2) - 1] += temp[offset * (2 * t + 1) - 1];
    }
    if (t == 0) temp[n - 1] = 0;
    for (int d = 1; d < n; d *= 2) {
        offset >>= 1;
        __syncthreads();
        if (t < d) {
            int a = offset * (2 * t + 1) - 1, b = offset * (2 * t + 2) - 1;
            unsigned v = temp[a];
            temp[a] = temp[b], temp[b] += v;
        }
    }
    __syncthreads();
    data[2 * t] = temp[2 * t], data[2 * t + 1] = temp[2 * t + 1];
}
int main() {
    int N = 5000;
    std::vector<unsigned char> v(N);
    srand(time(NULL));
    std::generate(v.begin(), v.end(), []() { return rand() % 256; });
    std::vector<unsigned> want(BINS, 0), got(BINS), sums(BINS, 0);
    for (auto x : v) want[x % BINS]++;
    unsigned char *d;
    unsigned *b;
    cudaMalloc(&d, N), cudaMalloc(&b, BINS * sizeof(unsigned));
    cudaMemcpy(d, v.data(), N, cudaMemcpyHostToDevice), cudaMemset(b, 0, BINS * sizeof(unsigned));
    histogram<<<4, 128>>>(d, b, N);
    cudaMemcpy(got.data(), b, BINS * 4, cudaMemcpyDeviceToHost);
    assert(got == want);
    blelloch << <1, BINS / 2, BINS * sizeof(unsigned) >> >(b);
    cudaMemcpy(got.data(), b, BINS * 4, cudaMemcpyDeviceToHost);
    std::partial_sum(want.begin(), want.end() - 1, sums.begin() + 1);
    assert(got == sums);
    std::cout << "scan and histogram agree\n";
    cudaFree(d), cudaFree(b);
}
