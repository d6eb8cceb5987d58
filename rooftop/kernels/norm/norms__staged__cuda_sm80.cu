/* rooftop
ops     = ["rms_norm", "layer_norm"]
idea    = """Short rows that are adjacent in memory are one contiguous range, divided into stretches of whole rows. A persistent block \
  copies a stretch to shared memory in vectors of 16 bytes that ignore row boundaries while it processes the one before. Teams of 1 to 32 \
  lanes load rows from there to registers, in vectors too. A team's rows all start at the same place within a vector, so the bits of \
  neighbouring rows in its first and last vector, and the shifted weight and bias, are found once a block. Results go back through shared \
  memory and are stored in vectors; rows of whole vectors are stored directly. So rows of odd lengths are nearly as fast as aligned ones, \
  and few lanes idle because a row is not a power of two of vectors."""
limit   = """0.91 of a copy on an H200 at 144 and 256 columns of bf16, 0.84 at 102 of float32. By count, 15 to 17 instructions for each \
  16-bit element; the time of a copy has room for 28."""
dtypes  = ["f32", "f16", "bf16"]
args    = ["R: i32", "C: i32", "rows: i32", "x: T[R, C]", "weight: T[C]?", "bias: T[C]?", "y: T[R, C]", "eps: f32"]
demands = { has = ["LDGSTS.E.128", "STG.E.128"], spills = 0 }
python  = ["supports", "choose", "configs", "launches"]
valid   = "rows * lanes % 256 == 0 and pieces == ceil(ceil((C * bytes(x) + 16 - gcd(16, C * bytes(x))) / 16) / lanes)"

[requires]
"not present(residual)" = "it takes no residual"

[config]
lanes  = 8
pieces = 4
rows   = 32
*/
// Forward of rms_norm and layer_norm for short rows of any length. A block copies stretches of consecutive rows to shared memory in vectors
// of 16 bytes that ignore row boundaries; teams of LANES lanes then load rows from there to registers, in vectors too.
//
//     y = (x - mean) / sqrt(mean of (x - mean)^2 + eps) * weight + bias
//
// A team takes rows that are a multiple of 8 apart, so all its rows start at the same place within a vector. What depends on that place is
// computed once a
// thread: which bits of its first and last vectors are inside the row, and which columns of weight and bias its vectors have.
//
// CENTRE is true for layer_norm: the mean is subtracted. 16-bit types: one pass about a pivot, the row's first element, whose distance from
// the mean is at most sqrt(C) standard deviations. So the sum of squares about it is at most C + 1 times that about the mean, and a 16-bit
// result does not show the cancellation. Float32: two passes, first the mean.
#include "pdl.cuh"
#include "_moments.cuh"
#include "contiguous_rows.cuh"

constexpr int STAGED_THREADS = 256;
// two stretches of `rows` rows, which the results overwrite; then weight and bias, each with a vector before and one after it; then with
// TABLE their vectors for all teams
extern __shared__ __align__(128) uint4 stretches[];

/// Copies C columns of weight or bias to shared memory.
template <typename T>
__device__ void keep_columns(uint4* kept, const T* from, int C) {
    constexpr int N = Pack<T>::N;
    const int vectors = C / N, tid = threadIdx.x;
    for (int k = tid; k < vectors; k += STAGED_THREADS) __pipeline_memcpy_async(kept + 1 + k, from + k * N, 16);
    if (tid < C % N) reinterpret_cast<T*>(kept + 1 + vectors)[tid] = from[vectors * N + tid];
}

/// The columns from `column` on, which may be up to a vector before the first.
template <typename T, bool WHOLE>
__device__ uint4 columns_from(const uint4* kept, int column) {
    constexpr int WORDS = Word<T>::N;
    if (WHOLE) return kept[1 + column / Pack<T>::N];
    const unsigned* const w = reinterpret_cast<const unsigned*>(kept + 1) + (column >> (WORDS - 1));
    if (WORDS == 1) return make_uint4(w[0], w[1], w[2], w[3]);
    const unsigned bits = column % 2 * 16;  // a negative odd column gives -16: the shift counts modulo 32
    return make_uint4(__funnelshift_r(w[0], w[1], bits), __funnelshift_r(w[1], w[2], bits), __funnelshift_r(w[2], w[3], bits),
        __funnelshift_r(w[3], w[4], bits));
}

/// Those bits of v that are set in `bits`, the others of `word`.
__device__ inline unsigned merged(unsigned v, unsigned word, unsigned bits) { return (v & bits) | (word & ~bits); }

