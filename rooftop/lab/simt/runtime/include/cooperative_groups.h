// Cooperative groups: the block, tiles of a warp, coalesced lanes, the cluster and the grid.
#pragma once
namespace cooperative_groups {

namespace details {
struct Lanes {   // a set of lanes of one warp, this one among them
    unsigned mask;
    SIMT_MEMBER int rank() const { return __popc(mask & ((1u << simt::lane_index()) - 1)); }
    SIMT_MEMBER unsigned size() const { return static_cast<unsigned>(__popc(mask)); }
    SIMT_MEMBER int lane(int rank) const { return simt::nth_lane(mask, rank); }   // of the group's member with this rank, or -1
};
}  // namespace details

/// Any group, as a function takes it that does not know which.
class thread_group {
public:
    enum Kind { LANES, BLOCK, CLUSTER, GRID, TILE };
    SIMT_MEMBER explicit thread_group(Kind kind = LANES, unsigned mask = 0, unsigned wide = 0) : kind_(kind), mask_(mask), wide_(wide) {}
    SIMT_MEMBER void sync() const;
    SIMT_MEMBER unsigned long long size() const;
    SIMT_MEMBER unsigned long long num_threads() const { return size(); }
    SIMT_MEMBER unsigned long long thread_rank() const;
    SIMT_MEMBER bool is_valid() const { return true; }
    Kind kind_;
    unsigned mask_, wide_;          // its lanes; the threads of a tile that is wider than a warp
};

template <class Derived>
struct lanes_group : thread_group {
    SIMT_MEMBER explicit lanes_group(unsigned mask) : thread_group(LANES, mask) {}
    SIMT_MEMBER details::Lanes lanes() const { return static_cast<const Derived*>(this)->lanes_(); }
    SIMT_MEMBER void sync() const { __syncwarp(lanes().mask); }
    SIMT_MEMBER unsigned thread_rank() const { return static_cast<unsigned>(lanes().rank()); }
    SIMT_MEMBER unsigned long long size() const { return lanes().size(); }
    SIMT_MEMBER unsigned long long num_threads() const { return lanes().size(); }
    template <class T>
    SIMT_MEMBER T shfl(const T& v, int source) const { const auto l = lanes();
        return simt::shuffle(l.mask, v, l.lane(static_cast<int>(static_cast<unsigned>(source) % l.size()))); }
    template <class T>
    SIMT_MEMBER T shfl_down(const T& v, unsigned by) const { const auto l = lanes();
        return simt::shuffle(l.mask, v, l.lane(l.rank() + static_cast<int>(by))); }
    template <class T>
    SIMT_MEMBER T shfl_up(const T& v, unsigned by) const { const auto l = lanes();
        return simt::shuffle(l.mask, v, l.lane(l.rank() - static_cast<int>(by))); }
    template <class T>
    SIMT_MEMBER T shfl_xor(const T& v, unsigned flip) const { const auto l = lanes();
        return simt::shuffle(l.mask, v, l.lane(l.rank() ^ static_cast<int>(flip))); }
    SIMT_MEMBER int any(int p) const { return __any_sync(lanes().mask, p); }
    SIMT_MEMBER int all(int p) const { return __all_sync(lanes().mask, p); }
    SIMT_MEMBER unsigned ballot(int p) const { const auto l = lanes(); return simt::gather_bits(l.mask, __ballot_sync(l.mask, p)); }
    template <class T>
    SIMT_MEMBER unsigned match_any(T v) const { const auto l = lanes(); return simt::gather_bits(l.mask, __match_any_sync(l.mask, v)); }
};

class thread_block : public thread_group {
public:
    SIMT_MEMBER thread_block() : thread_group(BLOCK) {}
    SIMT_MEMBER static void sync() { __syncthreads(); }
    SIMT_MEMBER static unsigned thread_rank() { return (simt::thread_index().z * simt::block_extent().y + simt::thread_index().y) * simt::block_extent().x + simt::thread_index().x; }
    SIMT_MEMBER static dim3 group_index() { return simt::block_index(); }
    SIMT_MEMBER static dim3 thread_index() { return simt::thread_index(); }
    SIMT_MEMBER static dim3 dim_threads() { return simt::block_extent(); }
    SIMT_MEMBER static dim3 group_dim() { return simt::block_extent(); }
    SIMT_MEMBER static unsigned size() { return simt::block_extent().x * simt::block_extent().y * simt::block_extent().z; }
    SIMT_MEMBER static unsigned num_threads() { return size(); }
};
SIMT_INLINE thread_block this_thread_block() { return {}; }

template <unsigned Size, class Parent = void>
class thread_block_tile : public lanes_group<thread_block_tile<Size, Parent>> {
    static_assert((Size & (Size - 1)) == 0, "the size of a tile is a power of two");
public:
    SIMT_MEMBER thread_block_tile() : lanes_group<thread_block_tile<Size, Parent>>(own()) {}
    template <class Other>
    SIMT_MEMBER thread_block_tile(const thread_block_tile<Size, Other>&) : thread_block_tile() {}   // what it is a part of may be left out
    SIMT_MEMBER static unsigned own() { return Size == 32 ? ~0u : ((1u << Size % 32) - 1) << simt::lane_index() / Size * Size; }
    SIMT_MEMBER details::Lanes lanes_() const { return {own()}; }
    SIMT_MEMBER static unsigned thread_rank() { return thread_block::thread_rank() % Size; }
    SIMT_MEMBER static constexpr unsigned long long size() { return Size; }
    SIMT_MEMBER static constexpr unsigned long long num_threads() { return Size; }
    SIMT_MEMBER unsigned meta_group_rank() const { return thread_block::thread_rank() / Size; }
    SIMT_MEMBER unsigned meta_group_size() const { return (thread_block::size() + Size - 1) / Size; }
};
/// A tile of several warps: it meets at a barrier of its own, and sums through memory of the block's.
struct WideTile : thread_group {
    SIMT_MEMBER explicit WideTile(unsigned size) : thread_group(TILE, 0, size) {}
};
#define SIMT_WIDE(Size)                                                                                                        \
    template <class Parent>                                                                                                    \
    class thread_block_tile<Size, Parent> : public WideTile {                                                                  \
    public:                                                                                                                    \
        SIMT_MEMBER thread_block_tile() : WideTile(Size) {}                                                                    \
        template <class Other> SIMT_MEMBER thread_block_tile(const thread_block_tile<Size, Other>&) : WideTile(Size) {}         \
        SIMT_MEMBER static constexpr unsigned long long size() { return Size; }                                                \
        SIMT_MEMBER static constexpr unsigned long long num_threads() { return Size; }                                         \
        SIMT_MEMBER unsigned meta_group_rank() const { return thread_block::thread_rank() / Size; }                            \
        SIMT_MEMBER unsigned meta_group_size() const { return (thread_block::size() + Size - 1) / Size; }                      \
    };
SIMT_WIDE(64) SIMT_WIDE(128) SIMT_WIDE(256) SIMT_WIDE(512) SIMT_WIDE(1024)
#undef SIMT_WIDE
template <unsigned MostThreads = 1024> struct block_tile_memory { char none[8]; };
template <unsigned Most> SIMT_INLINE thread_block this_thread_block(block_tile_memory<Most>&) { return {}; }
template <unsigned Size, class Group>
SIMT_INLINE thread_block_tile<Size, Group> tiled_partition(const Group&) { return {}; }
SIMT_INLINE thread_group tiled_partition(const thread_group& g, unsigned size) {
    if (g.kind_ == thread_group::BLOCK) {
        if (size > 32) return WideTile(size);
        return thread_group(thread_group::LANES, size == 32 ? ~0u : ((1u << size) - 1) << simt::lane_index() / size * size);
    }
    const details::Lanes l = {g.mask_};
    const int first = l.rank() / static_cast<int>(size) * static_cast<int>(size);
    unsigned mask = 0;
    for (int i = first; i < first + static_cast<int>(size) && i < static_cast<int>(l.size()); ++i) mask |= 1u << l.lane(i);
    return thread_group(thread_group::LANES, mask);
}

class coalesced_group : public lanes_group<coalesced_group> {
public:
    SIMT_MEMBER explicit coalesced_group(unsigned mask) : lanes_group<coalesced_group>(mask) {}
    SIMT_MEMBER details::Lanes lanes_() const { return {this->mask_}; }
    SIMT_MEMBER unsigned meta_group_rank() const { return 0; }
    SIMT_MEMBER unsigned meta_group_size() const { return 1; }
};
/// Those of a group that give the same label.
template <class Group, class T>
SIMT_INLINE coalesced_group labeled_partition(const Group& g, T label) { return coalesced_group(__match_any_sync(g.lanes().mask, label)); }
template <class Group>
SIMT_INLINE coalesced_group binary_partition(const Group& g, bool side) { return labeled_partition(g, static_cast<int>(side)); }
SIMT_INLINE coalesced_group coalesced_threads() { return coalesced_group(__activemask()); }

class cluster_group : public thread_group {
public:
    struct arrival_token {};
    SIMT_MEMBER cluster_group() : thread_group(CLUSTER) {}
    SIMT_MEMBER static void sync() { simt::cluster_arrive(); simt::cluster_wait(); }
    SIMT_MEMBER static arrival_token barrier_arrive() { simt::cluster_arrive(); return {}; }
    SIMT_MEMBER static void barrier_wait() { simt::cluster_wait(); }
    SIMT_MEMBER static void barrier_wait(arrival_token&&) { simt::cluster_wait(); }
    SIMT_MEMBER static unsigned block_rank() { return simt::cluster_rank(); }
    SIMT_MEMBER static dim3 dim_blocks() { return simt::cluster_extent(); }
    SIMT_MEMBER static unsigned num_blocks() { const dim3 d = dim_blocks(); return d.x * d.y * d.z; }
    SIMT_MEMBER static unsigned num_threads() { return num_blocks() * thread_block::size(); }
    SIMT_MEMBER static unsigned size() { return num_threads(); }
    SIMT_MEMBER static unsigned thread_rank() { return block_rank() * thread_block::size() + thread_block::thread_rank(); }
    SIMT_MEMBER static dim3 block_index() { return simt::cluster_block(); }
    template <class T>
    SIMT_MEMBER static T* map_shared_rank(T* p, int rank) { return static_cast<T*>(simt::cluster_map(p, static_cast<unsigned>(rank))); }
    SIMT_MEMBER static unsigned query_shared_rank(const void* p) { return simt::shared_address(p) >> 24; }
};
SIMT_INLINE cluster_group this_cluster() { return {}; }

class grid_group : public thread_group {
public:
    SIMT_MEMBER grid_group() : thread_group(GRID) {}
    SIMT_MEMBER static void sync() { simt::grid_barrier(); }
    SIMT_MEMBER static bool is_valid() { return simt::cooperative(); }
    SIMT_MEMBER static unsigned long long block_rank() {
        return (static_cast<unsigned long long>(simt::block_index().z) * simt::grid_extent().y + simt::block_index().y) * simt::grid_extent().x + simt::block_index().x; }
    SIMT_MEMBER static unsigned long long num_blocks() {
        return static_cast<unsigned long long>(simt::grid_extent().x) * simt::grid_extent().y * simt::grid_extent().z; }
    SIMT_MEMBER static unsigned long long thread_rank() { return block_rank() * thread_block::size() + thread_block::thread_rank(); }
    SIMT_MEMBER static unsigned long long size() { return num_blocks() * thread_block::size(); }
    SIMT_MEMBER static unsigned long long num_threads() { return size(); }
    SIMT_MEMBER static dim3 group_dim() { return simt::grid_extent(); }
    SIMT_MEMBER static dim3 dim_blocks() { return simt::grid_extent(); }
    SIMT_MEMBER static dim3 block_index() { return simt::block_index(); }
};
SIMT_INLINE grid_group this_grid() { return {}; }

inline void thread_group::sync() const {
    if (kind_ == LANES) __syncwarp(mask_);
    else if (kind_ == BLOCK) __syncthreads();
    else if (kind_ == CLUSTER) cluster_group::sync();
    else if (kind_ == GRID) grid_group::sync();
    else if (const unsigned tile = thread_block::thread_rank() / wide_; thread_block::size() <= wide_) __syncthreads();
    else if (tile < 15) simt::block_barrier(static_cast<int>(15 - tile), static_cast<int>(wide_), simt::PLAIN, 0);
    else simt::not_simulated("more than 15 tiles of several warps in a block");
}
inline unsigned long long thread_group::size() const {
    return kind_ == LANES ? details::Lanes{mask_}.size() : kind_ == BLOCK ? thread_block::size() : kind_ == CLUSTER ? cluster_group::size()
        : kind_ == GRID ? grid_group::size() : wide_;
}
inline unsigned long long thread_group::thread_rank() const {
    return kind_ == LANES ? static_cast<unsigned long long>(details::Lanes{mask_}.rank()) : kind_ == BLOCK ? thread_block::thread_rank()
        : kind_ == CLUSTER ? cluster_group::thread_rank() : kind_ == GRID ? grid_group::thread_rank() : thread_block::thread_rank() % wide_;
}

template <class Group>
SIMT_INLINE void sync(const Group& g) { g.sync(); }
/// One thread of the group calls `f`: the first, where CUDA may take any.
template <class Group, class F, class... A>
SIMT_INLINE void invoke_one(const Group& g, F&& f, A&&... a) {
    if (g.thread_rank() == 0) f(std::forward<A>(a)...);
}
template <class Group, class F, class... A>
SIMT_INLINE auto invoke_one_broadcast(const Group& g, F&& f, A&&... a) {
    decltype(f(std::forward<A>(a)...)) r{};
    if (g.thread_rank() == 0) r = f(std::forward<A>(a)...);
    return g.shfl(r, 0);
}

template <class T> struct plus { SIMT_MEMBER T operator()(T a, T b) const { return a + b; } };
template <class T> struct less { SIMT_MEMBER T operator()(T a, T b) const { return b < a ? b : a; } };
template <class T> struct greater { SIMT_MEMBER T operator()(T a, T b) const { return a < b ? b : a; } };
template <class T> struct bit_and { SIMT_MEMBER T operator()(T a, T b) const { return a & b; } };
template <class T> struct bit_or { SIMT_MEMBER T operator()(T a, T b) const { return a | b; } };
template <class T> struct bit_xor { SIMT_MEMBER T operator()(T a, T b) const { return a ^ b; } };
template <class Group, class T, class F>
SIMT_INLINE T inclusive_scan(const Group& g, T v, F f) {
    for (unsigned by = 1; by < g.size(); by *= 2) {
        const T other = g.shfl_up(v, by);
        if (g.thread_rank() >= by) v = f(other, v);
    }
    return v;
}
template <class Group, class T, class F>
SIMT_INLINE auto reduce(const Group& g, T v, F f) -> std::enable_if_t<std::is_base_of_v<WideTile, Group>, T> {
    simt::not_simulated("reduce of a tile of several warps");
    return f(v, v);
}
template <class Group, class T, class F>
// as on the GPU: half meets half; a group that has none takes the last of a scan
SIMT_INLINE auto reduce(const Group& g, T v, F f) -> std::enable_if_t<!std::is_base_of_v<WideTile, Group>, T> {
    const unsigned n = static_cast<unsigned>(g.size());
    if (n & (n - 1)) return g.shfl(inclusive_scan(g, v, f), static_cast<int>(n - 1));
    for (unsigned by = n / 2; by; by /= 2) v = f(v, g.shfl_xor(v, by));
    return v;
}
template <class Group, class T, class F>
SIMT_INLINE T exclusive_scan(const Group& g, T v, F f) {
    const T all = inclusive_scan(g, v, f), before = g.shfl_up(all, 1);
    return g.thread_rank() == 0 ? T{} : before;
}
template <class Group, class T>
SIMT_INLINE T inclusive_scan(const Group& g, T v) { return inclusive_scan(g, v, plus<T>()); }
template <class Group, class T>
SIMT_INLINE T exclusive_scan(const Group& g, T v) { return exclusive_scan(g, v, plus<T>()); }
template <class Group, class To, class From>
SIMT_INLINE void memcpy_async(const Group& g, To* to, const From* from, size_t bytes) {
    for (size_t i = g.thread_rank(); i < bytes / 4; i += g.size()) simt::copy_async(reinterpret_cast<char*>(to) + 4 * i,
        reinterpret_cast<const char*>(from) + 4 * i, 4, 4);
    simt::copy_commit();
}
template <class Group>
SIMT_INLINE void wait(const Group& g) { simt::copy_wait(0); g.sync(); }
}  // namespace cooperative_groups
