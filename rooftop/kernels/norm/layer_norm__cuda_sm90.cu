/* rooftop
idea    = "Each row is read once and written once, by one of five kernels (the table in kernels/norm/_fwd_sm90.py chooses). warp: several short rows a warp, no barrier. whole row: one block holds an aligned row of 1 to 64 KiB in registers (32 to 44 KiB: persistent), and copies weight and bias to shared memory (cp.async) while it computes the statistics; float32 takes two passes over the registers, 16-bit types one pass about a pivot. Longer rows, and unaligned rows from 8 KiB, are divided among the blocks of a cluster and held in their shared memory; each thread computes its statistics in one pass about a pivot (its first element; in float32 the mean of its first four), and the blocks exchange them through distributed shared memory. streaming: a cluster takes one or two rows and ends. persistent: clusters live for the whole launch, so that weight and bias are read once; the next rows are prefetched by cp.async, and a row is normalised and stored while the statistics of the next one travel between the blocks (st.async, counted by an mbarrier). cluster: the general case, one cluster a row with one cluster barrier, for what no other kernel supports."
predict = { speedup = 1.4 }
limit   = "Whole row: the bandwidth of a copy; weight and bias come from the L2 again for each row, without a visible cost (3.03 TB/s on an H100 for 32 KiB of float32). Persistent clusters: multiprocessors get unequal shares of the memory bandwidth (docs/persistent.md). Streaming clusters: weight and bias are read again for each row. Tensors of a few MiB: latency, two reductions and a barrier between load and store."
dtypes  = ["f32", "f16", "bf16"]
args    = ["R: i32", "C: i32", "x: T[R, C]", "xs: i64 = stride(x, 0)", "residual: T[R, C]?", "rs: i64 = stride(residual, 0)", "weight: T[C]?", "bias: T[C]?", "y: T[R, C]", "ys: i64 = stride(y, 0)", "s: T[R, C]?", "ss: i64 = stride(s, 0)", "eps: f32"]
demands = { has = ["STG.E.128"], spills = 0 }
python  = ["choose", "configs", "launches"]
valid   = "threads > 0"

[requires]
"R > 0" = "there must be a row"
"C * bytes(x) * (2 if present(residual) else 1) <= 1800000" = "a row, and the residual's, must fit the shared memory of sixteen blocks, two on a multiprocessor"
"R * cluster < 2147483648" = "a launch has fewer than 2^31 blocks"

[config]
path    = ""
threads = 0
cluster = 1
blocks  = 1
pieces  = 1
early   = 0
rows    = 1
stages  = 3
*/
// Device code: _fwd_sm90.cuh has norm_cluster, norm_whole_row and norm_warp; _fwd_slices_sm90.cuh has norm_persistent and norm_streaming. The table in
// kernels/norm/_fwd_sm90.py chooses one for a call; its docstring has worked examples for rows of 8192 columns of float32 and of bfloat16. For float16 and
// bfloat16 tensors of 64 MiB and more without a residual layer_norm__cuda_sm80.cu is faster and is chosen first: its smaller blocks keep 80 KiB in flight instead
// of 48, and weight and bias stay in L1, because the rows are loaded evict-first (its example: kernels/norm/_register_rows.py).
// No kernel here calls gdc_launch_dependents(): all blocks load until the end, and an early launch would take their registers and bandwidth. So programmatic
// dependent launch hides the launch latency of the next kernel, but not its first loads.
#include "_fwd_sm90.cuh"
#include "_fwd_slices_sm90.cuh"
