/* rooftop
idea    = "A block a row. Weights are whole multiples of 2^-32, so sums are exact in any order and the same in every run. One read selects the first 1024 in order; a top_k of as many, or a nucleus that they hold, is then drawn from shared memory. A plain draw reads twice: the maximum, then the sums of chunks, of which one is looked at again. What neither settles is bounded digit by digit, by counts or by weights."
limit   = "On an H200, 128256 logits a row: 1024 rows of float32 586 us plain, 312 us with top_k 50, 191 us greedy; one row 116 us plain, since one block reads it twice."
dtypes  = ["f32", "f16", "bf16"]
args    = ["logits: T[R, N]"]
demands = { has = ["LDG", "MUFU"], spills = 0 }
python  = ["supports", "launches"]
*/
#include "sample_rows.cuh"
