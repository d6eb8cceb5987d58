/* rooftop
idea    = "Short rows that are adjacent in memory are one contiguous range. Persistent blocks copy tiles of it, of s and of dy, to shared memory in vectors of 16 bytes that ignore row boundaries, one tile or two ahead. Teams of 1 to 32 lanes load rows from there in vectors too. A team's rows all start at the same place within a vector, so a lane has the same columns in each: it sums their dweight in registers, and the bits of neighbouring rows and its weights are found once. dx goes back through shared memory and is stored in vectors. At its end a block adds its teams in order and writes one partial row of sums; a second launch adds the partial rows in order."
limit   = "0.74 of a copy on an H200 at 1585 columns of bf16, 0.81 at 341 of float32. Counted in the machine code: 26 to 27 instructions for each 16-bit element of a row that starts within a vector, 16 for float32; the kernels of one row a warp or a block execute 39 to 48. The time of a copy has room for 43, or 86 in float32. With 5 vectors a lane or more a multiprocessor has one block of 8 warps, which hide little of each other's latencies."
dtypes  = ["f32", "f16", "bf16"]
tensors = ["dweight: T[C]?", "dbias: T[C]?"]
args    = ["R: i32", "C: i32", "rows: i32", "dy: T[R, C]", "s: T[R, C]", "weight: T[C]?", "dx: T[R, C]", "eps: f32"]
demands = { has = ["LDGSTS.E.128", "STG.E.128"], spills = 0 }
python  = ["supports", "choose", "configs", "scratch", "launches"]
valid   = "rows * lanes % 256 == 0 and pieces == ceil(vectors / lanes)"

[requires]
"not present(ds)" = "it takes no second gradient ds"

[let]
size    = "C * bytes(s)"
vectors = "ceil((size + 16 - gcd(16, size)) / 16)"

[config]
lanes  = 8
pieces = 2
stages = 2
rows   = 32
*/
#include "_bwd_staged.cuh"
