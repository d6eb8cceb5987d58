/* rooftop
idea    = "A block a row. Weights are whole multiples of 2^-32, so that sums are exact in any order and the same in every run. A greedy draw, and a plain one or one with min_p, read the row for its largest, then (not greedy) for the sums of chunks, of which one is looked at again. A top_k of at most 1024, or a nucleus that the first 1024 hold, is selected in one read and drawn from shared memory. What neither settles is bounded digit by digit, by counts or by weights."
limit   = "On an H200, times the read of the same bytes: 1024x128256 float32 plain 2.4, top_k 50 1.9; 256x128256 bfloat16 3.6, greedy 1.4. The two reads of a plain draw, and the exponentials of 16-bit logits; a nucleus alone 133, counted digit by digit; on few rows a block's own share of the bandwidth, 46 us for one row."
dtypes  = ["f32", "f16", "bf16"]
args    = ["logits: T[R, N]"]
demands = { has = ["LDG", "MUFU"], spills = 0 }
python  = ["supports", "launches"]
*/
#include "sample_rows.cuh"
