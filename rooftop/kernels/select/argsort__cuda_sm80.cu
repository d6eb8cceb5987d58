/* rooftop
idea    = "As sort, without the values: a least-significant-digit radix sort with digits of 8 bits, by a warp, a block or tiles."
limit   = "As sort, with 8 bytes of results per element."
dtypes  = ["f32", "f16", "bf16", "i64", "i32"]
args    = ["x: T[R, N]"]
demands = { has = ["VOTE"], spills = 0 }
python  = ["supports", "choose", "launches", "scratch"]
*/
#include "_radix_sort.cuh"
#include "_top_k.cuh"
