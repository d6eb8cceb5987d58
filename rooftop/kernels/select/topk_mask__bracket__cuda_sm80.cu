/* rooftop
idea    = "The mask of the first k of a row for any k. Two keys of a sample of the row bracket the k-th; one read counts the elements above the bracket and keeps those inside, among which digits of 8 bits find the k-th. A second read, of short rows from the L1, writes the mask four elements at a time. Nothing is sorted, and no mark is written twice."
limit   = "On an H200, float32: 4096x8192 k=2048 215 us, 80 were predicted and the copy is 41, so that the other kernels are as fast there. Not profiled. Of few elements of long rows the others are 1.6 to 1.9 times as fast, which do not read the row twice: it does not take these by itself."
dtypes  = ["f32", "f16", "bf16", "i64", "i32"]
args    = ["x: T[R, N]"]
demands = { has = ["LDG.128"], spills = 0 }
python  = ["supports", "prefers", "choose", "launches", "scratch", "zeroed"]
*/
#include "bracket_rows.cuh"
