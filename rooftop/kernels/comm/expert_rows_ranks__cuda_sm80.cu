/* rooftop
idea    = """Rows go to the ranks of their experts, and back, with one synchronisation and without the host: each rank encodes its rows \
  straight into a slot of its own in the memory of the rank that gets them, beside the counts of its experts. What was received is decoded \
  to where the counts of all ranks say. On the way back the same rows take the same places in the slots, so that nobody sends an index. \
  Row by row the warps of a rank and of its peer are the same, so that a block waits for one block of each peer."""
limit   = "not measured: the link, and for few rows the synchronisation"
dtypes  = ["f32", "f16", "bf16"]
args    = ["x: T[W, N, C]", "counts: i32[W, E]", "out: T[W, R, C]"]
python  = ["supports", "choose", "launches", "scratch", "zeroed"]
demands = { spills = 0 }

[config]
blocks = 1
*/
#include "_ranks.cuh"
#include "_wire.cuh"

constexpr int THREADS = 512, MOST_EXPERTS = 1024;

/// values[0 .. n) become what stands before each of them in all, at most `most`; values[n]: all. The block calls it.
__device__ inline void running_totals(int* values, int n, int most) {
    __syncthreads();
    if (threadIdx.x < 32) {
        const int lane = threadIdx.x, each = (n + 31) / 32, begin = min(lane * each, n), end = min(begin + each, n);
        int sum = 0;
        for (int i = begin; i < end; ++i) sum = min(most, sum + values[i]);
#pragma unroll
        for (int lanes = 1; lanes < 32; lanes *= 2) {
            const int before = __shfl_up_sync(~0u, sum, lanes);
            if (lane >= lanes) sum = min(most, sum + before);
        }
        int before = __shfl_up_sync(~0u, sum, 1);
        if (lane == 0) before = 0;
        for (int i = begin; i < end; ++i) {
            const int v = values[i];
            values[i] = before;
            before = min(most, before + v);
        }
        if (lane == 31) values[n] = sum;
    }
    __syncthreads();
}

