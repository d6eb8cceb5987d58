/* rooftop
idea    = "One thread per row: a mask made of lengths, a diagonal and a window is two numbers for each row."
predict = { speedup = 1.0 }
limit   = "The launch."
dtypes  = ["i32"]
python  = ["launches"]
args    = ["begin: T[B, R]", "end: T[B, R]", "B: i32", "R: i32"]
demands = { spills = 0 }

[requires]
"B * R < 2147483392" = "rows are counted in 32 bits"

[config]
threads = 128
*/
#include "pdl.cuh"
#include "_key_ranges.cuh"

__global__ void __launch_bounds__(128) attention_ranges(
    int* begin, int* end, int B, int R, int keys, int group, int left, int right, const void* lengths, const void* q_lengths, int wide) {
    const int at = blockIdx.x * 128 + threadIdx.x, b = at / R;
    gdc_wait();
    if (at >= B * R) return;
    const Span span = span_of(b, at - b * R, R, keys, group, left, right, lengths, q_lengths, wide);
    begin[at] = span.begin;
    end[at] = span.end;
}
