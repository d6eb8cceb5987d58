/* rooftop
ops     = ["topk", "topk_mask", "kthvalue", "sort", "argsort"]
idea    = """Long rows are read once. A sample of 1024 to 8192 elements of a row gives a pivot that slightly more than k elements reach, so \
  that a short list of candidates remains in shared memory. The list is ranked by counting, or reduced to the first k by a radix select and \
  sorted in registers. A few long rows are divided among blocks, and a second launch merges their lists. If the pivot fails (many equal \
  elements, unusual rows), the row is read again by a selection without a pivot: shared memory collects the elements that are not behind \
  the k-th of those seen so far; when it is full, a radix select keeps the first k and updates this threshold. Shorter rows use this \
  selection too. For k up to 96, rows of at most 64 KiB are held in the registers of one block, with the k-th of the maxima of 128 groups \
  as threshold. A warp sorts a row of up to 256 elements in registers; k above 2048 is a radix sort. topk_mask: the selection without its \
  sort; the mask is filled with the value of most elements, then the selected ones are marked in it. kthvalue: the selection from the \
  nearer end, of which only the last element is written. Above 2048 elements from an end, and for sort and argsort: a \
  least-significant-digit radix sort with digits of 8 bits. A warp sorts rows of up to 256 in registers, one block sorts rows of up to \
  12288 through shared memory; longer rows are cut into tiles that count, scan and scatter each digit: 20 bytes of traffic per element of \
  float32 and digit. 64 registers per thread, so that 32 warps fit on a multiprocessor and hide latency."""
predict = { spills = 0 }
limit   = """On an H200, times the read of the same bytes, float32: 1024x131072 k=1 1.3, k=64 1.5, k=2048 2.4; 256x1Mi 1.1 to 1.2; \
  4096x8192 k=64 2.0, k=2048 8, where the sort of 2048 entries per row takes longer than the read of the row. One row of 131072 takes 11 to \
  32 us, of 16 Mi 38 to 73 us: its sample, two launches, and a list of 18000 entries. 16-bit floats (1024x131072 k=64 2.4) are bound by the \
  instructions per element. kthvalue: As topk, without its sort: 1024x131072 k=64 takes 1.5 times the read on an H200. The median of a long \
  row needs a sort of four digits: 5.7 ms for 1024x131072. sort: On an H200: 4096x8192 float32 965 us, arithmetic, 8 ballots per element \
  and digit; one row of 16 Mi float32 786 us, where its traffic is 0.4 ms; 1000x9999 float16 194 us; one row of 131072 36 us, twelve \
  launches. Not measured: long rows of int64, whose tiles are of 4608 elements, 384 threads."""
dtypes  = ["f32", "f16", "bf16", "i64", "i32"]
args    = ["x: T[R, N]"]
demands = { has = ["LDG"], spills = 0 }
python  = ["supports", "choose", "launches", "scratch"]
*/
#include "_threshold_rows.cuh"
#include "_radix_sort.cuh"
#include "_top_k.cuh"
#include "_top_k_short.cuh"
