/* rooftop
idea    = "Each row is read once into registers and written once. norm_warp takes rows of up to 4 KiB (less with a residual or if they are not 16-byte aligned): one warp holds one row or several short ones. norm_block takes longer rows, up to 64 KiB: one block a row. A thread holds as many vectors of 16 bytes as the row needs, not rounded up to a power of two. x is loaded as evict-first (__ldcs), so that the weight and the bias, which every row reads, stay in the L1. Example, bf16 rows of 8192 columns: 1024 vectors, 256 threads with 4 vectors each, five blocks a multiprocessor. Not persistent: with one block a row, the hardware scheduler starts the next row wherever a block has ended, which balances the load between multiprocessors; a persistent block would read weight and bias only once, but here they come from the L1."
limit   = "Memory bandwidth, if enough bytes are in flight: on an H200 0.92 of a copy with 72 KiB of resident rows a multiprocessor, 0.79 to 0.84 with 56 KiB. Rows of 16 bits in a block are bound by instructions nearly as much. Rows of more than 64 KiB do not fit the registers of a block: clusters of blocks take them (layer_norm__cuda_sm90.cu)."
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
kernel  = "norm_warp<{T}, {team}, {vectors}, {rows}, {registers}, {whole}, true, {present(residual)}, {present(weight)}, {present(bias)}>"
grid    = ["ceil(R / (rows * (256 // team)))"]
block   = [256]
chained = true

[[launch]]
when    = "team > 32"
kernel  = "norm_block<{T}, {vectors}, {registers}, {whole}, true, {present(residual)}, {present(weight)}, {present(bias)}>"
grid    = ["R"]
block   = ["team"]
chained = true
*/
// Device code: _fwd_rows.cuh has norm_warp and norm_block; register_rows.cuh has Row, a row in registers. How many threads and vectors a row gets:
// rooftop/kernels/norm/_register_rows.py (called from the .py of this file's name), which works out an example: 16384 rows of 8192 columns of bf16.
// `valid` in the head: the vectors hold the row, and a row that is not whole vectors has a thread for each single element at its ends.
#include "_fwd_rows.cuh"
