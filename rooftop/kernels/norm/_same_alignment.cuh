// Which rows a persistent cluster takes if they start at different distances from a 32-byte boundary.
#pragma once
#include "cluster_slices.cuh"

/// Rows `period` apart are equally far from such a boundary. Ordered by that distance, the rows are divided evenly among the clusters. So a
/// cluster has a few runs of rows, each with one distance, and the number of clusters need not be a multiple of the period. If it is one,
/// `period` is 1 here, and a cluster has one run: every `clusters`-th row.
struct Runs {
    const int R, period, clusters, id;
    int done = 0;            // rows of earlier runs
    int first, step, count;  // the rows of the run: first, first + step, ...

    __device__ Runs(int R, int period, int clusters, int id) : R(R), period(period), clusters(clusters), id(id) { locate(); }
    __device__ int start_of(int cluster) const { return cluster * (R / clusters) + min(cluster, R % clusters); }
    __device__ void locate() {
        if (period == 1) {
            first = id, step = clusters, count = R > id ? (R - id + clusters - 1) / clusters : 0;
            return;
        }
        const int at = start_of(id) + done;  // the place of the run's first row in that order
        const int each = R / period, longer = R % period, before = longer * (each + 1);  // the first `longer` distances have a row more
        const int distance = at < before ? at / (each + 1) : longer + (at - before) / max(each, 1);
        const int start = distance * each + min(distance, longer);
        first = distance + (at - start) * period, step = period;
        count = min(start_of(id + 1), start + each + (distance < longer)) - at;
    }
    /// Goes on to the next run; false if there is none.
    __device__ bool next() {
        done += count;
        if (period == 1 || start_of(id) + done >= start_of(id + 1)) return false;
        locate();
        return true;
    }
};

/// Loads the columns of the thread's packs of weight or bias, or zeros, into its slots in shared memory. AGAIN: it happens several times
/// and must be fast.
template <bool AGAIN, typename T, int PIECES, int THREADS, int CLUSTER, int FIT, typename Slot>
__device__ void keep_columns(const Slice<T, PIECES, THREADS, CLUSTER, FIT>& slice, const Slot& slot, const T* of_columns) {
    if (!AGAIN) return slice.keep(slot, of_columns);
#pragma unroll 1
    for (int i = 0; i < PIECES; ++i) {
        const T* const at = of_columns + slice.column(i);
        *slot(i) = slice.has(i) ? Pack<T>::load_within(at, false, of_columns, of_columns + slice.C) : make_uint4(0, 0, 0, 0);
    }
    if (slice.has_edge()) slice.edge(slot(0)) = of_columns[slice.at_edge()];
}
