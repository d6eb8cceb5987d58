/* rooftop
idea    = "The k-th element of a row for any k, with one read of the row. Two keys of a sample of the row bracket the k-th (four standard deviations to either side); while the row goes by, elements above the bracket are counted, and the few inside it kept in shared memory, where digits of 8 bits find the k-th. Elements equal to an end of the bracket are counted too, so that rows of few values need no room. A bracket that misses, which random data never show, has the row read once a digit. With few rows, several blocks a row pass what lies inside on to one block, as a list."
limit   = "On an H200, 1024x131072 float32, whose read takes 118 us: 178 us for k = 64, 262 for k = 65536 (190 were predicted for any); 128 rows 46, one row of 2^24 113. Not profiled. Eight instructions an element, some forty for each of the 6 % inside the bracket (together about the time of the read, beside which they run), and the time in which a block looks at its sample and its list while the other block of the multiprocessor reads."
dtypes  = ["f32", "f16", "bf16", "i64", "i32"]
args    = ["x: T[R, N]"]
demands = { has = ["LDG.128"], spills = 0 }
python  = ["supports", "prefers", "choose", "launches", "scratch", "zeroed"]
*/
#include "bracket_rows.cuh"