/// R rows of C elements, `rows` a stretch, a multiple of the teams. A block takes stretches that are gridDim.x apart. A lane has PIECES vectors of a row, LANES apart. WHOLE: rows are whole
/// vectors. FULL: and each lane has all of its PIECES. TAILS: a row's last vector is the last of a lane, or with 2 the last or the last but
/// one. TABLE: the vectors of weight and bias are shifted once a block and not once a row.
template <typename T, int LANES, int PIECES, int TAILS, bool TABLE, bool WHOLE, bool FULL, bool CENTRE, bool WEIGHT, bool BIAS>
__global__ void __launch_bounds__(STAGED_THREADS, PIECES <= (sizeof(T) == 2 ? 5 : CENTRE ? 7 : 8) ? 3 : 2)
    norm_staged(int R, int C, int rows, const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias,
        T* __restrict__ y, float eps) {
    using P = Pack<T>;
    constexpr int N = P::N, WORDS = Word<T>::N, BITS = 8 * sizeof(T), TEAMS = STAGED_THREADS / LANES;
    constexpr bool EXACT = sizeof(T) == 4;
    const int tid = threadIdx.x, team = tid / LANES, lane = tid % LANES;
    const int size = rows * C / N, step_of = gridDim.x * rows;  // vectors of a stretch; rows from one stretch of the block to the next
    const int of_columns = (C + N - 1) / N + 2;  // vectors of weight or bias
    uint4 *const weights = stretches + 2 * size, *const biases = weights + (WEIGHT ? of_columns : 0),
        *const table = biases + (BIAS ? of_columns : 0);
    int remaining = R - blockIdx.x * rows;  // rows from the stretch on
    x += static_cast<long long>(blockIdx.x) * rows * C, y += static_cast<long long>(blockIdx.x) * rows * C;
    const auto fetch = [&](uint4* to, const T* from, int count) {
        const int elements = min(rows, count) * C, vectors = elements / N;
        fetch_vectors<STAGED_THREADS>(static_cast<unsigned>(__cvta_generic_to_shared(to + tid)),
            reinterpret_cast<const char*>(from) + tid * 16, (vectors - tid) * 16);
        // the rest of the last stretch, element by element
        if (tid < elements % N) reinterpret_cast<T*>(to + vectors)[tid] = from[vectors * N + tid];
    };

    gdc_wait();
    fetch(stretches, x, remaining);
    if (WEIGHT) keep_columns(weights, weight, C);
    if (BIAS) keep_columns(biases, bias, C);
    __pipeline_commit();

    const int start = lane * N - team * C % N;  // the column of this thread's first element; negative if it belongs to the row before
    const auto column = [&](int i) { return start + i * LANES * N; };
    // Only a row's first vector and the last one, in one of TAILS places, may be partly outside the row; vectors of those places may also
    // be missing.
    const auto has = [&](int i) { return FULL || i < PIECES - TAILS || column(i) < C; };
    const auto first_of_row = [](int i) { return !WHOLE && i == 0; };
    const auto last_of_row = [](int i) { return !FULL && i >= PIECES - TAILS; };
    const auto fill = [&](uint4 (&packs)[PIECES], unsigned word) {  // overwrites what is not inside the row
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            unsigned p[4] = {packs[i].x, packs[i].y, packs[i].z, packs[i].w};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if (first_of_row(i)) p[j] = merged(p[j], word, __funnelshift_lc(0, ~0u, max(-column(i) * BITS - 32 * j, 0)));
                if (last_of_row(i)) p[j] = merged(p[j], word,
                    WHOLE ? (has(i) ? ~0u : 0) : __funnelshift_lc(~0u, 0, max((C - column(i)) * BITS - 32 * j, 0)));
            }
            packs[i] = make_uint4(p[0], p[1], p[2], p[3]);
        }
    };
    const Divisor columns(C);

    // Rows start in N places within a vector at most, a power of two. The table is [tensor][piece][start][lane].
    const int starts = N / min(C & -C, N), step = starts * LANES, of_table = step * PIECES, slot = TABLE ? tid & (step - 1) : 0;
    if (TABLE) {
        __pipeline_wait_prior(0);
        __syncthreads();
        const int piece_of = __ffs(step) - 1;
        for (int k = tid; k < of_table; k += STAGED_THREADS) {
            const int from = ((k >> piece_of) * LANES + k % LANES) * N - (k & (step - 1)) / LANES * C % N;
            if (WEIGHT && from < C) table[k] = columns_from<T, WHOLE>(weights, from);
            if (BIAS && from < C) table[(WEIGHT ? of_table : 0) + k] = columns_from<T, WHOLE>(biases, from);
        }
    }
    const auto columns_of = [&](const uint4* kept, const uint4* shifted, int i) {
        return TABLE ? shifted[i * step + slot] : columns_from<T, WHOLE>(kept, column(i));
    };