/// counts: [experts of all ranks], rows of this rank for each. received: [ranks, experts of this rank], rows from each rank. BACK: false:
/// x [tokens, columns], by experts, to out [capacity, columns], by experts, then by ranks; received and ends (of each expert's rows in
/// out) are written. true: x [capacity, columns] to out [tokens, columns]. half: bytes of each of the two halves of a room behind its
/// flags; a half has a slot for each rank: for each block the counts, `heads` bytes in all, then a message for each row.
template <typename T, int WIRE, int GROUP, bool BACK, bool HERE>
__global__ void __launch_bounds__(THREADS, 1)
expert_rows(int ranks, int first, int tokens, int columns, int experts, int capacity, const int* __restrict__ counts, int* received,
    int* ends, const T* __restrict__ x, T* __restrict__ out, unsigned char* room, const unsigned long long* table, long long bytes,
    long long half, unsigned* epochs, int* fault, unsigned call, long long patience) {
    using M = Message<WIRE, GROUP>;
    __shared__ int by_rank[MOST_EXPERTS + 1], by_expert[MOST_EXPERTS + 1], differs;
    const int rank = first + blockIdx.y, all = ranks * experts, sent = BACK ? capacity : tokens, got = BACK ? tokens : capacity;
    const Rooms<HERE> rooms{room, table, bytes};
    counts += blockIdx.y * all, received += blockIdx.y * all;
    if (!BACK) ends += blockIdx.y * experts;
    x += static_cast<long long>(blockIdx.y) * sent * columns, out += static_cast<long long>(blockIdx.y) * got * columns;
    epochs += HERE ? rank * BLOCKS : 0;
    const unsigned number = epochs[blockIdx.x];
    const int size = (columns + GROUP - 1) / GROUP * GROUP, chunks = (size + CHUNK - 1) / CHUNK;
    const int warp = threadIdx.x / 32 * gridDim.x + blockIdx.x, warps = gridDim.x * (THREADS / 32);
    const long long message = M::bytes(size), head = (4 * experts + 15) / 16 * 16, slot = gridDim.x * head + tokens * message;
    const auto place = [&](int reader, int source) { return rooms(reader) + FLAGS + (number & 1) * half + source * slot; };
    const auto told = [&](int reader, int source) { return reinterpret_cast<int*>(place(reader, source) + blockIdx.x * head); };
    const auto at = [&](int reader, int source, int row) { return M{place(reader, source) + gridDim.x * head + row * message, size}; };
    // warps take the chunks of rows from one rank to another in turn, of each pair beginning elsewhere
    const auto begin = [&](int source, int reader) { return (warp + (reader - source + ranks) % ranks * (warps / ranks)) % warps; };
    // of an array by ranks: rows from or for one of them
    const auto rows_of = [&](int p) { return min(by_rank[(p + 1) * experts] - by_rank[p * experts], tokens); };
    const auto within = [&](int count) { return min(max(count, 0), tokens); };
    // by_rank and by_expert of what was received; count(p, e): rows from rank p for expert e
    const auto received_from = [&](auto count) {
        for (int i = threadIdx.x; i < all; i += THREADS) {
            const int p = i / experts, e = i % experts, n = within(count(p, e));
            by_rank[i] = n, by_expert[e * ranks + p] = n;
        }
        running_totals(by_rank, all, ranks * tokens);
        running_totals(by_expert, all, ranks * tokens);
    };
    // the row, by experts, of the row of that number from rank p
    const auto row_by_expert = [&](int p, int row) {
        const int* starts = by_rank + p * experts;
        row += starts[0];
        int low = 0, high = experts;  // starts[low] <= row < starts[high]
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            if (starts[middle] <= row) low = middle;
            else high = middle;
        }
        return by_expert[low * ranks + p] + row - starts[low];
    };
    float v[DEEP][PACK];
    const auto write = [&](long long row, int c) {
        T* to = out + row * columns;
        store_chunk<GROUP, false>(to, c, columns, on_16(to), v);
    };

    if (threadIdx.x == 0) differs = 0;
    if constexpr (BACK) received_from([&](int p, int e) { return received[p * experts + e]; });
    else {
        for (int i = threadIdx.x; i < all; i += THREADS) by_rank[i] = within(counts[i]);
        running_totals(by_rank, all, tokens);
    }
    for (int i = threadIdx.x; i < all; i += THREADS) told(i / experts, rank)[i % experts] = by_rank[i + 1] - by_rank[i];
    for (int k = 1; k <= ranks; ++k) {
        const int p = (rank + k) % ranks, rows = rows_of(p);  // each rank starts with a different reader
        for (int u = begin(rank, p); u < rows * chunks; u += warps) {
            const int row = u / chunks, c = u % chunks, from = BACK ? row_by_expert(p, row) : by_rank[p * experts] + row;
            if (from < sent) {
                const T* line = x + static_cast<long long>(from) * columns;
                load_chunk<GROUP, false>(v, line, c, columns, on_16(line));
            } else {  // it did not fit, so nothing comes back
#pragma unroll
                for (int d = 0; d < DEEP; ++d) {
#pragma unroll
                    for (int i = 0; i < PACK; ++i) v[d][i] = 0;
                }
            }
            put_chunk<WIRE, GROUP, false>(v, c, 0, 0, 1, [&](int) { return at(p, rank, row); });
        }
    }
    int met = meet(rooms, rank, ranks, number + 1, call, false, patience, fault);
    if (met == MET) {
        if constexpr (BACK) {  // ranks that send other rows than were dispatched here have other routes
            for (int i = threadIdx.x; i < all; i += THREADS) by_rank[i] = within(counts[i]);
            running_totals(by_rank, all, tokens);
            for (int i = threadIdx.x; i < all; i += THREADS)
                if (__ldcg(told(rank, i / experts) + i % experts) != by_rank[i + 1] - by_rank[i]) differs = 1;
            __syncthreads();
            if (differs) met = *reinterpret_cast<volatile int*>(fault) = OTHER_CALL;
        } else received_from([&](int p, int e) { return __ldcg(told(rank, p) + e); });
    }
    if (!BACK && blockIdx.x == 0) {
        for (int i = threadIdx.x; i < all; i += THREADS) received[i] = met == MET ? by_rank[i + 1] - by_rank[i] : 0;
        for (int e = threadIdx.x; e < experts; e += THREADS) ends[e] = met == MET ? min(by_expert[(e + 1) * ranks], capacity) : 0;
    }
    for (int k = 0; k < (met == MET ? ranks : 0); ++k) {
        const int p = (rank + k) % ranks, rows = rows_of(p);
        for (int u = begin(p, rank); u < rows * chunks; u += warps) {
            const int row = u / chunks, c = u % chunks, to = BACK ? by_rank[p * experts] + row : row_by_expert(p, row);
            if (to >= got) continue;
            sum_chunk<WIRE, GROUP>(v, 1, c, [&](int) { return at(rank, p, row); });
            write(to, c);
        }
    }
    const int filled = met == MET ? min(by_rank[all], got) : 0;  // zeros follow; of a call that failed all is NaN
    for (int u = warp; u < (got - filled) * chunks; u += warps) {
#pragma unroll
        for (int d = 0; d < DEEP; ++d) {
#pragma unroll
            for (int i = 0; i < PACK; ++i) v[d][i] = met == MET ? 0.f : not_a_number();
        }
        write(filled + u / chunks, u % chunks);
    }
    if (threadIdx.x == 0)
        for (int b = blockIdx.x; b < BLOCKS; b += gridDim.x) epochs[b] = number + 1;
}
