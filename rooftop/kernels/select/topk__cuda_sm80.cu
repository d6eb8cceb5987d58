/* rooftop
idea    = "Long rows are read once: a sample of 1024 to 8192 of a row's elements gives a pivot that a few more than k reach, so that what remains of the row is a short list in shared memory, placed by counting or, once a radix select has kept the k first, sorted in registers. Few rows are shared out over blocks, whose lists a second launch joins. Where the pivot is none (many equals, odd rows) the row is read again by a selection that needs none: shared memory holds what is not behind the k-th of those seen so far; when it is full, a radix select keeps the k first and moves that bar. So are shorter rows. For k up to 96 rows of at most 64 KiB lie in the registers of one block, whose bar is the k-th of the largest of 128 groups. A warp sorts a row of 256 elements in registers; more than 2048 of a row are a radix sort."
predict = { spills = 0 }
limit   = "On an H200, times the read of the same bytes, float32: 1024x131072 k=1 1.3, k=64 1.5, k=2048 2.4; 256x1Mi 1.1 to 1.2; 4096x8192 k=64 2.0, k=2048 8, where the sort of 2048 entries a row takes longer than the row's read. One row of 131072 11 to 32 us, of 16 Mi 38 to 73 us: its sample, two launches, and a list of 18000 entries. 16-bit floats (1024x131072 k=64 2.4) are bound by the instructions for each element."
dtypes  = ["f32", "f16", "bf16", "i64", "i32"]
args    = ["x: T[R, N]"]
demands = { has = ["LDG"], spills = 0 }
python  = ["supports", "choose", "launches", "scratch"]
*/
#include "pivot_rows.cuh"
#include "radix.cuh"
#include "select.cuh"
#include "short_rows.cuh"