#pragma unroll 1
    for (int stage = 0; remaining > 0; stage ^= 1, remaining -= step_of) {
        uint4* const stretch = stretches + stage * size;
        __pipeline_wait_prior(0);
        __syncthreads();  // the stretch is there, and the one before has been read
        const long long ahead = static_cast<long long>(step_of) * C;
        if (remaining > step_of) fetch(stretches + (stage ^ 1) * size, x + ahead, remaining - step_of);
        __pipeline_commit();
        const int count = min(rows, remaining);
        uint4* at = stretch + team * C / N + lane;
#pragma unroll 1
        for (int k = 0; k < count; k += TEAMS, at += TEAMS * C / N) {  // all lanes of a warp take part in the shuffles
            const bool there = k + team < count;
            uint4 packs[PIECES];
#pragma unroll
            for (int i = 0; i < PIECES; ++i) packs[i] = has(i) ? at[i * LANES] : make_uint4(0, 0, 0, 0);
            const float leading = CENTRE && !EXACT ? static_cast<float>(reinterpret_cast<const T*>(stretch)[(k + team) * C]) : 0;
            if (!WHOLE) __syncthreads();  // rows share vectors: all rows are read before the first is overwritten
            float f[N], g[N], mean = 0, squares, pivots[WORDS], about = CENTRE && !EXACT ? finite_or_zero(leading) : 0;
            if (CENTRE && EXACT) {
                fill(packs, 0);
                float sum = 0;
#pragma unroll
                for (int i = 0; i < PIECES; ++i) {
                    P::widen(packs[i], f);
#pragma unroll
                    for (int j = 0; j < N; ++j) sum += f[j];
                }
                about = mean = over(lanes_sum<LANES>(sum), columns);
            }
            for (float& v : pivots) v = about;
            fill(packs, Word<T>::narrow(pivots));
            float sums[2] = {0, 0}, rest[2] = {0, 0};
#pragma unroll
            for (int i = 0; i < PIECES; ++i) {
                P::widen(packs[i], f);
#pragma unroll
                for (int j = 0; j < N; ++j) {
                    const float off = CENTRE ? f[j] - about : f[j];
                    sums[j % 2] += off * off;
                    if (CENTRE) rest[j % 2] += off;
                }
            }
            if (CENTRE) {
                float both[2] = {sums[0] + sums[1], rest[0] + rest[1]};
                lanes_sums<LANES>(both);
                if (EXACT) {  // the sum of the distances is the rounding error of the mean (Chan, Golub & LeVeque 1983)
                    const float left = over(both[1], columns);
                    mean += left, squares = fmaxf(both[0] - both[1] * left, 0);
                } else {
                    mean = both[1] * columns.part;  // as a distance from the pivot
                    squares = squares_less(both[0], mean * (2 * both[1] - columns.n * mean));
                }
            } else {
                squares = lanes_sum<LANES>(sums[0] + sums[1]);
            }
            const float scale = reciprocal_root(over(squares, columns) + eps), shift = -mean * scale;
#pragma unroll
            for (int i = 0; i < PIECES; ++i) {
                if (!there || !has(i)) continue;
                P::widen(packs[i], f);
#pragma unroll
                for (int j = 0; j < N; ++j) f[j] = !CENTRE ? f[j] * scale : EXACT ? (f[j] - mean) * scale : fmaf(f[j] - about, scale, shift);
                if (WEIGHT) {
                    P::widen(columns_of(weights, table, i), g);
#pragma unroll
                    for (int j = 0; j < N; ++j) f[j] *= g[j];
                }
                if (BIAS) {
                    P::widen(columns_of(biases, table + (WEIGHT ? of_table : 0), i), g);
#pragma unroll
                    for (int j = 0; j < N; ++j) f[j] += g[j];
                }
                const uint4 v = P::narrow(f);
                if (WHOLE) {
                    P::store(y + (k + team) * C + column(i), true, v);
                } else if ((!first_of_row(i) || column(i) >= 0) && (!last_of_row(i) || column(i) + N <= C)) {
                    at[i * LANES] = v;
                } else {
#pragma unroll
                    for (int j = 0; j < N; ++j) {
                        if (static_cast<unsigned>(column(i) + j) < C) reinterpret_cast<T*>(at + i * LANES)[j] =
                            reinterpret_cast<const T*>(&v)[j];
                    }
                }
            }
            if (!WHOLE && k + TEAMS < count) __syncthreads();
        }
        if (!WHOLE) {
            const int elements = count * C, vectors = elements / N;
            __syncthreads();
#pragma unroll 4
            for (int k = tid; k < vectors; k += STAGED_THREADS) __stcs(reinterpret_cast<uint4*>(y) + k, stretch[k]);
            if (tid < elements % N) y[vectors * N + tid] = reinterpret_cast<const T*>(stretch + vectors)[tid];
        }
        x += ahead, y += ahead;
    }
}
