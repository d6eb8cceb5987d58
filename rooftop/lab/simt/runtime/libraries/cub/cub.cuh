// CUB: of a warp and of a block by shuffles and shared memory, with CUB's own order of sums; of a device on the CPU. Its temporary storage
// is smaller than CUB's.
#pragma once
#include "../library_types.h"
#include <algorithm>
#include <iterator>
#include <vector>
namespace cub {
struct Sum { template <class A, class B> SIMT_MEMBER auto operator()(const A& a, const B& b) const { return a + b; } };
struct Max { template <class T> SIMT_MEMBER T operator()(const T& a, const T& b) const { return a < b ? b : a; } };
struct Min { template <class T> SIMT_MEMBER T operator()(const T& a, const T& b) const { return b < a ? b : a; } };
template <class K, class V> struct KeyValuePair { K key; V value; };
struct ArgMax { template <class P> SIMT_MEMBER P operator()(const P& a, const P& b) const { return b.value > a.value
    || (b.value == a.value && b.key < a.key) ? b : a; } };
struct ArgMin { template <class P> SIMT_MEMBER P operator()(const P& a, const P& b) const { return b.value < a.value
    || (b.value == a.value && b.key < a.key) ? b : a; } };
enum BlockReduceAlgorithm { BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY, BLOCK_REDUCE_RAKING, BLOCK_REDUCE_WARP_REDUCTIONS };
enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };

namespace details {
SIMT_INLINE int rank() { return static_cast<int>((simt::thread_index().z * simt::block_extent().y + simt::thread_index().y) * simt::block_extent().x + simt::thread_index().x); }
SIMT_INLINE int threads() { return static_cast<int>(simt::block_extent().x * simt::block_extent().y * simt::block_extent().z); }
SIMT_INLINE unsigned lanes(int width) {                     // of this one's part of a warp, as far as the block has them
    const int lane = rank() & 31, first = lane & ~(width - 1), there = min(threads() - (rank() & ~31), 32);
    const unsigned part = (width == 32 ? ~0u : ((1u << width) - 1) << first);
    return there == 32 ? part : part & ((1u << there) - 1);
}
template <class T, class F>
SIMT_INLINE T reduced(T v, F op, int width, int valid) {    // lane 0 of each part has the result
    const int lane = rank() & (width - 1);
    for (int by = 1; by < width; by *= 2) {
        const T other = __shfl_down_sync(lanes(width), v, by, width);
        if (lane + by < valid) v = op(v, other);
    }
    return v;
}
template <class T, class F>
SIMT_INLINE T scanned(T v, F op, int width) {
    const int lane = rank() & (width - 1);
    for (int by = 1; by < width; by *= 2) {
        const T other = __shfl_up_sync(lanes(width), v, by, width);
        if (lane >= by) v = op(other, v);
    }
    return v;
}
template <class T, int N, class F>
SIMT_INLINE T own(const T (&v)[N], F op) {
    T sum = v[0];
    for (int i = 1; i < N; ++i) sum = op(sum, v[i]);
    return sum;
}
}  // namespace details

