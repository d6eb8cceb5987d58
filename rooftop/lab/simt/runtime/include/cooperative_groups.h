// Cooperative groups: the block, tiles of a warp, coalesced lanes, the cluster and the grid.
#pragma once
namespace cooperative_groups {

struct thread_group {};
namespace details {
struct Lanes {   // a set of lanes of one warp, this one among them
    unsigned mask;
    SIMT_MEMBER int rank() const { return __popc(mask & ((1u << simt::lane_index()) - 1)); }
    SIMT_MEMBER unsigned size() const { return static_cast<unsigned>(__popc(mask)); }
    SIMT_MEMBER int lane(int rank) const { return simt::nth_lane(mask, rank); }   // of the group's member with this rank, or -1
};
}  // namespace details

template <class Derived>
struct lanes_group : thread_group {
    SIMT_MEMBER details::Lanes lanes() const { return static_cast<const Derived*>(this)->lanes_(); }
    SIMT_MEMBER void sync() const { __syncwarp(lanes().mask); }
    SIMT_MEMBER unsigned thread_rank() const { return static_cast<unsigned>(lanes().rank()); }
    SIMT_MEMBER unsigned long long size() const { return lanes().size(); }
    SIMT_MEMBER unsigned long long num_threads() const { return lanes().size(); }
    template <class T>
    SIMT_MEMBER T shfl(const T& v, int source) const { const auto l = lanes(); return simt::shuffle(l.mask, v, l.lane(static_cast<int>(static_cast<unsigned>(source) % l.size()))); }
    template <class T>
    SIMT_MEMBER T shfl_down(const T& v, unsigned by) const { const auto l = lanes(); return simt::shuffle(l.mask, v, l.lane(l.rank() + static_cast<int>(by))); }
    template <class T>
    SIMT_MEMBER T shfl_up(const T& v, unsigned by) const { const auto l = lanes(); return simt::shuffle(l.mask, v, l.lane(l.rank() - static_cast<int>(by))); }
    template <class T>
    SIMT_MEMBER T shfl_xor(const T& v, unsigned flip) const { const auto l = lanes(); return simt::shuffle(l.mask, v, l.lane(l.rank() ^ static_cast<int>(flip))); }
    SIMT_MEMBER int any(int p) const { return __any_sync(lanes().mask, p); }
    SIMT_MEMBER int all(int p) const { return __all_sync(lanes().mask, p); }
    SIMT_MEMBER unsigned ballot(int p) const { const auto l = lanes(); return simt::gather_bits(l.mask, __ballot_sync(l.mask, p)); }
    template <class T>
    SIMT_MEMBER unsigned match_any(T v) const { const auto l = lanes(); return simt::gather_bits(l.mask, __match_any_sync(l.mask, v)); }
};

class thread_block : public thread_group {
public:
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
    SIMT_MEMBER thread_block_tile() {
        if constexpr (Size > 32) simt::not_simulated("thread_block_tile: tiles wider than a warp");
    }
    template <class Other>
    SIMT_MEMBER thread_block_tile(const thread_block_tile<Size, Other>&) {}   // what it is a part of may be left out
    SIMT_MEMBER details::Lanes lanes_() const { return {Size == 32 ? ~0u : ((1u << Size % 32) - 1) << simt::lane_index() / Size * Size}; }
    SIMT_MEMBER static constexpr unsigned long long size() { return Size; }
    SIMT_MEMBER static constexpr unsigned long long num_threads() { return Size; }
    SIMT_MEMBER unsigned meta_group_rank() const { return thread_block::thread_rank() / Size; }
    SIMT_MEMBER unsigned meta_group_size() const { return (thread_block::size() + Size - 1) / Size; }
};
template <unsigned Size, class Group>
SIMT_INLINE thread_block_tile<Size, Group> tiled_partition(const Group&) { return {}; }

class coalesced_group : public lanes_group<coalesced_group> {
    unsigned mask_;
public:
    SIMT_MEMBER explicit coalesced_group(unsigned mask) : mask_(mask) {}
    SIMT_MEMBER details::Lanes lanes_() const { return {mask_}; }
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
    SIMT_MEMBER static void sync() { simt::grid_barrier(); }
    SIMT_MEMBER static bool is_valid() { return simt::cooperative(); }
    SIMT_MEMBER static unsigned long long block_rank() { return (static_cast<unsigned long long>(simt::block_index().z) * simt::grid_extent().y + simt::block_index().y) * simt::grid_extent().x + simt::block_index().x; }
    SIMT_MEMBER static unsigned long long num_blocks() { return static_cast<unsigned long long>(simt::grid_extent().x) * simt::grid_extent().y * simt::grid_extent().z; }
    SIMT_MEMBER static unsigned long long thread_rank() { return block_rank() * thread_block::size() + thread_block::thread_rank(); }
    SIMT_MEMBER static unsigned long long size() { return num_blocks() * thread_block::size(); }
    SIMT_MEMBER static unsigned long long num_threads() { return size(); }
    SIMT_MEMBER static dim3 group_dim() { return simt::grid_extent(); }
    SIMT_MEMBER static dim3 dim_blocks() { return simt::grid_extent(); }
    SIMT_MEMBER static dim3 block_index() { return simt::block_index(); }
};
SIMT_INLINE grid_group this_grid() { return {}; }

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
SIMT_INLINE T reduce(const Group& g, T v, F f) {   // as on the GPU: half meets half; a group that has none takes the last of a scan
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
    for (size_t i = g.thread_rank(); i < bytes / 4; i += g.size()) simt::copy_async(reinterpret_cast<char*>(to) + 4 * i, reinterpret_cast<const char*>(from) + 4 * i, 4, 4);
    simt::copy_commit();
}
template <class Group>
SIMT_INLINE void wait(const Group& g) { simt::copy_wait(0); g.sync(); }
}  // namespace cooperative_groups
