/* rooftop
idea    = "Each row is read once and written once, by one of five kernels (the table in kernels/norm/_fwd_sm90.py chooses). warp: several short rows a warp, no barrier. whole row: one block holds a row of up to 64 KiB in registers, and copies the weight to shared memory (cp.async) while it computes the sum of squares. Longer rows are divided among the blocks of a cluster and held in their shared memory; the blocks exchange their sums of squares through distributed shared memory. streaming: a cluster takes one or two rows and ends. persistent: clusters live for the whole launch, so that the weight is read once; the next rows are prefetched by cp.async, and a row is normalised and stored while the sums of the next one travel between the blocks (st.async, counted by an mbarrier)."
predict = { speedup = 1.4 }
limit   = "Persistent clusters: multiprocessors get unequal shares of the memory bandwidth (docs/persistent.md). Streaming clusters: the weight is read again for each row."
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
// kernels/norm/_fwd_sm90.py chooses one for a call.
#include "_fwd_sm90.cuh"
#include "_fwd_slices_sm90.cuh"