template <class T, int WIDTH = 32>
class WarpReduce {
public:
    struct TempStorage { char none; };
    SIMT_MEMBER WarpReduce(TempStorage&) {}
    template <class F> SIMT_MEMBER T Reduce(T v, F op, int valid = WIDTH) {
        return details::reduced(v, op, WIDTH, min(valid, __popc(details::lanes(WIDTH)))); }
    SIMT_MEMBER T Sum(T v, int valid = WIDTH) { return Reduce(v, cub::Sum(), valid); }
};
template <class T, int WIDTH = 32>
class WarpScan {
public:
    struct TempStorage { char none; };
    SIMT_MEMBER WarpScan(TempStorage&) {}
    template <class F> SIMT_MEMBER void InclusiveScan(T v, T& to, F op) { to = details::scanned(v, op, WIDTH); }
    template <class F> SIMT_MEMBER void ExclusiveScan(T v, T& to, T first, F op) {
        const T before = __shfl_up_sync(details::lanes(WIDTH), details::scanned(v, op, WIDTH), 1, WIDTH);
        to = (details::rank() & (WIDTH - 1)) ? op(first, before) : first;
    }
    SIMT_MEMBER void InclusiveSum(T v, T& to) { InclusiveScan(v, to, cub::Sum()); }
    SIMT_MEMBER void ExclusiveSum(T v, T& to) { ExclusiveScan(v, to, T{}, cub::Sum()); }
};
template <class T, int X, BlockReduceAlgorithm = BLOCK_REDUCE_WARP_REDUCTIONS, int Y = 1, int Z = 1>
class BlockReduce {
public:
    struct TempStorage { alignas(T) char warps[(X * Y * Z + 31) / 32 * sizeof(T)]; };
    SIMT_MEMBER BlockReduce(TempStorage& s) : warps_(reinterpret_cast<T*>(s.warps)) {}
    template <class F>
    SIMT_MEMBER T Reduce(T v, F op, int valid = X * Y * Z) {   // thread 0 has the result
        const int thread = details::rank(), warp = thread / 32;
        v = details::reduced(v, op, 32, min(valid, details::threads()) - 32 * warp);
        if (thread % 32 == 0) warps_[warp] = v;
        __syncthreads();
        if (thread == 0)
            for (int w = 1; 32 * w < min(valid, X * Y * Z); ++w) v = op(v, warps_[w]);
        return v;
    }
    template <int N, class F> SIMT_MEMBER T Reduce(T (&v)[N], F op) { return Reduce(details::own(v, op), op); }
    SIMT_MEMBER T Sum(T v, int valid = X * Y * Z) { return Reduce(v, cub::Sum(), valid); }
    template <int N> SIMT_MEMBER T Sum(T (&v)[N]) { return Reduce(v, cub::Sum()); }
private:
    T* warps_;
};
template <class T, int X, BlockScanAlgorithm = BLOCK_SCAN_RAKING, int Y = 1, int Z = 1>
class BlockScan {
public:
    struct TempStorage { alignas(T) char warps[(X * Y * Z + 31) / 32 * sizeof(T)]; };
    SIMT_MEMBER BlockScan(TempStorage& s) : warps_(reinterpret_cast<T*>(s.warps)) {}
    template <class F> SIMT_MEMBER void InclusiveScan(T v, T& to, F op, T& total) {
        T none;
        scan(v, op, to, none, total);
    }
    template <class F> SIMT_MEMBER void InclusiveScan(T v, T& to, F op) { T total; InclusiveScan(v, to, op, total); }
    template <class F> SIMT_MEMBER void ExclusiveScan(T v, T& to, T first, F op, T& total) {
        T with, before;
        scan(v, op, with, before, total);
        to = details::rank() ? op(first, before) : first;
    }
    template <class F> SIMT_MEMBER void ExclusiveScan(T v, T& to, T first, F op) { T total; ExclusiveScan(v, to, first, op, total); }
    SIMT_MEMBER void InclusiveSum(T v, T& to) { InclusiveScan(v, to, cub::Sum()); }
    SIMT_MEMBER void InclusiveSum(T v, T& to, T& total) { InclusiveScan(v, to, cub::Sum(), total); }
    SIMT_MEMBER void ExclusiveSum(T v, T& to) { ExclusiveScan(v, to, T{}, cub::Sum()); }
    SIMT_MEMBER void ExclusiveSum(T v, T& to, T& total) { ExclusiveScan(v, to, T{}, cub::Sum(), total); }
    template <int N> SIMT_MEMBER void InclusiveSum(T (&v)[N], T (&to)[N]) { each(v, to, true); }
    template <int N> SIMT_MEMBER void ExclusiveSum(T (&v)[N], T (&to)[N]) { each(v, to, false); }
private:
    T* warps_;
    template <class F>
    SIMT_MEMBER void scan(T v, F op, T& with, T& before, T& total) {
        const int thread = details::rank(), warp = thread / 32, warps = (X * Y * Z + 31) / 32;
        with = details::scanned(v, op, 32);
        before = __shfl_up_sync(details::lanes(32), with, 1);
        if (thread % 32 == 31 || thread == details::threads() - 1) warps_[warp] = with;
        __syncthreads();
        T sum = warps_[0], ahead = sum;
        for (int w = 1; w < warps; ++w) {
            if (w == warp) ahead = sum;
            sum = op(sum, warps_[w]);
        }
        total = sum;
        if (warp) before = thread % 32 ? op(ahead, before) : ahead, with = op(ahead, with);
    }
    template <int N>
    SIMT_MEMBER void each(T (&v)[N], T (&to)[N], bool inclusive) {
        T sum;
        ExclusiveSum(details::own(v, cub::Sum()), sum);
        for (int i = 0; i < N; ++i) {
            const T one = v[i];
            to[i] = inclusive ? sum + one : sum;
            sum = sum + one;
        }
    }
};

