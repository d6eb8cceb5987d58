/* rooftop
idea    = "Each row is read once and written once, by one of five kernels (kernels/_device/norm_sm90.py). Short rows: several a warp, without a barrier. Rows of up to 64 KiB wait in the registers of a block, and the weight come to shared memory while they are added up. Longer rows are shared out over a cluster of blocks and wait in their shared memory; each warp passes on the sum of squares. A streaming cluster takes a row or two and ends. A persistent cluster stays for the whole launch, so that the weight, as long as the row, is read once: rows to come are on their way by cp.async, and while the parts of one row travel between the blocks (st.async, counted by an mbarrier) the row before is written."
predict = { speedup = 1.4 }
limit   = "Persistent clusters share the memory unequally (docs/staying.md); streaming ones read the weight again for each row."
dtypes  = ["f32", "f16", "bf16"]
args    = ["R: i32", "C: i32", "x: T[R, C]", "xs: i64 = stride(x, 0)", "residual: T[R, C]?", "rs: i64 = stride(residual, 0)", "weight: T[C]?", "bias: T[C]?", "y: T[R, C]", "ys: i64 = stride(y, 0)", "s: T[R, C]?", "ss: i64 = stride(s, 0)", "eps: f32"]
demands = { has = ["STG.E.128"], spills = 0 }
python  = ["prefers", "choose", "configs", "launches"]
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
// Five kernels, one of which takes a row: kernels/_device/norm_sm90.py has the table. norms.cuh: norm_cluster, norm_whole_row, norm_warp;
// norms_slices.cuh: norm_persistent, norm_streaming.
#include "norms.cuh"
#include "norms_slices.cuh"
