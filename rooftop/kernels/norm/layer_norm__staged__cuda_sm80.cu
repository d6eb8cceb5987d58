/* rooftop
idea    = "Short rows that are adjacent in memory are one contiguous range. A block copies about 32 KiB of it to shared memory in vectors of 16 bytes that ignore row boundaries. Teams of 1 to 32 lanes load rows from there to registers, in vectors too. A team's rows all start at the same place within a vector, so the bits of neighbouring rows in its first and last vector, and the shifted weight and bias, are found once. Results go back through shared memory and are stored in vectors; rows of whole vectors are stored directly. So rows of odd lengths are nearly as fast as aligned ones, and few lanes idle because a row is not a power of two of vectors."
limit   = "0.91 of a copy on an H200 at 144 and 256 columns of bf16, 0.84 at 102 of float32. By count, 15 to 17 instructions for each 16-bit element; the time of a copy has room for 28."
dtypes  = ["f32", "f16", "bf16"]
args    = ["R: i32", "C: i32", "rows: i32", "x: T[R, C]", "weight: T[C]?", "bias: T[C]?", "y: T[R, C]", "eps: f32"]
demands = { has = ["LDGSTS.E.128", "STG.E.128"], spills = 0 }
python  = ["supports", "choose", "configs"]
valid   = "rows * lanes % 256 == 0 and pieces == ceil(vectors / lanes)"

[requires]
"not present(residual)" = "it takes no residual"

[config]
lanes  = 8
pieces = 4
rows   = 32

[let]
size    = "C * bytes(x)"
vectors = "ceil((size + 16 - gcd(16, size)) / 16)"
whole   = "size % 16 == 0"
kept    = "(1 if present(weight) else 0) + (1 if present(bias) else 0)"
table   = "16 * kept * lanes * pieces * (16 // gcd(16, size))"
tabled  = "not whole and rows * size + table <= 65536"

[[launch]]
kernel  = "norm_staged<{T}, {lanes}, {pieces}, {2 if not whole and (vectors - 1) % lanes == 0 else 1}, {tabled}, {whole}, {whole and lanes * pieces * 16 == size}, true, {present(weight)}, {present(bias)}>"
grid    = ["ceil(R / rows)"]
block   = [256]
shared  = "rows * size + 16 * kept * (ceil(size / 16) + 2) + (table if tabled else 0)"
chained = true
*/
#include "_fwd_staged.cuh"
