/* rooftop
idea    = "A group of persistent blocks takes a row too long for one of them, a slice each. A slice waits in a ring in shared memory while the blocks exchange its statistics through global memory, rows later: each row is read once, whatever its length, until all blocks together cannot hold it."
limit   = "rows of more than the shared memory of the card, and groups that leave blocks over"
dtypes  = ["f32", "f16", "bf16"]
tensors = ["dweight: T[C]?", "dbias: T[C]?"]
args    = ["R: i32", "C: i32", "dy: T[R, C]", "dys: i64 = stride(dy, 0)", "ds: T[R, C]?", "dss: i64 = stride(ds, 0)", "s: T[R, C]", "ss: i64 = stride(s, 0)", "weight: T[C]?", "dx: T[R, C]", "dxs: i64 = stride(dx, 0)", "eps: f32"]
demands = { has = ["LDGSTS.E.128", "STG.E.128"], spills = 0 }
python  = ["supports", "prefers", "choose", "configs", "scratch", "zeroed", "launches"]
valid   = "vectors > 0"

[config]
blocks = 1
threads = 512
vectors = 0
stages = 3
lag = 1
*/
#include "norm_long_bwd.cuh"
