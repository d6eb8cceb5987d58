/* rooftop
idea    = "The k-th of a row for any k, in one read: a cluster a row holds it in shared memory, counts digits of 11 bits from the highest down, and of the k-th's equals finds the one by index."
limit   = "Predicted for an H200, not measured. The read of x and, for each of three digits of float32, a pass over shared memory and two meetings of the cluster: 1024x131072 in 0.3 ms, one row in 15 us, whatever k."
dtypes  = ["f32", "f16", "bf16", "i64", "i32"]
args    = ["x: T[R, N]"]
demands = { has = ["LDG.128"], spills = 0 }
python  = ["supports", "choose", "launches"]
*/
#include "held_select.cuh"
