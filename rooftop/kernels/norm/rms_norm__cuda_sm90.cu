/* rooftop
idea    = "A row is shared out over a cluster of 1 to 16 blocks and waits in their shared memory, brought there by asynchronous copies that take no registers: x and the residual are read once, y and their sum written once. Each warp passes on its sum of squares. One barrier a row."
predict = { speedup = 1.4 }
limit   = "not measured yet"
dtypes  = ["f32", "f16", "bf16"]
args    = ["C: i32", "x: T[R, C]", "xs: i64 = stride(x, 0)", "residual: T[R, C]?", "rs: i64 = stride(residual, 0)", "weight: T[C]?", "bias: T[C]?", "y: T[R, C]", "ys: i64 = stride(y, 0)", "s: T[R, C]?", "ss: i64 = stride(s, 0)", "eps: f32"]
demands = { has = ["LDGSTS.E.128", "LDS.128", "STG.E.128"], spills = 0 }
prefer  = "C * bytes(x) > 32768 or C * bytes(x) > 6144 and not (C % 16 == 0 and stride(x, 0) % 16 == 0 and aligned(x, 16))"
configs = [{ threads = 256, cluster = 1, blocks = 8 }, { threads = 256, cluster = 1, blocks = 4 }, { threads = 512, cluster = 1, blocks = 4 }, { threads = 1024, cluster = 1, blocks = 2 }, { threads = 1024, cluster = 1, blocks = 1 }, { threads = 256, cluster = 2, blocks = 4 }, { threads = 512, cluster = 2, blocks = 3 }, { threads = 1024, cluster = 2, blocks = 2 }, { threads = 256, cluster = 4, blocks = 4 }, { threads = 1024, cluster = 4, blocks = 2 }, { threads = 256, cluster = 8, blocks = 4 }, { threads = 1024, cluster = 8, blocks = 2 }, { threads = 1024, cluster = 16, blocks = 2 }, { threads = 512, cluster = 16, blocks = 3 }]

[requires]
"C * bytes(x) * (2 if present(residual) else 1) <= 1800000" = "a row, and the residual's, must fit the shared memory of sixteen blocks, two on a multiprocessor"
"R * cluster < 2147483648" = "a launch has fewer than 2^31 blocks"

[config]
threads = 256
cluster = 16
blocks  = 2

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
threads = 512
cluster = 1
blocks  = 2

[[choice]]
when    = "C * bytes(x) <= 65536"
threads = 512
cluster = 2
blocks  = 2

[[choice]]
when    = "C * bytes(x) <= 131072"
threads = 512
cluster = 4
blocks  = 2

[[choice]]
when    = "C * bytes(x) <= 262144"
threads = 512
cluster = 8
blocks  = 2

[[choice]]
when    = "C * bytes(x) <= 524288"
threads = 512
cluster = 16
blocks  = 2

[[launch]]
kernel  = "norm_forward<{T}, {threads}, {cluster}, {blocks}, false, {present(residual)}>"
grid    = ["R * cluster"]
block   = ["threads"]
cluster = ["cluster"]
shared  = "(32 if present(residual) else 16) * ceil(C * bytes(x) / (16 * cluster))"
*/
#include "norms.cuh"
