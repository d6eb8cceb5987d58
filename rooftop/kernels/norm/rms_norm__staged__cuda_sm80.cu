/* rooftop
idea    = "Short rows that are adjacent in memory are one contiguous range. A block copies about 24 KiB of it to shared memory in vectors of 16 bytes that ignore row boundaries, and teams of 4 to 32 lanes read rows from there element by element. Weight and bias stay in registers. So rows of odd lengths are as fast as aligned ones, and no lane idles because a row is not a power of two of vectors."
limit   = "Instructions, about 20 an element: from 512 elements on, rows in registers (rms_norm__cuda_sm80.cu) need fewer."
dtypes  = ["f32", "f16", "bf16"]
args    = ["R: i32", "C: i32", "rows: i32", "x: T[R, C]", "weight: T[C]?", "bias: T[C]?", "y: T[R, C]", "eps: f32"]
demands = { has = ["LDGSTS.E.128", "STG.E.128"], spills = 0 }
python  = ["supports", "prefers", "choose", "configs"]
valid   = "lanes * each >= C and lanes * (each - 1) < C and rows * lanes % 256 == 0"

[requires]
"not present(residual)" = "it takes no residual"

[config]
lanes = 8
each  = 16
rows  = 32

[[launch]]
kernel  = "norm_staged<{T}, {lanes}, {each}, false, {present(weight)}, {present(bias)}>"
grid    = ["ceil(R / rows)"]
block   = [256]
shared  = "16 * ceil(rows * C * bytes(x) / 16)"
chained = true
*/
#include "norm_staged.cuh"
