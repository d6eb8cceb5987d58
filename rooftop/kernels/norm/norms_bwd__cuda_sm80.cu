/* rooftop
ops     = ["rms_norm_bwd", "layer_norm_bwd"]
idea    = """A persistent kernel: a ring buffer in shared memory holds rows of s and dy, filled by cp.async several rows ahead. A thread \
  owns the same columns of every row and sums their dweight and dbias in registers. At its end a block writes one partial row of sums; a \
  second launch adds the partial rows in order."""
limit   = "Rows whose column sums do not fit the registers of one block."
dtypes  = ["f32", "f16", "bf16"]
tensors = ["dweight: T[C]?", "dbias: T[C]?"]
args    = [
    "R: i32", "C: i32", "dy: T[R, C]", "dys: i64 = stride(dy, 0)", "ds: T[R, C]?", "dss: i64 = stride(ds, 0)", "s: T[R, C]",
    "ss: i64 = stride(s, 0)", "weight: T[C]?", "dx: T[R, C]", "dxs: i64 = stride(dx, 0)", "eps: f32",
]
demands = { has = ["LDGSTS.E.128", "STG.E.128"], spills = 0 }
python  = ["supports", "choose", "configs", "scratch", "launches"]
valid   = "vectors > 0"

[config]
team = 32
teams = 1
vectors = 0
stages = 2
*/
// Backward of rms_norm and layer_norm for rows that a block holds: norm_bwd_warp (one or several rows a warp) and norm_bwd_block (one row a
// block, or several). _bwd_rows.cuh has the formulas.
#include "_bwd_rows.cuh"

/// Short rows: LANES lanes a row. No barrier in the loop over rows.
template <typename T, int LANES, int VECTORS, int STAGES, bool ALIGNED, bool CENTRE, bool SECOND, bool WEIGHT, bool BIAS>
__global__ void __launch_bounds__(512, 1)
    norm_bwd_warp(int R, int C, const T* __restrict__ dy, long long dys, const T* __restrict__ ds, long long dss, const T* __restrict__ s,
        long long ss,
                  const T* __restrict__ weight, T* __restrict__ dx, long long dxs, float eps, int period, float* __restrict__ pw,
                  float* __restrict__ pb) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Walk walk(R, period, blockIdx.x, gridDim.x, threadIdx.x / LANES, blockDim.x / LANES);
    const int rows = __shfl_sync(~0u, walk.count, 0);  // of the warp's first team; no other team of the warp has more rows
    Columns<T, VECTORS, STAGES, ALIGNED, CENTRE, SECOND, WEIGHT, BIAS> columns;
    const auto locate = [&](bool there) { columns.row.locate(s + walk.phase * ss, there ? C : 0, lane % LANES, LANES); };
    locate(true);
    gdc_wait();
    if (WEIGHT || BIAS) gdc_launch_dependents();
    columns.begin(walk, s, ss, dy, dys, ds, dss, weight);
    const Divisor n(C);
    T* to = dx + walk.first * dxs;
    for (int k = 0; k < rows; ++k) {
        if (LANES < 32 && k >= walk.count) locate(false);
        columns.fetch(k + STAGES - 1 < walk.count);
        columns.now = k % STAGES;
        columns.take_singles(k + 1 < walk.count);
        __pipeline_wait_prior(STAGES - 1);
        columns.finish(columns.template part<LANES>(n), n, eps, to);
        columns.end_row(k);
        to += walk.step * dxs;
    }
    if (!WEIGHT && !BIAS) return;
    columns.close();
    columns.dweight.template add_teams<LANES>(), columns.dbias.template add_teams<LANES>();  // of the warp
    locate(true);
    const long long partial = blockIdx.x * static_cast<long long>(pitch_of<T, ALIGNED>(C));
    columns.leave_together(warp, blockDim.x / 32, lane < LANES, C, pw + partial, pb + partial);
}

/// Longer rows: `teams` teams of whole warps, each with one row at a time. One barrier a row: a warp writes its part of row k, then
/// finishes row k - 1, whose parts were written before the barrier, so it has work while other warps are late.
template <typename T, int VECTORS, int STAGES, bool ALIGNED, bool CENTRE, bool SECOND, bool WEIGHT, bool BIAS>
__global__ void __launch_bounds__(512, 1)
    norm_bwd_block(int R, int C, const T* __restrict__ dy, long long dys, const T* __restrict__ ds, long long dss, const T* __restrict__ s,
        long long ss,
                   const T* __restrict__ weight, T* __restrict__ dx, long long dxs, float eps, int period, float* __restrict__ pw,
                   float* __restrict__ pb,
                   int teams) {
    using Mine = Columns<T, VECTORS, STAGES, ALIGNED, CENTRE, SECOND, WEIGHT, BIAS>;
    __shared__ Part parts[2][16];  // of the warps, for this row and the one before
    const int threads = blockDim.x / teams, warps = threads / 32, team = threadIdx.x / threads, thread = threadIdx.x % threads,
        lane = threadIdx.x % 32;
    const Walk walk(R, period, blockIdx.x, gridDim.x, team, teams), first(R, period, blockIdx.x, gridDim.x, 0, teams);
    Mine columns;
    columns.row.locate(s + walk.phase * ss, C, thread, threads);
    const Divisor n(C), of_warp(max(1, columns.row.elements_of_warp(thread / 32)));
    const float of_lane = lane % 16 < warps ? columns.row.elements_of_warp(lane % 16) : 0;
    gdc_wait();
    if (WEIGHT || BIAS) gdc_launch_dependents();
    columns.begin(walk, s, ss, dy, dys, ds, dss, weight);
    T* to = dx + walk.first * dxs;
    for (int k = 0; k <= first.count; ++k) {  // of the first team; no other team has more rows
        if (k > 0) columns.fetch(k + STAGES - 2 < walk.count);
        Part part = {0, 0, 0, 0}, of_row = {0, 0, 0, 0};
        if (k > 0) {
            if (lane % 16 < warps) of_row = parts[(k - 1) % 2][team * warps + lane % 16];
            of_row = whole_of<CENTRE, Mine::EXACT, 16>(of_row, of_lane, n);
        }
        if (k < walk.count) {
            columns.now = k % STAGES;
            columns.take_singles(k + 1 < walk.count);
            __pipeline_wait_prior(STAGES - 2);
            part = columns.template part<32>(of_warp);
        }
        if (k > 0 && k <= walk.count) {
            columns.now = (k - 1) % STAGES;
            columns.finish(of_row, n, eps, to);
            columns.end_row(k - 1);
            to += walk.step * dxs;
        }
        if (lane == 0) parts[k % 2][threadIdx.x / 32] = part;
        __syncthreads();
    }
    if (!WEIGHT && !BIAS) return;
    columns.close();
    const long long partial = blockIdx.x * static_cast<long long>(pitch_of<T, ALIGNED>(C));
    if (teams == 1)
        columns.leave(pw + partial, pb + partial);
    else
        columns.leave_together(team, teams, true, C, pw + partial, pb + partial);
}
