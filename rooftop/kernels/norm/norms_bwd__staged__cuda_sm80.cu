/* rooftop
ops     = ["rms_norm_bwd", "layer_norm_bwd"]
idea    = """Short rows that are adjacent in memory are one contiguous range. Persistent blocks copy tiles of it, of s and of dy, to shared \
  memory in vectors of 16 bytes that ignore row boundaries, one tile or two ahead. Teams of 1 to 32 lanes load rows from there in vectors \
  too. A team's rows all start at the same place within a vector, so a lane has the same columns in each: it sums their dweight and dbias \
  in registers, and the bits of neighbouring rows and its weights are found once. dx goes back through shared memory and is stored in \
  vectors. At its end a block adds its teams in order and writes one partial row of sums; a second launch adds the partial rows in order."""
limit   = """0.66 of a copy on an H200 at 191 columns of bf16. Counted in the machine code: 25 to 27 instructions for each 16-bit element \
  of a row that starts within a vector, 26 to 32 for float32; the kernels of one row a warp or a block execute 66 to 99. The time of a copy \
  has room for 43, or 86 in float32. With 4 vectors a lane or more a multiprocessor has one block of 8 warps, which hide little of each \
  other's latencies."""
dtypes  = ["f32", "f16", "bf16"]
tensors = ["dweight: T[C]?", "dbias: T[C]?"]
args    = ["R: i32", "C: i32", "rows: i32", "dy: T[R, C]", "s: T[R, C]", "weight: T[C]?", "dx: T[R, C]", "eps: f32"]
demands = { has = ["LDGSTS.E.128", "STG.E.128"], spills = 0 }
python  = ["supports", "choose", "configs", "scratch", "launches"]
valid   = "rows * lanes % 256 == 0 and pieces == ceil(ceil((C * bytes(s) + 16 - gcd(16, C * bytes(s))) / 16) / lanes)"

[requires]
"not present(ds)" = "it takes no second gradient ds"

[config]
lanes  = 8
pieces = 2
stages = 2
rows   = 32
*/
// Backward of rms_norm and layer_norm for short rows of any length: the loads of norms__staged__cuda_sm80.cu and the sums of _bwd_rows.cuh,
// whose head has the formulas. Tiles of consecutive rows of s and dy are copied to shared memory in vectors of 16 bytes that ignore row
// boundaries.
//
// A team of LANES lanes takes rows that are a multiple of 8 apart, so all its rows start at the same place within a vector, and a lane has
// the same columns in each. So what is outside the row and the weights of a lane's columns are found once, and dweight and dbias are summed
// in registers over all rows. Blocks are persistent. At the end the teams of a block are added in order and written as one partial row of
// each sum; norm_bwd_columns adds the partial rows.
//
// Statistics are sums about a pivot: the row's first element for 16-bit types, the mean for float32, 0 without CENTRE. Both passes over a
// row use the distances from the pivot, not from the mean: so a mean far from zero costs no digits of the distances.
#include "_bwd_rows.cuh"
#include "contiguous_rows.cuh"

constexpr int STAGED_THREADS = 256;

