/* rooftop
idea    = "Long rows are read once. A sample of 1024 to 8192 elements of a row gives a pivot that slightly more than k elements reach, so that a short list of candidates remains in shared memory. The list is ranked by counting, or reduced to the first k by a radix select and sorted in registers. A few long rows are divided among blocks, and a second launch merges their lists. If the pivot fails (many equal elements, unusual rows), the row is read again by a selection without a pivot: shared memory collects the elements that are not behind the k-th of those seen so far; when it is full, a radix select keeps the first k and updates this threshold. Shorter rows use this selection too. For k up to 96, rows of at most 64 KiB are held in the registers of one block, with the k-th of the maxima of 128 groups as threshold. A warp sorts a row of up to 256 elements in registers; k above 2048 is a radix sort."
predict = { spills = 0 }
limit   = "On an H200, times the read of the same bytes, float32: 1024x131072 k=1 1.3, k=64 1.5, k=2048 2.4; 256x1Mi 1.1 to 1.2; 4096x8192 k=64 2.0, k=2048 8, where the sort of 2048 entries per row takes longer than the read of the row. One row of 131072 takes 11 to 32 us, of 16 Mi 38 to 73 us: its sample, two launches, and a list of 18000 entries. 16-bit floats (1024x131072 k=64 2.4) are bound by the instructions per element."
dtypes  = ["f32", "f16", "bf16", "i64", "i32"]
args    = ["x: T[R, N]"]
demands = { has = ["LDG"], spills = 0 }
python  = ["supports", "choose", "launches", "scratch"]
*/
#include "_threshold_rows.cuh"
#include "_radix_sort.cuh"
#include "_top_k.cuh"
#include "_top_k_short.cuh"
