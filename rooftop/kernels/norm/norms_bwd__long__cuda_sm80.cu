/* rooftop
ops     = ["rms_norm_bwd", "layer_norm_bwd"]
idea    = """A row that is too long for one block is divided among a group of persistent blocks, a slice each. A slice stays in a ring \
  buffer in shared memory while the blocks exchange its statistics through global memory; the row is finished a few rows later. So each row \
  is read once, as long as all blocks together can hold it."""
limit   = "Rows longer than the shared memory of the whole card; blocks that do not make a whole group idle."
dtypes  = ["f32", "f16", "bf16"]
tensors = ["dweight: T[C]?", "dbias: T[C]?"]
args    = [
    "R: i32", "C: i32", "dy: T[R, C]", "dys: i64 = stride(dy, 0)", "ds: T[R, C]?", "dss: i64 = stride(ds, 0)", "s: T[R, C]",
    "ss: i64 = stride(s, 0)", "weight: T[C]?", "dx: T[R, C]", "dxs: i64 = stride(dx, 0)", "eps: f32",
]
demands = { has = ["LDGSTS.E.128", "STG.E.128"], spills = 0 }
python  = ["supports", "choose", "configs", "scratch", "zeroed", "launches"]
valid   = "vectors > 0"

[config]
blocks = 1
threads = 512
vectors = 0
stages = 3
lag = 1
*/
// Backward of rms_norm and layer_norm for rows too long for a block: a group of blocks shares a row, one slice each. Like norm_bwd_block in
// _bwd_rows.cuh, but a row is finished LAG rows after its statistics were sent, and its slices stay in the ring buffer until then.
#include "_bwd_rows.cuh"
#include "_ring.cuh"

/// Combines the parts that the blocks of a group sent, in all lanes of a warp: like whole_of, for up to GROUP_MOST parts.
template <bool CENTRE, int WORDS>
__device__ Part whole_of_blocks(const float (&inbox)[WORDS][GROUP_MOST], const float (&elements)[GROUP_MOST], int blocks,
    const Divisor& C) {
    const int lane = threadIdx.x % 32;
    if (!CENTRE) {
        float both[2] = {0, 0};
        for (int b = lane; b < blocks; b += 32) both[0] += inbox[0][b], both[1] += inbox[1][b];
        lanes_sums<32>(both);
        return {0, both[0], 0, both[1]};
    }
    constexpr int LEVEL = WORDS - 2, PRODUCTS = WORDS - 1;
    const float base = inbox[0][0];
    float shift = 0;
    for (int b = lane; b < blocks; b += 32) shift += elements[b] > 0 ? elements[b] * C.part * (inbox[0][b] - base) : 0;
    const float mean = base + lanes_sum<32>(shift);
    float sums[3] = {0, 0, 0};
    for (int b = lane; b < blocks; b += 32) {
        const float off = elements[b] > 0 ? inbox[0][b] - mean : 0;
        sums[0] += inbox[1][b] + elements[b] * off * off, sums[1] += inbox[LEVEL][b], sums[2] += inbox[PRODUCTS][b] + inbox[LEVEL][b] * off;
    }
    lanes_sums<32>(sums);
    return {mean, sums[0], sums[1], sums[2]};
}

template <typename T, int VECTORS, int STAGES, int LAG, bool ALIGNED, bool CENTRE, bool SECOND, bool WEIGHT, bool BIAS>
__global__ void __launch_bounds__(512, 1)
    norm_bwd_long(int R, int C, const T* __restrict__ dy, long long dys, const T* __restrict__ ds, long long dss, const T* __restrict__ s,
        long long ss,
                  const T* __restrict__ weight, T* __restrict__ dx, long long dxs, float eps, int period, float* __restrict__ pw,
                  float* __restrict__ pb,
                  int blocks, unsigned long long* all_mail) {
    constexpr int WORDS = CENTRE ? 4 : 2;
    __shared__ Part parts[2][16];  // by warp, for this row and the next
    __shared__ float inbox[2][WORDS][GROUP_MOST], elements[GROUP_MOST];  // by block
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const int group = blockIdx.x / blocks, rank = blockIdx.x % blocks;
    const Walk walk(R, period, group, gridDim.x / blocks, 0, 1);
    const Mail<WORDS> mail(all_mail, blocks);
    Columns<T, VECTORS, STAGES, ALIGNED, CENTRE, SECOND, WEIGHT, BIAS> columns;
    const auto& row = columns.row;
    columns.row.locate(s + walk.phase * ss, C, rank * blockDim.x + threadIdx.x, blocks * blockDim.x);
    if (threadIdx.x < blocks) elements[threadIdx.x] = elements_of_block(row, threadIdx.x);
    const Divisor n(C), of_warp(max(1, row.elements_of_warp(rank * warps + warp))), of_block(max(1, elements_of_block(row, rank)));
    const float of_lane = lane < warps ? row.elements_of_warp(rank * warps + lane) : 0;
    columns.begin(walk, s, ss, dy, dys, ds, dss, weight);
    T* to = dx + walk.first * dxs;
    for (int k = 0; k < walk.count + LAG; ++k) {
        const int back = k - LAG;  // the row that is finished in this iteration
        if (back >= 0) columns.fetch(back + STAGES - 1 < walk.count);
        const unsigned long long looked = back >= 0 ? mail.look(back) : 0;
        if (k < walk.count) {
            columns.now = k % STAGES;
            columns.take_singles(k + 1 < walk.count);
            __pipeline_wait_prior(STAGES - LAG - 1);
            const Part part = columns.template part<32>(of_warp);
            if (lane == 0) parts[k % 2][warp] = part;
        }
        if (back >= 0) mail.take(back, looked, inbox[k % 2]);
        __syncthreads();
        if (k < walk.count && warp == 0) {
            const Part p = whole_of<CENTRE, true, 32>(lane < warps ? parts[k % 2][lane] : Part{0, 0, 0, 0}, of_lane, of_block);
            const float words[4] = {CENTRE ? p.mean : p.squares, CENTRE ? p.squares : p.products, p.level, p.products};
#pragma unroll
            for (int i = 0; i < WORDS; ++i) {
                if (lane == i) mail.send(k, i, words[i]);
            }
        }
        if (back < 0) continue;
        columns.now = back % STAGES;
        columns.finish(whole_of_blocks<CENTRE>(inbox[k % 2], elements, blocks, n), n, eps, to);
        columns.end_row(back);
        to += walk.step * dxs;
    }
    columns.close();
    const long long partial = group * static_cast<long long>(pitch_of<T, ALIGNED>(C));
    columns.leave(pw + partial, pb + partial);
}
