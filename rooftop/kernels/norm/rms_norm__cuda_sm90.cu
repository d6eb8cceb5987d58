/* rooftop
idea    = "Rows of up to 64 KiB that start on 16 bytes: a row a block, in registers. Longer or odd ones: a row is shared out over a cluster of 1 to 16 blocks and waits in their shared memory, brought there by asynchronous copies that take no registers: x and the residual are read once, y and their sum written once. Each warp passes on its sum of squares. One barrier a row."
predict = { speedup = 1.4 }
limit   = "not measured yet"
dtypes  = ["f32", "f16", "bf16"]
args    = ["C: i32", "x: T[R, C]", "xs: i64 = stride(x, 0)", "residual: T[R, C]?", "rs: i64 = stride(residual, 0)", "weight: T[C]?", "bias: T[C]?", "y: T[R, C]", "ys: i64 = stride(y, 0)", "s: T[R, C]?", "ss: i64 = stride(s, 0)", "eps: f32"]
demands = { has = ["STG.E.128"], spills = 0 }
prefer  = "C * bytes(x) > 65536 or C * bytes(x) > 6144 and not (C % 16 == 0 and stride(x, 0) % 16 == 0 and aligned(x, 16))"
configs = [{ threads = 128, cluster = 1, blocks = 8, pieces = 0, early = 0 }, { threads = 128, cluster = 1, blocks = 12, pieces = 0, early = 0 }, { threads = 256, cluster = 1, blocks = 3, pieces = 0, early = 0 }, { threads = 256, cluster = 1, blocks = 4, pieces = 0, early = 0 }, { threads = 256, cluster = 1, blocks = 6, pieces = 0, early = 0 }, { threads = 256, cluster = 1, blocks = 8, pieces = 0, early = 0 }, { threads = 512, cluster = 1, blocks = 2, pieces = 0, early = 0 }, { threads = 512, cluster = 1, blocks = 3, pieces = 0, early = 0 }, { threads = 512, cluster = 1, blocks = 4, pieces = 0, early = 0 }, { threads = 1024, cluster = 1, blocks = 1, pieces = 0, early = 0 }, { threads = 1024, cluster = 1, blocks = 2, pieces = 0, early = 0 }, { threads = 256, cluster = 2, blocks = 3, pieces = 0, early = 0 }, { threads = 256, cluster = 2, blocks = 4, pieces = 0, early = 0 }, { threads = 256, cluster = 2, blocks = 6, pieces = 0, early = 0 }, { threads = 256, cluster = 2, blocks = 8, pieces = 0, early = 0 }, { threads = 512, cluster = 2, blocks = 2, pieces = 0, early = 0 }, { threads = 512, cluster = 2, blocks = 3, pieces = 0, early = 0 }, { threads = 512, cluster = 2, blocks = 4, pieces = 0, early = 0 }, { threads = 1024, cluster = 2, blocks = 1, pieces = 0, early = 0 }, { threads = 1024, cluster = 2, blocks = 2, pieces = 0, early = 0 }, { threads = 256, cluster = 4, blocks = 3, pieces = 0, early = 0 }, { threads = 256, cluster = 4, blocks = 4, pieces = 0, early = 0 }, { threads = 256, cluster = 4, blocks = 6, pieces = 0, early = 0 }, { threads = 256, cluster = 4, blocks = 8, pieces = 0, early = 0 }, { threads = 512, cluster = 4, blocks = 2, pieces = 0, early = 0 }, { threads = 512, cluster = 4, blocks = 3, pieces = 0, early = 0 }, { threads = 512, cluster = 4, blocks = 4, pieces = 0, early = 0 }, { threads = 1024, cluster = 4, blocks = 1, pieces = 0, early = 0 }, { threads = 1024, cluster = 4, blocks = 2, pieces = 0, early = 0 }, { threads = 256, cluster = 8, blocks = 3, pieces = 0, early = 0 }, { threads = 256, cluster = 8, blocks = 4, pieces = 0, early = 0 }, { threads = 256, cluster = 8, blocks = 6, pieces = 0, early = 0 }, { threads = 256, cluster = 8, blocks = 8, pieces = 0, early = 0 }, { threads = 512, cluster = 8, blocks = 2, pieces = 0, early = 0 }, { threads = 512, cluster = 8, blocks = 3, pieces = 0, early = 0 }, { threads = 512, cluster = 8, blocks = 4, pieces = 0, early = 0 }, { threads = 1024, cluster = 8, blocks = 1, pieces = 0, early = 0 }, { threads = 1024, cluster = 8, blocks = 2, pieces = 0, early = 0 }, { threads = 256, cluster = 16, blocks = 3, pieces = 0, early = 0 }, { threads = 256, cluster = 16, blocks = 4, pieces = 0, early = 0 }, { threads = 256, cluster = 16, blocks = 6, pieces = 0, early = 0 }, { threads = 256, cluster = 16, blocks = 8, pieces = 0, early = 0 }, { threads = 512, cluster = 16, blocks = 2, pieces = 0, early = 0 }, { threads = 512, cluster = 16, blocks = 3, pieces = 0, early = 0 }, { threads = 512, cluster = 16, blocks = 4, pieces = 0, early = 0 }, { threads = 1024, cluster = 16, blocks = 1, pieces = 0, early = 0 }, { threads = 1024, cluster = 16, blocks = 2, pieces = 0, early = 0 }, { threads = 64, cluster = 1, blocks = 8, pieces = 1, early = 0 }, { threads = 64, cluster = 1, blocks = 8, pieces = 1, early = 1 }, { threads = 64, cluster = 1, blocks = 16, pieces = 1, early = 0 }, { threads = 64, cluster = 1, blocks = 16, pieces = 1, early = 1 }, { threads = 64, cluster = 1, blocks = 8, pieces = 2, early = 0 }, { threads = 64, cluster = 1, blocks = 8, pieces = 2, early = 1 }, { threads = 64, cluster = 1, blocks = 16, pieces = 2, early = 0 }, { threads = 64, cluster = 1, blocks = 16, pieces = 2, early = 1 }, { threads = 64, cluster = 1, blocks = 8, pieces = 3, early = 0 }, { threads = 64, cluster = 1, blocks = 8, pieces = 3, early = 1 }, { threads = 64, cluster = 1, blocks = 16, pieces = 3, early = 0 }, { threads = 64, cluster = 1, blocks = 16, pieces = 3, early = 1 }, { threads = 64, cluster = 1, blocks = 8, pieces = 4, early = 0 }, { threads = 64, cluster = 1, blocks = 8, pieces = 4, early = 1 }, { threads = 64, cluster = 1, blocks = 16, pieces = 4, early = 0 }, { threads = 64, cluster = 1, blocks = 16, pieces = 4, early = 1 }, { threads = 128, cluster = 1, blocks = 8, pieces = 1, early = 0 }, { threads = 128, cluster = 1, blocks = 8, pieces = 1, early = 1 }, { threads = 128, cluster = 1, blocks = 12, pieces = 1, early = 0 }, { threads = 128, cluster = 1, blocks = 12, pieces = 1, early = 1 }, { threads = 128, cluster = 1, blocks = 16, pieces = 1, early = 0 }, { threads = 128, cluster = 1, blocks = 16, pieces = 1, early = 1 }, { threads = 128, cluster = 1, blocks = 8, pieces = 2, early = 0 }, { threads = 128, cluster = 1, blocks = 8, pieces = 2, early = 1 }, { threads = 128, cluster = 1, blocks = 12, pieces = 2, early = 0 }, { threads = 128, cluster = 1, blocks = 12, pieces = 2, early = 1 }, { threads = 128, cluster = 1, blocks = 16, pieces = 2, early = 0 }, { threads = 128, cluster = 1, blocks = 16, pieces = 2, early = 1 }, { threads = 128, cluster = 1, blocks = 8, pieces = 3, early = 0 }, { threads = 128, cluster = 1, blocks = 8, pieces = 3, early = 1 }, { threads = 128, cluster = 1, blocks = 12, pieces = 3, early = 0 }, { threads = 128, cluster = 1, blocks = 12, pieces = 3, early = 1 }, { threads = 128, cluster = 1, blocks = 16, pieces = 3, early = 0 }, { threads = 128, cluster = 1, blocks = 16, pieces = 3, early = 1 }, { threads = 128, cluster = 1, blocks = 8, pieces = 4, early = 0 }, { threads = 128, cluster = 1, blocks = 8, pieces = 4, early = 1 }, { threads = 128, cluster = 1, blocks = 12, pieces = 4, early = 0 }, { threads = 128, cluster = 1, blocks = 12, pieces = 4, early = 1 }, { threads = 128, cluster = 1, blocks = 16, pieces = 4, early = 0 }, { threads = 128, cluster = 1, blocks = 16, pieces = 4, early = 1 }, { threads = 256, cluster = 1, blocks = 4, pieces = 1, early = 0 }, { threads = 256, cluster = 1, blocks = 4, pieces = 1, early = 1 }, { threads = 256, cluster = 1, blocks = 6, pieces = 1, early = 0 }, { threads = 256, cluster = 1, blocks = 6, pieces = 1, early = 1 }, { threads = 256, cluster = 1, blocks = 8, pieces = 1, early = 0 }, { threads = 256, cluster = 1, blocks = 8, pieces = 1, early = 1 }, { threads = 256, cluster = 1, blocks = 4, pieces = 2, early = 0 }, { threads = 256, cluster = 1, blocks = 4, pieces = 2, early = 1 }, { threads = 256, cluster = 1, blocks = 6, pieces = 2, early = 0 }, { threads = 256, cluster = 1, blocks = 6, pieces = 2, early = 1 }, { threads = 256, cluster = 1, blocks = 8, pieces = 2, early = 0 }, { threads = 256, cluster = 1, blocks = 8, pieces = 2, early = 1 }, { threads = 256, cluster = 1, blocks = 4, pieces = 3, early = 0 }, { threads = 256, cluster = 1, blocks = 4, pieces = 3, early = 1 }, { threads = 256, cluster = 1, blocks = 6, pieces = 3, early = 0 }, { threads = 256, cluster = 1, blocks = 6, pieces = 3, early = 1 }, { threads = 256, cluster = 1, blocks = 8, pieces = 3, early = 0 }, { threads = 256, cluster = 1, blocks = 8, pieces = 3, early = 1 }, { threads = 256, cluster = 1, blocks = 4, pieces = 4, early = 0 }, { threads = 256, cluster = 1, blocks = 4, pieces = 4, early = 1 }, { threads = 256, cluster = 1, blocks = 6, pieces = 4, early = 0 }, { threads = 256, cluster = 1, blocks = 6, pieces = 4, early = 1 }, { threads = 256, cluster = 1, blocks = 8, pieces = 4, early = 0 }, { threads = 256, cluster = 1, blocks = 8, pieces = 4, early = 1 }, { threads = 512, cluster = 1, blocks = 2, pieces = 1, early = 0 }, { threads = 512, cluster = 1, blocks = 2, pieces = 1, early = 1 }, { threads = 512, cluster = 1, blocks = 3, pieces = 1, early = 0 }, { threads = 512, cluster = 1, blocks = 3, pieces = 1, early = 1 }, { threads = 512, cluster = 1, blocks = 4, pieces = 1, early = 0 }, { threads = 512, cluster = 1, blocks = 4, pieces = 1, early = 1 }, { threads = 512, cluster = 1, blocks = 2, pieces = 2, early = 0 }, { threads = 512, cluster = 1, blocks = 2, pieces = 2, early = 1 }, { threads = 512, cluster = 1, blocks = 3, pieces = 2, early = 0 }, { threads = 512, cluster = 1, blocks = 3, pieces = 2, early = 1 }, { threads = 512, cluster = 1, blocks = 4, pieces = 2, early = 0 }, { threads = 512, cluster = 1, blocks = 4, pieces = 2, early = 1 }, { threads = 512, cluster = 1, blocks = 2, pieces = 3, early = 0 }, { threads = 512, cluster = 1, blocks = 2, pieces = 3, early = 1 }, { threads = 512, cluster = 1, blocks = 3, pieces = 3, early = 0 }, { threads = 512, cluster = 1, blocks = 3, pieces = 3, early = 1 }, { threads = 512, cluster = 1, blocks = 4, pieces = 3, early = 0 }, { threads = 512, cluster = 1, blocks = 4, pieces = 3, early = 1 }, { threads = 512, cluster = 1, blocks = 2, pieces = 4, early = 0 }, { threads = 512, cluster = 1, blocks = 2, pieces = 4, early = 1 }, { threads = 512, cluster = 1, blocks = 3, pieces = 4, early = 0 }, { threads = 512, cluster = 1, blocks = 3, pieces = 4, early = 1 }, { threads = 512, cluster = 1, blocks = 4, pieces = 4, early = 0 }, { threads = 512, cluster = 1, blocks = 4, pieces = 4, early = 1 }, { threads = 1024, cluster = 1, blocks = 1, pieces = 1, early = 0 }, { threads = 1024, cluster = 1, blocks = 1, pieces = 1, early = 1 }, { threads = 1024, cluster = 1, blocks = 2, pieces = 1, early = 0 }, { threads = 1024, cluster = 1, blocks = 2, pieces = 1, early = 1 }, { threads = 1024, cluster = 1, blocks = 1, pieces = 2, early = 0 }, { threads = 1024, cluster = 1, blocks = 1, pieces = 2, early = 1 }, { threads = 1024, cluster = 1, blocks = 2, pieces = 2, early = 0 }, { threads = 1024, cluster = 1, blocks = 2, pieces = 2, early = 1 }, { threads = 1024, cluster = 1, blocks = 1, pieces = 3, early = 0 }, { threads = 1024, cluster = 1, blocks = 1, pieces = 3, early = 1 }, { threads = 1024, cluster = 1, blocks = 2, pieces = 3, early = 0 }, { threads = 1024, cluster = 1, blocks = 2, pieces = 3, early = 1 }, { threads = 1024, cluster = 1, blocks = 1, pieces = 4, early = 0 }, { threads = 1024, cluster = 1, blocks = 1, pieces = 4, early = 1 }, { threads = 1024, cluster = 1, blocks = 2, pieces = 4, early = 0 }, { threads = 1024, cluster = 1, blocks = 2, pieces = 4, early = 1 }]
valid   = "pieces == 0 and (cluster == 1 or C * bytes(x) > 8192 * cluster) and C * bytes(x) * blocks <= 225000 * cluster or pieces > 0 and pieces * threads * 16 >= C * bytes(x) and (pieces - 1) * threads * 16 < C * bytes(x) and C % (16 // bytes(x)) == 0 and aligned(x, 16) and aligned(y, 16) and (not present(residual) or aligned(residual, 16) and aligned(s, 16)) and (not present(weight) or aligned(weight, 16)) and (not present(bias) or aligned(bias, 16))"

[requires]
"C * bytes(x) * (2 if present(residual) else 1) <= 1800000" = "a row, and the residual's, must fit the shared memory of sixteen blocks, two on a multiprocessor"
"R * cluster < 2147483648" = "a launch has fewer than 2^31 blocks"

[config]
threads = 256
cluster = 16
blocks  = 2
pieces  = 0
early   = 0

[[choice]]
when    = "C * bytes(x) <= 1024 and C % (16 // bytes(x)) == 0 and aligned(x, 16) and aligned(y, 16) and (not present(residual) or aligned(residual, 16) and aligned(s, 16)) and (not present(weight) or aligned(weight, 16)) and (not present(bias) or aligned(bias, 16))"
threads = 64
cluster = 1
blocks  = 16
pieces  = 1
early   = 0

[[choice]]
when    = "C * bytes(x) <= 2048 and C % (16 // bytes(x)) == 0 and aligned(x, 16) and aligned(y, 16) and (not present(residual) or aligned(residual, 16) and aligned(s, 16)) and (not present(weight) or aligned(weight, 16)) and (not present(bias) or aligned(bias, 16))"
threads = 128
cluster = 1
blocks  = 12
pieces  = 1
early   = 0

[[choice]]
when    = "C * bytes(x) <= 4096 and C % (16 // bytes(x)) == 0 and aligned(x, 16) and aligned(y, 16) and (not present(residual) or aligned(residual, 16) and aligned(s, 16)) and (not present(weight) or aligned(weight, 16)) and (not present(bias) or aligned(bias, 16))"
threads = 128
cluster = 1
blocks  = 12
pieces  = 2
early   = 0

[[choice]]
when    = "C * bytes(x) <= 6144 and C % (16 // bytes(x)) == 0 and aligned(x, 16) and aligned(y, 16) and (not present(residual) or aligned(residual, 16) and aligned(s, 16)) and (not present(weight) or aligned(weight, 16)) and (not present(bias) or aligned(bias, 16))"
threads = 128
cluster = 1
blocks  = 8
pieces  = 3
early   = 0

[[choice]]
when    = "R < 4 * sms and C * bytes(x) > 6144 and C * bytes(x) <= 8192 and C % (16 // bytes(x)) == 0 and aligned(x, 16) and aligned(y, 16) and (not present(residual) or aligned(residual, 16) and aligned(s, 16)) and (not present(weight) or aligned(weight, 16)) and (not present(bias) or aligned(bias, 16))"
threads = 512
cluster = 1
blocks  = 3
pieces  = 1
early   = 0

[[choice]]
when    = "C * bytes(x) <= 8192 and C % (16 // bytes(x)) == 0 and aligned(x, 16) and aligned(y, 16) and (not present(residual) or aligned(residual, 16) and aligned(s, 16)) and (not present(weight) or aligned(weight, 16)) and (not present(bias) or aligned(bias, 16))"
threads = 256
cluster = 1
blocks  = 6
pieces  = 2
early   = 0

[[choice]]
when    = "C * bytes(x) <= 12288 and C % (16 // bytes(x)) == 0 and aligned(x, 16) and aligned(y, 16) and (not present(residual) or aligned(residual, 16) and aligned(s, 16)) and (not present(weight) or aligned(weight, 16)) and (not present(bias) or aligned(bias, 16))"
threads = 256
cluster = 1
blocks  = 4
pieces  = 3
early   = 0

[[choice]]
when    = "C * bytes(x) <= 16384 and C % (16 // bytes(x)) == 0 and aligned(x, 16) and aligned(y, 16) and (not present(residual) or aligned(residual, 16) and aligned(s, 16)) and (not present(weight) or aligned(weight, 16)) and (not present(bias) or aligned(bias, 16))"
threads = 512
cluster = 1
blocks  = 3
pieces  = 2
early   = 0

[[choice]]
when    = "C * bytes(x) <= 32768 and C % (16 // bytes(x)) == 0 and aligned(x, 16) and aligned(y, 16) and (not present(residual) or aligned(residual, 16) and aligned(s, 16)) and (not present(weight) or aligned(weight, 16)) and (not present(bias) or aligned(bias, 16))"
threads = 1024
cluster = 1
blocks  = 1
pieces  = 2
early   = 0

[[choice]]
when    = "C * bytes(x) <= 65536 and C % (16 // bytes(x)) == 0 and aligned(x, 16) and aligned(y, 16) and (not present(residual) or aligned(residual, 16) and aligned(s, 16)) and (not present(weight) or aligned(weight, 16)) and (not present(bias) or aligned(bias, 16))"
threads = 1024
cluster = 1
blocks  = 1
pieces  = 4
early   = 0

[[choice]]
when    = "C * bytes(x) <= 4096"
threads = 128
cluster = 1
blocks  = 12

[[choice]]
when    = "C * bytes(x) <= 8192"
threads = 256
cluster = 1
blocks  = 6

[[choice]]
when    = "C * bytes(x) <= 32768"
threads = 256
cluster = 1
blocks  = 3

[[choice]]
when    = "C * bytes(x) <= 65536"
threads = 512
cluster = 1
blocks  = 2

[[choice]]
when    = "C * bytes(x) <= 131072"
threads = 512
cluster = 2
blocks  = 2

[[choice]]
when    = "C * bytes(x) <= 262144"
threads = 256
cluster = 8
blocks  = 4

[[choice]]
when    = "C * bytes(x) <= 524288"
threads = 512
cluster = 8
blocks  = 2

[[launch]]
when    = "pieces == 0"
kernel  = "norm_forward<{T}, {threads}, {cluster}, {blocks}, false, {present(residual)}>"
grid    = ["R * cluster"]
block   = ["threads"]
cluster = ["cluster"]
shared  = "(32 if present(residual) else 16) * ceil(C * bytes(x) / (16 * cluster))"

[[launch]]
when    = "pieces > 0"
kernel  = "norm_whole<{T}, {threads}, {max(pieces, 1)}, {blocks}, {early == 1}, false, {present(residual)}>"
grid    = ["R"]
block   = ["threads"]
*/
#include "norms.cuh"
