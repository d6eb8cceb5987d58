/* rooftop
idea    = "Each row is read once. Its first round sets a bar, the k-th of the threads' largest where k is small; shared memory holds what is not behind the k-th of those seen so far; when it is full, a radix select over it keeps the k first and moves that bar. Elements past the bar are few: each is looked at by its own thread. Up to 192 are placed by counting, more are sorted in registers. For k up to 96 rows of at most 64 KiB lie in the registers of one block, whose bar is the k-th of the largest of 128 groups. Few long rows are shared out over blocks, whose lists further launches select from. A warp sorts a row of 256 elements in registers; more than 2048 of a row are a radix sort."
predict = { spills = 0 }
limit   = "On an H200: 1024x131072 k=64 of bfloat16 189 us, of int64 342 us; 1x131072 k=1 13.5 us, two launches, each bound by the latency of its selection. Where a row is short, or blocks have little of it, the selection at its end takes as long as its read. k = 2048 adds a sort of 2048 entries in registers and shared memory."
dtypes  = ["f32", "f16", "bf16", "i64", "i32"]
args    = ["x: T[R, N]"]
demands = { has = ["LDG"], spills = 0 }
python  = ["supports", "choose", "launches", "scratch"]
*/
#include "pivot_rows.cuh"
#include "radix.cuh"
#include "select.cuh"
#include "short_rows.cuh"
