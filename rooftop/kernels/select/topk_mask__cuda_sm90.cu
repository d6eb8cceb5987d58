/* rooftop
idea    = "The mask of the first k of a row for any k, with one read of the row. A cluster holds the row in shared memory, makes histograms of digits of 11 bits from the highest digit down until the k-th is known, and writes the mask from shared memory."
limit   = "On an H200, float32: 15 us for one row of 131072 and 730 us for 1024 with k = 65536; 4096x8192, one block per row, 200 us. The pass over shared memory for each digit, contended atomic additions (most elements have similar exponents, so few digits occur), and the cluster barriers; the read of 1024x131072 takes 124 us."
dtypes  = ["f32", "f16", "bf16", "i64", "i32"]
args    = ["x: T[R, N]"]
demands = { has = ["LDG.128"], spills = 0 }
python  = ["supports", "choose", "launches"]
*/
#include "_smem_select.cuh"
