// Barriers of a block and the collectives of a warp.
#pragma once

SIMT_INLINE void __syncthreads() { simt::block_barrier(0, 0, simt::PLAIN, 0); }
SIMT_INLINE int __syncthreads_count(int p) { return simt::block_barrier(0, 0, simt::COUNT, p); }
SIMT_INLINE int __syncthreads_and(int p) { return simt::block_barrier(0, 0, simt::AND, p); }
SIMT_INLINE int __syncthreads_or(int p) { return simt::block_barrier(0, 0, simt::OR, p); }
SIMT_INLINE void __barrier_sync(unsigned id) { simt::block_barrier(static_cast<int>(id), 0, simt::PLAIN, 0); }
SIMT_INLINE void __barrier_sync_count(unsigned id, unsigned n) {
    simt::block_barrier(static_cast<int>(id), static_cast<int>(n), simt::PLAIN, 0); }
SIMT_INLINE void __threadfence() { simt::fence(); }
SIMT_INLINE void __threadfence_system() { simt::fence(); }
SIMT_INLINE void __threadfence_block() { simt::fence(); }
SIMT_INLINE void __nanosleep(unsigned) { simt::pause(); }
SIMT_INLINE long long clock64() { return simt::clock_now(); }
#ifndef SIMT_PROGRAM
#define clock() static_cast<int>(simt::clock_now())
#endif
SIMT_INLINE unsigned long long globaltimer() { return simt::clock_now(); }
SIMT_INLINE unsigned __activemask() { return simt::active_mask(); }
SIMT_INLINE bool __isShared(const void* p) { return simt::is_shared(p); }
SIMT_INLINE bool __isGlobal(const void* p) { return simt::memory_of(p) == simt::GLOBAL; }
SIMT_INLINE size_t __cvta_generic_to_shared(const void* p) { return simt::shared_address(p); }
SIMT_INLINE void* __cvta_shared_to_generic(size_t a) { return simt::shared_pointer(static_cast<unsigned>(a)); }
SIMT_INLINE size_t __cvta_generic_to_global(const void* p) { return reinterpret_cast<size_t>(p); }

namespace simt {

// the lane that `rank` others of the mask come before, or -1
SIMT_API int nth_lane(unsigned mask, int rank) __attribute__((const));
SIMT_API unsigned gather_bits(unsigned mask, unsigned bits) __attribute__((const)); // those of the mask, next to each other
/// -1 where `no`, without a branch: the GPU has none here.
SIMT_INLINE int unless(bool no, int value) { return value | -static_cast<int>(no); }

template <class T>
struct Shuffle {
    T in, out;
    int source;        // lane, or -1: keeps its own
};
template <class T>
SIMT_PLAIN void shuffle_all(Group& g) {
    for (unsigned todo = g.mask; todo; todo &= todo - 1) {
        const int lane = __builtin_ctz(todo);
        Shuffle<T>& mine = *static_cast<Shuffle<T>*>(g.record[lane]);
        if (mine.source < 0) {
            mine.out = mine.in;
        } else if (g.mask >> mine.source & 1) {
            mine.out = static_cast<Shuffle<T>*>(g.record[mine.source])->in;
        } else {
            mine.out = mine.in;
            absent_lane(g, lane, mine.source, g.mask);
        }
    }
}
template <class T>
SIMT_INLINE T shuffle(unsigned mask, const T& value, int source) {
    static_assert(std::is_trivially_copyable_v<T>, "a shuffle moves bits");
    Shuffle<T> record;
    record.in = value;
    record.source = source;
    collective(mask, shuffle_all<T>, &record, false);
    return record.out;
}

struct Vote {
    unsigned in, out, every;
};
SIMT_PLAIN inline void ballot_all(Group& g) {
    unsigned yes = 0;
    for (unsigned todo = g.mask; todo; todo &= todo - 1)
        if (const int lane = __builtin_ctz(todo); static_cast<Vote*>(g.record[lane])->in) yes |= 1u << lane;
    for (unsigned todo = g.mask; todo; todo &= todo - 1) {
        Vote& mine = *static_cast<Vote*>(g.record[__builtin_ctz(todo)]);
        mine.out = yes, mine.every = yes == g.mask;
    }
}
SIMT_INLINE Vote vote(unsigned mask, bool yes) {
    Vote record = {yes, 0, 0};
    collective(mask, ballot_all, &record, false);
    return record;
}
SIMT_PLAIN inline void nothing(Group&) {}
/// Of what takes all 32 lanes: whether they are there. If not, that is told.
SIMT_PLAIN inline bool whole(Group& g) {
    if (~g.mask) absent_lane(g, __builtin_ctz(g.mask), __builtin_ctz(~g.mask), g.mask);
    return !~g.mask;
}

template <class T>
struct Match {
    T in;
    unsigned same;
    int all;
};
template <class T>
SIMT_PLAIN void match_all(Group& g) {
    for (unsigned todo = g.mask; todo; todo &= todo - 1) {
        Match<T>& mine = *static_cast<Match<T>*>(g.record[__builtin_ctz(todo)]);
        mine.same = 0;
        for (unsigned others = g.mask; others; others &= others - 1)
            if (const int lane = __builtin_ctz(others);
                !std::memcmp(&static_cast<Match<T>*>(g.record[lane])->in, &mine.in, sizeof(T))) mine.same |= 1u << lane;
        mine.all = mine.same == g.mask;
    }
}

struct Add { template <class T> static T of(T a, T b) { return a + b; } };
struct Min { template <class T> static T of(T a, T b) { return b < a ? b : a; } };
struct Max { template <class T> static T of(T a, T b) { return a < b ? b : a; } };
struct BitAnd { template <class T> static T of(T a, T b) { return a & b; } };
struct BitOr { template <class T> static T of(T a, T b) { return a | b; } };
struct BitXor { template <class T> static T of(T a, T b) { return a ^ b; } };
template <class T, class F>
SIMT_PLAIN void reduce_all(Group& g) {
    T total{};
    bool first = true;
    for (unsigned todo = g.mask; todo; todo &= todo - 1) {
        const T v = *static_cast<T*>(g.record[__builtin_ctz(todo)]);
        total = first ? v : F::of(total, v);
        first = false;
    }
    for (unsigned todo = g.mask; todo; todo &= todo - 1) *static_cast<T*>(g.record[__builtin_ctz(todo)]) = total;
}
template <class F, class T>
SIMT_INLINE T reduce(unsigned mask, T v) {
    collective(mask, reduce_all<T, F>, &v, false);
    return v;
}
}  // namespace simt

