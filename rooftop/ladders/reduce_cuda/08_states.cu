/* rooftop
idea    = "A reduction is a state, what a thread has seen so far, and a rule that merges two states: a sum; a maximum; for a variance the number, the mean and the squares about it (Chan, Golub and LeVeque 1979). With a state for each, one kernel computes sums, means, maxima and variances of many rows, of 16 or 32 bits: a block takes a piece of a row, and a second launch merges the states of a row. A row may start anywhere: single elements up to the first boundary of 16 bytes, then packs."
predict = { speedup = 1.0, sectors_read = 16 }
limit   = "The read itself, for long rows. A short row takes a whole block and a second launch; reductions over columns are not taken, nor is the place of the maximum."
dtypes  = ["f32", "f16", "bf16"]
args    = ["x: T[A, B, C, D, E]", "out: T[A, 1, C, 1, E]"]
demands = { has = ["LDG.E.128"], spills = 0 }

[requires]
"op != 'argmax'" = "this rung does not keep places"
"B * E == 1 and A * C * D > 0" = "takes rows"
"stride(x, 3) == 1 or D == 1" = "the elements of a row must be neighbours"
"A * C * pieces < 268435456" = "more blocks than one launch may have"

[let]
kind   = "0 if op == 'sum' else 1 if op == 'mean' else 2 if op == 'var' else 3"
splits = "max(1, min(ceil(32 * sms / (A * C)), D * bytes(x) // 32768))"
each   = "4096 * ceil(D / (4096 * splits))"
pieces = "ceil(D / each)"
team   = "256 if pieces > 32 else 32"

[scratch]
parts = "f32[pieces, A * C, 4]"

[[launch]]
kernel  = "pieces_of_rows<{T}, {kind}>"
grid    = ["A * C * pieces"]
block   = [256]
args    = ["M: i64 = A * C", "D: i64", "each: i64", "pieces: i64", "C: i64", "x: T[A, B, C, D, E]", "xa: i64 = stride(x, 0)", "xc: i64 = stride(x, 2)", "parts: f32[P, Q, 4]"]
pdl = true

[[launch]]
kernel  = "merge_pieces<{T}, {kind}, {team}>"
grid    = ["ceil(A * C * team / 256)"]
block   = [256]
args    = ["M: i64 = A * C", "pieces: i64", "parts: f32[P, Q, 4]", "C: i64", "out: T[A, 1, C, 1, E]", "oa: i64 = stride(out, 0)", "oc: i64 = stride(out, 2)", "count: f32 = D", "freedom: f32 = max(0, D - correction)"]
pdl = true
*/
#include "_reduce_rows.cuh"

/// The state of piece p of row m, `each` elements, is parts[p, m].
template <typename T, int OP>
__global__ void __launch_bounds__(256) pieces_of_rows(long long M, long long D, long long each, long long pieces, long long C, const T* __restrict__ x, long long xa, long long xc, float* parts) {
    gdc_wait();
    const long long m = quotient(blockIdx.x, pieces), a = quotient(m, C), piece = blockIdx.x - m * pieces, first = piece * each;
    Gather<OP, T> g;
    gather_span<256>(g, x + a * xa + (m - a * C) * xc + first, min(each, D - first), first, threadIdx.x);
    auto s = g.done();
    fold_block(s);
    if (threadIdx.x == 0) reinterpret_cast<State<OP, float>*>(parts)[piece * M + m] = s;
}

/// A team of TEAM threads, a warp or a block, merges the states of a row and writes its result.
template <typename T, int OP, int TEAM>
__global__ void __launch_bounds__(256)
    merge_pieces(long long M, long long pieces, const float* __restrict__ parts, long long C, T* out, long long oa, long long oc, float count, float freedom) {
    gdc_wait();
    const long long m = (blockIdx.x * 256ll + threadIdx.x) / TEAM;
    auto s = State<OP, float>::none();
    if (m < M) {
#pragma unroll 8
        for (long long piece = threadIdx.x % TEAM; piece < pieces; piece += TEAM) s.merge(reinterpret_cast<const State<OP, float>*>(parts)[piece * M + m]);
    }
    if (TEAM == 32) fold_lanes<32>(s);
    else fold_block(s);
    if (m < M && threadIdx.x % TEAM == 0) Results{out, C, 1, oa, oc, 0, count, freedom}.put<OP, T>(m, s);
}
