/* rooftop
idea    = """One block per row. Weights are integer multiples of 2^-32, so that sums are exact in any order and the same in every run. A \
  greedy draw reads the row once for its maximum. A plain draw, or one with min_p, then reads it again for the sums of chunks, and one \
  chunk once more. A top_k of at most 1024, or a top_p set within the first 1024, is selected in one read and drawn from shared memory. \
  Otherwise the boundary is found digit by digit, by counts or by weights."""
limit   = """On an H200, times the read of the same bytes: 1024x128256 float32 plain 2.4, top_k 50 1.9; 256x128256 bfloat16 3.6, greedy \
  1.4. The two reads of a plain draw, and the exponentials of 16-bit logits; top_p alone 133, counted digit by digit; with few rows a \
  single block's share of the bandwidth, 46 us for one row."""
dtypes  = ["f32", "f16", "bf16"]
args    = ["logits: T[R, N]"]
demands = { has = ["LDG", "MUFU"], spills = 0 }
python  = ["supports", "for_any_rows", "launches"]
*/
#include "_draw_rows.cuh"