SIMT_INLINE void __syncwarp(unsigned mask = ~0u) {
    char none;
    simt::collective(mask, simt::nothing, &none, true);
}
template <class T>
SIMT_INLINE T __shfl_sync(unsigned mask, const T& v, int source, int width = 32) {
    return simt::shuffle(mask, v, static_cast<int>((simt::lane_index() & ~(width - 1)) | (source & (width - 1))));
}
template <class T>
SIMT_INLINE T __shfl_xor_sync(unsigned mask, const T& v, int flip, int width = 32) {
    const int lane = static_cast<int>(simt::lane_index()), source = lane ^ flip;
    return simt::shuffle(mask, v, simt::unless(((source & ~(width - 1)) > (lane & ~(width - 1))) | (source > 31), source));
}
template <class T>
SIMT_INLINE T __shfl_down_sync(unsigned mask, const T& v, unsigned by, int width = 32) {
    const int lane = static_cast<int>(simt::lane_index());
    return simt::shuffle(mask, v, simt::unless((lane & (width - 1)) + static_cast<int>(by) >= width, lane + static_cast<int>(by)));
}
template <class T>
SIMT_INLINE T __shfl_up_sync(unsigned mask, const T& v, unsigned by, int width = 32) {
    const int lane = static_cast<int>(simt::lane_index());
    return simt::shuffle(mask, v, simt::unless((lane & (width - 1)) < static_cast<int>(by), lane - static_cast<int>(by)));
}
// Without `sync`, as they were before CUDA 9: those lanes take part that come together.
template <class T> SIMT_INLINE T __shfl(const T& v, int source, int width = 32) { return __shfl_sync(simt::active_mask(), v, source, width);
    }
template <class T> SIMT_INLINE T __shfl_xor(const T& v, int flip, int width = 32) {
    return __shfl_xor_sync(simt::active_mask(), v, flip, width); }
template <class T> SIMT_INLINE T __shfl_down(const T& v, unsigned by, int width = 32) {
    return __shfl_down_sync(simt::active_mask(), v, by, width); }
template <class T> SIMT_INLINE T __shfl_up(const T& v, unsigned by, int width = 32) {
    return __shfl_up_sync(simt::active_mask(), v, by, width); }
SIMT_INLINE unsigned __ballot_sync(unsigned mask, int p) { return simt::vote(mask, p != 0).out; }
SIMT_INLINE int __any_sync(unsigned mask, int p) { return simt::vote(mask, p != 0).out != 0; }
SIMT_INLINE int __all_sync(unsigned mask, int p) { return static_cast<int>(simt::vote(mask, p != 0).every); }
SIMT_INLINE unsigned __ballot(int p) { return __ballot_sync(simt::active_mask(), p); }
SIMT_INLINE int __any(int p) { return __any_sync(simt::active_mask(), p); }
SIMT_INLINE int __all(int p) { return __all_sync(simt::active_mask(), p); }
template <class T>
SIMT_INLINE unsigned __match_any_sync(unsigned mask, T v) {
    simt::Match<T> record = {v, 0, 0};
    simt::collective(mask, simt::match_all<T>, &record, false);
    return record.same;
}
template <class T>
SIMT_INLINE unsigned __match_all_sync(unsigned mask, const T& v, int* all) {
    simt::Match<T> record = {v, 0, 0};
    simt::collective(mask, simt::match_all<T>, &record, false);
    *all = record.all;
    return mask & -static_cast<unsigned>(record.all);
}
#define SIMT_REDUCE(name, F, T) SIMT_INLINE T __reduce_##name##_sync(unsigned m, T v) { return simt::reduce<simt::F>(m, v); }
SIMT_REDUCE(add, Add, unsigned) SIMT_REDUCE(add, Add, int) SIMT_REDUCE(min, Min, unsigned) SIMT_REDUCE(min, Min, int) SIMT_REDUCE(max, Max,
    unsigned)
SIMT_REDUCE(max, Max, int) SIMT_REDUCE(and, BitAnd, unsigned) SIMT_REDUCE(or, BitOr, unsigned) SIMT_REDUCE(xor, BitXor, unsigned)
#undef SIMT_REDUCE
