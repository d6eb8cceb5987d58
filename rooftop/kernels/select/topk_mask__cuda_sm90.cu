/* rooftop
idea    = "The mask of a row's first k for any k, in one read: a cluster a row holds it in shared memory, counts digits of 11 bits from the highest down until the k-th is known, and writes the mask from there."
limit   = "On an H200, float32: 15 us for one row of 131072 and 730 us for 1024 with k = 65536; 4096x8192, a block a row, 200 us. The pass over shared memory for each digit, atomic additions that fall on few digits (exponents are alike), and the cluster's meetings; the read is 124 us of 1024x131072."
dtypes  = ["f32", "f16", "bf16", "i64", "i32"]
args    = ["x: T[R, N]"]
demands = { has = ["LDG.128"], spills = 0 }
prefer  = "min(k, N - k) > 2048"
python  = ["supports", "choose", "launches"]
*/
#include "held_select.cuh"
