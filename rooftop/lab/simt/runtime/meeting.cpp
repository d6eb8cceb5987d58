// Where threads wait for each other: collectives of a warp, barriers of a block, a cluster and the grid.
#include "scheduler.h"

namespace simt {

// -- collectives of a warp -------------------------------------------------------------------------------------------------------


static void join_lanes(Warp& warp, u32 lanes) {
    u16 row[32] = {};
    for (u32 todo = lanes; todo; todo &= todo - 1) {
        const u16* other = warp.clocks[__builtin_ctz(todo)];
        for (int i = 0; i < 32; ++i) row[i] = std::max(row[i], other[i]);
    }
    for (u32 todo = lanes; todo; todo &= todo - 1) {
        const int lane = __builtin_ctz(todo);
        std::memcpy(warp.clocks[lane], row, sizeof row);
        set_clock(warp, static_cast<u32>(lane), row[lane] + 1u);
    }
}

bool try_collective(Worker& w, Warp& warp, size_t at) {
    Pending p = warp.pending[at];
    const u32 needed = p.mask & warp.valid & ~warp.exited;
    if ((p.arrived & needed) != needed) return false;
    warp.pending.erase(warp.pending.begin() + static_cast<long>(at));
    Group group;
    group.mask = p.arrived, group.named = p.mask;
    for (u32 todo = p.arrived; todo; todo &= todo - 1) group.record[__builtin_ctz(todo)] = warp.lanes[__builtin_ctz(todo)].record;
    if (p.ordered) join_lanes(warp, p.arrived);
    mode_met(warp, p.meeting);
    w.combining = true;
    p.combine(group);
    w.combining = false;
    for (u32 todo = p.arrived; todo; todo &= todo - 1) warp.lanes[__builtin_ctz(todo)].state = READY;
    progress(w);
    return true;
}

__attribute__((noinline)) void collective(unsigned mask, Combine combine, void* record, bool ordered) {
    Worker& w = *worker;
    Fiber& f = *w.current;
    Warp& warp = *f.warp;
    const u32 bit = 1u << f.lane;
    f.pc = SIMT_PC();
    if (!(mask & bit)) {
        if (Finding* found = report(w, f, ABSENT_LANE, f.pc)) say(*found,
            "lane %u calls a warp collective whose mask 0x%08x does not name it", f.lane, mask);
        mask |= bit;
    }
    f.mask = mask, f.record = record, f.combine = combine;
    size_t at = 0;
    while (at < warp.pending.size() && (warp.pending[at].mask != mask || warp.pending[at].combine != combine)) ++at;
    if (at == warp.pending.size()) warp.pending.push_back({mask, 0, combine, ordered, f.pc, ++warp.meetings});
    const u32 meeting = warp.pending[at].meeting;
    mode_sync(w, f, meeting);              // others may come meanwhile
    for (at = 0; warp.pending[at].meeting != meeting;) ++at;
    if (const u64 first = warp.pending[at].pc; first != f.pc && !ordered && warp.pending[at].arrived) {
        if (Finding* found = report(w, f, ABSENT_LANE, f.pc, first)) {
            const u32 lane = static_cast<u32>(__builtin_ctz(warp.pending[at].arrived));
            other_thread(*found, warp.lanes[lane]);
            say(*found, "lane %u is at this collective while lane %u of its warp, which the mask 0x%08x names as well, waits at another",
                f.lane, lane, mask);
        }
    }
    warp.pending[at].arrived |= bit;
    const u32 waited = warp.pending[at].arrived & ~bit;
    f.state = AT_COLLECTIVE;
    if (try_collective(w, warp, at)) {
        make_ready(w, warp, waited);
    } else {
        park(w, f);
    }
}

void absent_lane(Group&, int reader, int source, unsigned mask) {
    Worker& w = *worker;
    Warp& warp = *w.current->warp;
    Fiber& f = warp.lanes[reader];
    if (Finding* found = report(w, f, ABSENT_LANE, f.pc)) {
        const u32 bit = 1u << source;
        const char* why = !(warp.valid & bit) ? "the block has no such thread" : warp.exited & bit ? "which has returned"
            : "which takes no part";
        say(*found, "lane %d reads from lane %d, %s; lanes 0x%08x take part", reader, source, why, mask);
    }
}

// Which lanes run together: those that come to the same place before any of the warp has to wait for something else.
__attribute__((noinline)) unsigned active_mask() {
    Worker& w = *worker;
    Fiber& f = *w.current;
    f.pc = SIMT_PC();
    mode_sync(w, f);
    f.state = AT_MASK;
    park(w, f);
    return f.mask;
}

void answer_mask(Warp& warp) {   // no lane of the warp can run: those at the lowest place that ask are told of each other
    u32 lanes = 0;
    u64 lowest = ~u64(0);
    for (u32 todo = warp.valid & ~warp.exited; todo; todo &= todo - 1) {
        const Fiber& f = warp.lanes[__builtin_ctz(todo)];
        if (f.state != AT_MASK || f.pc > lowest) continue;
        if (f.pc < lowest) lanes = 0;
        lowest = f.pc;
        lanes |= 1u << f.lane;
    }
    for (u32 todo = lanes; todo; todo &= todo - 1) {
        Fiber& f = warp.lanes[__builtin_ctz(todo)];
        f.mask = lanes;
        f.state = READY;
    }
    warp.ready |= lanes;
}

// -- barriers of a block -----------------------------------------------------------------------------------------------------------

static void new_epoch(Worker& w, Block& b) { b.epoch = ++w.epoch << EPOCH_SHIFT; }

static void join_warps(Worker&, Block& b, int id) {   // a barrier that only some warps have met at
    u16 all[32] = {};
    u16 top[32] = {};
    for (Warp& warp : b.warps) {
        if (!warp.at[id]) continue;
        for (u32 todo = warp.at[id]; todo; todo &= todo - 1) top[warp.index] = std::max(top[warp.index],
            warp.clocks[__builtin_ctz(todo)][__builtin_ctz(todo)]);
        for (int i = 0; i < 32; ++i) all[i] = std::max(all[i], warp.knows[i]);
    }
    for (int i = 0; i < 32; ++i) all[i] = std::max(all[i], top[i]);
    for (Warp& warp : b.warps) {
        if (!warp.at[id]) continue;
        std::memcpy(warp.knows, all, sizeof all);
        join_lanes(warp, warp.at[id]);
        for (u32 todo = warp.at[id]; todo; todo &= todo - 1) {
            const u32 lane = static_cast<u32>(__builtin_ctz(todo));
            set_clock(warp, lane, top[warp.index] + 1u);
        }
    }
}

// What a block's warps know of each other and of other blocks' is known to those that have waited at a barrier. What comes after it is
// later.
static void join_far(Block& b, int id, bool everyone) {
    if (!far_warps(*b.unit)) return;
    std::vector<u16> all(far_warps(*b.unit), 0);
    bool began = false;
    for (Warp& warp : b.warps) {
        if (!everyone && !warp.at[id]) continue;
        began |= warp.all_began;
        u16 top = 0;
        for (u32 todo = warp.valid; todo; todo &= todo - 1) top = std::max(top, warp.clocks[__builtin_ctz(todo)][__builtin_ctz(todo)]);
        release_far(all, warp, top);
        for (u32 todo = warp.valid; todo; todo &= todo - 1) set_clock(warp, static_cast<u32>(__builtin_ctz(todo)), top + 1u);
    }
    for (Warp& warp : b.warps)
        if (warp.at[id]) learn(warp.far, all), warp.all_began |= began;
}

static u64 barrier_bit(u64 pc) { return u64(1) << (pc * 0x9e3779b97f4a7c15u >> 58); }

// Threads that return early do not count at a barrier. One that has returned without ever coming to this one and touched memory last at a
// place behind it has gone around it: whether that place is behind is for the lines of the source to say (findings.py).
static void skipped(Worker& w, Block& b, int id) {
    const Fiber* waits = nullptr;
    for (Warp& warp : b.warps)
        if (warp.at[id]) waits = &warp.lanes[__builtin_ctz(warp.at[id])];
    if (!waits) return;
    for (Warp& warp : b.warps) {
        u32 around = 0;
        for (u32 todo = warp.exited; todo; todo &= todo - 1) {
            const Fiber& f = warp.lanes[__builtin_ctz(todo)];
            if (f.last && !(f.barriers & barrier_bit(waits->pc))) around |= 1u << f.lane;
        }
        if (!around) continue;
        const Fiber& gone = warp.lanes[__builtin_ctz(around)];
        if (Finding* found = report(w, *waits, BARRIER_DIVERGENCE, waits->pc, gone.last)) {
            other_thread(*found, gone);
            found->detail[0] = 1;
            say(*found, "%d threads of a warp have returned without coming to this barrier, at which others of the block wait",
                __builtin_popcount(around));
        }
    }
}

bool try_barrier(Worker& w, Block& b, int id, const Fiber* last) {
    Barrier& bar = b.barriers[id];
    const u32 needed = bar.expected ? bar.expected : b.live;
    if (bar.arrived == 0 || bar.arrived < needed) return false;
    const bool everyone = bar.arrived >= b.live;
    if (!everyone) join_warps(w, b, id);
    join_far(b, id, everyone);
    if (everyone && !bar.expected && b.live < b.threads) skipped(w, b, id);
    for (Warp& warp : b.warps) {
        const u32 lanes = warp.at[id];
        if (!lanes) continue;
        warp.at[id] = 0;
        warp.coming[id] &= ~lanes;
        mode_met(warp, warp.meeting[id]);
        for (u32 todo = lanes; todo; todo &= todo - 1) {
            Fiber& f = warp.lanes[__builtin_ctz(todo)];
            f.state = READY;
            f.result = static_cast<int>(bar.yes), f.met = bar.arrived;
        }
        make_ready(w, warp, last && last->warp == &warp ? lanes & ~(1u << last->lane) : lanes);
    }
    if (everyone) new_epoch(w, b);
    bar.arrived = bar.expected = bar.yes = 0;
    progress(w);
    return true;
}

__attribute__((noinline)) int block_barrier(int id, int threads, Reduce reduce, int predicate) {
    Worker& w = *worker;
    Fiber& f = *w.current;
    Block& b = *f.block;
    f.pc = SIMT_PC();
    if (id < 0 || id > 15) stop_at(SIMT_PC(), "a barrier with a number other than 0 to 15");
    if (!f.warp->coming[id]) f.warp->meeting[id] = ++f.warp->meetings;
    f.warp->coming[id] |= 1u << f.lane;
    mode_sync(w, f, f.warp->meeting[id]);
    Barrier& bar = b.barriers[id];
    if (bar.arrived == 0) bar.pc = f.pc;
    if (bar.pc != f.pc && id == 0 && threads == 0) {   // named barriers are for meeting from different places
        if (Finding* found = report(w, f, BARRIER_DIVERGENCE, f.pc, bar.pc)) say(*found, "threads of one block wait at different barriers");
    }
    ++bar.arrived;
    bar.expected = static_cast<u32>(threads);
    bar.yes += predicate != 0;
    f.state = AT_BARRIER, f.barrier = static_cast<u8>(id);
    f.warp->at[id] |= 1u << f.lane;
    f.barriers |= barrier_bit(f.pc);
    if (!try_barrier(w, b, id, &f)) park(w, f);
    switch (reduce) {
        case AND: return f.result == static_cast<int>(f.met);
        case OR: return f.result != 0;
        default: return f.result;
    }
}

__attribute__((noinline)) void block_arrive(int id, int threads) {
    Worker& w = *worker;
    Fiber& f = *w.current;
    mode_sync(w, f);
    Barrier& bar = f.block->barriers[id];
    ++bar.arrived;
    bar.expected = static_cast<u32>(threads);
    try_barrier(w, *f.block, id, nullptr);
}

// -- clusters and the grid -----------------------------------------------------------------------------------------------------------

void try_cluster(Worker& w, Unit& u, u32 cluster) {
    if (u.cluster_arrived[cluster] == 0 || u.cluster_arrived[cluster] < u.cluster_live[cluster]) return;
    u.cluster_arrived[cluster] = 0;
    ++u.cluster_phase[cluster];
    const u64 epoch = ++w.epoch << EPOCH_SHIFT;
    for (u32 i = cluster * u.cluster_blocks; i < (cluster + 1) * u.cluster_blocks && i < u.blocks.size(); ++i) {
        Block& b = u.blocks[i];
        b.epoch = b.cluster_epoch = epoch;
        for (Warp& warp : b.warps) {
            u32 woken = 0;
            for (u32 todo = warp.valid; todo; todo &= todo - 1)
                if (Fiber& f = warp.lanes[__builtin_ctz(todo)]; f.state == AT_CLUSTER) f.state = READY, woken |= 1u << f.lane;
            make_ready(w, warp, woken);
        }
    }
    progress(w);
}

__attribute__((noinline)) void cluster_arrive() {
    Worker& w = *worker;
    Fiber& f = *w.current;
    f.pc = SIMT_PC();
    mode_sync(w, f);
    const u32 c = cluster_of(f);
    f.cluster_phase = w.unit->cluster_phase[c] + 1;
    ++w.unit->cluster_arrived[c];
    try_cluster(w, *w.unit, c);
}

__attribute__((noinline)) void cluster_wait() {
    Worker& w = *worker;
    Fiber& f = *w.current;
    f.pc = SIMT_PC();
    mode_sync(w, f);
    while (w.unit->cluster_phase[cluster_of(f)] < f.cluster_phase) {
        f.state = AT_CLUSTER;
        park(w, f);
    }
    f.warp->all_began = true;
}

void try_grid(Worker& w, Unit& u) {
    if (u.grid_arrived == 0 || u.grid_arrived < u.live) return;
    for (const Block& b : u.blocks)
        if (b.warps[0].exited & 1) return;         // the first thread of a block comes for all of it
    u.grid_arrived = 0;
    for (Block& b : u.blocks) {
        new_epoch(w, b);
        b.cluster_epoch = b.epoch;
        for (Warp& warp : b.warps) {
            u32 woken = 0;
            for (u32 todo = warp.valid; todo; todo &= todo - 1)
                if (Fiber& f = warp.lanes[__builtin_ctz(todo)]; f.state == AT_GRID) f.state = READY, woken |= 1u << f.lane;
            make_ready(w, warp, woken);
        }
    }
    mode_new_grid_phase(*w.launch);
    progress(w);
}

__attribute__((noinline)) void grid_barrier() {
    Worker& w = *worker;
    Fiber& f = *w.current;
    f.pc = SIMT_PC();
    mode_sync(w, f);
    if (!w.launch->cooperative) stop_at(SIMT_PC(), "a barrier of the grid in a launch that is not cooperative");
    f.state = AT_GRID;
    ++w.unit->grid_arrived;
    try_grid(w, *w.unit);
    if (f.state == AT_GRID) {
        park(w, f);
    } else {
        f.warp->ready &= ~(1u << f.lane);
    }
    f.warp->all_began = true;
}
}  // namespace simt
