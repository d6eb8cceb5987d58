/* rooftop
idea    = "A least-significant-digit radix sort with digits of 8 bits. A warp sorts rows of up to 256 in registers, one block sorts rows of up to 12288 through shared memory; longer rows are cut into tiles that count, scan and scatter each digit: 20 bytes of traffic per element of float32 and digit. 64 registers per thread, so that 32 warps fit on a multiprocessor and hide latency."
limit   = "On an H200: 4096x8192 float32 965 us, arithmetic, 8 ballots per element and digit; one row of 16 Mi float32 786 us, where its traffic is 0.4 ms; 1000x9999 float16 194 us; one row of 131072 36 us, twelve launches. Not measured: long rows of int64, whose tiles are of 4608 elements, 384 threads."
dtypes  = ["f32", "f16", "bf16", "i64", "i32"]
args    = ["x: T[R, N]"]
demands = { has = ["VOTE"], spills = 0 }
python  = ["supports", "choose", "launches", "scratch"]
*/
#include "_radix_sort.cuh"
#include "_top_k.cuh"
