/* rooftop
idea    = "A group of persistent blocks takes a row too long for one of them, a slice each. A slice waits in a ring in shared memory while the blocks exchange its statistics through global memory, rows later: each row is read once, whatever its length, until all blocks together cannot hold it."
limit   = "rows of more than the shared memory of the card, and groups that leave blocks over"
dtypes  = ["f32", "f16", "bf16"]
args    = ["R: i32", "C: i32", "x: T[R, C]", "xs: i64 = stride(x, 0)", "residual: T[R, C]?", "rs: i64 = stride(residual, 0)", "weight: T[C]?", "bias: T[C]?", "y: T[R, C]", "ys: i64 = stride(y, 0)", "s: T[R, C]?", "ss: i64 = stride(s, 0)", "eps: f32"]
demands = { has = ["LDGSTS.E.128", "STG.E.128"], spills = 0 }
python  = ["supports", "prefers", "choose", "configs", "scratch", "zeroed", "launches"]
valid   = "vectors > 0"

[config]
blocks  = 1
threads = 512
vectors = 0
stages  = 3
lag     = 1
*/
#include "norm_long.cuh"
