/* rooftop
idea    = "Each warp passes on its mean and the sum of squares about it, taken in one pass about the thread's first element. Way 2: a row that fits a block waits in its registers, and weight and bias come to shared memory while it is added up. Way 5: rows that fit a warp, a few of them a warp, and no barrier. Way 3: longer rows are shared out over clusters of blocks that stay for the whole launch, no more of them than the card runs at once, so that the weight, which for long rows is as many bytes as the row, is read once; rows to come are on their way to shared memory, and while the parts of a row travel between the blocks (st.async, counted by an mbarrier: nobody stands at a barrier of the cluster) the row before is written. Way 4: a cluster takes a row, or two, which wait in shared memory, and comes and goes: what has few bytes beside the row, and rows that start anywhere, whose whole packs all threads share out while one warp has the elements at the ends. Way 1, for what is left: a cluster a row, its barrier once. x and the residual are read once, y and their sum written once."
predict = { speedup = 1.4 }
limit   = "Clusters that stay share the memory unequally (docs/staying.md), those that come and go read weight and bias again for each row: 0.96 of the roof at 131072 and 262144 columns of bf16. Shorter rows: the copy itself, 0.98 of it at 32768 columns, where one block is all that a multiprocessor holds. At 32 MiB 0.96 of a copy, at 2 and 4 MiB 0.83 to 0.85: two folds and a barrier between read and write."
dtypes  = ["f32", "f16", "bf16"]
args    = ["C: i32", "x: T[R, C]", "xs: i64 = stride(x, 0)", "residual: T[R, C]?", "rs: i64 = stride(residual, 0)", "weight: T[C]?", "bias: T[C]?", "y: T[R, C]", "ys: i64 = stride(y, 0)", "s: T[R, C]?", "ss: i64 = stride(s, 0)", "eps: f32"]
demands = { has = ["STG.E.128"], spills = 0 }
prefer  = "bytes_of_row > 65536 or bytes_of_row > 6144 and not (C % 16 == 0 and stride(x, 0) % 16 == 0 and aligned(x, 16)) or whole and not present(residual) and (bytes_of_row >= 512 and C == pow2(C) or bytes_of_row > 6144)"
valid   = "threads <= 1024 and (cluster == 1 or bytes_of_row > 4096 * cluster) and (way == 1 and fits_1 or way == 2 and fits_2 or way == 3 and fits_3 or way == 4 and fits_4 or way == 5 and fits_5)"
configs = [
    { way = 1, threads = [256, 512, 1024], cluster = [1, 2, 4, 8, 16], blocks = [1, 2, 3, 4, 6, 8] },
    { way = 2, threads = [64, 128, 256, 512, 1024], cluster = 1, blocks = [1, 2, 3, 4, 6, 8, 12, 16], pieces = [1, 2, 3, 4], early = [0, 1, 2, 3] },
    { way = 3, cluster = [1, 2, 4, 8, 16], blocks = [1, 2, 3, 4], pieces = [1, 2, 4], stages = [3, 4] },
    { way = 4, cluster = [1, 2, 4, 8, 16], blocks = [1, 2, 3, 4, 5, 6, 8, 12], pieces = [1, 2, 3, 4, 8], rows = [1, 2] },
    { way = 5, threads = [32, 64, 128, 256], cluster = 1, blocks = [4, 8, 16, 32], pieces = [1, 2, 3, 4], rows = [1, 2, 4] },
]

[requires]
"bytes_of_row * (2 if present(residual) else 1) <= 1800000" = "a row, and the residual's, must fit the shared memory of sixteen blocks, two on a multiprocessor"
"R * cluster < 2147483648" = "a launch has fewer than 2^31 blocks"

[config]
way     = 1
threads = 256
cluster = 16
blocks  = 2
pieces  = 1
early   = 0
rows    = 1
stages  = 3

[[choice]]
when    = "not whole and alike and not present(residual) and bytes_of_row > 8192 and bytes_of_row <= 24592"
way     = 4
cluster = 1
blocks  = 4
pieces  = 4

[[choice]]
when    = "not whole and alike and not present(residual) and bytes_of_row > 24592 and bytes_of_row <= 32768"
way     = 4
cluster = 1
blocks  = 3
pieces  = 4

[[choice]]
when    = "not whole and alike and not present(residual) and bytes_of_row > 32768 and bytes_of_row <= 49152"
way     = 4
cluster = 1
blocks  = 2
pieces  = 4

[[choice]]
when    = "not whole and alike and not present(residual) and bytes_of_row > 49152 and bytes_of_row <= 98304"
way     = 4
cluster = 4
blocks  = 4
pieces  = 8

[[choice]]
when    = "whole and not present(residual) and bytes_of_row > 65536 and bytes_of_row <= 131072 and bytes(x) == 2"
way     = 4
cluster = 8
blocks  = 6
pieces  = 4
rows    = 2

[[choice]]
when    = "whole and not present(residual) and bytes_of_row > 65536 and bytes_of_row <= 131072"
way     = 4
cluster = 8
blocks  = 5
pieces  = 4
rows    = 2

[[choice]]
when    = "whole and not present(residual) and bytes_of_row > 65536 and bytes_of_row <= 196608 and bytes(x) == 2"
way     = 4
cluster = 8
blocks  = 4
pieces  = 4
rows    = 2

[[choice]]
when    = "whole and bytes_of_row <= 512"
way     = 5
threads = 64
cluster = 1
blocks  = 32
pieces  = 1

[[choice]]
when    = "whole and bytes_of_row <= 1024"
way     = 5
threads = 64
cluster = 1
blocks  = 16
pieces  = 2

[[choice]]
when    = "whole and bytes_of_row <= 2048 and R <= 16 * sms"
way     = 2
threads = 128
cluster = 1
blocks  = 12
pieces  = 1
early   = 2

[[choice]]
when    = "whole and bytes_of_row <= 2048 and bytes_of_row > 1536"
way     = 5
threads = 64
cluster = 1
blocks  = 8
pieces  = 4

[[choice]]
when    = "whole and bytes_of_row <= 2048"
way     = 2
threads = 128
cluster = 1
blocks  = 12
pieces  = 1

[[choice]]
when    = "whole and bytes_of_row <= 4096"
way     = 2
threads = 128
cluster = 1
blocks  = 12
pieces  = 2

[[choice]]
when    = "whole and bytes_of_row <= 6144"
way     = 2
threads = 128
cluster = 1
blocks  = 8
pieces  = 3
early   = 2

[[choice]]
when    = "whole and bytes_of_row <= 8192"
way     = 2
threads = 256
cluster = 1
blocks  = 6
pieces  = 2
early   = 2

[[choice]]
when    = "whole and bytes_of_row <= 12288"
way     = 2
threads = 256
cluster = 1
blocks  = 4
pieces  = 3
early   = 2

[[choice]]
when    = "whole and bytes_of_row <= 14336"
way     = 2
threads = 256
cluster = 1
blocks  = 4
pieces  = 4
early   = 2

[[choice]]
when    = "whole and bytes_of_row <= 16384"
way     = 2
threads = 512
cluster = 1
blocks  = 3
pieces  = 2
early   = 2

[[choice]]
when    = "whole and bytes_of_row <= 24576"
way     = 2
threads = 512
cluster = 1
blocks  = 2
pieces  = 3
early   = 2

[[choice]]
when    = "whole and bytes_of_row <= 32768"
way     = 2
threads = 512
cluster = 1
blocks  = 2
pieces  = 4
early   = 2

[[choice]]
when    = "whole and bytes_of_row <= 45056 and R >= 2 * sms and not present(residual)"
way     = 3
cluster = 2
blocks  = 1
pieces  = 4
stages  = 4

[[choice]]
when    = "whole and bytes_of_row <= 49152"
way     = 2
threads = 1024
cluster = 1
blocks  = 1
pieces  = 3
early   = 2

[[choice]]
when    = "whole and bytes_of_row <= 65536"
way     = 2
threads = 1024
cluster = 1
blocks  = 1
pieces  = 4
early   = 2

[[choice]]
when    = "bytes_of_row <= 4096"
threads = 128
cluster = 1
blocks  = 12

[[choice]]
when    = "bytes_of_row <= 8192"
threads = 256
cluster = 1
blocks  = 6

[[choice]]
when    = "bytes_of_row <= 32768"
threads = 256
cluster = 1
blocks  = 4

[[choice]]
when    = "bytes_of_row <= 65536"
threads = 512
cluster = 1
blocks  = 2

[[choice]]
when    = "alike and bytes_of_row > 65536 and bytes_of_row <= 131072 and R * 16 >= 4 * sms and not present(residual)"
way     = 3
cluster = 16
blocks  = 2
pieces  = 4
stages  = 4

[[choice]]
when    = "alike and bytes_of_row > 131072 and bytes_of_row <= 262144 and R * 16 >= 4 * sms and not present(residual)"
way     = 3
cluster = 16
blocks  = 2
pieces  = 4
stages  = 3

[[choice]]
when    = "alike and bytes_of_row > 262144 and bytes_of_row <= 524288 and R * 16 >= 4 * sms and not present(residual)"
way     = 3
cluster = 16
blocks  = 1
pieces  = 2
stages  = 3

[[choice]]
when    = "bytes_of_row <= 131072"
threads = 512
cluster = 2
blocks  = 2

[[choice]]
when    = "bytes_of_row <= 262144"
threads = 256
cluster = 8
blocks  = 4

[[choice]]
when    = "bytes_of_row <= 524288"
threads = 512
cluster = 8
blocks  = 2

[[launch]]
when    = "way == 1"
kernel  = "norm_forward<{T}, {threads}, {cluster}, {blocks}, true, {present(residual)}>"
grid    = ["R * cluster"]
block   = ["threads"]
chained = true
cluster = ["cluster"]
shared  = "(32 if present(residual) else 16) * ceil(bytes_of_row / (16 * cluster))"

[[launch]]
when    = "way == 2"
kernel  = "norm_whole<{T}, {threads}, {pieces}, {blocks}, {early}, true, {present(residual)}>"
grid    = ["R"]
block   = ["threads"]
chained = true
shared  = "brought"

[[launch]]
when    = "way == 3"
kernel  = "norm_stay<{T}, {pieces}, {needed}, {cluster}, {blocks}, {stages}, {fit}, true, {present(residual)}, {present(weight)}, {present(bias)}>"
grid    = ["cluster * clusters"]
block   = ["needed"]
chained = true
cluster = ["cluster"]
shared  = "shared"
args    = ["R: i32", "C: i32", "clusters: i32", "x: T[R, C]", "xs: i64 = stride(x, 0)", "residual: T[R, C]?", "rs: i64 = stride(residual, 0)", "weight: T[C]?", "bias: T[C]?", "y: T[R, C]", "ys: i64 = stride(y, 0)", "s: T[R, C]?", "ss: i64 = stride(s, 0)", "eps: f32"]

[[launch]]
when    = "way == 4"
kernel  = "norm_once<{T}, {pieces}, {rows}, {needed}, {cluster}, {blocks}, {fit}, true, {present(residual)}>"
grid    = ["cluster * ceil(R / rows)"]
block   = ["needed"]
chained = true
cluster = ["cluster"]
shared  = "once"
args    = ["R: i32", "C: i32", "x: T[R, C]", "xs: i64 = stride(x, 0)", "residual: T[R, C]?", "rs: i64 = stride(residual, 0)", "weight: T[C]?", "bias: T[C]?", "y: T[R, C]", "ys: i64 = stride(y, 0)", "s: T[R, C]?", "ss: i64 = stride(s, 0)", "eps: f32"]

[[launch]]
when    = "way == 5"
kernel  = "norm_warp<{T}, {threads}, {pieces}, {rows}, {blocks}, true, {present(residual)}>"
grid    = ["ceil(R / (rows * threads // 32))"]
block   = ["threads"]
chained = true
args    = ["R: i32", "C: i32", "x: T[R, C]", "xs: i64 = stride(x, 0)", "residual: T[R, C]?", "rs: i64 = stride(residual, 0)", "weight: T[C]?", "bias: T[C]?", "y: T[R, C]", "ys: i64 = stride(y, 0)", "s: T[R, C]?", "ss: i64 = stride(s, 0)", "eps: f32"]
*/
#include "norms_slices.cuh"
