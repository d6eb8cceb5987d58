/* rooftop
idea    = "Each row is read once into registers and written once. norm_warp takes rows of up to 4 KiB (less with a residual or if they are not 16-byte aligned): one warp holds one row or several short ones. norm_block takes longer rows, up to 64 KiB: one block a row. A thread holds as many vectors of 16 bytes as the row needs, not rounded up to a power of two. x is loaded as evict-first (__ldcs), so that the weight, which every row reads, stays in the L1."
limit   = "Rows of more than 64 KiB do not fit the registers of a block: clusters of blocks take them (rms_norm__cuda_sm90.cu)."
dtypes  = ["f32", "f16", "bf16"]
args    = ["R: i32", "C: i32", "x: T[R, C]", "xs: i64 = stride(x, 0)", "residual: T[R, C]?", "rs: i64 = stride(residual, 0)", "weight: T[C]?", "bias: T[C]?", "y: T[R, C]", "ys: i64 = stride(y, 0)", "s: T[R, C]?", "ss: i64 = stride(s, 0)", "eps: f32"]
demands = { has = ["LDG.E.128", "STG.E.128"], spills = 0 }
python  = ["supports", "choose", "configs"]
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
#include "_fwd_rows.cuh"
