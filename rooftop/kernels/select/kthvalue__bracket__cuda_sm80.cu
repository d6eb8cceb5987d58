/* rooftop
idea    = "The k-th element of a row for any k, with one read of the row. A sample of the row gives a bracket: two keys between which the k-th element lies (four standard deviations to either side). While the row is read, elements above the bracket are counted, and the few inside it are kept in shared memory, where a radix select (digits of 8 bits) finds the k-th. Elements equal to an end of the bracket are counted too, so that rows with few distinct values need no memory. If the bracket misses the k-th, which never happened with random data, the row is read again once for each digit. With few rows, several blocks share a row and write the elements inside the bracket to a list, which one block reads."
limit   = "On an H200, 1024x131072 float32, whose read takes 118 us: 178 us for k = 64, 262 for k = 65536 (190 were predicted for any k); 128 rows 46, one row of 2^24 113. Not profiled. Eight instructions an element and about forty for each of the 6 % inside the bracket; together they take about as long as the read, with which they overlap. And the time in which a block processes its sample and its list, while only the other block of the multiprocessor reads."
dtypes  = ["f32", "f16", "bf16", "i64", "i32"]
args    = ["x: T[R, N]"]
demands = { has = ["LDG.128"], spills = 0 }
python  = ["supports", "choose", "launches", "scratch", "zeroed"]
*/
#include "_splitter_rows.cuh"
