/* rooftop
idea    = "The k-th of a row for any k, in one read: a cluster a row holds it in shared memory, counts digits of 11 bits from the highest down, and of the k-th's equals finds the one by index."
limit   = "On an H200, float32: 21 us for one row of 131072 and 890 us for 1024, whatever k; 4096x8192, a block a row, 250 us. The pass over shared memory for each of three digits, atomic additions that fall on few digits (exponents are alike), and the cluster's meetings; the read is 124 us of 1024x131072."
dtypes  = ["f32", "f16", "bf16", "i64", "i32"]
args    = ["x: T[R, N]"]
demands = { has = ["LDG.128"], spills = 0 }
prefer  = "min(k, N - k) > 2048"
python  = ["supports", "choose", "launches"]
*/
#include "held_select.cuh"
