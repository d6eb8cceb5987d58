/* rooftop
idea    = "A radix sort from the lowest digit of 8 bits up. Rows of 256 are sorted by a warp in registers, rows of 12288 by one block, which moves its entries through shared memory; longer rows are cut into tiles that count, sum up and scatter each digit: 20 bytes of traffic an element of float32 and digit. 64 registers a thread, so that 32 warps a multiprocessor hide each other's waits."
limit   = "On an H200: 4096x8192 float32 965 us, arithmetic, 8 ballots an element and digit; one row of 16 Mi float32 786 us, where its traffic is 0.4 ms; 1000x9999 float16 194 us; one row of 131072 36 us, twelve launches. Not measured: long rows of int64, whose tiles are of 4608 elements, 384 threads."
dtypes  = ["f32", "f16", "bf16", "i64", "i32"]
args    = ["x: T[R, N]"]
demands = { has = ["VOTE"], spills = 0 }
python  = ["supports", "choose", "launches", "scratch"]
*/
#include "radix.cuh"
#include "select.cuh"
