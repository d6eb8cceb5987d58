/* rooftop
idea    = "A row that is too long for one block is divided among a group of persistent blocks, a slice each. A slice stays in a ring buffer in shared memory while the blocks exchange its statistics through global memory; the row is finished a few rows later. So each row is read once, as long as all blocks together can hold it."
limit   = "Rows longer than the shared memory of the whole card; blocks that do not make a whole group idle."
dtypes  = ["f32", "f16", "bf16"]
tensors = ["dweight: T[C]?", "dbias: T[C]?"]
args    = ["R: i32", "C: i32", "dy: T[R, C]", "dys: i64 = stride(dy, 0)", "ds: T[R, C]?", "dss: i64 = stride(ds, 0)", "s: T[R, C]", "ss: i64 = stride(s, 0)", "weight: T[C]?", "dx: T[R, C]", "dxs: i64 = stride(dx, 0)", "eps: f32"]
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
#include "_bwd_long.cuh"
