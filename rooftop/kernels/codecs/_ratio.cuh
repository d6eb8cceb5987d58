// Chunks of the codec `ratio` (docs/codecs.md): how they lie in the array, the values that interpolation predicts from, and the parts of a
// chunk's words. A chunk has a block; VALUES is its room in scratch memory.
#pragma once
#include "_elements.cuh"

constexpr int VALUES = 262144, LARGEST = 64, LEVELS = 6, FITTED = 3, REACH = 3, TAPS = 24, STREAM_SYMBOLS = 65536, GROUPS_MOST = 9;
constexpr unsigned DIRECT = 192, LAST_SYMBOL = 240;  // symbols above DIRECT are followed by low bits
constexpr unsigned LOWEST_STATE = 1u << 16;

enum { DAMAGED, RAW, INTERPOLATED, CAUSAL };  // what a chunk is

/// A chunk's parts, found and validated once: words are counted from the chunk's first.
struct Parts {
    int kind, mask;          // mask: which sets of levels 0 to 2 have weights
    int begins[7 * FITTED];  // the first weight of each of those
    int exact;               // where exact values begin
    int anchors, total;      // values without a symbol; with one
};

/// Where a chunk lies in [B, Z, Y, X]. RANK 1: 262144 neighbours; 2: 512 x 512; 3: 64 x 64 x 64.
template <int RANK>
struct Cube {
    long long first, Y, X;  // first: element of value 0
    int n[3];               // extents within the array: z, y, x

    __device__ Cube(long long chunk, long long Z, long long Y, long long X, unsigned nz, unsigned ny, unsigned nx) : Y(Y), X(X) {
        constexpr long long TZ = RANK == 3 ? 64 : 1, TY = RANK == 3 ? 64 : RANK == 2 ? 512 : 1, TX = RANK == 3 ? 64 : RANK == 2 ? 512 : VALUES;
        const unsigned row = static_cast<unsigned>(chunk) / nx, plane = row / ny, b = plane / nz;  // chunks are fewer than 2^31
        const long long x0 = (static_cast<unsigned>(chunk) - row * nx) * TX, y0 = (row - plane * ny) * TY, z0 = (plane - b * nz) * TZ;
        n[0] = static_cast<int>(min(TZ, Z - z0)), n[1] = static_cast<int>(min(TY, Y - y0)), n[2] = static_cast<int>(min(TX, X - x0));
        first = ((b * Z + z0) * Y + y0) * X + x0;
    }
    __device__ int values() const { return n[0] * n[1] * n[2]; }
    __device__ long long element(int z, int y, int x) const { return first + (z * Y + y) * X + x; }
    __device__ long long element(int i) const {
        const int row = i / n[2];
        return element(row / n[1], row % n[1], i % n[2]);
    }
    __device__ int anchors() const {
        int found = 1;
#pragma unroll
        for (int a = 0; a < 3; ++a) found *= (n[a] + LARGEST - 1) / LARGEST;
        return found;
    }
};

/// The k-th set of odd dimensions of a level, one bit a dimension (1: z, 2: y, 4: x), and back; 0 comes before all.
__device__ inline int axes_of(int k) { return 0x7653421 >> 4 * k & 15; }
__device__ inline int place_of_axes(int axes) { return axes ? static_cast<int>(0x65423100u >> 4 * axes & 15) : -1; }

/// The values of a level's set: along dimension a at begin[a], begin[a] + 2 s, ..., count[a] of them.
struct Set {
    int s, axes, begin[3], count[3];

    __device__ Set(int level, int k, const int (&n)[3]) : s(1 << level), axes(axes_of(k)) {
#pragma unroll
        for (int a = 0; a < 3; ++a) {
            begin[a] = axes >> a & 1 ? s : 0;
            count[a] = n[a] > begin[a] ? (n[a] - begin[a] + 2 * s - 1) / (2 * s) : 0;
        }
    }
    __device__ int size() const { return count[0] * count[1] * count[2]; }
};

/// The neighbours that a set's values are refined from, nearest first, and which values have all of them.
struct Around {
    int offsets[TAPS][3], taps, low[3], high[3];  // in strides; low, high: the farthest to either side
    int from[3], to[3];                           // values of the set that have them, by their number along each dimension

