/* rooftop
idea    = "Clusters of 1 to 16 blocks stay for the whole launch and walk over the rows. Each thread owns 16 columns: it holds a row of s and dy in registers, its sums of dweight and dbias beside them, and the next row is already on its way to shared memory, so that every row is read once and partial sums are a few MiB in all. Two sums pass between the blocks, one barrier a row. A last launch adds the clusters' partial rows in a fixed order: the same bits every time."
predict = { speedup = 1.5 }
limit   = "not measured yet"
dtypes  = ["f32", "f16", "bf16"]
args    = ["R: i32", "C: i32", "clusters: i32 = R if R < sms * each // cluster else sms * each // cluster", "dy: T[R, C]", "dys: i64 = stride(dy, 0)", "ds: T[R, C]?", "dss: i64 = stride(ds, 0)", "s: T[R, C]", "ss: i64 = stride(s, 0)", "weight: T[C]?", "dx: T[R, C]", "dxs: i64 = stride(dx, 0)", "pw: f32[P, C]", "pb: f32[P, C]", "eps: f32"]
demands = { has = ["LDG.E.128", "STG.E.128"], spills = 0 }
prefer  = "R < 0"
valid   = "C <= 16 * threads * cluster"
configs = [{ threads = 128, cluster = 1, each = 4, stages = 2 }, { threads = 256, cluster = 1, each = 2, stages = 2 }, { threads = 256, cluster = 2, each = 2, stages = 1 }, { threads = 256, cluster = 2, each = 2, stages = 2 }, { threads = 256, cluster = 4, each = 2, stages = 2 }, { threads = 256, cluster = 8, each = 2, stages = 2 }, { threads = 256, cluster = 16, each = 2, stages = 2 }, { threads = 512, cluster = 1, each = 1, stages = 2 }, { threads = 512, cluster = 2, each = 1, stages = 2 }, { threads = 512, cluster = 4, each = 1, stages = 2 }, { threads = 512, cluster = 8, each = 1, stages = 2 }, { threads = 512, cluster = 16, each = 1, stages = 2 }, { threads = 1024, cluster = 1, each = 1, stages = 1 }, { threads = 1024, cluster = 2, each = 1, stages = 1 }, { threads = 1024, cluster = 4, each = 1, stages = 1 }, { threads = 1024, cluster = 8, each = 1, stages = 1 }]

[requires]
"C <= 16 * threads * cluster" = "each thread of a cluster owns 16 columns"
"R < 2147483648" = "rows are counted in 32 bits"

[config]
threads = 1024
cluster = 16
each    = 1
stages  = 1

[[choice]]
when    = "C <= 2048"
threads = 128
cluster = 1
each    = 4

[[choice]]
when    = "C <= 4096"
threads = 256
cluster = 1
each    = 2

[[choice]]
when    = "C <= 8192"
threads = 512
cluster = 1

[[choice]]
when    = "C <= 16384"
threads = 512
cluster = 2

[[choice]]
when    = "C <= 32768"
threads = 512
cluster = 4

[[choice]]
when    = "C <= 65536"
threads = 512
cluster = 8

[[choice]]
when    = "C <= 131072"
threads = 512

[scratch]
pw = "f32[R if R < sms * each // cluster else sms * each // cluster, C]"
pb = "f32[R if R < sms * each // cluster else sms * each // cluster, C]"

[[launch]]
kernel  = "norm_backward<{T}, {16 // bytes(s) if C % (16 // bytes(s)) == 0 and aligned(s, 16) and aligned(dy, 16) and aligned(dx, 16) and (not present(ds) or aligned(ds, 16)) and (not present(weight) or aligned(weight, 16)) else 1}, {threads}, {cluster}, {each}, {stages}, false, {present(dweight)}, {present(dbias)}, {present(ds)}>"
grid    = ["cluster * (R if R < sms * each // cluster else sms * each // cluster)"]
block   = ["threads"]
cluster = ["cluster"]
shared  = "stages * 32 * bytes(s) * threads"

[[launch]]
when    = "present(dweight)"
kernel  = "norm_columns<{T}>"
grid    = ["ceil(C / 32)"]
block   = [32, 32]
args    = ["clusters: i32 = R if R < sms * each // cluster else sms * each // cluster", "C: i32", "pw: f32[P, C]", "dweight: T[C]?"]

[[launch]]
when    = "present(dbias)"
kernel  = "norm_columns<{T}>"
grid    = ["ceil(C / 32)"]
block   = [32, 32]
args    = ["clusters: i32 = R if R < sms * each // cluster else sms * each // cluster", "C: i32", "pb: f32[P, C]", "dbias: T[C]?"]
*/
#include "norms_bwd.cuh"
