// The range of keys that a query attends to: rooftop/ops/_masks.py has the formula.
#pragma once
#include "_rope.cuh"

struct Span {
    int begin, end;
};

/// The keys of row `row` (`group` rows for each query) of `rows` rows of sequence `b`. Bits of `wide`: 1 if lengths, 2 if q_lengths are
/// int64. `left`,
/// `right`: -1 for no bound.
__device__ inline Span span_of(int b, int row, int rows, int keys_in_all, int group, int left, int right, const void* lengths,
    const void* q_lengths, int wide) {
    const int query = row / group, most = rows / group;
    const int keys = lengths ? static_cast<int>(max(0ll, min(whole(lengths, wide & 1, b), static_cast<long long>(keys_in_all))))
        : keys_in_all;
    const int count = q_lengths ? static_cast<int>(max(0ll, min(whole(q_lengths, wide & 2, b), static_cast<long long>(most)))) : most;
    if (query >= count) return {0, 0};
    const int position = query + keys - count;  // all below 2^30
    const int begin = left < 0 ? 0 : min(max(position - left, 0), keys);
    const int end = right < 0 ? keys : min(keys, position + right + 1);
    return {begin, max(begin, end)};
}
