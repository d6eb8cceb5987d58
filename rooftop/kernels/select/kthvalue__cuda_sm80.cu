/* rooftop
idea    = "The selection of topk from the nearer end of the order; only its last element is written. If the k-th is more than 2048 places from either end, the row is sorted."
limit   = "As topk, without its sort: 1024x131072 k=64 takes 1.5 times the read on an H200. The median of a long row needs a sort of four digits: 5.7 ms for 1024x131072."
dtypes  = ["f32", "f16", "bf16", "i64", "i32"]
args    = ["x: T[R, N]"]
demands = { has = ["LDG"], spills = 0 }
python  = ["supports", "choose", "launches", "scratch"]
*/
#include "_threshold_rows.cuh"
#include "_radix_sort.cuh"
#include "_top_k.cuh"
#include "_top_k_short.cuh"
