/* rooftop
ops     = ["rms_norm_bwd", "layer_norm_bwd"]
idea    = """A persistent kernel: a ring buffer in shared memory holds rows of s and dy, filled by cp.async several rows ahead. A thread \
  owns the same columns of every row and sums their dweight and dbias in registers. At its end a block writes one partial row of sums; a \
  second launch adds the partial rows in order."""
limit   = "Rows whose column sums do not fit the registers of one block."
dtypes  = ["f32", "f16", "bf16"]
tensors = ["dweight: T[C]?", "dbias: T[C]?"]
args    = [
    "R: i32", "C: i32", "dy: T[R, C]", "dys: i64 = stride(dy, 0)", "ds: T[R, C]?", "dss: i64 = stride(ds, 0)", "s: T[R, C]",
    "ss: i64 = stride(s, 0)", "weight: T[C]?", "dx: T[R, C]", "dxs: i64 = stride(dx, 0)", "eps: f32",
]
demands = { has = ["LDGSTS.E.128", "STG.E.128"], spills = 0 }
python  = ["supports", "choose", "configs", "scratch", "launches"]
valid   = "vectors > 0"

[config]
team = 32
teams = 1
vectors = 0
stages = 2
*/
#include "_bwd_rows.cuh"
