/* rooftop
idea    = "The k-th element of a row for any k, with one read of the row. A cluster holds the row in shared memory and makes histograms of digits of 11 bits, from the highest digit down. Among elements equal to the k-th it chooses by index."
limit   = "On an H200, float32: 21 us for one row of 131072 and 890 us for 1024, whatever k; 4096x8192, one block per row, 250 us. The pass over shared memory for each of three digits, contended atomic additions (most elements have similar exponents, so few digits occur), and the cluster barriers; the read of 1024x131072 takes 124 us."
dtypes  = ["f32", "f16", "bf16", "i64", "i32"]
args    = ["x: T[R, N]"]
demands = { has = ["LDG.128"], spills = 0 }
python  = ["supports", "choose", "launches"]
*/
#include "_smem_select.cuh"
