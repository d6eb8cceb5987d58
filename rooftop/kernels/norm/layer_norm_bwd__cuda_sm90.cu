/* rooftop
idea    = "A persistent kernel: as many clusters of 1 to 16 blocks as are resident at once, each loops over rows. A thread owns the same 8 to 32 columns of every row. The weight and the prefetched rows are in shared memory, the sums of dweight and dbias there or in registers: every row is read once, and all partial sums together are a few MiB. A row needs four sums, computed in one pass with the thread's first element as pivot. While its parts travel between the blocks (st.async, counted by an mbarrier), the row before is finished. If there are many partial rows for few rows, groups of blocks first add up theirs (distributed shared memory). A second launch adds the partial rows in a fixed order, so the result is deterministic."
predict = { speedup = 1.8 }
limit   = "Persistent blocks: multiprocessors get unequal shares of the memory bandwidth (docs/persistent.md). Unaligned rows: unless the grid is a multiple of 8 or 16 clusters, the ring of a cluster runs empty one to three times. Few rows: prologue, epilogue and the second launch."
dtypes  = ["f32", "f16", "bf16"]
tensors = ["dweight: T[C]?", "dbias: T[C]?"]
args    = ["R: i32", "C: i32", "dy: T[R, C]", "dys: i64 = stride(dy, 0)", "ds: T[R, C]?", "dss: i64 = stride(ds, 0)", "s: T[R, C]", "ss: i64 = stride(s, 0)", "weight: T[C]?", "dx: T[R, C]", "dxs: i64 = stride(dx, 0)", "eps: f32"]
demands = { has = ["LDGSTS.E.128", "STG.E.128"], spills = 0 }
python  = ["supports", "choose", "configs", "scratch", "launches"]
valid   = "threads > 0"

[requires]
"R > 0" = "there must be a row"
"R < 2147483648" = "rows are counted in 32 bits"
"aligned(s, 16) and C % (16 // bytes(s)) == 0 or C * bytes(s) >= 576" = "odd rows shorter than that leave a lane an element at the row's end and no pack: its sums would be taken about zero"

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
#include "_bwd_sm90.cuh"