/// R rows of C elements, `rows` a tile, a multiple of the teams. A lane has PIECES vectors of a row, LANES apart. WHOLE: rows are whole
/// vectors. FULL: and each lane has all of its PIECES. TAILS: a row's last vector is the last of a lane, or with 2 the last or the last but
/// one. Shared memory: STAGES tiles of s and dy; unless WHOLE one of dx; the weights of each thread's columns. At the end, the sums of all
/// teams.
template <typename T, int LANES, int PIECES, int STAGES, int BLOCKS, int TAILS, bool WHOLE, bool FULL, bool CENTRE, bool WEIGHT, bool BIAS>
__global__ void __launch_bounds__(STAGED_THREADS, BLOCKS)
    norm_staged_bwd(int R, int C, int rows, const T* __restrict__ dy, const T* __restrict__ s, const T* __restrict__ weight,
        T* __restrict__ dx, float eps,
                    float* __restrict__ pw, float* __restrict__ pb) {
    using P = Pack<T>;
    constexpr int N = P::N, WORDS = Word<T>::N, BITS = 8 * sizeof(T), TEAMS = STAGED_THREADS / LANES;
    constexpr bool EXACT = sizeof(T) == 4;
    constexpr int KEPT = PIECES <= 2 ? PIECES : 0;  // vectors that stay in registers between the two passes; more are loaded again
    const int tid = threadIdx.x, team = tid / LANES, lane = tid % LANES;
    // vectors of a tile, which starts on 16 bytes: `rows` is a multiple of 8
    const int of_tile = rows * C / N, tiles = (R + rows - 1) / rows;
    uint4 *const results = ring + 2 * STAGES * of_tile, *const weights = results + (WHOLE ? 0 : of_tile) + tid;

    const auto elements_of = [&](int tile) { return static_cast<int>(min(static_cast<long long>(rows),
        R - static_cast<long long>(tile) * rows)) * C; };
    const auto fetch = [&](int tile, int stage) {
        if (tile < tiles) {
            const int elements = elements_of(tile), vectors = elements / N;
            uint4* to = ring + 2 * stage * of_tile;
            const T* from[2] = {s, dy};
#pragma unroll
            for (int t = 0; t < 2; ++t, to += of_tile) {
                const T* const first = from[t] + static_cast<long long>(tile) * rows * C;
                fetch_vectors<STAGED_THREADS>(static_cast<unsigned>(__cvta_generic_to_shared(to + tid)),
                    reinterpret_cast<const char*>(first) + tid * 16, (vectors - tid) * 16);
                if (tid < elements % N) reinterpret_cast<T*>(to + vectors)[tid] = first[vectors * N + tid];  // the rest of the last tile
            }
        }
        __pipeline_commit();
    };
    gdc_wait();
    if (WEIGHT || BIAS) gdc_launch_dependents();
#pragma unroll 1
    for (int k = 0; k < STAGES; ++k) fetch(blockIdx.x + k * gridDim.x, k);

    const int start = lane * N - team * C % N;  // the column of this thread's first element; negative if it belongs to the row before
    const auto column = [&](int i) { return start + i * LANES * N; };
    // Only a row's first vector and the last one, in one of TAILS places, may be partly outside the row; vectors of those places may also
    // be missing.
    const auto has = [&](int i) { return FULL || i < PIECES - TAILS || column(i) < C; };
    const auto first_of_row = [](int i) { return !WHOLE && i == 0; };
    const auto last_of_row = [](int i) { return !FULL && i >= PIECES - TAILS; };
    /// The vector with `word` in place of what is not inside the row.
    const auto inside = [&](const uint4& v, int i, unsigned word) {
        if (!first_of_row(i) && !last_of_row(i)) return v;
        unsigned p[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            unsigned bits = ~0u;
            if (first_of_row(i)) bits &= __funnelshift_lc(0, ~0u, max(-column(i) * BITS - 32 * j, 0));
            if (last_of_row(i)) bits &= WHOLE ? (has(i) ? ~0u : 0) : __funnelshift_lc(~0u, 0, max((C - column(i)) * BITS - 32 * j, 0));
            p[j] = (p[j] & bits) | (word & ~bits);
        }
        return make_uint4(p[0], p[1], p[2], p[3]);
    };
    if (WEIGHT) {
#pragma unroll 1
        for (int i = 0; i < PIECES; ++i) {
            float f[N];
#pragma unroll
            for (int j = 0; j < N; ++j) f[j] = static_cast<unsigned>(column(i) + j) < C ? static_cast<float>(weight[column(i) + j]) : 0;
            weights[i * STAGED_THREADS] = P::narrow(f);
        }
    }
    /// Rounded without fma: its mean, computed of the rounded values, is subtracted from it.
    const auto product = [](float dy, float w) { return WEIGHT ? __fmul_rn(dy, w) : dy; };
    Sums<PIECES, N, WEIGHT> dweight;
    Sums<PIECES, N, BIAS> dbias;
    const Divisor n(C);
    int stage = 0, done = 0;
#pragma unroll 1
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const long long first = static_cast<long long>(tile) * rows * C;
        const int elements = elements_of(tile);
        const T* leading = reinterpret_cast<const T*>(ring + 2 * stage * of_tile) + team * C;
        int at = team * C / N + lane;  // of this thread's first vector of the row
        __pipeline_wait_prior(STAGES - 1);
        __syncthreads();  // the copies of all threads have arrived, and the results of the tile before are stored
#pragma unroll 1
        for (int of_row = team * C; of_row - team * C < elements; of_row += TEAMS * C, at += TEAMS * C / N, leading += TEAMS * C) {
            const bool there = of_row < elements;  // all lanes of a warp take part in the shuffles
            const uint4 *const of_s = ring + 2 * stage * of_tile + at, *const of_dy = of_s + of_tile;
            uint4 kept_s[KEPT + 1], kept_dy[KEPT + 1];
#pragma unroll
            for (int i = 0; i < KEPT; ++i) {
                kept_s[i] = has(i) ? of_s[i * LANES] : make_uint4(0, 0, 0, 0);
                kept_dy[i] = has(i) ? of_dy[i * LANES] : make_uint4(0, 0, 0, 0);
            }
            const auto s_at = [&](int i) { return KEPT ? kept_s[i] : has(i) ? of_s[i * LANES] : make_uint4(0, 0, 0, 0); };
            const auto dy_at = [&](int i) { return KEPT ? kept_dy[i] : has(i) ? of_dy[i * LANES] : make_uint4(0, 0, 0, 0); };
            float v[N], h[N], w[N], pivot = 0, pivots[WORDS];
            if (CENTRE && EXACT) {
                float sum = 0;
#pragma unroll
                for (int i = 0; i < PIECES; ++i) {
                    P::widen(inside(s_at(i), i, 0), v);
#pragma unroll
                    for (int j = 0; j < N; ++j) sum += v[j];
                }
                pivot = over(lanes_sum<LANES>(sum), n);
            } else if (CENTRE) {
                pivot = static_cast<float>(*leading);
            }
            for (float& p : pivots) p = pivot;
            const unsigned word = Word<T>::narrow(pivots);
            float sums[4] = {0, 0, 0, 0};
#pragma unroll
            for (int i = 0; i < PIECES; ++i) {
                P::widen(inside(s_at(i), i, word), v), P::widen(inside(dy_at(i), i, 0), h);
                if (WEIGHT) P::widen(weights[i * STAGED_THREADS], w);
#pragma unroll
                for (int j = 0; j < N; ++j) {
                    const float off = CENTRE ? v[j] - pivot : v[j], g = product(h[j], w[j]);
                    if (CENTRE) sums[0] += off, sums[2] += g;
                    sums[1] += off * off, sums[3] += g * off;
                }
            }
            float rest = 0, squares, products;
            if (CENTRE) {
                four_sums<LANES>(sums);
                rest = over(sums[0], n);
                squares = sums[1] - n.n * rest * rest, products = sums[3] - sums[2] * rest;
                squares = squares < 0 ? 0 : squares;  // not fmaxf, which would turn a NaN into 0
            } else {
                float both[2] = {sums[1], sums[3]};
                lanes_sums<LANES>(both);
                squares = both[0], products = both[1];
            }
            float scale = reciprocal_root(over(squares, n) + eps);
            if (CENTRE && C == 1) scale = 0;  // one column: the gradient is 0, and rounding errors would give another value
            const float along = over(products * scale, n) * scale, level = CENTRE ? over(sums[2], n) * scale : 0, shift = -rest * scale;
            if (!KEPT) __syncwarp();  // so that the vectors are loaded again: the compiler would keep them in registers, and spill others
            if (!there) continue;
#pragma unroll
            for (int i = 0; i < PIECES; ++i) {
                if (!has(i)) continue;
                float d[N];
                P::widen(s_at(i), v), P::widen(dy_at(i), h);
                if (WEIGHT) P::widen(weights[i * STAGED_THREADS], w);
#pragma unroll
                for (int j = 0; j < N; ++j) {  // outside the row too: those sums and results are not used
                    const float unit = CENTRE ? fmaf(v[j] - pivot, scale, shift) : v[j] * scale;
                    if (WEIGHT) dweight.now[i][j] += h[j] * unit;
                    if (BIAS) dbias.now[i][j] += h[j];
                    d[j] = fmaf(product(h[j], w[j]), scale, CENTRE ? fmaf(-unit, along, -level) : -unit * along);
                }
                const uint4 p = P::narrow(d);
                if (WHOLE) {
                    P::store(dx + first + of_row + column(i), true, p);
                } else if ((!first_of_row(i) || column(i) >= 0) && (!last_of_row(i) || column(i) + N <= C)) {
                    results[at + i * LANES] = p;
                } else {
#pragma unroll
                    for (int j = 0; j < N; ++j) {
                        if (static_cast<unsigned>(column(i) + j) < C) reinterpret_cast<T*>(results + at + i * LANES)[j] =
                            reinterpret_cast<const T*>(&p)[j];
                    }
                }
            }
            if (EXACT && ++done % SPAN == 0) dweight.close(), dbias.close();
        }
        __syncthreads();
        fetch(tile + STAGES * gridDim.x, stage);
        stage = stage + 1 < STAGES ? stage + 1 : 0;
        if (WHOLE) continue;
        const int vectors = elements / N;
#pragma unroll 4
        for (int k = tid; k < vectors; k += STAGED_THREADS) __stcs(reinterpret_cast<uint4*>(dx + first) + k, results[k]);
        if (tid < elements % N) dx[first + vectors * N + tid] = reinterpret_cast<const T*>(results + vectors)[tid];
    }
    if (!WEIGHT && !BIAS) return;
    dweight.close(), dbias.close();
    float* const sums = reinterpret_cast<float*>(ring);  // [team][column] of dweight, then of dbias
    float* const sums_b = sums + (WEIGHT ? TEAMS * C : 0);
    __pipeline_wait_prior(0);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
#pragma unroll
        for (int j = 0; j < N; ++j) {
            const int c = column(i) + j;
            if (static_cast<unsigned>(c) >= C) continue;
            if (WEIGHT) sums[team * C + c] = dweight.total(i, j);
            if (BIAS) sums_b[team * C + c] = dbias.total(i, j);
        }
    }
    __syncthreads();
    for (int c = tid; c < C; c += STAGED_THREADS) {
        float of_weight = 0, of_bias = 0;
        for (int k = 0; k < TEAMS; k += SPAN) {  // sums of SPAN teams first: fewer roundings
            float w = 0, b = 0;
#pragma unroll
            for (int l = 0; l < min(SPAN, TEAMS); ++l) {
                if (WEIGHT) w += sums[(k + l) * C + c];
                if (BIAS) b += sums_b[(k + l) * C + c];
            }
            of_weight += w, of_bias += b;
        }
        if (WEIGHT) pw[static_cast<long long>(blockIdx.x) * C + c] = of_weight;
        if (BIAS) pb[static_cast<long long>(blockIdx.x) * C + c] = of_bias;
    }
}
