#pragma once

#include "packs.cuh"

/// A block's share of a row (Share, words.cuh) in whole lines of 128 bytes, for rows that start on one: no two blocks of the cluster then
/// copy the same line.
template <typename T, int CLUSTER>
struct LineShare : Share<T, CLUSTER> {
    __device__ LineShare(const T* row, int C, int rank) : Share<T, CLUSTER>(row, C, rank) {
        const int each = ((this->packs + CLUSTER - 1) / CLUSTER + 7) / 8 * 8, start = min(this->packs, rank * each);
        this->first = this->head + start * this->PACK;
        this->mine = min(this->packs - start, each);
    }
};
