/* rooftop
idea    = "Each row is read once. Its first round sets a bar, the k-th of the threads' largest where k is small; shared memory holds what is not behind the k-th of those seen so far; when it is full, a radix select over it keeps the k first and moves that bar. The k first are sorted in registers. Few long rows are shared out over blocks, whose lists further launches select from. A warp sorts a row of 256 elements in registers; more than 2048 of a row are a radix sort."
predict = { spills = 0 }
limit   = "On an H200, float32: 1024x131072 k=64 344 us, where reads of the same bytes take 124; 1x131072 21 us, two launches, each bound by the latency of its selections; 16x16777216 k=64 460 us, twice the read. k = 2048 adds a sort of 2048 entries in registers and shared memory: 4096x4096 422 us, 1x131072 67 us."
dtypes  = ["f32", "f16", "bf16", "i64", "i32"]
args    = ["x: T[R, N]"]
demands = { has = ["LDG"], spills = 0 }
python  = ["supports", "choose", "launches", "scratch"]
*/
#include "radix.cuh"
#include "select.cuh"
#include "short_rows.cuh"
