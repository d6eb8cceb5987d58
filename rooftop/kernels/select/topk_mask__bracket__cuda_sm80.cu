/* rooftop
idea    = "The mask of the first k elements of a row for any k. A sample of the row gives a bracket around the k-th element; one read counts the elements above the bracket and keeps those inside, among which a radix select (digits of 8 bits) finds the k-th. A second read, which hits the L1 for short rows, writes the mask four elements at a time. Nothing is sorted, and no byte of the mask is written twice."
limit   = "On an H200, float32: 4096x8192 k=2048 takes 215 us; 80 were predicted and the copy takes 41, so the other kernels are as fast there. Not profiled. If few elements of long rows are selected, the other kernels, which do not read the row twice, are 1.6 to 1.9 times as fast; this one is not chosen for them."
dtypes  = ["f32", "f16", "bf16", "i64", "i32"]
args    = ["x: T[R, N]"]
demands = { has = ["LDG.128"], spills = 0 }
python  = ["supports", "choose", "launches", "scratch", "zeroed"]
*/
#include "_splitter_rows.cuh"
