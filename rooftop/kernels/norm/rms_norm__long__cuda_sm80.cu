/* rooftop
idea    = "A row that is too long for one block is divided among a group of persistent blocks, a slice each. A slice stays in a ring buffer in shared memory while the blocks exchange its statistics through global memory; the row is finished a few rows later. So each row is read once, as long as all blocks together can hold it. Up to `beside` blocks share a multiprocessor: while one computes or waits for messages, another loads."
limit   = "Rows longer than the shared memory of the whole card; blocks that do not make a whole group idle."
dtypes  = ["f32", "f16", "bf16"]
args    = ["R: i32", "C: i32", "x: T[R, C]", "xs: i64 = stride(x, 0)", "residual: T[R, C]?", "rs: i64 = stride(residual, 0)", "weight: T[C]?", "bias: T[C]?", "y: T[R, C]", "ys: i64 = stride(y, 0)", "s: T[R, C]?", "ss: i64 = stride(s, 0)", "eps: f32"]
demands = { has = ["LDGSTS.E.128", "STG.E.128"], spills = 0 }
python  = ["supports", "choose", "configs", "scratch", "zeroed", "launches"]
valid   = "vectors > 0"

[config]
blocks  = 1
threads = 512
vectors = 0
stages  = 3
lag     = 1
beside  = 1
*/
#include "_fwd_long.cuh"
