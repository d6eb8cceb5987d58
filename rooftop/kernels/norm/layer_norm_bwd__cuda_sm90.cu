/* rooftop
idea    = "Clusters of 1 to 16 blocks stay for the whole launch and walk over the rows. Each thread owns 8 to 32 columns: it holds a row of s and dy in registers; the weight, its sums of dweight and dbias and the rows to come wait in shared memory, so that every row is read once, partial sums are a few MiB in all, and registers leave room for 1024 threads a multiprocessor. Four sums about each warp's own mean pass between the blocks, one barrier a row. A last launch adds the clusters' partial rows in a fixed order: the same bits every time."
predict = { speedup = 1.8 }
limit   = "Instructions of a row, which is gone over three times: 0.94 of a copy at 8192 columns of bf16, 0.71 at 32768; longer rows go faster in two launches of Triton. Below 64 MiB the second launch."
dtypes  = ["f32", "f16", "bf16"]
args    = ["R: i32", "C: i32", "clusters: i32", "dy: T[R, C]", "dys: i64 = stride(dy, 0)", "ds: T[R, C]?", "dss: i64 = stride(ds, 0)", "s: T[R, C]", "ss: i64 = stride(s, 0)", "weight: T[C]?", "dx: T[R, C]", "dxs: i64 = stride(dx, 0)", "pw: f32[P, C]", "pb: f32[P, C]", "eps: f32"]
demands = { has = ["LDGSTS.E.128", "STG.E.128"], spills = 0 }
prefer  = "C >= 256 and bytes_of_row <= 65536"
valid   = "threads <= 1024 and each * threads <= 1536 and each * (shared + 2048) <= 231000 and (cluster == 1 or bytes_of_row > 4096 * cluster)"
configs = [{ pieces = 1, cluster = 1, each = 1, stages = 1 }, { pieces = 1, cluster = 1, each = 1, stages = 2 }, { pieces = 1, cluster = 1, each = 1, stages = 3 }, { pieces = 1, cluster = 1, each = 2, stages = 1 }, { pieces = 1, cluster = 1, each = 2, stages = 2 }, { pieces = 1, cluster = 1, each = 2, stages = 3 }, { pieces = 1, cluster = 1, each = 3, stages = 1 }, { pieces = 1, cluster = 1, each = 3, stages = 2 }, { pieces = 1, cluster = 1, each = 3, stages = 3 }, { pieces = 1, cluster = 1, each = 4, stages = 1 }, { pieces = 1, cluster = 1, each = 4, stages = 2 }, { pieces = 1, cluster = 1, each = 4, stages = 3 }, { pieces = 1, cluster = 1, each = 6, stages = 1 }, { pieces = 1, cluster = 1, each = 6, stages = 2 }, { pieces = 1, cluster = 1, each = 6, stages = 3 }, { pieces = 1, cluster = 1, each = 8, stages = 1 }, { pieces = 1, cluster = 1, each = 8, stages = 2 }, { pieces = 1, cluster = 1, each = 8, stages = 3 }, { pieces = 1, cluster = 2, each = 1, stages = 1 }, { pieces = 1, cluster = 2, each = 1, stages = 2 }, { pieces = 1, cluster = 2, each = 1, stages = 3 }, { pieces = 1, cluster = 2, each = 2, stages = 1 }, { pieces = 1, cluster = 2, each = 2, stages = 2 }, { pieces = 1, cluster = 2, each = 2, stages = 3 }, { pieces = 1, cluster = 2, each = 3, stages = 1 }, { pieces = 1, cluster = 2, each = 3, stages = 2 }, { pieces = 1, cluster = 2, each = 3, stages = 3 }, { pieces = 1, cluster = 2, each = 4, stages = 1 }, { pieces = 1, cluster = 2, each = 4, stages = 2 }, { pieces = 1, cluster = 2, each = 4, stages = 3 }, { pieces = 1, cluster = 2, each = 6, stages = 1 }, { pieces = 1, cluster = 2, each = 6, stages = 2 }, { pieces = 1, cluster = 2, each = 6, stages = 3 }, { pieces = 1, cluster = 2, each = 8, stages = 1 }, { pieces = 1, cluster = 2, each = 8, stages = 2 }, { pieces = 1, cluster = 2, each = 8, stages = 3 }, { pieces = 1, cluster = 4, each = 1, stages = 1 }, { pieces = 1, cluster = 4, each = 1, stages = 2 }, { pieces = 1, cluster = 4, each = 1, stages = 3 }, { pieces = 1, cluster = 4, each = 2, stages = 1 }, { pieces = 1, cluster = 4, each = 2, stages = 2 }, { pieces = 1, cluster = 4, each = 2, stages = 3 }, { pieces = 1, cluster = 4, each = 3, stages = 1 }, { pieces = 1, cluster = 4, each = 3, stages = 2 }, { pieces = 1, cluster = 4, each = 3, stages = 3 }, { pieces = 1, cluster = 4, each = 4, stages = 1 }, { pieces = 1, cluster = 4, each = 4, stages = 2 }, { pieces = 1, cluster = 4, each = 4, stages = 3 }, { pieces = 1, cluster = 4, each = 6, stages = 1 }, { pieces = 1, cluster = 4, each = 6, stages = 2 }, { pieces = 1, cluster = 4, each = 6, stages = 3 }, { pieces = 1, cluster = 4, each = 8, stages = 1 }, { pieces = 1, cluster = 4, each = 8, stages = 2 }, { pieces = 1, cluster = 4, each = 8, stages = 3 }, { pieces = 1, cluster = 8, each = 1, stages = 1 }, { pieces = 1, cluster = 8, each = 1, stages = 2 }, { pieces = 1, cluster = 8, each = 1, stages = 3 }, { pieces = 1, cluster = 8, each = 2, stages = 1 }, { pieces = 1, cluster = 8, each = 2, stages = 2 }, { pieces = 1, cluster = 8, each = 2, stages = 3 }, { pieces = 1, cluster = 8, each = 3, stages = 1 }, { pieces = 1, cluster = 8, each = 3, stages = 2 }, { pieces = 1, cluster = 8, each = 3, stages = 3 }, { pieces = 1, cluster = 8, each = 4, stages = 1 }, { pieces = 1, cluster = 8, each = 4, stages = 2 }, { pieces = 1, cluster = 8, each = 4, stages = 3 }, { pieces = 1, cluster = 8, each = 6, stages = 1 }, { pieces = 1, cluster = 8, each = 6, stages = 2 }, { pieces = 1, cluster = 8, each = 6, stages = 3 }, { pieces = 1, cluster = 8, each = 8, stages = 1 }, { pieces = 1, cluster = 8, each = 8, stages = 2 }, { pieces = 1, cluster = 8, each = 8, stages = 3 }, { pieces = 1, cluster = 16, each = 1, stages = 1 }, { pieces = 1, cluster = 16, each = 1, stages = 2 }, { pieces = 1, cluster = 16, each = 1, stages = 3 }, { pieces = 1, cluster = 16, each = 2, stages = 1 }, { pieces = 1, cluster = 16, each = 2, stages = 2 }, { pieces = 1, cluster = 16, each = 2, stages = 3 }, { pieces = 1, cluster = 16, each = 3, stages = 1 }, { pieces = 1, cluster = 16, each = 3, stages = 2 }, { pieces = 1, cluster = 16, each = 3, stages = 3 }, { pieces = 1, cluster = 16, each = 4, stages = 1 }, { pieces = 1, cluster = 16, each = 4, stages = 2 }, { pieces = 1, cluster = 16, each = 4, stages = 3 }, { pieces = 1, cluster = 16, each = 6, stages = 1 }, { pieces = 1, cluster = 16, each = 6, stages = 2 }, { pieces = 1, cluster = 16, each = 6, stages = 3 }, { pieces = 1, cluster = 16, each = 8, stages = 1 }, { pieces = 1, cluster = 16, each = 8, stages = 2 }, { pieces = 1, cluster = 16, each = 8, stages = 3 }, { pieces = 2, cluster = 1, each = 1, stages = 1 }, { pieces = 2, cluster = 1, each = 1, stages = 2 }, { pieces = 2, cluster = 1, each = 1, stages = 3 }, { pieces = 2, cluster = 1, each = 2, stages = 1 }, { pieces = 2, cluster = 1, each = 2, stages = 2 }, { pieces = 2, cluster = 1, each = 2, stages = 3 }, { pieces = 2, cluster = 1, each = 3, stages = 1 }, { pieces = 2, cluster = 1, each = 3, stages = 2 }, { pieces = 2, cluster = 1, each = 3, stages = 3 }, { pieces = 2, cluster = 1, each = 4, stages = 1 }, { pieces = 2, cluster = 1, each = 4, stages = 2 }, { pieces = 2, cluster = 1, each = 4, stages = 3 }, { pieces = 2, cluster = 1, each = 6, stages = 1 }, { pieces = 2, cluster = 1, each = 6, stages = 2 }, { pieces = 2, cluster = 1, each = 6, stages = 3 }, { pieces = 2, cluster = 1, each = 8, stages = 1 }, { pieces = 2, cluster = 1, each = 8, stages = 2 }, { pieces = 2, cluster = 1, each = 8, stages = 3 }, { pieces = 2, cluster = 2, each = 1, stages = 1 }, { pieces = 2, cluster = 2, each = 1, stages = 2 }, { pieces = 2, cluster = 2, each = 1, stages = 3 }, { pieces = 2, cluster = 2, each = 2, stages = 1 }, { pieces = 2, cluster = 2, each = 2, stages = 2 }, { pieces = 2, cluster = 2, each = 2, stages = 3 }, { pieces = 2, cluster = 2, each = 3, stages = 1 }, { pieces = 2, cluster = 2, each = 3, stages = 2 }, { pieces = 2, cluster = 2, each = 3, stages = 3 }, { pieces = 2, cluster = 2, each = 4, stages = 1 }, { pieces = 2, cluster = 2, each = 4, stages = 2 }, { pieces = 2, cluster = 2, each = 4, stages = 3 }, { pieces = 2, cluster = 2, each = 6, stages = 1 }, { pieces = 2, cluster = 2, each = 6, stages = 2 }, { pieces = 2, cluster = 2, each = 6, stages = 3 }, { pieces = 2, cluster = 2, each = 8, stages = 1 }, { pieces = 2, cluster = 2, each = 8, stages = 2 }, { pieces = 2, cluster = 2, each = 8, stages = 3 }, { pieces = 2, cluster = 4, each = 1, stages = 1 }, { pieces = 2, cluster = 4, each = 1, stages = 2 }, { pieces = 2, cluster = 4, each = 1, stages = 3 }, { pieces = 2, cluster = 4, each = 2, stages = 1 }, { pieces = 2, cluster = 4, each = 2, stages = 2 }, { pieces = 2, cluster = 4, each = 2, stages = 3 }, { pieces = 2, cluster = 4, each = 3, stages = 1 }, { pieces = 2, cluster = 4, each = 3, stages = 2 }, { pieces = 2, cluster = 4, each = 3, stages = 3 }, { pieces = 2, cluster = 4, each = 4, stages = 1 }, { pieces = 2, cluster = 4, each = 4, stages = 2 }, { pieces = 2, cluster = 4, each = 4, stages = 3 }, { pieces = 2, cluster = 4, each = 6, stages = 1 }, { pieces = 2, cluster = 4, each = 6, stages = 2 }, { pieces = 2, cluster = 4, each = 6, stages = 3 }, { pieces = 2, cluster = 4, each = 8, stages = 1 }, { pieces = 2, cluster = 4, each = 8, stages = 2 }, { pieces = 2, cluster = 4, each = 8, stages = 3 }, { pieces = 2, cluster = 8, each = 1, stages = 1 }, { pieces = 2, cluster = 8, each = 1, stages = 2 }, { pieces = 2, cluster = 8, each = 1, stages = 3 }, { pieces = 2, cluster = 8, each = 2, stages = 1 }, { pieces = 2, cluster = 8, each = 2, stages = 2 }, { pieces = 2, cluster = 8, each = 2, stages = 3 }, { pieces = 2, cluster = 8, each = 3, stages = 1 }, { pieces = 2, cluster = 8, each = 3, stages = 2 }, { pieces = 2, cluster = 8, each = 3, stages = 3 }, { pieces = 2, cluster = 8, each = 4, stages = 1 }, { pieces = 2, cluster = 8, each = 4, stages = 2 }, { pieces = 2, cluster = 8, each = 4, stages = 3 }, { pieces = 2, cluster = 8, each = 6, stages = 1 }, { pieces = 2, cluster = 8, each = 6, stages = 2 }, { pieces = 2, cluster = 8, each = 6, stages = 3 }, { pieces = 2, cluster = 8, each = 8, stages = 1 }, { pieces = 2, cluster = 8, each = 8, stages = 2 }, { pieces = 2, cluster = 8, each = 8, stages = 3 }, { pieces = 2, cluster = 16, each = 1, stages = 1 }, { pieces = 2, cluster = 16, each = 1, stages = 2 }, { pieces = 2, cluster = 16, each = 1, stages = 3 }, { pieces = 2, cluster = 16, each = 2, stages = 1 }, { pieces = 2, cluster = 16, each = 2, stages = 2 }, { pieces = 2, cluster = 16, each = 2, stages = 3 }, { pieces = 2, cluster = 16, each = 3, stages = 1 }, { pieces = 2, cluster = 16, each = 3, stages = 2 }, { pieces = 2, cluster = 16, each = 3, stages = 3 }, { pieces = 2, cluster = 16, each = 4, stages = 1 }, { pieces = 2, cluster = 16, each = 4, stages = 2 }, { pieces = 2, cluster = 16, each = 4, stages = 3 }, { pieces = 2, cluster = 16, each = 6, stages = 1 }, { pieces = 2, cluster = 16, each = 6, stages = 2 }, { pieces = 2, cluster = 16, each = 6, stages = 3 }, { pieces = 2, cluster = 16, each = 8, stages = 1 }, { pieces = 2, cluster = 16, each = 8, stages = 2 }, { pieces = 2, cluster = 16, each = 8, stages = 3 }, { pieces = 3, cluster = 1, each = 1, stages = 1 }, { pieces = 3, cluster = 1, each = 1, stages = 2 }, { pieces = 3, cluster = 1, each = 1, stages = 3 }, { pieces = 3, cluster = 1, each = 2, stages = 1 }, { pieces = 3, cluster = 1, each = 2, stages = 2 }, { pieces = 3, cluster = 1, each = 2, stages = 3 }, { pieces = 3, cluster = 1, each = 3, stages = 1 }, { pieces = 3, cluster = 1, each = 3, stages = 2 }, { pieces = 3, cluster = 1, each = 3, stages = 3 }, { pieces = 3, cluster = 1, each = 4, stages = 1 }, { pieces = 3, cluster = 1, each = 4, stages = 2 }, { pieces = 3, cluster = 1, each = 4, stages = 3 }, { pieces = 3, cluster = 1, each = 6, stages = 1 }, { pieces = 3, cluster = 1, each = 6, stages = 2 }, { pieces = 3, cluster = 1, each = 6, stages = 3 }, { pieces = 3, cluster = 1, each = 8, stages = 1 }, { pieces = 3, cluster = 1, each = 8, stages = 2 }, { pieces = 3, cluster = 1, each = 8, stages = 3 }, { pieces = 3, cluster = 2, each = 1, stages = 1 }, { pieces = 3, cluster = 2, each = 1, stages = 2 }, { pieces = 3, cluster = 2, each = 1, stages = 3 }, { pieces = 3, cluster = 2, each = 2, stages = 1 }, { pieces = 3, cluster = 2, each = 2, stages = 2 }, { pieces = 3, cluster = 2, each = 2, stages = 3 }, { pieces = 3, cluster = 2, each = 3, stages = 1 }, { pieces = 3, cluster = 2, each = 3, stages = 2 }, { pieces = 3, cluster = 2, each = 3, stages = 3 }, { pieces = 3, cluster = 2, each = 4, stages = 1 }, { pieces = 3, cluster = 2, each = 4, stages = 2 }, { pieces = 3, cluster = 2, each = 4, stages = 3 }, { pieces = 3, cluster = 2, each = 6, stages = 1 }, { pieces = 3, cluster = 2, each = 6, stages = 2 }, { pieces = 3, cluster = 2, each = 6, stages = 3 }, { pieces = 3, cluster = 2, each = 8, stages = 1 }, { pieces = 3, cluster = 2, each = 8, stages = 2 }, { pieces = 3, cluster = 2, each = 8, stages = 3 }, { pieces = 3, cluster = 4, each = 1, stages = 1 }, { pieces = 3, cluster = 4, each = 1, stages = 2 }, { pieces = 3, cluster = 4, each = 1, stages = 3 }, { pieces = 3, cluster = 4, each = 2, stages = 1 }, { pieces = 3, cluster = 4, each = 2, stages = 2 }, { pieces = 3, cluster = 4, each = 2, stages = 3 }, { pieces = 3, cluster = 4, each = 3, stages = 1 }, { pieces = 3, cluster = 4, each = 3, stages = 2 }, { pieces = 3, cluster = 4, each = 3, stages = 3 }, { pieces = 3, cluster = 4, each = 4, stages = 1 }, { pieces = 3, cluster = 4, each = 4, stages = 2 }, { pieces = 3, cluster = 4, each = 4, stages = 3 }, { pieces = 3, cluster = 4, each = 6, stages = 1 }, { pieces = 3, cluster = 4, each = 6, stages = 2 }, { pieces = 3, cluster = 4, each = 6, stages = 3 }, { pieces = 3, cluster = 4, each = 8, stages = 1 }, { pieces = 3, cluster = 4, each = 8, stages = 2 }, { pieces = 3, cluster = 4, each = 8, stages = 3 }, { pieces = 3, cluster = 8, each = 1, stages = 1 }, { pieces = 3, cluster = 8, each = 1, stages = 2 }, { pieces = 3, cluster = 8, each = 1, stages = 3 }, { pieces = 3, cluster = 8, each = 2, stages = 1 }, { pieces = 3, cluster = 8, each = 2, stages = 2 }, { pieces = 3, cluster = 8, each = 2, stages = 3 }, { pieces = 3, cluster = 8, each = 3, stages = 1 }, { pieces = 3, cluster = 8, each = 3, stages = 2 }, { pieces = 3, cluster = 8, each = 3, stages = 3 }, { pieces = 3, cluster = 8, each = 4, stages = 1 }, { pieces = 3, cluster = 8, each = 4, stages = 2 }, { pieces = 3, cluster = 8, each = 4, stages = 3 }, { pieces = 3, cluster = 8, each = 6, stages = 1 }, { pieces = 3, cluster = 8, each = 6, stages = 2 }, { pieces = 3, cluster = 8, each = 6, stages = 3 }, { pieces = 3, cluster = 8, each = 8, stages = 1 }, { pieces = 3, cluster = 8, each = 8, stages = 2 }, { pieces = 3, cluster = 8, each = 8, stages = 3 }, { pieces = 3, cluster = 16, each = 1, stages = 1 }, { pieces = 3, cluster = 16, each = 1, stages = 2 }, { pieces = 3, cluster = 16, each = 1, stages = 3 }, { pieces = 3, cluster = 16, each = 2, stages = 1 }, { pieces = 3, cluster = 16, each = 2, stages = 2 }, { pieces = 3, cluster = 16, each = 2, stages = 3 }, { pieces = 3, cluster = 16, each = 3, stages = 1 }, { pieces = 3, cluster = 16, each = 3, stages = 2 }, { pieces = 3, cluster = 16, each = 3, stages = 3 }, { pieces = 3, cluster = 16, each = 4, stages = 1 }, { pieces = 3, cluster = 16, each = 4, stages = 2 }, { pieces = 3, cluster = 16, each = 4, stages = 3 }, { pieces = 3, cluster = 16, each = 6, stages = 1 }, { pieces = 3, cluster = 16, each = 6, stages = 2 }, { pieces = 3, cluster = 16, each = 6, stages = 3 }, { pieces = 3, cluster = 16, each = 8, stages = 1 }, { pieces = 3, cluster = 16, each = 8, stages = 2 }, { pieces = 3, cluster = 16, each = 8, stages = 3 }, { pieces = 4, cluster = 1, each = 1, stages = 1 }, { pieces = 4, cluster = 1, each = 1, stages = 2 }, { pieces = 4, cluster = 1, each = 1, stages = 3 }, { pieces = 4, cluster = 1, each = 2, stages = 1 }, { pieces = 4, cluster = 1, each = 2, stages = 2 }, { pieces = 4, cluster = 1, each = 2, stages = 3 }, { pieces = 4, cluster = 1, each = 3, stages = 1 }, { pieces = 4, cluster = 1, each = 3, stages = 2 }, { pieces = 4, cluster = 1, each = 3, stages = 3 }, { pieces = 4, cluster = 1, each = 4, stages = 1 }, { pieces = 4, cluster = 1, each = 4, stages = 2 }, { pieces = 4, cluster = 1, each = 4, stages = 3 }, { pieces = 4, cluster = 1, each = 6, stages = 1 }, { pieces = 4, cluster = 1, each = 6, stages = 2 }, { pieces = 4, cluster = 1, each = 6, stages = 3 }, { pieces = 4, cluster = 1, each = 8, stages = 1 }, { pieces = 4, cluster = 1, each = 8, stages = 2 }, { pieces = 4, cluster = 1, each = 8, stages = 3 }, { pieces = 4, cluster = 2, each = 1, stages = 1 }, { pieces = 4, cluster = 2, each = 1, stages = 2 }, { pieces = 4, cluster = 2, each = 1, stages = 3 }, { pieces = 4, cluster = 2, each = 2, stages = 1 }, { pieces = 4, cluster = 2, each = 2, stages = 2 }, { pieces = 4, cluster = 2, each = 2, stages = 3 }, { pieces = 4, cluster = 2, each = 3, stages = 1 }, { pieces = 4, cluster = 2, each = 3, stages = 2 }, { pieces = 4, cluster = 2, each = 3, stages = 3 }, { pieces = 4, cluster = 2, each = 4, stages = 1 }, { pieces = 4, cluster = 2, each = 4, stages = 2 }, { pieces = 4, cluster = 2, each = 4, stages = 3 }, { pieces = 4, cluster = 2, each = 6, stages = 1 }, { pieces = 4, cluster = 2, each = 6, stages = 2 }, { pieces = 4, cluster = 2, each = 6, stages = 3 }, { pieces = 4, cluster = 2, each = 8, stages = 1 }, { pieces = 4, cluster = 2, each = 8, stages = 2 }, { pieces = 4, cluster = 2, each = 8, stages = 3 }, { pieces = 4, cluster = 4, each = 1, stages = 1 }, { pieces = 4, cluster = 4, each = 1, stages = 2 }, { pieces = 4, cluster = 4, each = 1, stages = 3 }, { pieces = 4, cluster = 4, each = 2, stages = 1 }, { pieces = 4, cluster = 4, each = 2, stages = 2 }, { pieces = 4, cluster = 4, each = 2, stages = 3 }, { pieces = 4, cluster = 4, each = 3, stages = 1 }, { pieces = 4, cluster = 4, each = 3, stages = 2 }, { pieces = 4, cluster = 4, each = 3, stages = 3 }, { pieces = 4, cluster = 4, each = 4, stages = 1 }, { pieces = 4, cluster = 4, each = 4, stages = 2 }, { pieces = 4, cluster = 4, each = 4, stages = 3 }, { pieces = 4, cluster = 4, each = 6, stages = 1 }, { pieces = 4, cluster = 4, each = 6, stages = 2 }, { pieces = 4, cluster = 4, each = 6, stages = 3 }, { pieces = 4, cluster = 4, each = 8, stages = 1 }, { pieces = 4, cluster = 4, each = 8, stages = 2 }, { pieces = 4, cluster = 4, each = 8, stages = 3 }, { pieces = 4, cluster = 8, each = 1, stages = 1 }, { pieces = 4, cluster = 8, each = 1, stages = 2 }, { pieces = 4, cluster = 8, each = 1, stages = 3 }, { pieces = 4, cluster = 8, each = 2, stages = 1 }, { pieces = 4, cluster = 8, each = 2, stages = 2 }, { pieces = 4, cluster = 8, each = 2, stages = 3 }, { pieces = 4, cluster = 8, each = 3, stages = 1 }, { pieces = 4, cluster = 8, each = 3, stages = 2 }, { pieces = 4, cluster = 8, each = 3, stages = 3 }, { pieces = 4, cluster = 8, each = 4, stages = 1 }, { pieces = 4, cluster = 8, each = 4, stages = 2 }, { pieces = 4, cluster = 8, each = 4, stages = 3 }, { pieces = 4, cluster = 8, each = 6, stages = 1 }, { pieces = 4, cluster = 8, each = 6, stages = 2 }, { pieces = 4, cluster = 8, each = 6, stages = 3 }, { pieces = 4, cluster = 8, each = 8, stages = 1 }, { pieces = 4, cluster = 8, each = 8, stages = 2 }, { pieces = 4, cluster = 8, each = 8, stages = 3 }, { pieces = 4, cluster = 16, each = 1, stages = 1 }, { pieces = 4, cluster = 16, each = 1, stages = 2 }, { pieces = 4, cluster = 16, each = 1, stages = 3 }, { pieces = 4, cluster = 16, each = 2, stages = 1 }, { pieces = 4, cluster = 16, each = 2, stages = 2 }, { pieces = 4, cluster = 16, each = 2, stages = 3 }, { pieces = 4, cluster = 16, each = 3, stages = 1 }, { pieces = 4, cluster = 16, each = 3, stages = 2 }, { pieces = 4, cluster = 16, each = 3, stages = 3 }, { pieces = 4, cluster = 16, each = 4, stages = 1 }, { pieces = 4, cluster = 16, each = 4, stages = 2 }, { pieces = 4, cluster = 16, each = 4, stages = 3 }, { pieces = 4, cluster = 16, each = 6, stages = 1 }, { pieces = 4, cluster = 16, each = 6, stages = 2 }, { pieces = 4, cluster = 16, each = 6, stages = 3 }, { pieces = 4, cluster = 16, each = 8, stages = 1 }, { pieces = 4, cluster = 16, each = 8, stages = 2 }, { pieces = 4, cluster = 16, each = 8, stages = 3 }]

[let]
bytes_of_row = "C * bytes(s)"
own          = "pieces * 16 // bytes(s)"
threads      = "32 * ceil(C / (32 * cluster * own))"
shared       = "own * threads * (stages * 2 * bytes(s) + (bytes(s) + 4 if present(dweight) else 0) + (4 if present(dbias) else 0))"
clusters     = "ceil(R / (ceil(R / (sms * each // cluster)) if R > 0 else 1))"
whole        = "C % (16 // bytes(s)) == 0 and aligned(s, 16) and aligned(dy, 16) and aligned(dx, 16) and (not present(ds) or aligned(ds, 16)) and (not present(weight) or aligned(weight, 16))"

[requires]
"R > 0" = "there must be a row"
"bytes_of_row <= 524288" = "each of the 1024 threads of 16 blocks owns two packs of 16 bytes"
"R < 2147483648" = "rows are counted in 32 bits"
"whole" = "rows must start and end on 16 bytes"

[config]
pieces  = 2
cluster = 16
each    = 1
stages  = 1

[[choice]]
when    = "bytes_of_row <= 2048"
pieces  = 1
cluster = 1
each    = 8
stages  = 2

[[choice]]
when    = "bytes_of_row <= 4096"
pieces  = 1
cluster = 1
each    = 4
stages  = 2

[[choice]]
when    = "bytes_of_row <= 6144"
pieces  = 2
cluster = 1
each    = 3
stages  = 1

[[choice]]
when    = "bytes_of_row <= 12288"
pieces  = 2
cluster = 1
each    = 2
stages  = 1

[[choice]]
when    = "bytes_of_row <= 16384"
pieces  = 2
cluster = 1
each    = 1
stages  = 1

[[choice]]
when    = "bytes_of_row <= 32768"
pieces  = 2
cluster = 1
each    = 1
stages  = 1

[[choice]]
when    = "bytes_of_row <= 65536"
pieces  = 2
cluster = 2
each    = 1
stages  = 1

[[choice]]
when    = "bytes_of_row <= 131072"
pieces  = 2
cluster = 4
each    = 1
stages  = 1

[[choice]]
when    = "bytes_of_row <= 262144"
pieces  = 2
cluster = 8
each    = 1
stages  = 1

[scratch]
pw = "f32[clusters, C]"
pb = "f32[clusters, C]"

[[launch]]
kernel  = "norm_backward<{T}, {pieces}, {threads}, {cluster}, {each}, {stages}, true, {present(dweight)}, {present(dbias)}, {present(ds)}>"
grid    = ["cluster * clusters"]
block   = ["threads"]
cluster = ["cluster"]
shared  = "shared"

[[launch]]
when    = "present(dweight) or present(dbias)"
kernel  = "norm_columns<{T}>"
grid    = ["ceil(C / 32)", "(1 if present(dweight) else 0) + (1 if present(dbias) else 0)"]
block   = [32, 32]
args    = ["clusters: i32", "C: i32", "pw: f32[P, C]", "dweight: T[C]?", "pb: f32[P, C]", "dbias: T[C]?"]
*/
#include "norms_bwd.cuh"