    /// By one warp.
    __device__ void find(const Set& set, const int (&n)[3]) {
        const int lane = threadIdx.x % 32, mine = place_of_axes(set.axes);
        int found = 0, least[3] = {0, 0, 0}, most[3] = {0, 0, 0};
        for (int far = 1; far <= 3 * REACH && found < TAPS; ++far) {
            for (int c0 = 0; c0 < 343 && found < TAPS; c0 += 32) {
                const int c = c0 + lane, d[3] = {c / 49 - REACH, c / 7 % 7 - REACH, c % 7 - REACH};
                int odd = 0;
                bool good = c < 343 && abs(d[0]) + abs(d[1]) + abs(d[2]) == far;
#pragma unroll
                for (int a = 0; a < 3; ++a) {
                    good &= d[a] == 0 || n[a] > 2 * (REACH + 1) * set.s;
                    odd |= ((set.axes >> a & 1) ^ (d[a] & 1)) << a;
                }
                good &= place_of_axes(odd) < mine;
                const unsigned vote = __ballot_sync(~0u, good);
                const int at = found + __popc(vote & ((1u << lane) - 1));
                if (good && at < TAPS) {
#pragma unroll
                    for (int a = 0; a < 3; ++a) {
                        offsets[at][a] = d[a];
                        least[a] = min(least[a], d[a]), most[a] = max(most[a], d[a]);
                    }
                }
                found = min(found + __popc(vote), TAPS);
            }
        }
#pragma unroll
        for (int a = 0; a < 3; ++a) {
            least[a] = -static_cast<int>(__reduce_max_sync(~0u, static_cast<unsigned>(-least[a])));
            most[a] = static_cast<int>(__reduce_max_sync(~0u, static_cast<unsigned>(most[a])));
            const int before = -least[a] * set.s - set.begin[a], last = n[a] - 1 - most[a] * set.s - set.begin[a];
            if (lane == 0) {
                from[a] = before > 0 ? (before + 2 * set.s - 1) / (2 * set.s) : 0;
                to[a] = last >= 0 ? last / (2 * set.s) + 1 : 0;
            }
        }
        if (lane == 0) taps = found;
        __syncwarp();
    }
    __device__ bool any() const { return taps > 0 && from[0] < to[0] && from[1] < to[1] && from[2] < to[2]; }
};

// -- prediction from previous values ---------------------------------------------------------------------------------

/// Words of base and weights of a chunk; 0 where a dimension is too short for the predictor.
__device__ inline int causal_words_of(const int (&n)[3]) {
    const bool three = n[0] > 1;
    const int reach = three ? 2 : 3, least = 2 * reach + 2;
    return n[1] < least || n[2] < least || (three && n[0] < least) ? 0 : three ? 153 : 46;
}

/// The neighbours before a value, the nearest first: those of a value that has all within reach, and those within 1.
struct Taps {
    struct Tap {
        signed char z, y, x;
        unsigned char back;  // how many steps before
    };
    Tap far[62], near[13];
    int all, weights, begins[18];  // begins: of each place at a chunk's faces, (z * 3 + y) * 3 + x with 0 at the begin, 1 within, 2 at the end
    double w[152];

    /// By a block of at least 80 threads.
    __device__ void find(const int (&n)[3]) {
        const bool three = n[0] > 1;
        const int reach = three ? 2 : 3, count = three ? 62 : 24, i = threadIdx.x;
        const auto sort = [&](Tap* to, int reach_, int count_, int c) {
            const int side_ = 2 * reach_ + 1, lead = count_ == 24 ? 0 : reach_;  // an image has one plane
            const auto of = [&](int at, int (&d)[3]) {
                d[0] = count_ == 24 ? 0 : at / (side_ * side_) - lead, d[1] = at / side_ % side_ - reach_, d[2] = at % side_ - reach_;
                return d[0] * d[0] + d[1] * d[1] + d[2] * d[2];
            };
            int d[3], other[3], rank = 0;
            const int size = of(c, d);
            for (int at = 0; at < count_; ++at) {
                const int its = of(at, other);
                rank += its < size || (its == size && at < c);
            }
            const int back = -((three ? 9 : 0) * d[0] + (three ? 3 : 4) * d[1] + d[2]);
            to[rank] = {static_cast<signed char>(d[0]), static_cast<signed char>(d[1]), static_cast<signed char>(d[2]),
                        static_cast<unsigned char>(back)};
        };
        if (i < count) sort(far, reach, count, i);
        if (i >= 64 && i < 77) sort(near, 1, 13, i - 64);
        if (i == 77) {
            int sum = count;
            for (int code = 0; code < (three ? 18 : 9); ++code) {
                begins[code] = sum;
                const int sides[3] = {code / 9, code / 3 % 3, code % 3};
                const int ny = sides[1] == 1 ? 3 : 2, nx = sides[2] == 1 ? 3 : 2;
                sum += sides[0] * ny * nx + (sides[1] > 0) * nx + (sides[2] > 0);
            }
            all = count, weights = sum;
        }
    }
    /// Whether a value at such a place has this neighbour.
    __device__ static bool has(const Tap& d, const int (&sides)[3]) {
        return (d.z == 0 || sides[0]) && (d.y == 0 || (d.y < 0 ? sides[1] > 0 : sides[1] < 2)) && (d.x == 0 || (d.x < 0 ? sides[2] > 0 : sides[2] < 2));
    }
};
