/* rooftop
idea    = "A persistent kernel: clusters of 1 to 16 blocks, no more of them than the card runs at once, walk over the rows. Each thread owns 8 to 32 columns of all of them; the weight and the rows to come wait in shared memory, the sums of dweight and dbias there or in registers, so that every row is read once and partial sums are a few MiB in all. Two sums of a row are wanted. While the parts of a row travel between the blocks (st.async, counted by an mbarrier) the row before is finished. Where partial rows are many for the rows there are, a group of blocks adds up its own first (distributed shared memory). A second launch adds the partial rows in a fixed order: the same bits every time."
predict = { speedup = 1.8 }
limit   = "Persistent blocks share the memory unequally (docs/staying.md). Odd rows: the grid is whole periods of 8 or 16 clusters, fewer than the card runs at once. Of few rows, the start, the end and the launch that adds the sums show."
dtypes  = ["f32", "f16", "bf16"]
tensors = ["dweight: T[C]?", "dbias: T[C]?"]
args    = ["R: i32", "C: i32", "dy: T[R, C]", "dys: i64 = stride(dy, 0)", "ds: T[R, C]?", "dss: i64 = stride(ds, 0)", "s: T[R, C]", "ss: i64 = stride(s, 0)", "weight: T[C]?", "dx: T[R, C]", "dxs: i64 = stride(dx, 0)", "eps: f32"]
demands = { has = ["LDGSTS.E.128", "STG.E.128"], spills = 0 }
python  = ["supports", "prefers", "choose", "configs", "scratch", "launches"]
valid   = "threads > 0"

[requires]
"R > 0" = "there must be a row"
"R < 2147483648" = "rows are counted in 32 bits"

[config]
threads = 0
pieces  = 4
cluster = 16
group   = 1
blocks  = 1
stages  = 3
sums    = "registers"
joint   = false
*/
#include "norms_bwd.cuh"
