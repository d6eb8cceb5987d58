// A block's pipeline with roles: one warp fetches, the others compute; and one with a count of producers.
// prints: wrong: 0 0
#include <cooperative_groups.h>
#include <cuda/pipeline>
#include <cstdio>
#include <vector>
namespace cg = cooperative_groups;
constexpr int TILE = 96, STAGES = 2;

__global__ void doubled(const float* x, float* y, int tiles) {
    __shared__ float staged[STAGES][TILE];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, STAGES> state;
    auto block = cg::this_thread_block();
    const bool fetches = threadIdx.x < 32;
    auto pipe = cuda::make_pipeline(block, &state, fetches ? cuda::pipeline_role::producer : cuda::pipeline_role::consumer);
    for (int t = 0; t < tiles; ++t) {
        if (fetches) {
            pipe.producer_acquire();
            for (int i = threadIdx.x; i < TILE; i += 32) cuda::memcpy_async(&staged[t % STAGES][i], x + t * TILE + i, sizeof(float), pipe);
            pipe.producer_commit();
        } else {
            pipe.consumer_wait();
            y[t * TILE + threadIdx.x - 32] = 2 * staged[t % STAGES][threadIdx.x - 32];
            pipe.consumer_release();
        }
    }
}

__global__ void tripled(const float* x, float* y, int tiles) {
    __shared__ float staged[STAGES][TILE];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, STAGES> state;
    auto block = cg::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state, 32);
    for (int t = 0; t < tiles; ++t) {
        if (threadIdx.x < 32) {
            pipe.producer_acquire();
            for (int i = threadIdx.x; i < TILE; i += 32) cuda::memcpy_async(&staged[t % STAGES][i], x + t * TILE + i, sizeof(float), pipe);
            pipe.producer_commit();
        } else {
            pipe.consumer_wait();
            y[t * TILE + threadIdx.x - 32] = 3 * staged[t % STAGES][threadIdx.x - 32];
            pipe.consumer_release();
        }
    }
}

__global__ void unreleased(const float* x, float* y) {
    __shared__ float staged[STAGES][TILE];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, STAGES> state;
    auto block = cg::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state, threadIdx.x < 32 ? cuda::pipeline_role::producer : cuda::pipeline_role::consumer);
    for (int t = 0; t < STAGES + 1; ++t) {
        if (threadIdx.x < 32) {
            pipe.producer_acquire();  // BUG: deadlock
            for (int i = threadIdx.x; i < TILE; i += 32) cuda::memcpy_async(&staged[t % STAGES][i], x + i, sizeof(float), pipe);
            pipe.producer_commit();
        } else if (t < STAGES) {
            pipe.consumer_wait();
            y[threadIdx.x - 32] = staged[t % STAGES][threadIdx.x - 32];
        }
    }
}

int main() {
    const int tiles = 5, n = tiles * TILE;
    std::vector<float> x(n), y(n), z(n);
    for (int i = 0; i < n; ++i) x[i] = i;
    float *d, *e;
    cudaMalloc(&d, n * sizeof(float));
    cudaMalloc(&e, n * sizeof(float));
    cudaMemcpy(d, x.data(), n * sizeof(float), cudaMemcpyHostToDevice);
    doubled<<<1, 128>>>(d, e, tiles);
    cudaMemcpy(y.data(), e, n * sizeof(float), cudaMemcpyDeviceToHost);
    tripled<<<1, 128>>>(d, e, tiles);
    cudaMemcpy(z.data(), e, n * sizeof(float), cudaMemcpyDeviceToHost);
    int wrong = 0, more = 0;
    for (int i = 0; i < n; ++i) wrong += y[i] != 2 * x[i], more += z[i] != 3 * x[i];
    printf("wrong: %d %d\n", wrong, more);
    unreleased<<<1, 128>>>(d, e);
    cudaFree(d);
    cudaFree(e);
}
