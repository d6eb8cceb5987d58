// prints: 32 136 8
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cstdio>
namespace cg = cooperative_groups;
__device__ int group_sum(cg::thread_group g, int *temp, int val) {
    int lane = g.thread_rank();
    for (int i = g.size() / 2; i > 0; i /= 2) {
        temp[lane] = val;
        g.sync();
        if (lane < i) val += temp[lane + i];
        g.sync();
    }
    return val;
}
__global__ void tiles(int *out) {
    __shared__ int temp[64];
    cg::thread_block block = cg::this_thread_block();
    auto tile = cg::tiled_partition(block, 16);
    int sum = group_sum(tile, temp + 16 * (threadIdx.x / 16), tile.thread_rank() + 1);
    if (block.thread_rank() == 0) out[1] = sum;
    auto wide = cg::tiled_partition<64>(block);
    wide.sync();
    auto warp = cg::tiled_partition<32>(block);
    int n = cg::reduce(warp, 1, cg::plus<int>());
    if (warp.meta_group_rank() == 0 && warp.thread_rank() == 0) out[0] = n;
}
__global__ void grid_wide(int *data, int *out) {
    cg::grid_group grid = cg::this_grid();
    data[grid.thread_rank()] = 1;
    grid.sync();
    if (grid.thread_rank() == 0) {
        int s = 0;
        for (int i = 0; i < 8; ++i) s += data[63 - i];
        out[2] = s;
    }
}
int main() {
    int *out, *data, h[3], supported = 0;
    cudaMalloc(&out, sizeof h), cudaMalloc(&data, 64 * sizeof(int));
    tiles<<<1, 64>>>(out);
    cudaDeviceGetAttribute(&supported, cudaDevAttrCooperativeLaunch, 0);
    int blocks_per_sm;
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks_per_sm, grid_wide, 32, 0);
    void *args[] = {(void *)&data, (void *)&out};
    if (supported && blocks_per_sm > 0) cudaLaunchCooperativeKernel((void *)grid_wide, dim3(2), dim3(32), args, 0, nullptr);
    cudaMemcpy(h, out, sizeof h, cudaMemcpyDeviceToHost);
    printf("%d %d %d\n", h[0], h[1], h[2]);
    cudaFree(out), cudaFree(data);
}