// -- of a device: called by the host, in plain code. A first call, without temporary storage, says how much is wanted.
namespace details {
struct Wrote : simt::Library {
    template <class I> void range(I a, size_t n) { if constexpr (std::is_pointer_v<I>) wrote(a, n * sizeof *a); }
};
template <class I> using Value = typename std::iterator_traits<I>::value_type;
template <class K, class V, class F>
void sorted(const K* from, K* to, const V* values, V* moved, size_t n, F before) {
    std::vector<size_t> at(n);
    for (size_t i = 0; i < n; ++i) at[i] = i;
    std::stable_sort(at.begin(), at.end(), [=](size_t a, size_t b) { return before(from[a], from[b]); });
    std::vector<K> keys(n);
    std::vector<V> others(values ? n : 0);
    for (size_t i = 0; i < n; ++i) { keys[i] = from[at[i]]; if (values) others[i] = values[at[i]]; }
    std::copy(keys.begin(), keys.end(), to);
    if (values) std::copy(others.begin(), others.end(), moved);
}
}  // namespace details
#define SIMT_CUB(bytes) if (!temporary) return bytes = 1, cudaSuccess; details::Wrote here
struct DeviceReduce {
    template <class I, class O, class F, class T>
    static cudaError_t Reduce(void* temporary, size_t& bytes, I in, O out, int n, F op, T v, cudaStream_t = nullptr) {
        SIMT_CUB(bytes);
        for (int i = 0; i < n; ++i) v = op(v, in[i]);
        *out = v, here.range(out, 1);
        return cudaSuccess;
    }
    template <class I, class O> static cudaError_t Sum(void* t, size_t& b, I in, O out, int n, cudaStream_t = nullptr) {
        return Reduce(t, b, in, out, n, cub::Sum(), details::Value<I>{}); }
    template <class I, class O> static cudaError_t Max(void* t, size_t& b, I in, O out, int n, cudaStream_t = nullptr) {
        return Reduce(t, b, in, out, n, cub::Max(), std::numeric_limits<details::Value<I>>::lowest()); }
    template <class I, class O> static cudaError_t Min(void* t, size_t& b, I in, O out, int n, cudaStream_t = nullptr) {
        return Reduce(t, b, in, out, n, cub::Min(), std::numeric_limits<details::Value<I>>::max()); }
    template <class I, class O> static cudaError_t ArgMax(void* temporary, size_t& bytes, I in, O out, int n, cudaStream_t = nullptr) {
        SIMT_CUB(bytes);
        const int at = static_cast<int>(std::max_element(in, in + n) - in);
        *out = {at, in[at]}, here.range(out, 1);
        return cudaSuccess;
    }
    template <class I, class O> static cudaError_t ArgMin(void* temporary, size_t& bytes, I in, O out, int n, cudaStream_t = nullptr) {
        SIMT_CUB(bytes);
        const int at = static_cast<int>(std::min_element(in, in + n) - in);
        *out = {at, in[at]}, here.range(out, 1);
        return cudaSuccess;
    }
};
struct DeviceScan {
    template <class I, class O, class F, class T>
    static cudaError_t ExclusiveScan(void* temporary, size_t& bytes, I in, O out, F op, T v, int n, cudaStream_t = nullptr) {
        SIMT_CUB(bytes);
        for (int i = 0; i < n; ++i) { const T next = op(v, in[i]); out[i] = v, v = next; }
        here.range(out, static_cast<size_t>(n));
        return cudaSuccess;
    }
    template <class I, class O, class F>
    static cudaError_t InclusiveScan(void* temporary, size_t& bytes, I in, O out, F op, int n, cudaStream_t = nullptr) {
        SIMT_CUB(bytes);
        details::Value<I> v{};
        for (int i = 0; i < n; ++i) v = i ? op(v, in[i]) : in[i], out[i] = v;
        here.range(out, static_cast<size_t>(n));
        return cudaSuccess;
    }
    template <class I, class O> static cudaError_t ExclusiveSum(void* t, size_t& b, I in, O out, int n, cudaStream_t = nullptr) {
        return ExclusiveScan(t, b, in, out, cub::Sum(), details::Value<I>{}, n); }
    template <class I, class O> static cudaError_t InclusiveSum(void* t, size_t& b, I in, O out, int n, cudaStream_t = nullptr) {
        return InclusiveScan(t, b, in, out, cub::Sum(), n); }
};
struct DeviceRadixSort {                                     // of whole keys: a range of their bits is refused
#define SIMT_SORT(name, order) \
    template <class K, class V> \
    static cudaError_t SortPairs##name(void* temporary, size_t& bytes, const K* from, K* to, const V* values, V* moved, int n, int low = 0, int high = 8 * sizeof(K), cudaStream_t = nullptr) { \
        SIMT_CUB(bytes); \
        if (low || high < int(8 * sizeof(K))) simt::not_on_the_host("cub::DeviceRadixSort by some bits of the keys"); \
        details::sorted(from, to, values, moved, static_cast<size_t>(n), [](const K& a, const K& b) { return a order b; }); \
        here.range(to, static_cast<size_t>(n)); \
        if (moved) here.range(moved, static_cast<size_t>(n)); \
        return cudaSuccess; \
    } \
    template <class K> \
    static cudaError_t SortKeys##name(void* t, size_t& b, const K* from, K* to, int n, int low = 0, int high = 8 * sizeof(K), cudaStream_t = nullptr) { \
        return SortPairs##name(t, b, from, to, static_cast<const char*>(nullptr), static_cast<char*>(nullptr), n, low, high); \
    }
    SIMT_SORT(, <) SIMT_SORT(Descending, >)
#undef SIMT_SORT
};
struct DeviceSelect {
    template <class I, class O, class N, class F>
    static cudaError_t If(void* temporary, size_t& bytes, I in, O out, N count, int n, F wanted, cudaStream_t = nullptr) {
        SIMT_CUB(bytes);
        int to = 0;
        for (int i = 0; i < n; ++i)
            if (wanted(in[i])) out[to++] = in[i];
        *count = to, here.range(out, static_cast<size_t>(to)), here.range(count, 1);
        return cudaSuccess;
    }
    template <class I, class M, class O, class N>
    static cudaError_t Flagged(void* temporary, size_t& bytes, I in, M flags, O out, N count, int n, cudaStream_t = nullptr) {
        SIMT_CUB(bytes);
        int to = 0;
        for (int i = 0; i < n; ++i)
            if (flags[i]) out[to++] = in[i];
        *count = to, here.range(out, static_cast<size_t>(to)), here.range(count, 1);
        return cudaSuccess;
    }
};
#undef SIMT_CUB
}  // namespace cub
