/* rooftop
idea    = "The selection of topk, without its sort: the mask is filled with the value of most elements, then the selected elements are marked in it."
limit   = "The read of x, as topk without its sort; the mask is a quarter of its bytes in float32, and marks are single bytes."
dtypes  = ["f32", "f16", "bf16", "i64", "i32"]
args    = ["x: T[R, N]"]
demands = { has = ["LDG"], spills = 0 }
python  = ["supports", "choose", "launches", "scratch"]
*/
#include "_threshold_rows.cuh"
#include "_radix_sort.cuh"
#include "_top_k.cuh"
#include "_top_k_short.cuh"
