/* rooftop
idea    = "The row is read once, straight into registers, and written once: several short rows a warp, a longer one a block, each thread as many vectors of 16 bytes as it takes and never a power of two of them. x is read so that it leaves the L1 first, and the weight stays there for the next row."
limit   = "rows of more than 64 KiB: clusters of blocks (rms_norm__cuda_sm90.cu)"
dtypes  = ["f32", "f16", "bf16"]
args    = ["R: i32", "C: i32", "x: T[R, C]", "xs: i64 = stride(x, 0)", "residual: T[R, C]?", "rs: i64 = stride(residual, 0)", "weight: T[C]?", "bias: T[C]?", "y: T[R, C]", "ys: i64 = stride(y, 0)", "s: T[R, C]?", "ss: i64 = stride(s, 0)", "eps: f32"]
demands = { has = ["LDG.E.128", "STG.E.128"], spills = 0 }
python  = ["supports", "prefers", "choose", "configs"]
valid   = "16 * team * vectors > C * bytes(x) - 16 and (whole or team >= min(32, 32 // bytes(x)))"

[config]
team      = 32
vectors   = 1
rows      = 1
registers = 32

[let]
whole   = "C % (16 // bytes(x)) == 0 and aligned(x, 16) and aligned(y, 16) and (not present(residual) or aligned(residual, 16) and aligned(s, 16)) and (not present(weight) or aligned(weight, 16)) and (not present(bias) or aligned(bias, 16))"

[[launch]]
when    = "team <= 32"
kernel  = "norm_warp<{T}, {team}, {vectors}, {rows}, {registers}, {whole}, false, {present(residual)}, {present(weight)}, {present(bias)}>"
grid    = ["ceil(R / (rows * (256 // team)))"]
block   = [256]
chained = true

[[launch]]
when    = "team > 32"
kernel  = "norm_block<{T}, {vectors}, {registers}, {whole}, false, {present(residual)}, {present(weight)}, {present(bias)}>"
grid    = ["R"]
block   = ["team"]
chained = true
*/
#include "norm_rows.cuh"
