/* rooftop
idea    = "A radix sort from the lowest digit of 8 bits up. Rows of 256 are sorted by a warp in registers, rows of 8192 by one block, which moves its entries through shared memory; longer rows are cut into tiles that count, sum up and scatter each digit: 20 bytes of traffic an element of float32 and digit."
limit   = "Predicted for an H200, not measured. One row of 16 Mi float32: four digits of 335 MB, of which the scatter goes out in runs of about 128 bytes, and 12 bytes of results an element: 0.45 ms. 4096x8192: arithmetic, 8 ballots an element and digit: 0.4 ms."
dtypes  = ["f32", "f16", "bf16", "i64", "i32"]
args    = ["x: T[R, N]"]
demands = { has = ["VOTE"], spills = 0 }
python  = ["supports", "choose", "launches", "scratch"]
*/
#include "radix.cuh"
#include "select.cuh"
