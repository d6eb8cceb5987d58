/* rooftop
idea    = "Clusters of 1 to 16 blocks stay for the whole launch, no more of them than the card runs at once, and walk over the rows. Each thread owns 8 to 32 columns of all of them; the weight and the rows to come wait in shared memory, the sums of dweight and dbias there or in registers, so that every row is read once and partial sums are a few MiB in all. Two sums of a row are wanted. While the parts of a row travel between the blocks (st.async, counted by an mbarrier: nobody stands at a barrier of the cluster) the row before is finished. Where partial rows are many for the rows there are, a group of blocks adds up its own first (distributed shared memory). A last launch adds the partial rows in a fixed order: the same bits every time."
predict = { speedup = 1.8 }
limit   = "Blocks that stay share the memory unequally (docs/staying.md): 0.93 to 0.98 of a copy from 2304 to 262144 columns of bf16, odd rows too. At 32 MiB 0.84: few rows a block do not hide its start, its end and the launch that adds the sums."
dtypes  = ["f32", "f16", "bf16"]
args    = ["R: i32", "C: i32", "clusters: i32", "dy: T[R, C]", "dys: i64 = stride(dy, 0)", "ds: T[R, C]?", "dss: i64 = stride(ds, 0)", "s: T[R, C]", "ss: i64 = stride(s, 0)", "weight: T[C]?", "dx: T[R, C]", "dxs: i64 = stride(dx, 0)", "pw: f32[P, C]", "pb: f32[P, C]", "eps: f32"]
demands = { has = ["LDGSTS.E.128", "STG.E.128"], spills = 0 }
prefer  = "C >= 1024 and (numel(s) * bytes(s) > 33554432 or R >= 2 * sms - 8 and C <= 4096) and not (present(ds) and bytes_of_row <= 16384)"
valid   = "needed <= 1024 and each * needed >= 256 and each * needed * (3 if registers == 1 else 2) <= 3072 and each * (shared + 1024 + static) <= 233472 and shared + static <= 232448 and (cluster == 1 or bytes_of_row > 4096 * cluster) and grouped"
configs = [{ pieces = [1, 2, 3, 4], cluster = [1, 2, 4, 8, 16], group = [1, 2, 4, 8], each = [1, 2, 3, 4, 6, 8], stages = [3, 4], registers = [0, 1] }]

[requires]
"R > 0" = "there must be a row"
"bytes_of_row <= (524288 if whole else 491520)" = "three rows of s and dy, the weight and its sums must fit the sixteen blocks of a cluster"
"R < 2147483648" = "rows are counted in 32 bits"
"alike" = "rows must start on 16 bytes, or all of s, dy, ds and dx as far from them"

[config]
pieces    = 4
cluster   = 16
group     = 1
each      = 1
stages    = 3
registers = 1

[[choice]]
when      = "not whole and bytes_of_row > 8192 and bytes_of_row <= 16384"
pieces    = 2
cluster   = 1
each      = 1
stages    = 4
registers = 1

[[choice]]
when      = "not whole and bytes_of_row > 16384 and bytes_of_row <= 24592"
pieces    = 2
cluster   = 4
each      = 2
stages    = 4
registers = 1

[[choice]]
when      = "not whole and bytes_of_row > 24592 and bytes_of_row <= 65472"
pieces    = 2
cluster   = 2
each      = 1
stages    = 3
registers = 1

[[choice]]
when      = "not whole and bytes_of_row > 65472 and bytes_of_row <= 130000"
pieces    = 2
cluster   = 16
each      = 3
stages    = 3
registers = 1

[[choice]]
when      = "not whole and bytes_of_row > 130000 and bytes_of_row <= 131072"
pieces    = 4
cluster   = 8
each      = 1
stages    = 3
registers = 1

[[choice]]
when      = "bytes_of_row <= 2048 and R <= 16 * sms"
pieces    = 1
cluster   = 1
each      = 4
stages    = 3
registers = 1

[[choice]]
when      = "bytes_of_row <= 2048"
pieces    = 1
cluster   = 1
each      = 8
stages    = 3
registers = 1

[[choice]]
when      = "bytes_of_row <= 4096"
pieces    = 1
cluster   = 1
each      = 4
stages    = 3
registers = 1

[[choice]]
when      = "bytes_of_row <= 5120"
pieces    = 1
cluster   = 1
each      = 2
stages    = 3
registers = 1

[[choice]]
when      = "bytes_of_row <= 6144"
pieces    = 1
cluster   = 1
each      = 1
stages    = 4
registers = 1

[[choice]]
when      = "bytes_of_row > 4096 and bytes_of_row <= 8192 and R <= 2 * sms"
pieces    = 1
cluster   = 1
each      = 1
stages    = 3
registers = 1

[[choice]]
when      = "bytes_of_row <= 8192 and R <= 16 * sms"
pieces    = 2
cluster   = 1
each      = 1
stages    = 4
registers = 0

[[choice]]
when      = "bytes_of_row <= 8192"
pieces    = 2
cluster   = 1
each      = 2
stages    = 3
registers = 0

[[choice]]
when      = "bytes_of_row <= 10240"
pieces    = 2
cluster   = 1
each      = 1
stages    = 3
registers = 0

[[choice]]
when      = "bytes_of_row <= 14336"
pieces    = 1
cluster   = 2
each      = 1
stages    = 4
registers = 1

[[choice]]
when      = "present(ds) and bytes_of_row > 14336 and bytes_of_row <= 16384"
pieces    = 2
cluster   = 2
each      = 2
stages    = 3
registers = 1

[[choice]]
when      = "bytes_of_row <= 16384"
pieces    = 1
cluster   = 2
each      = 1
stages    = 3
registers = 1

[[choice]]
when      = "bytes_of_row <= 20480"
pieces    = 1
cluster   = 4
each      = 2
stages    = 3
registers = 1

[[choice]]
when      = "bytes_of_row <= 24576"
pieces    = 3
cluster   = 4
each      = 2
stages    = 3
registers = 1

[[choice]]
when      = "bytes_of_row <= 32768"
pieces    = 2
cluster   = 4
each      = 1
stages    = 4
registers = 0

[[choice]]
when      = "bytes_of_row <= 45056"
pieces    = 2
cluster   = 4
each      = 1
stages    = 4
registers = 1

[[choice]]
when      = "bytes_of_row <= 65536"
pieces    = 1
cluster   = 8
each      = 1
stages    = 4
registers = 1

[[choice]]
when      = "bytes_of_row <= 131072"
pieces    = 1
cluster   = 16
each      = 1
stages    = 4
registers = 1

[[choice]]
when      = "bytes_of_row <= 262144"
pieces    = 4
cluster   = 16
each      = 1
stages    = 3
registers = 1

[scratch]
pw = "f32[left, C]"
pb = "f32[left, C]"

[[launch]]
kernel  = "norm_backward<{T}, {pieces}, {needed}, {cluster}, {group}, {each}, {stages}, {registers}, {fit}, false, false, {present(dweight)}, {present(dbias)}, {present(ds)}>"
grid    = ["cluster * clusters"]
block   = ["needed"]
chained = true
cluster = ["cluster * group"]
shared  = "shared"

[[launch]]
when    = "present(dweight) or present(dbias)"
kernel  = "norm_columns<{T}, {wide}, {across}, {height}, {deep}>"
grid    = ["ceil(C / (across * wide))", "(1 if present(dweight) else 0) + (1 if present(dbias) else 0)"]
block   = ["across", "height"]
chained = true
args    = ["left: i32", "C: i32", "pw: f32[P, C]", "dweight: T[C]?", "pb: f32[P, C]", "dbias: T[C]?"]
*/
#include "norms_bwd.cuh"
