/* rooftop
idea    = "Each row is read once. Shared memory holds what is not behind the k-th of those seen so far; when it is full, a radix select over it keeps the k first and moves that bar. Few long rows are shared out over blocks, whose lists further launches select from. A warp sorts a row of 256 elements in registers; more than 2048 of a row are a radix sort."
predict = { spills = 0 }
limit   = "Predicted for an H200, not measured. 1024x131072 float32, k = 64: the read of x, 0.13 ms, and two selections a row, of a first round and of a few hundred entries, under which the other block of the multiprocessor reads: 0.17 ms. 1x131072: two launches, each bound by its selection of four digits: 10 to 15 us. 1x16777216: the read by 264 blocks, 16 us, then their lists: 35 us."
dtypes  = ["f32", "f16", "bf16", "i64", "i32"]
args    = ["x: T[R, N]"]
demands = { has = ["LDG"], spills = 0 }
python  = ["supports", "choose", "launches", "scratch"]
*/
#include "radix.cuh"
#include "select.cuh"
